"""State in files: what a processor reads of each type is the same before a snapshot and after a restore."""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql import types as T

from fastbuf.checkpoint.state import Timers
from fastbuf.checkpoint.store import CheckpointError
from fastbuf.errors import ConfigError
from fastbuf_spark.streams.state_files import TIMERS, decode_state, encode_state
from fastbuf_spark.streams.state_values import keys_of
from fastbuf_spark.streams.stateful import Handle, _Here

UTC = datetime.UTC
MOMENT = datetime.datetime(2024, 3, 10, 1, 2, 3, 456789)
NAN = float("nan")

VALUES: dict[str, tuple[T.DataType, list[Any]]] = {
    "boolean": (T.BooleanType(), [True, False, np.bool_(True)]),
    "byte": (T.ByteType(), [-128, 127]),
    "short": (T.ShortType(), [-(1 << 15)]),
    "int": (T.IntegerType(), [1, -(1 << 31), np.int32(7)]),
    "long": (T.LongType(), [(1 << 63) - 1, np.int64(5)]),
    "float": (T.FloatType(), [0.1, -0.0, math.inf, NAN, np.float32(0.3)]),
    "double": (T.DoubleType(), [0.1, -0.0, NAN, 3, np.float64(1.5)]),
    "string": (T.StringType(), ["", "ü\0x", "a" * 1000]),
    "binary": (T.BinaryType(), [b"", b"\0\xff", bytearray(b"xy")]),
    "date": (T.DateType(), [datetime.date(1, 1, 1), datetime.date(2024, 2, 29)]),
    "timestamp": (
        T.TimestampType(),
        [MOMENT, MOMENT.replace(tzinfo=UTC), datetime.datetime(1900, 1, 1), pd.Timestamp(MOMENT)],
    ),
    "timestamp_ntz": (T.TimestampNTZType(), [MOMENT]),
    "decimal": (T.DecimalType(20, 2), [Decimal("1.5"), Decimal("-99999.99")]),
    "interval": (T.DayTimeIntervalType(), [datetime.timedelta(days=-1, microseconds=5)]),
    "array": (T.ArrayType(T.TimestampType()), [[], [MOMENT, None]]),
    "map": (T.MapType(T.StringType(), T.LongType()), [{}, {"a": 1, "b": None}]),
    "struct": (
        T.StructType([T.StructField("a", T.LongType()), T.StructField("m", T.MapType(T.LongType(), T.DateType()))]),
        [Row(a=1, m={5: datetime.date(2024, 1, 1)}), (2, None), {"a": 3, "m": {}}],
    ),
    "structs": (
        T.ArrayType(T.StructType([T.StructField("t", T.TimestampType())])),
        [[Row(t=MOMENT.replace(tzinfo=UTC)), None]],
    ),
}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (a != a and b != b) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


class Held:
    """A handle of one key, and what a restore makes of it."""

    def __init__(self, ask: Any) -> None:
        self.ask = ask
        self.here = _Here()
        self.here.group, self.here.key = 0, ("k",)
        self.handle = Handle(self.here, Timers(), True, {})
        self.state = ask(self.handle)

    def restored(self) -> Held:
        keys = [pa.field("key", pa.string())]
        parts = [(s.variable, dict(s.entries.items(0))) for s in self.handle.states.values()]
        data = encode_state(keys, parts)
        made = Held(self.ask)
        made.here.now_ms = self.here.now_ms
        variables = {name: state.variable for name, state in made.handle.states.items()}
        for name, entries in decode_state(data, keys, variables):
            made.handle.states[name].entries.restore(0, entries)
        return made


def one(kind: T.DataType) -> T.StructType:
    return T.StructType([T.StructField("v", kind)])


@pytest.mark.parametrize("name", VALUES)
def test_values_of_each_type(name: str) -> None:
    kind, values = VALUES[name]
    for value in [*values, None]:
        held = Held(lambda handle: handle.getValueState("s", one(kind)))
        held.state.update((value,))
        restored = held.restored()
        assert same(restored.state.get(), held.state.get()), f"{value!r}: {held.state.get()}, {restored.state.get()}"
        assert restored.state.exists()


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as here:
        here.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("day", ["2024-03-31", "2024-10-27"])
def test_times_when_the_clocks_change(day: str) -> None:
    """Frames have times of the session's zone: some of these the local zone has not, some it has twice."""
    for minute in range(0, 300, 15):
        for zone in (None, "UTC"):
            moment = pd.Timestamp(day, tz=zone) + pd.Timedelta(minute, unit="min")
            held = Held(lambda handle: handle.getValueState("s", one(T.TimestampType())))
            held.state.update((moment,))
            assert held.restored().state.get() == held.state.get(), moment


@pytest.mark.parametrize("name", VALUES)
def test_lists_of_each_type(name: str) -> None:
    kind, values = VALUES[name]
    held = Held(lambda handle: handle.getListState("s", one(kind)))
    held.state.put([(value,) for value in values])
    held.state.appendValue((None,))
    restored = held.restored()
    assert same(list(restored.state.get()), list(held.state.get()))


HASHABLE = sorted(set(VALUES) - {"array", "map", "struct", "structs"})


@pytest.mark.parametrize("name", HASHABLE)
def test_maps_with_keys_of_each_type(name: str) -> None:
    kind, values = VALUES[name]
    held = Held(lambda handle: handle.getMapState("s", one(kind), one(T.LongType())))
    for i, value in enumerate(values):
        held.state.updateValue((value,), (i,))
    restored = held.restored()
    assert same(list(restored.state.iterator()), list(held.state.iterator()))
    for value in values:
        assert restored.state.getValue((value,)) == held.state.getValue((value,))
        assert restored.state.containsKey((value,))
    for value in values:
        restored.state.removeKey((value,))
    assert not restored.state.exists()


def test_nan_and_minus_zero_are_one_key_each_of_a_map() -> None:
    held = Held(lambda handle: handle.getMapState("s", one(T.DoubleType()), one(T.LongType())))
    held.state.updateValue((float("nan"),), (1,))
    held.state.updateValue((-0.0,), (2,))
    for each in (held, held.restored()):
        assert each.state.getValue((float("nan") * 1,)) == (1,)
        assert each.state.getValue((0.0,)) == (2,)
        each.state.updateValue((np.float64("nan"),), (3,))
        assert len(list(each.state.keys())) == 2


KEYS: dict[str, pa.Array] = {
    "nan": pa.array([float("nan"), float("nan"), None]),
    "zeros": pa.array([0.0, -0.0, 1.0]),
    "float": pa.array([float("nan"), float("nan"), 0.1], pa.float32()),
    "dates": pa.array([datetime.date(1, 1, 1), datetime.date(1, 1, 1), None]),
    "zoned": pa.array([MOMENT, MOMENT, None], pa.timestamp("us", "America/New_York")),
    "decimal": pa.array([Decimal("1.50"), Decimal("1.50"), None]),
    "binary": pa.array([b"\0", b"\0", b""]),
    "string": pa.array(["ä", "ä", ""]),
    "boolean": pa.array([True, True, None]),
    "array": pa.array([[float("nan"), None], [float("nan"), None], []]),
    "struct": pa.array([{"a": -0.0, "b": [1]}, {"a": 0.0, "b": [1]}, None]),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_each_type(name: str) -> None:
    column = KEYS[name]
    keys = keys_of([column])
    assert keys[0] == keys[1]
    assert len({key: None for key in keys}) == 2
    fields = [pa.field("key", column.type)]
    handle = Handle(_Here(), Timers(), True, {})
    state = handle.getValueState("s", one(T.LongType()))
    held = {keys[0]: (0, (1,)), keys[2]: (0, (2,))}
    timers = {keys[0]: (5, 7), keys[2]: (6,)}
    data = encode_state(fields, [(state.variable, held), (None, timers)])
    found = dict(decode_state(data, fields, {"s": state.variable}))
    assert found["s"] == held
    assert found[TIMERS] == timers
    assert {key: found["s"][key][1] for key in keys} == {keys[0]: (1,), keys[2]: (2,)}


def test_what_a_user_changes_in_place_changes_no_state() -> None:
    """In Spark a value is a copy, on its way in and on its way out."""
    kind = T.StructType([T.StructField("a", T.ArrayType(T.LongType())), T.StructField("b", T.LongType())])
    held = Held(lambda handle: handle.getValueState("s", kind))
    mine = [1]
    held.state.update((mine, 5))
    mine.append(2)
    held.state.get()[0].append(3)
    assert held.state.get() == ([1], 5)


def test_times_to_live() -> None:
    for ask, put in (
        (lambda h: h.getValueState("s", one(T.LongType()), 10), lambda s: s.update((1,))),
        (lambda h: h.getListState("s", one(T.LongType()), 10), lambda s: s.put([(1,)])),
        (
            lambda h: h.getMapState("s", one(T.LongType()), one(T.LongType()), 10),
            lambda s: s.updateValue((1,), (1,)),
        ),
    ):
        held = Held(ask)
        held.here.now_ms = 1000
        put(held.state)
        held.here.now_ms = 1009
        for each in (held, held.restored()):
            assert each.state.exists()
            each.here.now_ms = 1010
            assert not each.state.exists()
            each.state.expire(0, 1010)
            assert len(each.state.entries) == 0


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda h: h.getValueState("s", one(T.StringType())), r"is \{.*bigint.*asks for \{.*string"),
        (lambda h: h.getListState("s", one(T.LongType())), r"'kind': 'value'.*'kind': 'list'"),
        (
            lambda h: h.getValueState("other", one(T.LongType())),
            "has a state 's', which the processor does not ask for",
        ),
    ],
)
def test_another_schema_is_refused(ask: Any, words: str) -> None:
    held = Held(lambda handle: handle.getValueState("s", one(T.LongType())))
    held.state.update((1,))
    held.ask = ask
    with pytest.raises(CheckpointError, match=words):
        held.restored()


def test_other_keys_are_refused() -> None:
    held = Held(lambda handle: handle.getValueState("s", one(T.LongType())))
    held.state.update((1,))
    data = encode_state([pa.field("key", pa.string())], [(held.state.variable, dict(held.state.entries.items(0)))])
    with pytest.raises(CheckpointError, match=r"is of keys \['key string'\], the stream's are \['key int64'\]"):
        dict(decode_state(data, [pa.field("key", pa.int64())], {"s": held.state.variable}))


def test_a_value_that_does_not_fit_is_named() -> None:
    held = Held(lambda handle: handle.getValueState("s", one(T.ByteType())))
    held.state.update((1000,))
    with pytest.raises(CheckpointError, match="a value of state 's' does not fit its schema struct<v:tinyint>"):
        held.restored()
    with pytest.raises(ConfigError, match=r"a state value has 2 fields, its schema 1: \['v'\]"):
        held.state.update((1, 2))
    of_times = Held(lambda handle: handle.getValueState("s", one(T.TimestampType())))
    with pytest.raises(ConfigError, match=r"does not fit its schema struct<v:timestamp>: \('monday',\)"):
        of_times.state.update(("monday",))

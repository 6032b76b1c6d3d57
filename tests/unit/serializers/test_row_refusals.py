"""A refused record names itself and leaves what it was to be written to as it was."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import fastbuf as fb
from fastbuf.errors import ConfigError, RecordError, RecordTooLong
from fastbuf.serializers import RowSerializer, Schema

SCHEMA = Schema.of(
    id="int32", name="string", price="decimal(6,2)?", vec="list<int8>", inner="struct<x: uint16, tags: list<string>>"
)
GOOD = [(i, f"name {i}", Decimal(i), [i % 100], (i, ["a", "b"])) for i in range(50)]
BAD: list[tuple[Any, str, str]] = [
    ((2**31, "n", None, [], (1, [])), "id", "2147483648 (int)"),
    (("1", "n", None, [], (1, [])), "id", "'1' (str)"),
    ((True, "n", None, [], (1, [])), "id", "True (bool)"),
    ((None, "n", None, [], (1, [])), "id", "None"),
    ((1, b"n", None, [], (1, [])), "name", "b'n' (bytes)"),
    ((1, "\udc80", None, [], (1, [])), "name", "surrogates"),
    ((1, "n", Decimal("1.001"), [], (1, [])), "price", "Decimal('1.001')"),
    ((1, "n" * 9000, None, [1, 200], (1, [])), "vec[]", "200 (int)"),
    ((1, "n", None, [1, None], (1, [])), "vec[]", "None"),
    ((1, "n", None, [], (-1, [])), "inner.x", "-1 (int)"),
    ((1, "n", None, [], (1, ["a", 5])), "inner.tags[]", "5 (int)"),
]


@pytest.mark.parametrize(("record", "field", "value"), BAD)
def test_dumps_names_field_value_and_number(record: Any, field: str, value: str) -> None:
    rows = RowSerializer(SCHEMA)
    with pytest.raises(RecordError) as raised:
        rows.dumps([*GOOD, record, *GOOD])
    message = str(raised.value)
    assert message.startswith(f"record 50: field '{field}' (")
    assert value in message
    assert rows.loads(rows.dumps(GOOD)) == GOOD


def test_objects_and_dicts_are_named_alike() -> None:
    @dataclasses.dataclass
    class Record:
        id: int
        name: Any

    rows = RowSerializer(Schema.of(id="int64", name="string"))
    for bad in (Record(1, 2), {"id": 1, "name": 2}, [1, 2]):
        with pytest.raises(
            RecordError, match=r"record 1: field 'name' \(string\) cannot hold 2 \(int\): a str is needed"
        ):
            rows.dumps([(1, "a"), bad])


def test_a_segment_is_left_as_it_was() -> None:
    # Each bad record is refused in the middle of a segment, at its end, and where it would have begun the next.
    rows = RowSerializer(SCHEMA)
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        writer, gates = env.exchange(serializer=rows, consumers=1, selector=fb.forward())
        sent = []
        for i in range(200):
            writer.emit(GOOD[i % 50])
            sent.append(GOOD[i % 50])
            bad, field, _ = BAD[i % len(BAD)]
            with pytest.raises(RecordError, match=field.replace("[]", r"\[\]")):
                writer.emit(bad)
        writer.close()
        assert list(gates[0]) == sent


def test_too_long_a_record_leaves_it_too() -> None:
    rows = RowSerializer(Schema.of(text="string"))
    config = fb.ExchangeConfig(max_record_bytes=10_000)
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        writer, gates = env.exchange(serializer=rows, consumers=1, selector=fb.forward(), config=config)
        for text in ("a", "b" * 5000):
            writer.emit((text,))
            with pytest.raises(RecordTooLong, match="max_record_bytes"):
                writer.emit(("x" * 20_000,))
        writer.close()
        assert list(gates[0]) == [("a",), ("b" * 5000,)]


@pytest.mark.parametrize("kind", ["timestamp[ns]", "timestamp[us]", "duration[ns]"])
def test_nanoseconds_of_pandas_are_refused(kind: str) -> None:
    """They were lost; Python's datetime, which rows come out as, has none."""
    pd = pytest.importorskip("pandas", reason="the times are pandas'")
    made = pd.Timedelta if kind == "duration[ns]" else pd.Timestamp
    rows = RowSerializer(Schema.of(t=kind))
    assert rows.loads(rows.dumps([(made(5000),)])) == [(made(5000),)]
    with pytest.raises(RecordError, match=r"record 1: field 't' .* it has nanoseconds"):
        rows.dumps([(made(5000),), (made(5001),)])


@pytest.mark.parametrize(
    "kind", ["timestamp[us]", "timestamp[ns]?", "date32", "duration[us]", "int64?", "string", "float64"]
)
def test_what_is_no_value_is_told(kind: str) -> None:
    """NaT is a datetime for Python, and NA anything: neither has nanoseconds, and None is what to give."""
    pd = pytest.importorskip("pandas", reason="NaT and NA are pandas'")
    rows = RowSerializer(Schema.of(t=kind))
    for value in (pd.NaT, pd.NA, np.datetime64("NaT"), np.timedelta64("NaT", "us")):
        with pytest.raises(
            RecordError, match=r"record 0: field 't' .*: it is no value: give None, and a field that may"
        ):
            rows.dumps([(value,)])
    nullable = RowSerializer(Schema.of(t=kind.rstrip("?") + "?"))
    assert nullable.loads(nullable.dumps([(None,)])) == [(None,)]


def test_a_subclass_that_was_not_made() -> None:
    """Its ``__init__`` did not call the one above: an error, where the process ended."""

    class Rows(RowSerializer):
        def __init__(self) -> None:
            pass

    rows, block = Rows(), RowSerializer(Schema.of(n="int64")).dumps([(1,)])
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        for used in (
            lambda: rows.dumps([(1,)]),
            lambda: rows.encode((1,)),
            lambda: rows.decode(bytes(8)),
            lambda: env.exchange(serializer=rows),
        ):
            with pytest.raises(ConfigError, match=r"Rows\.__init__ has not called super\(\)\.__init__"):
                used()
        for read in (rows.loads, rows.view):
            with pytest.raises((fb.FastbufError, TypeError)):
                read(block)

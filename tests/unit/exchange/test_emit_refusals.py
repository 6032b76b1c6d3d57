"""What a writer refuses: the error says which record, the writer goes on, and nothing but the refused is missing."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import itertools
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import fastbuf as fb
from fastbuf.errors import RecordError, RecordTooLong, SchemaMismatch

SCHEMA = fb.Schema.of(id="int32", name="string", price="decimal(6,2)?", inner="struct<x: uint16, tags: list<string>>")
BAD: list[tuple[Any, str]] = [
    ((2**31, "n", None, (1, [])), r"field 'id' \(int32\) cannot hold 2147483648"),
    (("1", "n", None, (1, [])), r"field 'id' \(int32\) cannot hold '1'"),
    ((None, "n", None, (1, [])), r"field 'id' \(int32\) is None and not nullable"),
    ((1, None, None, (1, [])), r"field 'name' \(string\) is None and not nullable"),
    ((1, "n", Decimal("12345.67"), (1, [])), r"field 'price' \(decimal128\(6,2\)\) cannot hold Decimal"),
    ((1, "n", None, (1, [None])), r"field 'inner\.tags\[\]' \(string\) is None and not nullable"),
    ((1, "n", None, (70000, [])), r"field 'inner\.x' \(uint16\) cannot hold 70000"),
    ((1, "n"), "it has 2 fields, not 4"),
    ({"id": 1}, "it has no field 'name'"),
    (7, "a record is a tuple, list, dict or object"),
]
SELECTORS = {
    "forward": fb.forward,
    "round robin": fb.round_robin,
    "broadcast": fb.broadcast,
    "hash": lambda: fb.hash_by("id", "name", "price", "inner"),
    "hash of one": lambda: fb.hash_by("id"),
    "range": lambda: fb.range_by("id", bounds=_bounds()),
}


def _bounds() -> Any:
    pa = pytest.importorskip("pyarrow", reason="bounds are a record batch")
    return pa.record_batch({"id": pa.array([3], pa.int32())})


def good(i: int) -> tuple[Any, ...]:
    return i, f"name {i}", None, (i, ["t"] * (i % 3))


@contextmanager
def exchange(serializer: Any, **settings: Any) -> Iterator[tuple[Any, Any]]:
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        writer, gates = env.exchange(serializer=serializer, **settings)
        yield writer, gates
        if not writer.closed:
            writer.close()
        for gate in gates:
            gate.close()
        assert env.pool.available == 64


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("way", ["emit", "emit_many", "try_emit"])
def test_the_error_names_record_field_and_value(way: str, selector: str) -> None:
    rows = fb.RowSerializer(SCHEMA)
    with exchange(rows, consumers=2, selector=SELECTORS[selector]()) as (writer, gates):
        sent = 0
        for bad, what in BAD:
            before = writer.stats()["bytes"]
            given = [good(sent), bad, good(99)] if way == "emit_many" else bad
            with pytest.raises(RecordError, match=rf"^record {sent + (way == 'emit_many')}: .*{what}"):
                getattr(writer, way)(given)
            if way != "emit_many":
                assert writer.stats()["bytes"] == before
                writer.emit(good(sent))
            sent += 1
            assert writer.records == sent
        writer.close()
        assert rows.dumps(rows.loads(rows.dumps([good(1)])))  # the serializer is fit for use as well
        times = 2 if selector == "broadcast" else 1
        assert sorted(r for gate in gates for r in gate) == sorted([good(i) for i in range(sent)] * times)


@pytest.mark.parametrize("selector", [fb.forward, fb.broadcast, lambda: fb.hash_by("t")])
def test_a_record_that_is_too_long_is_named_by_its_number_too(selector: Any) -> None:
    rows = fb.RowSerializer(fb.Schema.of(t="string"))
    config = fb.ExchangeConfig(max_record_bytes=9000)
    with exchange(rows, selector=selector(), config=config) as (writer, gates):
        for i in range(4):
            writer.emit((f"{i}",))
            with pytest.raises(RecordTooLong, match=rf"^record {i + 1}: it takes 10004 bytes, .*max_record_bytes"):
                writer.emit(("x" * 10_000,))
        writer.close()
        assert list(gates[0]) == [(f"{i}",) for i in range(4)]


def test_what_a_users_function_raises_is_the_users() -> None:
    def choose(record: Any, n: int) -> int:
        return {}[record[0]]  # KeyError

    with exchange(fb.RowSerializer(SCHEMA), selector=fb.custom(choose)) as (writer, _):
        with pytest.raises(KeyError):
            writer.emit(BAD[0][0])
        assert writer.records == 0


class Named(collections.namedtuple("Named", "id name")):
    pass


@dataclasses.dataclass
class Data:
    id: int
    name: str


@pytest.mark.parametrize("selector", [lambda: fb.hash_by("name", "id"), fb.round_robin])
def test_records_of_every_form_are_emitted(selector: Any) -> None:
    msgspec = pytest.importorskip("msgspec", reason="Structs are one of the forms")
    from pyspark.sql import Row

    struct = msgspec.defstruct("Struct", [("id", int), ("name", str)])
    forms = [lambda i, n: (i, n), lambda i, n: [i, n], lambda i, n: {"name": n, "id": i}, Named, Data, struct]
    forms.append(Row("id", "name"))
    rows = fb.RowSerializer(fb.Schema.of(id="int64", name="string"))
    forms.append(lambda i, n: rows.lazy(rows.encode((i, n))))
    with exchange(rows, consumers=3, selector=selector()) as (writer, gates):
        for i in range(20):
            writer.emit_many(make(i, f"n{i}") for make in forms)
        writer.close()
        got = [list(gate) for gate in gates]
        assert sorted(r for part in got for r in part) == sorted([(i, f"n{i}") for i in range(20)] * len(forms))
        if selector is not fb.round_robin:
            assert all(part.count(row) == len(forms) for part in got for row in part)


# ---- batches


def test_a_batch_with_a_row_that_is_too_long_goes_whole_or_not_at_all() -> None:
    """The writer kept the batch, half of it written, and refused everything after it, its own close too."""
    pa = pytest.importorskip("pyarrow", reason="batches are pyarrow's")
    schema = pa.schema([("k", pa.int64()), ("t", pa.string())])
    texts = [f"{i}" * (i % 40) for i in range(500)]
    fine = pa.record_batch([range(500), texts], schema)
    bad = pa.record_batch([range(500), [*texts[:321], "x" * 10_000, *texts[322:]]], schema)
    config = fb.ExchangeConfig(max_record_bytes=9000)
    for copies, selector in ((1, fb.hash_by("k")), (2, fb.broadcast()), (1, fb.forward(1)), (1, fb.round_robin())):
        serializer = fb.ColumnarSerializer(schema)
        with exchange(serializer, consumers=2, selector=selector, config=config) as (writer, gates):
            writer.emit_batch(fine)
            before = writer.stats()
            for refuse in (writer.emit_batch, writer.try_emit_batch):
                with pytest.raises(RecordTooLong, match=r"row 321 of the batch takes 10,0\d\d bytes, .*=9,000"):
                    refuse(bad)
            assert writer.stats() == before
            writer.emit_batch(fine.slice(7, 80))
            writer.close()
            found = pa.Table.from_batches([b for gate in gates for b in gate], schema).sort_by("k")
            sent = pa.Table.from_batches([fine, fine.slice(7, 80)]).sort_by("k")
            assert found.num_rows == sent.num_rows * copies
            assert set(found["t"].to_pylist()) == set(sent["t"].to_pylist())


def test_many_rows_may_be_longer_than_the_longest_row() -> None:
    pa = pytest.importorskip("pyarrow", reason="batches are pyarrow's")
    config = fb.ExchangeConfig(max_record_bytes=300)
    for column in (
        pa.array(["x" * (i % 200) for i in range(300)]),
        pa.array([["y" * 20] * (i % 6) for i in range(300)]),
        pa.array([f"{i % 3}" * 100 for i in range(300)]).dictionary_encode(),
        pa.array([[float(i)] * 16 for i in range(300)], pa.list_(pa.float64(), 16)),
    ):
        batch = pa.record_batch([column], ["c"])
        with exchange(fb.ColumnarSerializer(batch.schema), consumers=2, selector=fb.round_robin(), config=config) as (
            writer,
            gates,
        ):
            writer.emit_batch(batch)
            writer.close()
            assert sum(b.num_rows for gate in gates for b in gate) == 300


def test_a_batch_of_another_schema_leaves_the_writer_as_it_was() -> None:
    pa = pytest.importorskip("pyarrow", reason="batches are pyarrow's")
    batch = pa.record_batch({"k": pa.array(range(10), pa.int32())})
    for selector in (
        fb.hash_by("k"),
        fb.range_by("k", sample=batch),
        fb.round_robin(),
        fb.custom(lambda b, n: [5] * 10),
    ):
        with exchange(fb.ColumnarSerializer(batch.schema), consumers=2, selector=selector) as (writer, gates):
            with pytest.raises((SchemaMismatch, ValueError)):
                writer.emit_batch(pa.record_batch({"k": ["text"] * 10}))
            assert writer.records == 0
            writer.close()
            assert not [b for gate in gates for b in gate]


def test_structured_arrays_are_batches_too() -> None:
    pytest.importorskip("pyarrow", reason="they travel as record batches")
    data = np.zeros(1000, [("k", "<i8"), ("x", "<f4"), ("at", "<M8[us]")])
    data["k"], data["x"] = np.arange(1000) % 17, np.arange(1000)
    schema = fb.Schema.from_numpy(data.dtype)
    selectors = [fb.hash_by("k"), fb.range_by("k", sample=data), fb.round_robin(), fb.shuffle(1), fb.forward(1)]
    for selector in (*selectors, fb.rescale(0, 1), fb.broadcast()):
        with exchange(fb.ColumnarSerializer(schema), consumers=3, selector=selector) as (writer, gates):
            writer.emit_batch(data)
            assert writer.records == 1000
            writer.close()
            got = [[b.column("x").to_numpy() for b in gate] for gate in gates]
            total = sum(len(x) for part in got for x in part)
            assert total == (3000 if type(selector) is type(fb.broadcast()) else 1000)
            keys = [{data["k"][int(x)] for xs in part for x in xs} for part in got]
            if hasattr(selector, "keys"):
                assert sum(map(len, keys)) == 17


def test_refused_dates_and_decimals_are_named_before_they_are_hashed() -> None:
    schema = fb.Schema.of(d="date32", t="timestamp[us,UTC]", x="decimal(38,10)")
    fine = (dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC), Decimal("1.5"))
    with exchange(fb.RowSerializer(schema), consumers=4, selector=fb.hash_by("d", "t", "x")) as (writer, gates):
        for bad, name in (
            (("2020", *fine[1:]), "d"),
            ((fine[0], "now", fine[2]), "t"),
            ((*fine[:2], "1.5x"), "x"),
            ((*fine[:2], Decimal("NaN")), "x"),
            ((*fine[:2], Decimal("1e300")), "x"),
        ):
            with pytest.raises(RecordError, match=f"^record 0: field '{name}'"):
                writer.emit(bad)
        writer.emit(fine)
        writer.close()
        assert [r for gate in gates for r in gate] == [fine]


@pytest.mark.parametrize("length", [3000, 20_000], ids=["fits the open buffer", "does not"])
def test_a_refused_object_is_pickled_anew(length: int) -> None:
    """A record that was too long may be shortened in place, or be sent by another writer after a change."""
    low, high = fb.ExchangeConfig(max_record_bytes=2000), fb.ExchangeConfig(max_record_bytes=1 << 20)
    pickles = fb.PickledSerializer()
    with fb.ShuffleEnvironment(segments=64, segment_size=8192) as env:
        gates = [env.create_input_gate(pickles, channels=1, config=config) for config in (low, high)]
        first, second = (env.create_result_partition(pickles, [gate], config=gate.config) for gate in gates)
        record = [1, "x" * length]
        with pytest.raises(RecordTooLong):
            first.emit(record)
        record[0] = 2
        second.emit(record)
        with pytest.raises(RecordTooLong):
            first.emit(record)
        record[1] = "short"
        first.emit(record)
        first.close()
        second.close()
        assert list(gates[0]) == [[2, "short"]]
        assert list(gates[1]) == [[2, "x" * length]]


@pytest.mark.parametrize("kind", ["binary", "fixed_size_binary(4)", "string"])
@pytest.mark.parametrize("key", [1 << 40, 3, [1, 2], np.int64(5)])
def test_a_key_that_should_be_bytes_is_refused_by_name(kind: str, key: Any) -> None:
    """``bytes(n)`` of an int would be that many zeros."""
    rows = fb.RowSerializer(fb.Schema.of(k=kind))
    with (
        exchange(rows, selector=fb.hash_by("k")) as (writer, _),
        pytest.raises(RecordError, match=r"record 0: .*'k'"),
    ):
        writer.emit((key,))


@pytest.mark.parametrize(
    "write",
    [
        lambda writer: [writer.emit((k,)) for k in itertools.count()],
        lambda writer: writer.emit_many((k,) for k in itertools.count()),
        lambda writer: writer.emit_many([(k,) for k in range(100_000)]),
    ],
    ids=["emit", "emit_many of a generator", "emit_many of a list"],
)
def test_an_interrupted_record_is_counted_and_goes_once(write: Any) -> None:
    """Ctrl-C while a record waited: it went with the next one, and `records` left it out for ever."""

    def interrupt(_: object, frame: Any) -> None:
        if frame.f_code.co_filename.endswith("_weakrefset.py"):  # a callback of the collector, which would swallow it
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        else:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    over = threading.Event()
    threading.Thread(target=over.wait).start()  # the only thread would be told that nobody can ever read
    try:
        with exchange(fb.PickledSerializer()) as (writer, (gate,)):
            signal.setitimer(signal.ITIMER_REAL, 0.1)  # nobody reads: by then it waits
            with pytest.raises(KeyboardInterrupt):
                write(writer)
            sent = writer.records
            got: list[Any] = []
            reader = threading.Thread(target=lambda: got.extend(gate))
            reader.start()
            writer.emit((sent,))
            writer.close()
            reader.join(10)
            assert got == [(k,) for k in range(sent + 1)]
            assert writer.records == sent + 1
    finally:
        over.set()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("near", [True, False])
def test_rows_and_columns_of_one_schema_do_not_meet(near: bool) -> None:
    """They were let in, and their bytes read as the other's."""
    rows, columns = fb.RowSerializer(SCHEMA), fb.ColumnarSerializer(SCHEMA)
    with fb.ShuffleEnvironment(segments=64) as env, fb.ShuffleEnvironment(segments=64) as other:
        env.listen()
        for own, theirs in ((rows, columns), (columns, rows)):
            gate = env.create_input_gate(own, channels=1)
            with pytest.raises(SchemaMismatch, match="one of them has a RowSerializer and the other a Columnar"):
                (env if near else other).create_result_partition(theirs, [gate if near else gate.address])
            gate.close()
        assert env.pool.available == other.pool.available == 64

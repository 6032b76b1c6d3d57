"""The layers inside a process: segments, rows, columns, partitions."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Queue, SimpleQueue
from typing import Any

import numpy as np

import fastbuf as fb
from fastbuf.cli.bench.measure import Case, Size, Suite, Way, installed, need

SEGMENT = 32 * 1024
RECORDS = 1000
BATCH_ROWS = 10_000
BATCHES = 10
PICKLE = 5  #: the newest and fastest protocol
ROWS = fb.RowSerializer(fb.Schema.of(id="int64", key="int64", value="float64", name="string"))


@contextmanager
def segments(size: Size) -> Iterator[Case]:
    """Acquire and recycle segments of 32 KiB."""
    n = 10_000 // size.divide
    with fb.NetworkBufferPool(256, SEGMENT) as network, network.create_local_pool(64) as pool:

        def one_by_one() -> None:
            request = pool.request
            for _ in range(n):
                request().recycle()

        def many() -> None:
            request_many, recycle_many = pool.request_many, pool.recycle_many
            for _ in range(n // 20):
                recycle_many(request_many(20))

        def queued(queue: Any) -> Way:
            for _ in range(64):
                queue.put(bytearray(SEGMENT))

            def run() -> None:
                get, put = queue.get, queue.put
                for _ in range(n):
                    put(get())

            return run

        def allocated(make: Callable[..., Any], *arguments: Any) -> Way:
            def run() -> None:
                for _ in range(n):
                    make(*arguments)

            return run

        ways: dict[str, Way] = {
            "fastbuf": one_by_one,
            "fastbuf, 20 at once": many,
            "queue.Queue of bytearrays": queued(Queue()),
            "queue.SimpleQueue of bytearrays": queued(SimpleQueue()),
            "a new bytearray": allocated(bytearray, SEGMENT),
            "a new NumPy array": allocated(np.empty, SEGMENT, np.uint8),
        }
        if installed("pyarrow"):
            import pyarrow as pa

            ways["a new pyarrow buffer"] = allocated(pa.allocate_buffer, SEGMENT)
        yield Case("32 KiB taken and given back", "segment", n, ways)


def records_of(count: int) -> list[tuple[Any, ...]]:
    return [(i, i * 7919, i * 0.5, f"user-{i}") for i in range(count)]


def _row_ways() -> tuple[dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Any]], list[str]]:
    """Encoder, decoder and the encoder's input, for each library; and the missing libraries."""
    records = records_of(RECORDS)
    ways: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Any]] = {
        "fastbuf rows": (ROWS.dumps, ROWS.loads, records),
        "pickle 5": (lambda source: pickle.dumps(source, PICKLE), pickle.loads, records),
    }
    left_out = []
    if installed("msgspec"):
        import msgspec

        kinds = [("id", int), ("key", int), ("value", float), ("name", str)]
        # As msgspec advises for speed: arrays instead of names, and no garbage collection for records without cycles.
        record: Any = msgspec.defstruct("Record", kinds, array_like=True, gc=False)
        encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[record])
        ways["msgspec, Structs"] = (encoder.encode, decoder.decode, [record(*values) for values in records])
    else:
        left_out.append("msgspec, beside rows: not installed (pip install 'fastbuf[bench]')")
    if installed("msgpack"):
        import msgpack

        ways["msgpack"] = (
            msgpack.packb,
            lambda data: msgpack.unpackb(data, use_list=False),  # tuples instead of lists: the faster option
            records,
        )
    for name, (encode, decode, source) in ways.items():
        if list(decode(encode(source))) != source:
            raise AssertionError(f"{name} does not give back the records that it was given")
    return ways, left_out


def _call(work: Callable[[Any], Any], data: Any) -> Way:
    return lambda: work(data)


@contextmanager
def rows_written(size: Size) -> Iterator[Case]:
    ways, left_out = _row_ways()
    written = {name: _call(encode, source) for name, (encode, _, source) in ways.items()}
    yield Case("1,000 tuples to bytes", "row", RECORDS, written, left_out)


@contextmanager
def rows_read(size: Size) -> Iterator[Case]:
    ways, left_out = _row_ways()
    read = {name: _call(decode, encode(source)) for name, (encode, decode, source) in ways.items()}
    yield Case("bytes to 1,000 tuples", "row", RECORDS, read, left_out)


@contextmanager
def one_field_read(size: Size) -> Iterator[Case]:
    """Lazy rows decode only the fields that are read; the others must decode all."""
    ways, left_out = _row_ways()
    total = sum(record[1] for record in records_of(RECORDS))

    def checked(result: int) -> None:
        if result != total:
            raise AssertionError(f"the fields add up to {result}, not {total}")

    def summed(decode: Callable[[Any], Any], data: Any, field: Callable[[Any], int]) -> Way:
        return lambda: checked(sum(field(record) for record in decode(data)))

    block = ROWS.dumps(records_of(RECORDS))
    sums: dict[str, Way] = {"fastbuf rows, lazily": lambda: checked(int(ROWS.view(block).array("key").sum()))}
    for name, (encode, decode, source) in ways.items():
        field: Callable[[Any], int] = (lambda r: r.key) if name.startswith("msgspec") else (lambda r: r[1])
        sums[name] = summed(decode, encode(source), field)
    yield Case("one field of 1,000 tuples added up", "row", RECORDS, sums, left_out)


def batches(count: int) -> list[Any]:
    """Record batches of (int64 key, int64, float64, string), about 35 bytes a row."""
    import pyarrow as pa

    random = np.random.default_rng(1)
    result = []
    for b in range(count):
        key = random.integers(0, 1_000_003, BATCH_ROWS)
        number = np.arange(b * BATCH_ROWS, (b + 1) * BATCH_ROWS)
        names = pa.array([f"user-{k}" for k in key])
        result.append(pa.record_batch({"k": key, "id": number, "x": number * 0.5, "name": names}))
    return result


def _each(work: Callable[[Any], Any], items: list[Any]) -> Way:
    def run() -> None:
        for one in items:
            work(one)

    return run


def ipc(batch: Any) -> Any:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


@contextmanager
def columns_written(size: Size) -> Iterator[Case]:
    need("pyarrow", "columns", "arrow")
    data = batches(BATCHES // min(size.divide, BATCHES))
    serializer = fb.ColumnarSerializer(data[0].schema)
    ways = {
        "fastbuf columns": _each(serializer.dumps, data),
        "pyarrow IPC": _each(ipc, data),
        "pickle 5": _each(lambda batch: pickle.dumps(batch, PICKLE), data),
    }
    yield Case("a record batch of 10,000 rows to bytes", "row", len(data) * BATCH_ROWS, ways)


@contextmanager
def columns_read(size: Size) -> Iterator[Case]:
    """A batch that points into its encoded bytes.  fastbuf checks every offset, or trusts them as IPC does."""
    need("pyarrow", "columns", "arrow")
    import pyarrow as pa

    data = batches(BATCHES // min(size.divide, BATCHES))
    serializer = fb.ColumnarSerializer(data[0].schema)
    blocks, believed = ([serializer.dumps(batch) for batch in data] for _ in range(2))
    messages, pickles = [batch.serialize() for batch in data], [pickle.dumps(batch, PICKLE) for batch in data]
    schema = data[0].schema
    ways = {
        "fastbuf columns": _each(lambda block: serializer.loads(block, copy=False), blocks),
        "fastbuf columns, believed": _each(lambda block: serializer.loads(block, copy=False, check=False), believed),
        "pyarrow IPC": _each(lambda message: pa.ipc.read_record_batch(message, schema), messages),
        "pickle 5": _each(pickle.loads, pickles),
    }
    if not serializer.loads(blocks[0]).equals(pa.ipc.read_record_batch(messages[0], schema)):
        raise AssertionError("fastbuf's batch and pyarrow's are not equal")
    yield Case("bytes to a record batch of 10,000 rows", "row", len(data) * BATCH_ROWS, ways)


def _partitioned(parts: int) -> Callable[[Size], Any]:
    @contextmanager
    def case(size: Size) -> Iterator[Case]:
        need("pyarrow", "partition", "arrow")
        import pyarrow as pa

        from fastbuf.serializers.partition import HashPartitioner
        from fastbuf.serializers.scatter import BatchScatter

        data = batches(BATCHES // min(size.divide, BATCHES))
        scatter, keys = BatchScatter(data[0].schema, parts), HashPartitioner("k", parts)
        places, filled = np.zeros((parts, SEGMENT), np.uint8), np.zeros(parts, np.int64)

        def ours(batch: Any) -> None:
            """Hashed as in Spark, and gathered into segments ready to be sent; full segments are reused."""
            scatter.start_hashed(batch, keys)
            while scatter.encode_all(places, filled):
                filled[:] = 0
            filled[filled > SEGMENT - 4096] = 0

        def with_pyarrow(batch: Any) -> list[Any]:
            """A cheap hash, one take, and a slice for each partition."""
            to = (batch["k"].to_numpy().view(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) % np.uint64(
                parts
            )
            taken = batch.take(pa.array(np.argsort(to.astype(np.uint16), kind="stable")))
            ends = np.cumsum(np.bincount(to.astype(np.int64), minlength=parts)).tolist()
            return [taken.slice(a, b - a) for a, b in zip([0, *ends[:-1]], ends, strict=True)]

        if sum(part.num_rows for part in with_pyarrow(data[0])) != BATCH_ROWS:
            raise AssertionError("pyarrow's partitions do not have all rows")
        ways = {"fastbuf, into segments": _each(ours, data), "pyarrow take": _each(with_pyarrow, data)}
        if installed("polars"):
            import polars

            frames: list[Any] = [polars.from_arrow(batch) for batch in data]

            def with_polars(frame: Any) -> None:
                frame.with_columns((polars.col("k").hash() % parts).alias("p")).partition_by("p", include_key=False)

            ways["polars partition_by"] = _each(with_polars, frames)
        yield Case(f"10,000 rows by key into {parts} partitions", "row", len(data) * BATCH_ROWS, ways)

    return case


SUITES = (
    Suite("pool", (segments,)),
    Suite("rows", (rows_written, rows_read, one_field_read)),
    Suite("columns", (columns_written, columns_read)),
    Suite("partition", (_partitioned(16), _partitioned(200))),
)

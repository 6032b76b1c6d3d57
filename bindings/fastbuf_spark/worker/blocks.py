"""The blocking mode, in a worker: opaque blocks through Spark's own shuffle.

Map side: rows are grouped by partition into one staging buffer each, and a full buffer becomes a block. Reduce side:
blocks are decoded to batches.  In between Spark moves (partition, block) rows as opaque bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf.errors import RecordTooLong, shorter_or_raise
from fastbuf.serializers.block import FLAG_CRC, HEADER_BYTES, KIND_COLUMNAR, check_block, count_mismatch, encode_header
from fastbuf_spark.codec import BatchCodec, RecordCodec
from fastbuf_spark.spec import ExchangeSpec
from fastbuf_spark.worker.task_input import Given
from fastbuf_spark.worker.watch import reported

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

PID, BLOCK = "pid", "block"
SHIPPED = f"{PID} int, {BLOCK} binary"
#: Large enough that Spark's cost per row is small; small enough for many staging buffers, and to bound the 10,000 rows
#: that Spark puts into a batch
BLOCK_BYTES = 32 << 10
LEAST_BLOCK_BYTES = 2 << 10
OUT_BYTES = 1 << 20  #: blocks are given to Spark in batches of about this size


class Staging:
    """One staging buffer for each partition; together they take at most ``memory_bytes``, or 2 KiB each.

    Parameters
    ----------
    schema
        Arrow schema of the batches.
    keys
        Positions of the key columns; empty: rows are distributed in turn.
    max_record_bytes
        A longer row is refused.
    """

    def __init__(
        self,
        schema: pa.Schema,
        keys: tuple[int, ...],
        partitions: int,
        memory_bytes: int,
        checksum: bool,
        max_record_bytes: int,
        turn: int = 0,
    ) -> None:
        import numpy as np

        from fastbuf.serializers.columnar import ColumnarSerializer
        from fastbuf.serializers.partition import HashPartitioner
        from fastbuf.serializers.scatter import BatchScatter

        # Not longer than the longest record allowed, so that rows above that limit fit in no buffer and are detected
        most = min(BLOCK_BYTES, memory_bytes // partitions, HEADER_BYTES + max_record_bytes)
        self._size = max(LEAST_BLOCK_BYTES, most) // 8 * 8
        self._buffers = np.empty((partitions, self._size), np.uint8)
        self._filled = np.full(partitions, HEADER_BYTES, np.int64)
        self._rows = [0] * partitions
        self._partitions = partitions
        self._checksum = checksum
        self._max_record_bytes = max_record_bytes
        self._fingerprint = ColumnarSerializer(schema).fingerprint
        self._scatter = BatchScatter(schema, partitions)
        self._hash = HashPartitioner(keys, partitions) if keys else None
        self._turn = turn
        self.records = self.bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[tuple[int, np.ndarray]]:
        """Add a batch; yields (partition, block) for each full buffer.

        A block is the staging buffer itself: it is valid until the next one is requested.
        """
        scatter = self._scatter
        if self._hash is not None:
            scatter.start_hashed(batch, self._hash)
        else:
            scatter.start(batch, self._in_turn(batch.num_rows))
        self.records += batch.num_rows
        before = [scatter.left(p) for p in range(self._partitions)]
        while True:
            left = scatter.encode_all(self._buffers, self._filled)
            for partition, had in enumerate(before):
                has = scatter.left(partition) if had else 0
                self._rows[partition] += had - has
                before[partition] = has
            if not left:
                break
            for partition, has in enumerate(before):
                if not has:
                    continue
                if self._rows[partition]:
                    yield self._flush(partition)
                else:
                    yield self._long_row(partition)
                    before[partition] -= 1
        scatter.stop_batch()

    def rest(self) -> Iterator[tuple[int, np.ndarray]]:
        """The remaining blocks at the end."""
        for partition, rows in enumerate(self._rows):
            if rows:
                yield self._flush(partition)

    def _in_turn(self, rows: int) -> np.ndarray:
        import numpy as np

        pids = ((np.arange(rows, dtype=np.int64) + self._turn) % self._partitions).astype(np.int32)
        self._turn = (self._turn + rows) % self._partitions
        return pids

    def _flush(self, partition: int) -> tuple[int, np.ndarray]:
        block = self._finish(self._buffers[partition, : self._filled[partition]], self._rows[partition])
        self._filled[partition] = HEADER_BYTES
        self._rows[partition] = 0
        return partition, block

    def _long_row(self, partition: int) -> tuple[int, np.ndarray]:
        """A block with a single row that fits in no staging buffer."""
        import numpy as np

        length = self._scatter.next_bytes(partition)
        if length > self._max_record_bytes:
            raise RecordTooLong(
                f"a record of {length} bytes is longer than max_record_bytes ({self._max_record_bytes}): "
                + shorter_or_raise(length, "spark.fastbuf.maxRecordBytes", "")
            )
        buffer = np.empty(HEADER_BYTES + length, np.uint8)
        written = self._scatter.encode_into(partition, buffer, HEADER_BYTES)
        return partition, self._finish(buffer[: HEADER_BYTES + written], 1)

    def _finish(self, block: np.ndarray, rows: int) -> np.ndarray:
        import numpy as np

        from fastbuf.serializers.checksum import crc32c

        crc = crc32c(block[HEADER_BYTES:]) if self._checksum else 0
        flags = FLAG_CRC if self._checksum else 0
        header = encode_header(KIND_COLUMNAR, flags, self._fingerprint, len(block) - HEADER_BYTES, rows, crc)
        block[:HEADER_BYTES] = np.frombuffer(header, np.uint8)
        self.bytes += len(block)
        return block


@dataclass(frozen=True)
class MapSide:
    """Converts batches to (partition, block) rows: the function of the first ``mapInArrow``."""

    spec: ExchangeSpec

    def __call__(self, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        codec = self.spec.codec
        assert isinstance(codec, BatchCodec)
        staging = Staging(
            codec.schema,
            codec.keys,
            self.spec.partitions,
            self.spec.conf.memory_bytes,
            self.spec.conf.checksum,
            turn=_partition() % self.spec.partitions,
            max_record_bytes=self.spec.conf.max_record_bytes,
        )
        with reported(self.spec, "producer", lambda: {"records": staging.records, "bytes": staging.bytes}):
            yield from _shipped(self._blocks(staging, source))

    def _blocks(self, staging: Staging, source: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, np.ndarray]]:
        codec = self.spec.codec
        assert isinstance(codec, BatchCodec)
        for batch in codec.items(source):
            yield from staging.add(batch)
        yield from staging.rest()


def _shipped(blocks: Iterable[tuple[int, np.ndarray]]) -> Iterator[pa.RecordBatch]:
    """Packs (partition, block) pairs into batches of about a megabyte; copies a block before the next is requested."""
    import numpy as np

    pids: list[int] = []
    ends = [0]
    values = np.empty(OUT_BYTES, np.uint8)
    for pid, block in blocks:
        if ends[-1] + len(block) > len(values) and pids:
            yield _shipment(pids, ends, values)
            pids, ends = [], [0]
            values = np.empty(OUT_BYTES, np.uint8)
        if len(block) > len(values):
            values = np.empty(len(block), np.uint8)
        values[ends[-1] : ends[-1] + len(block)] = block
        pids.append(pid)
        ends.append(ends[-1] + len(block))
    if pids:
        yield _shipment(pids, ends, values)


def _shipment(pids: list[int], ends: list[int], values: np.ndarray) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    # From buffers: pa.array would import pandas, which takes half a second of each new worker
    numbers = pa.Array.from_buffers(pa.int32(), len(pids), [None, pa.py_buffer(np.array(pids, np.int32))])
    buffers = [None, pa.py_buffer(np.array(ends, np.int32)), pa.py_buffer(values[: ends[-1]])]
    blocks = pa.Array.from_buffers(pa.binary(), len(pids), buffers)
    return pa.RecordBatch.from_arrays([numbers, blocks], names=[PID, BLOCK])


@dataclass(frozen=True)
class ReduceSide:
    """Converts blocks to batches and calls the user's function: the function of the second ``mapInArrow``."""

    spec: ExchangeSpec
    func: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]

    def __call__(self, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts = {"records": 0, "bytes": 0}
        given = Given()
        with reported(self.spec, "consumer", lambda: counts):
            yield from self.func(given.items(self._batches(source, counts)))
            given.check()

    def _batches(self, source: Iterator[pa.RecordBatch], counts: dict[str, int]) -> Iterator[pa.RecordBatch]:
        from fastbuf.serializers.assemble import BatchAssembler
        from fastbuf.serializers.columnar import ColumnarSerializer

        codec, conf = self.spec.codec, self.spec.conf
        assert isinstance(codec, BatchCodec)
        fingerprint = ColumnarSerializer(codec.schema).fingerprint
        assembler = BatchAssembler(codec.schema)
        for shipped in source:
            for block in shipped.column(1):
                buffer = block.as_buffer()
                records, body = check_block(buffer, KIND_COLUMNAR, fingerprint)
                held = assembler.rows
                assembler.add_elements(body)
                if assembler.rows - held != records:
                    raise count_mismatch(records, assembler.rows - held)
                counts["records"] += records
                counts["bytes"] += len(buffer)
                if assembler.rows >= conf.batch_rows or assembler.nbytes >= conf.batch_bytes:
                    yield from codec.opened(assembler.batch(), conf.most_rows)
        if assembler.rows:
            yield from codec.opened(assembler.batch(), conf.most_rows)


@dataclass(frozen=True)
class RecordMapSide:
    """Converts an RDD's records to (partition, block) pairs; a block has one group."""

    spec: ExchangeSpec

    def __call__(self, source: Iterable[Any]) -> Iterator[tuple[int, bytes]]:
        codec, conf = self.spec.codec, self.spec.conf
        assert isinstance(codec, RecordCodec)
        serializer = codec.serializer(conf.checksum)
        budget = max(LEAST_BLOCK_BYTES, min(BLOCK_BYTES, conf.memory_bytes // self.spec.partitions))
        reading = codec.reading(group_bytes=budget)
        sent = 0
        with reported(self.spec, "producer", lambda: {"records": reading.rows, "bytes": sent}):
            for pid, group in reading.items(source):
                block = serializer.dumps((group,))
                sent += len(block)
                yield pid, block


@dataclass(frozen=True)
class RecordReduceSide:
    """Converts blocks to groups of records, and calls a function with them."""

    spec: ExchangeSpec
    func: Callable[[Iterator[Any]], Iterable[Any]] = iter

    def __call__(self, source: Iterable[bytes]) -> Iterator[Any]:
        counts = {"records": 0, "bytes": 0}
        with reported(self.spec, "consumer", lambda: counts):
            yield from self.func(self._lists(source, counts))

    def _lists(self, source: Iterable[bytes], counts: dict[str, int]) -> Iterator[bytes | list[Any]]:
        codec = self.spec.codec
        assert isinstance(codec, RecordCodec)
        serializer = codec.serializer(self.spec.conf.checksum)
        for block in source:
            (group,) = serializer.loads(block)
            counts["records"] += codec.count((0, group))
            counts["bytes"] += len(block)
            yield codec.group((0, group))


def _partition() -> int:
    """The partition of this task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "runs in a Spark task"
    return int(context.partitionId())

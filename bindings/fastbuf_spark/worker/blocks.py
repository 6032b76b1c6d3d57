"""The blocking mode, in a worker: a map side that writes blocks to a file, and a reduce side that reads them.

Map side: rows are grouped by partition into one staging buffer each, and a full buffer becomes a block of the task's
file.  In between Spark moves descriptions of the files (:mod:`fastbuf_spark.worker.held`).  Reduce side: the blocks of
one partition after the other are decoded.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any

from fastbuf.errors import BlockCorrupt, RecordTooLong, shorter_or_raise
from fastbuf.serializers.block import FLAG_CRC, HEADER_BYTES, KIND_COLUMNAR, check_block, count_mismatch, encode_header
from fastbuf_spark.codec import GROUP_BYTES, BatchCodec, RecordCodec
from fastbuf_spark.spec import ExchangeSpec
from fastbuf_spark.worker.chains import Chain
from fastbuf_spark.worker.fetching import Fetcher
from fastbuf_spark.worker.file_server import Finder
from fastbuf_spark.worker.held import DESCRIPTION, SECTION, Description, HeldFile, Row, batches_of, root_of, run_of_task
from fastbuf_spark.worker.serving import serving
from fastbuf_spark.worker.signs import Signs
from fastbuf_spark.worker.task_input import InputGuard, task_context
from fastbuf_spark.worker.watch import reported

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

#: Large enough that the cost of a block is small; small enough for many staging buffers
BLOCK_BYTES = 64 << 10
LEAST_BLOCK_BYTES = 2 << 10
#: Bytes of all staging buffers of a task at first, so that a task of few rows touches little memory
FIRST_BYTES = 1 << 20


def staging_bytes(partitions: int, memory_bytes: int, max_record_bytes: int) -> int:
    """Bytes of each of a map task's staging buffers, of which there is one for each partition."""
    # Not longer than the longest record allowed, so that rows above that limit fit in no buffer and are detected
    most = min(BLOCK_BYTES, memory_bytes // partitions, HEADER_BYTES + max_record_bytes)
    return max(LEAST_BLOCK_BYTES, most) // 8 * 8


class Staging:
    """One staging buffer for each partition; together they take at most ``memory_bytes``, or 2 KiB each.

    Parameters
    ----------
    codec
        Its schema is that of the batches; without keys rows are distributed in turn, beginning at partition ``turn``.
    sink
        Takes the blocks: ``write(partition, block)``.  A block is the staging buffer itself, valid during the call.
    max_record_bytes
        A longer row is refused.
    """

    def __init__(
        self,
        codec: BatchCodec,
        partitions: int,
        sink: HeldFile,
        memory_bytes: int,
        max_record_bytes: int,
        turn: int = 0,
    ) -> None:
        import numpy as np

        from fastbuf.serializers.columnar import ColumnarSerializer
        from fastbuf.serializers.partition import HashPartitioner
        from fastbuf.serializers.scatter import BatchScatter

        self._size = staging_bytes(partitions, memory_bytes, max_record_bytes)
        first = max(LEAST_BLOCK_BYTES, FIRST_BYTES // partitions // 8 * 8)
        self._buffers = np.empty((partitions, min(first, self._size)), np.uint8)
        self._filled = np.full(partitions, HEADER_BYTES, np.int64)
        self._rows = np.zeros(partitions, np.int64)  # in the staging buffers
        self.totals = np.zeros(partitions, np.int64)  #: rows of each partition in all blocks
        self._partitions = partitions
        self._sink = sink
        self._max_record_bytes = max_record_bytes
        self._fingerprint = ColumnarSerializer(codec.schema).fingerprint
        self._scatter = BatchScatter(codec.schema, partitions)
        self._hash = HashPartitioner(codec.keys, partitions) if codec.keys else None
        self._turn = turn
        self.records = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch; each buffer that is full goes to the sink."""
        scatter = self._scatter
        if self._hash is not None:
            scatter.start_hashed(batch, self._hash)
        else:
            scatter.start(batch, self._in_turn(batch.num_rows))
        self.records += batch.num_rows
        before = scatter.lefts()
        while True:
            left = scatter.encode_all(self._buffers, self._filled)
            has = scatter.lefts()
            self._rows += before - has
            before = has
            if not left:
                break
            if self._buffers.shape[1] < self._size:
                self._grow()
                continue
            for partition in before.nonzero()[0].tolist():
                if self._rows[partition]:
                    self._flush(partition)
                else:
                    self._long_row(partition)
                    before[partition] -= 1
        scatter.stop_batch()

    def close(self) -> None:
        """Give the rest to the sink."""
        for partition in self._rows.nonzero()[0].tolist():
            self._flush(partition)

    def digest(self) -> bytes:
        """See :func:`placing_digest`."""
        return placing_digest(self.totals, 0 if self._hash is None else self._hash.digest)

    def _in_turn(self, rows: int) -> np.ndarray:
        import numpy as np

        pids = ((np.arange(rows, dtype=np.int64) + self._turn) % self._partitions).astype(np.int32)
        self._turn = (self._turn + rows) % self._partitions
        return pids

    def _grow(self) -> None:
        """Give the staging buffers their full size."""
        import numpy as np

        buffers = np.empty((self._partitions, self._size), np.uint8)
        for partition in self._rows.nonzero()[0].tolist():
            filled = self._filled[partition]
            buffers[partition, :filled] = self._buffers[partition, :filled]
        self._buffers = buffers

    def _flush(self, partition: int) -> None:
        self._write(partition, self._buffers[partition, : self._filled[partition]], int(self._rows[partition]))
        self._filled[partition] = HEADER_BYTES
        self._rows[partition] = 0

    def _long_row(self, partition: int) -> None:
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
        self._write(partition, buffer[: HEADER_BYTES + written], 1)

    def _write(self, partition: int, block: np.ndarray, rows: int) -> None:
        import numpy as np

        from fastbuf.serializers.checksum import crc32c

        crc = crc32c(block[HEADER_BYTES:])
        header = encode_header(KIND_COLUMNAR, FLAG_CRC, self._fingerprint, len(block) - HEADER_BYTES, rows, crc)
        block[:HEADER_BYTES] = np.frombuffer(header, np.uint8)
        self.totals[partition] += rows
        self._sink.write(partition, block)


def _held_file(spec: ExchangeSpec) -> HeldFile:
    """The file of this map task."""
    context = task_context()
    number = int(context.partitionId())
    root = root_of(spec.held.roots(), spec.exchange, number) if spec.held else ""
    return HeldFile(root, spec.sections, run_of_task(context), number)


def _written(
    spec: ExchangeSpec,
    file: HeldFile,
    steps: Iterable[None],
    records: Callable[[], int],
    digest: Callable[[], bytes],
) -> Iterator[Iterator[Row]]:
    """What Spark gets of a map task while ``steps`` write to its file, and at the end.

    At its end the driver knows which file server has the file, if readers have to ask for it.
    """
    at_end: dict[str, Any] = {}
    figures = lambda: {"records": records(), **file.figures(), **at_end}  # noqa: E731
    server = Finder(spec) if spec.held is not None and spec.held.service else None
    try:
        with reported(spec, "producer", figures, needed=server is not None) as tell:

            def opened() -> None:
                if server is not None:
                    server.start()
                tell()

            file.on_open = opened
            for _ in steps:
                yield file.ready()
            placing = digest()
            at_end["digest"] = placing.hex()
            yield file.close(placing)
            if server is not None and file.has_file:
                file.server = server.number()
    except BaseException:  # a task that is killed in the middle too
        file.abandon()
        raise


@contextlib.contextmanager
def _read(spec: ExchangeSpec) -> Iterator[tuple[dict[str, int], Fetcher]]:
    """While the block runs, its figures are told: it counts records and bytes.  And what gives it blocks."""
    counts, begin = {"records": 0, "bytes": 0}, time.monotonic()
    about = lambda: {**counts, "elapsed": time.monotonic() - begin}  # noqa: E731
    with reported(spec, "consumer", about), Fetcher(spec, task_context().partitionId()) as fetcher:
        yield counts, fetcher


@dataclass(frozen=True)
class MapSide:
    """Writes its batches to the task's file: the function of the first ``mapInArrow``."""

    spec: ExchangeSpec

    def __call__(self, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        codec, conf = self.spec.codec, self.spec.conf
        assert isinstance(codec, BatchCodec)
        file = _held_file(self.spec)
        turn = file.number % self.spec.partitions
        staging = Staging(codec, self.spec.partitions, file, conf.memory_bytes, conf.max_record_bytes, turn)

        def steps() -> Iterator[None]:
            for batch in codec.items(source):
                staging.add(batch)
                yield
            staging.close()

        signs = Signs(pa.schema([(SECTION, pa.int32()), (DESCRIPTION, pa.binary())]))
        for rows in _written(self.spec, file, steps(), lambda: staging.records, staging.digest):
            yield from batches_of(rows)
            yield from signs.due()


@dataclass(frozen=True)
class ReduceSide:
    """Calls the user's function with the batches of each partition: the function of the second ``mapInArrow``."""

    spec: ExchangeSpec
    func: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]

    def batches(self, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See :class:`fastbuf_spark.worker.chains.Head`."""
        with _read(self.spec) as (counts, fetcher):
            for blocks in _partitions(self.spec, source, fetcher):
                guard = InputGuard()
                yield from self.func(guard.items(self.decoded(blocks, counts, fetcher)))
                guard.check()

    chained = batches

    def then(self, link: Callable[[Any], Iterable[pa.RecordBatch]]) -> ReduceSide:
        """The same, with ``link`` called on the function's output, for each partition."""
        return replace(self, func=(self.func if isinstance(self.func, Chain) else Chain((self.func,))).then(link))

    def decoded(self, blocks: Iterable[Any], counts: dict[str, int], fetcher: Fetcher) -> Iterator[pa.RecordBatch]:
        """Batches of a partition's blocks; ``counts`` are added to."""
        from fastbuf.serializers.assemble import BatchAssembler
        from fastbuf.serializers.columnar import ColumnarSerializer

        codec, conf = self.spec.codec, self.spec.conf
        assert isinstance(codec, BatchCodec)
        fingerprint = ColumnarSerializer(codec.schema).fingerprint
        assembler = BatchAssembler(codec.schema)
        for block in blocks:
            try:
                records, body = check_block(block, KIND_COLUMNAR, fingerprint)
            except BlockCorrupt as error:
                raise fetcher.spoilt(error) from error
            before = assembler.rows
            assembler.add_elements(body)
            if assembler.rows - before != records:
                raise count_mismatch(records, assembler.rows - before)
            counts["records"] += records
            counts["bytes"] += len(block)
            if assembler.rows >= conf.batch_rows or assembler.nbytes >= conf.batch_bytes:
                yield from codec.opened(assembler.batch(), conf.most_rows)
        if assembler.rows:
            yield from codec.opened(assembler.batch(), conf.most_rows)


def _partitions(spec: ExchangeSpec, source: Iterable[pa.RecordBatch], fetcher: Fetcher) -> Iterator[Iterator[Any]]:
    """The blocks of each partition that this task serves."""
    described = (Description(row.as_buffer()) for batch in source for row in batch.column(1))
    if spec.sections.is_one_each:
        yield fetcher.blocks(described)
        return
    files = list(described)
    section = files[0].section if files else task_context().partitionId() % spec.sections.tasks
    for partition in spec.sections.range(section):
        with serving(partition):
            yield fetcher.blocks(files, partition)


@dataclass(frozen=True)
class RecordMapSide:
    """Writes an RDD's records to the task's file; a block has one group."""

    spec: ExchangeSpec

    def __call__(self, source: Iterable[Any]) -> Iterator[Row]:
        import numpy as np

        codec, conf, partitions = self.spec.codec, self.spec.conf, self.spec.partitions
        assert isinstance(codec, RecordCodec)
        serializer = codec.serializer(True)
        file = _held_file(self.spec)
        reading = codec.reading(group_bytes=max(LEAST_BLOCK_BYTES, min(GROUP_BYTES, conf.memory_bytes // partitions)))
        totals = np.zeros(partitions, np.int64)

        def write(item: tuple[int, Any]) -> None:
            totals[item[0]] += codec.count(item)
            file.write(item[0], serializer.dumps((item[1],)))

        steps, digest = map(write, reading.items(source)), lambda: placing_digest(totals, reading.proof)
        return chain.from_iterable(_written(self.spec, file, steps, lambda: reading.rows, digest))


@dataclass(frozen=True)
class RecordReduceSide:
    """Reads groups of records, and calls a function with them."""

    spec: ExchangeSpec
    func: Callable[[Iterator[Any]], Iterable[Any]] = iter

    def __call__(self, source: Iterable[bytes]) -> Iterator[Any]:
        with _read(self.spec) as (counts, fetcher):
            yield from self.func(self._lists(source, counts, fetcher))

    def _lists(self, source: Iterable[bytes], counts: dict[str, int], fetcher: Fetcher) -> Iterator[bytes | list[Any]]:
        codec = self.spec.codec
        assert isinstance(codec, RecordCodec)
        serializer = codec.serializer(True)
        for block in fetcher.blocks(map(Description, source)):
            try:
                (group,) = serializer.loads(block)
            except BlockCorrupt as error:
                raise fetcher.spoilt(error) from error
            counts["records"] += codec.count((0, group))
            counts["bytes"] += len(block)
            yield codec.group((0, group))


def placing_digest(totals: np.ndarray, keys: int) -> bytes:
    """What attempts of a map task have in common if they place the same rows: rows of each partition, sum of keys."""
    return blake2b(totals.tobytes() + (keys & (1 << 64) - 1).to_bytes(8, "little"), digest_size=8).digest()

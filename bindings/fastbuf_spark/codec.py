"""Codecs: how the record batches of a DataFrame, or the records of an RDD, are sent through an exchange.

A codec is sent to the workers.  It makes their serializers and selectors, converts the input of a task to the items
that a writer takes, and the output of a gate to what the user's function gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

from fastbuf_spark.folding import each_partition
from fastbuf_spark.key_samples import KeySamples
from fastbuf_spark.pyspark_private import cloud_dumps, spark_loads
from fastbuf_spark.results import about
from fastbuf_spark.schema import conform, within_precision

if TYPE_CHECKING:
    import pyarrow as pa

    from fastbuf.serializers.pair_table import PairTable
    from fastbuf.serializers.plain_parts import PlainParts
    from fastbuf.serializers.plain_sums import PlainSums

Empty = Callable[[list[int]], list[int]]  #: takes the partitions that had rows, returns the remaining, empty ones
#: Classes of the driver's ``__main__`` came to a worker by it: another cloudpickle would make other classes of them
CLOUDPICKLE = "pyspark.cloudpickle"
GROUP_BYTES = 32 << 10  #: about one segment: longer groups span segments, and shorter ones cost more pickles


class Sender(Protocol):
    """Converts the input of one producer to items for its writer."""

    selector: Any  #: chooses the consumer of an item

    def items(self, source: Iterable[Any]) -> Iterator[Any]:
        """The items for the writer, from the task's input."""

    def digest(self, writer: Any) -> tuple[int, int]:
        """Number of records read, including dropped ones, and a 64-bit sum of their keys' hashes."""


class Codec(Protocol):
    """The interface of both kinds of codec."""

    def serializer(self, checksum: bool) -> Any:
        """A new serializer."""

    def sender(self, partitions: int, wanted: Sequence[int], producer: int, empty: Empty | None = None) -> Sender:
        """The sender of producer number ``producer``, for the partitions ``wanted`` of ``partitions``, in order.

        ``empty`` is given if the input was folded (:mod:`fastbuf_spark.folding`).
        """

    def opened(self, polled: Any, most_rows: int | None = None) -> Iterable[Any]:
        """The input of the user's function, from a result of ``gate.poll``; ``most_rows``: of each batch."""

    def count(self, item: Any) -> int:
        """The number of the user's records in an item."""


@dataclass(frozen=True)
class BatchCodec:
    """Record batches, partitioned by Spark's hash of the key columns; without keys, in turn.

    Attributes
    ----------
    schema
        Arrow schema of the batches that are sent: names are unique, and columns used only as keys come last.
    keys
        Positions of the key columns, in the order in which they are hashed.
    before
        The user's function on the map side, or None.
    shown
        The schema for the user's functions, with other names or fewer columns; None: the same as ``schema``.
    whole
        Whether the function after the shuffle is fastbuf's own, which gets all columns as they were sent.
    """

    schema: pa.Schema
    keys: tuple[int, ...]
    before: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]] | None = None
    shown: pa.Schema | None = None
    whole: bool = False

    def bare(self) -> pa.Schema | None:
        """The schema for a function that only passes batches on: all columns except those used only as keys."""
        if self.shown is None:
            return None
        import pyarrow as pa

        return pa.schema([self.schema.field(i) for i in range(len(self.shown))])

    def serializer(self, checksum: bool) -> Any:
        import fastbuf as fb

        return fb.ColumnarSerializer(self.schema, checksum=checksum)

    def sender(self, partitions: int, wanted: Sequence[int], producer: int, empty: Empty | None = None) -> Sender:
        return BatchSender(self, partitions, None if len(wanted) == partitions else tuple(wanted), producer, empty)

    def items(self, source: Iterable[pa.RecordBatch], empty: Empty | None = None) -> Iterator[pa.RecordBatch]:
        before = self.before
        if before is None:
            yield from (conform(batch, self.schema, "the input") for batch in source if batch.num_rows)
            return
        whose = about(before)
        for batch in before(iter(source)) if empty is None else each_partition(source, before, empty):
            if not batch.num_rows:
                continue
            result = conform(batch, self.schema if self.shown is None else self.shown, whose)
            result = within_precision(result, whose)
            yield result if self.shown is None else result.rename_columns(self.schema.names)

    def opened(self, polled: Any, most_rows: int | None = None) -> Iterable[pa.RecordBatch]:
        if self.whole:
            return (polled,)
        if self.shown is not None:
            polled = polled.select(list(range(len(self.shown)))).rename_columns(self.shown.names)
        most = most_rows or max(1, polled.num_rows)
        return [polled.slice(start, most) for start in range(0, polled.num_rows, most)]

    def count(self, item: pa.RecordBatch) -> int:
        return int(item.num_rows)


class BatchSender:
    """See :class:`Sender`."""

    def __init__(
        self,
        codec: BatchCodec,
        partitions: int,
        only: tuple[int, ...] | None,
        producer: int,
        empty: Empty | None,
    ) -> None:
        import fastbuf as fb

        self._codec = codec
        self._empty = empty
        self._producer = producer
        if codec.keys:
            names = [codec.schema.names[key] for key in codec.keys]
            self.selector = fb.hash_by(*names, partitions=partitions, only=only)
        else:  # each producer starts at another partition, as in Spark
            self.selector = fb.round_robin(partitions, only, start=producer)

    def items(self, source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._codec.items(source, self._empty)

    def digest(self, writer: Any) -> tuple[int, int]:
        if writer is None:  # there was no batch with rows
            return 0, 0
        rows = int(writer.stats()["records"])
        if not self._codec.keys:  # rows go in turn: each producer must have read as many as in any other run
            return rows, hash((self._producer, rows)) & 0xFFFF_FFFF_FFFF_FFFF
        return rows, writer.digest() or 0


@dataclass(frozen=True)
class RecordCodec:
    """Records of an RDD, sent in groups of thousands, each for one partition.

    An item is a partition and a group: bytes of ``pack_plain`` if all records are plain, else a list of records, which
    the serializer pickles.

    Attributes
    ----------
    key
        Returns the key of a record; None: records are (key, value) pairs, and the result has tuples of two.
    partition_func
        Maps a key to a number; None: PySpark's ``portable_hash``.
    combine
        Merges pairs before they are sent; None: they are not merged.
    side
        If given, pairs are sent as (key, (side, value)).
    packed
        Whether the function after the shuffle takes groups as they were sent.
    pickled
        Whether the input is pickled lists of records, as Spark stores them.
    """

    partitions: int
    key: Callable[[Any], Any] | None = None
    partition_func: Callable[[Any], int] | None = None
    combine: Combining | None = None
    side: int | None = None
    packed: bool = False
    pickled: bool = False

    def serializer(self, checksum: bool) -> Any:
        import fastbuf as fb

        return fb.PickledSerializer(checksum=checksum, cloudpickle=CLOUDPICKLE)

    def sender(self, partitions: int, wanted: Sequence[int], producer: int, empty: Empty | None = None) -> Sender:
        return RecordSender(self, wanted)

    def reading(self, wanted: Sequence[int] | None = None, group_bytes: int = GROUP_BYTES) -> Reading:
        """An object that makes groups of a task's records, and computes their number and digest."""
        return Reading(self, wanted, group_bytes)

    def opened(self, polled: Any, most_rows: int | None = None) -> Iterable[bytes | list[Any]]:
        """Lists of records, which the caller joins to one stream by ``chain.from_iterable``, without Python code."""
        return [self.group(item) for item in polled]

    def group(self, item: tuple[int, bytes | list[Any]]) -> bytes | list[Any]:
        """The group of an item, in the form that the function after the shuffle takes."""
        return item[1] if self.packed else unpacked(item[1])

    def count(self, item: tuple[int, bytes | list[Any]]) -> int:
        from fastbuf.serializers.plain_lists import plain_count

        group = item[1]
        return plain_count(group) if isinstance(group, bytes) else len(group)


class Combining(Protocol):
    """Merges the pairs of a task; see :class:`~fastbuf_spark.worker.pairs.Combine`."""

    def table(self) -> PairTable:
        """An empty table."""

    def sums(self) -> PlainSums | None:
        """An empty table for plain values, if the merge function is an operator that it supports."""

    @property
    def limit(self) -> int:
        """Bytes of a full table."""

    def full(self, table: PairTable | PlainSums, source: Iterator[Any]) -> tuple[bool, int]:
        """Fill a table; returns whether the source has ended, and how many of the next records to send unmerged."""

    def passing(self, table: PairTable | PlainSums, read: int) -> int:
        """How many of the next records to send unmerged, if `read` records filled the table."""

    def lists(self, table: PairTable, source: Iterable[Any], left: int) -> Iterator[Iterable[tuple[Any, Any]]]:
        """The pairs to send; the first ``left`` records are not merged."""


class Reading:
    """Converts the records of one task to groups."""

    def __init__(self, codec: RecordCodec, wanted: Sequence[int] | None, group_bytes: int) -> None:
        from fastbuf.serializers.plain_parts import PlainParts
        from fastbuf.serializers.record_groups import RecordGroups

        self._groups = RecordGroups(
            codec.partitions, codec.key, codec.partition_func, wanted, group_bytes, side=codec.side, dumps=cloud_dumps()
        )
        self._combine = codec.combine
        self._table: PairTable | None = None
        self._sums: PlainSums | None = None
        self._parts: PlainParts | None = None
        self._rest: Iterator[Any] = iter(())  # the records that come after those which are taken as they are packed
        self._counts: Any = self._groups  # the object that counts the records read
        if codec.combine is not None:
            self._counts = self._table = codec.combine.table()
        if codec.partition_func is None and codec.key is None:  # tables without objects support only portable_hash
            if codec.combine is None or codec.combine.sums() is not None:
                self._parts = PlainParts(codec.partitions, wanted, group_bytes, codec.side)
            self._sums = None if codec.combine is None else codec.combine.sums()
        self._pickled = codec.pickled
        self._wanted = wanted

    def items(self, source: Iterable[Any]) -> Iterator[tuple[int, bytes | list[Any]]]:
        """Pairs of a partition and a group."""
        records, left = iter(source), 0
        if self._pickled and self._parts is not None:
            yield from self._of_pickles(records, self._parts)
            records = self._rest
        elif self._pickled:
            records = loaded(records)
        elif self._sums is not None:
            assert self._combine is not None
            ended, sums = False, self._sums
            while not ended and not left and not sums.left:
                ended, left = self._combine.full(sums, records)
                yield from self._sent()
            # If records cannot be merged without objects, or merging does not pay, the rest is treated the same way
            records = chain(sums.left, records)
            self._go_on(sums.rows, sums.proof)
        entries = records
        if self._combine is not None:
            assert self._table is not None
            entries = chain.from_iterable(self._combine.lists(self._table, records, left))
        yield from packed(self._groups.items(entries))

    def _of_pickles(self, pickles: Iterator[bytes], parts: PlainParts) -> Iterator[tuple[int, bytes]]:
        """The groups of pickled lists while these are plain; the records from there on are in ``_rest``."""
        from fastbuf.serializers.plain_parts import PlainPickles

        reader, sums, combine = PlainPickles(), self._sums, self._combine
        passing = before = 0
        for pickle in pickles:
            plain, taken = reader.packed(pickle), 0
            if plain is not None and sums is not None and combine is not None and passing <= 0:
                taken = reader.rows - sums.add(plain, True)
                if sums.nbytes >= combine.limit:
                    passing = combine.passing(sums, sums.rows - before)
                    before = sums.rows
                    yield from self._sent()
            elif plain is not None:
                passing -= reader.rows
                taken = reader.rows if parts.add(plain) else 0
                if parts.full:
                    yield from parts.lists()
            if plain is None or taken < reader.rows:
                self._rest = chain(islice(loaded(iter((pickle,))), taken, None), loaded(pickles))
                break
        yield from parts.lists()
        yield from self._sent()
        self._go_on(parts.read + (0 if sums is None else sums.rows), parts.proof + (0 if sums is None else sums.proof))

    def _sent(self) -> Iterator[tuple[int, bytes]]:
        """The groups of the merged pairs; empties the table."""
        if self._sums is not None:
            yield from self._sums.packed(self._groups.partitions, self._wanted, self._groups.group_bytes)
            self._sums.clear()

    def _go_on(self, rows: int, proof: int) -> None:
        """Go on with objects; the counters continue from here."""
        self._counts.rows, self._counts.proof = rows, proof & (1 << 64) - 1

    @property
    def rows(self) -> int:
        """Records read, at the end."""
        return int(self._counts.rows)

    @property
    def proof(self) -> int:
        """Sum of their keys' hashes, at the end; see RecordGroups."""
        return int(self._counts.proof)


def loaded(pickles: Iterator[bytes]) -> Iterator[Any]:
    """The records of pickled lists."""
    return chain.from_iterable(map(spark_loads(), pickles))


class RecordSender:
    """See :class:`Sender`."""

    def __init__(self, codec: RecordCodec, wanted: Sequence[int]) -> None:
        import fastbuf as fb

        self._at = {partition: i for i, partition in enumerate(wanted)}
        self._codec = codec
        self._reading = codec.reading(sorted(wanted))
        self._samples: KeySamples | None = None
        self.selector = fb.custom(self)

    def __call__(self, item: tuple[int, bytes | list[Any]], consumers: int) -> int:
        """The consumer of an item."""
        if self._samples is not None:
            self._samples.look(item[0], lambda: unpacked(item[1]))
        return self._at[item[0]]

    def watch_keys(self, values: bool) -> None:
        """From now on sample the keys; as :meth:`fastbuf.RecordWriter.watch_keys`."""
        self._samples = KeySamples(self._codec.key or itemgetter(0), values, len(self._at))

    def hot_keys(self) -> dict[int, tuple[float, int]]:
        """As :meth:`fastbuf.RecordWriter.hot_keys`."""
        return {} if self._samples is None else self._samples.shares()

    def key_values(self) -> dict[int, str]:
        """As :meth:`fastbuf.RecordWriter.key_values`."""
        return {} if self._samples is None else self._samples.texts()

    def items(self, source: Iterable[Any]) -> Iterator[tuple[int, bytes | list[Any]]]:
        return self._reading.items(source)

    def digest(self, writer: Any) -> tuple[int, int]:
        return self._reading.rows, self._reading.proof


def packed(groups: Iterable[tuple[int, list[Any]]]) -> Iterator[tuple[int, bytes | list[Any]]]:
    """Groups in the form in which they are sent."""
    from fastbuf.serializers.plain_lists import pack_plain

    for partition, group in groups:
        yield partition, pack_plain(group) or group


def unpacked(group: bytes | list[Any]) -> list[Any]:
    """The records of a group in the form in which it is sent."""
    from fastbuf.serializers.plain_lists import unpack_plain

    return unpack_plain(group) if isinstance(group, bytes) else group


def own_partition_func(partition_func: Callable[[Any], int] | None) -> Callable[[Any], int] | None:
    """The user's function; None for PySpark's ``portable_hash``, which fastbuf computes without Python."""
    from pyspark.rdd import portable_hash

    return None if partition_func is portable_hash else partition_func

"""What travels through an exchange: record batches of a DataFrame, or groups of an RDD's records.

A codec is shipped to the workers.  It makes their serializers and selectors, turns what a task reads into the
items a writer takes, and what a gate gives into what the user sees.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from fastbuf_spark.folding import each_partition
from fastbuf_spark.schema import conform, renaming

if TYPE_CHECKING:
    import pyarrow as pa

    from fastbuf.serializers.pair_table import PairTable
    from fastbuf.serializers.plain_sums import PlainSums

Empty = Callable[[list[int]], list[int]]  #: from the partitions that were seen to the empty ones that are left
GROUP_BYTES = 32 << 10  #: about one segment: a group that is longer spans segments, one that is shorter wastes pickles


class Sender(Protocol):
    """One producer's way from what its task reads to what its writer takes."""

    selector: Any  #: which consumer an item goes to

    def items(self, source: Iterable[Any]) -> Iterator[Any]:
        """What the writer takes, from what the task reads."""

    def digest(self, writer: Any) -> tuple[int, int]:
        """Records read, dropped ones too, and a sum of 64 bits over their keys' mixed hashes, in any order."""


class Codec(Protocol):
    """The interface of both kinds."""

    def serializer(self, checksum: bool) -> Any:
        """A new serializer."""

    def sender(self, partitions: int, wanted: Sequence[int], producer: int, empty: Empty | None = None) -> Sender:
        """What producer number ``producer`` sends by, when of ``partitions`` these alone are asked for, in order.

        ``empty`` is given where the input has been folded (:mod:`fastbuf_spark.folding`).
        """

    def opened(self, polled: Any) -> Iterable[Any]:
        """What the user sees, from what ``gate.poll`` gave."""

    def count(self, item: Any) -> int:
        """The user's records in an item."""


@dataclass(frozen=True)
class BatchCodec:
    """Record batches, placed by Spark's hash of the key columns; without keys, in turn.

    Attributes
    ----------
    schema
        Arrow schema of what travels: no name twice, and columns that are keys alone behind the others.
    keys
        Positions of the key columns, in the order in which they are hashed.
    before
        The user's function on the map side, or None.
    shown
        What the user's functions see and give of it: other names, or fewer columns; None: all as it travels.
    given
        The input's names for ``before``, if Spark knows its columns by other ones.
    whole
        The function after the shuffle is fastbuf's own, and gets all columns as they travel.
    """

    schema: pa.Schema
    keys: tuple[int, ...]
    before: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]] | None = None
    shown: pa.Schema | None = None
    given: tuple[str, ...] | None = None
    whole: bool = False

    def bare(self) -> pa.Schema | None:
        """What is shown to a function that only hands batches on: all columns but those that are keys alone."""
        if self.shown is None:
            return None
        import pyarrow as pa

        return pa.schema([self.schema.field(i) for i in range(len(self.shown))])

    def serializer(self, checksum: bool) -> Any:
        import fastbuf as fb

        return fb.ColumnarSerializer(fb.Schema.from_arrow(self.schema), checksum=checksum)

    def sender(self, partitions: int, wanted: Sequence[int], producer: int, empty: Empty | None = None) -> Sender:
        return BatchSender(self, partitions, None if len(wanted) == partitions else tuple(wanted), producer, empty)

    def items(self, source: Iterable[pa.RecordBatch], empty: Empty | None = None) -> Iterator[pa.RecordBatch]:
        before = self.before
        if before is None:
            yield from (conform(batch, self.schema, "the input") for batch in source if batch.num_rows)
            return
        if self.given is not None:
            before = renaming(before, self.given)
        for batch in before(iter(source)) if empty is None else each_partition(source, before, empty):
            if not getattr(batch, "num_rows", 1):
                continue
            made = conform(batch, self.schema if self.shown is None else self.shown, "the function before the shuffle")
            yield made if self.shown is None else made.rename_columns(self.schema.names)

    def opened(self, polled: Any) -> Iterable[pa.RecordBatch]:
        # Names inside nested types are Arrow's own on the wire; the user sees Spark's
        if self.shown is None or self.whole:
            return (conform(polled, self.schema, "the exchange"),)
        seen = polled.select(list(range(len(self.shown)))).rename_columns(self.shown.names)
        return (conform(seen, self.shown, "the exchange"),)

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
        if codec.keys:
            names = [codec.schema.names[key] for key in codec.keys]
            self.selector = fb.hash_by(*names, partitions=partitions, only=only)
        else:  # each producer begins at another partition, as Spark's do
            self.selector = fb.round_robin(partitions, only, start=producer)

    def items(self, source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._codec.items(source, self._empty)

    def digest(self, writer: Any) -> tuple[int, int]:
        if writer is None:  # no batch with rows has come
            return 0, 0
        return writer.stats()["records"], writer.digest() or 0


@dataclass(frozen=True)
class RecordCodec:
    """Records of an RDD, grouped by partition: what travels is a group of thousands, in bytes if they are plain.

    An item is a partition and a group: bytes of ``pack_plain``, or the list of records where these are not plain, for
    the serializer to pickle.

    Attributes
    ----------
    key
        From a record to its key; None: records are (key, value) pairs, and come out as tuples of two.
    partition_func
        From a key to a number; None: PySpark's ``portable_hash``.
    combine
        What merges pairs before they are sent; None: they go as they are.
    side
        Pairs go as (key, (side, value)).
    packed
        What is done with groups takes them as they travel.
    pickled
        What is read is pickled lists of records, as Spark keeps them.
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

        return fb.PickledSerializer(checksum=checksum)

    def sender(self, partitions: int, wanted: Sequence[int], producer: int, empty: Empty | None = None) -> Sender:
        return RecordSender(self, wanted)

    def reading(self, wanted: Sequence[int] | None = None, group_bytes: int = GROUP_BYTES) -> Reading:
        """What makes groups of a task's records, counts them, and has the proof of what was read."""
        return Reading(self, wanted, group_bytes)

    def opened(self, polled: Any) -> Iterable[bytes | list[Any]]:
        """Lists of records: who gives them to the user makes one stream of them, in C (``chain.from_iterable``)."""
        return [self.group(item) for item in polled]

    def group(self, item: tuple[int, bytes | list[Any]]) -> bytes | list[Any]:
        """What is done with the group of an item gets."""
        return item[1] if self.packed else unpacked(item[1])

    def count(self, item: tuple[int, bytes | list[Any]]) -> int:
        from fastbuf.serializers.plain_lists import plain_count

        group = item[1]
        return plain_count(group) if isinstance(group, bytes) else len(group)


class Combining(Protocol):
    """What merges the pairs of a task, see :class:`~fastbuf_spark.worker.pairs.Combine`."""

    def table(self) -> PairTable:
        """An empty one."""

    def sums(self) -> PlainSums | None:
        """An empty one, if it merges by an operator that such a table knows."""

    @property
    def limit(self) -> int:
        """Bytes of a table that is full."""

    def full(self, table: PairTable | PlainSums, source: Iterator[Any]) -> tuple[bool, int]:
        """Fill a table: whether the source has ended, and how many records are better sent as they are then."""

    def passing(self, table: PairTable | PlainSums, read: int) -> int:
        """How many records are better sent as they are, when a table is full of so many."""

    def lists(self, table: PairTable, source: Iterable[Any], left: int) -> Iterator[Iterable[tuple[Any, Any]]]:
        """What is sent; of the first ``left`` records, what they are."""


class Reading:
    """One task's way from records to groups as they travel."""

    def __init__(self, codec: RecordCodec, wanted: Sequence[int] | None, group_bytes: int) -> None:
        from fastbuf.serializers.plain_parts import PlainParts
        from fastbuf.serializers.record_groups import RecordGroups

        self._groups = RecordGroups(
            codec.partitions, codec.key, codec.partition_func, wanted, group_bytes, side=codec.side
        )
        self._combine = codec.combine
        self._table = self._sums = self._parts = None
        self._counts: Any = self._groups  # what knows how many records have been read
        if codec.combine is not None:
            self._counts = self._table = codec.combine.table()
        if codec.partition_func is None and codec.key is None:  # what needs no objects places keys by what they are
            if codec.combine is None or codec.combine.sums() is not None:
                self._parts = PlainParts(codec.partitions, wanted, group_bytes, codec.side)
            self._sums = None if codec.combine is None else codec.combine.sums()
        self._pickled = codec.pickled
        self._wanted = wanted

    def items(self, source: Iterable[Any]) -> Iterator[tuple[int, bytes | list[Any]]]:
        """Partitions and groups."""
        records, left = iter(source), 0
        if self._pickled:
            pickles = records
            records = loaded(pickles) if self._parts is None else (yield from self._of_pickles(pickles))
        elif self._sums is not None:
            assert self._combine is not None
            ended, sums = False, self._sums
            while not ended and not left and not sums.left:
                ended, left = self._combine.full(sums, records)
                yield from self._sent()
            # Records that are not merged without objects, or hardly at all: all the others are taken for such ones
            records = chain(sums.left, records)
            self._go_on(sums.rows, sums.proof)
        made = records
        if self._combine is not None:
            assert self._table is not None
            made = chain.from_iterable(self._combine.lists(self._table, records, left))
        yield from packed(self._groups.items(made))

    def _of_pickles(self, pickles: Iterator[bytes]) -> Generator[tuple[int, bytes | list[Any]], None, Iterator[Any]]:
        """The groups of pickled lists, as long as they are of what needs no objects; gives the records behind them."""
        from fastbuf.serializers.plain_parts import PlainPickles

        reader, sums, parts = PlainPickles(), self._sums, self._parts
        assert parts is not None
        rest: Iterator[Any] = iter(())
        passing = before = 0
        for pickle in pickles:
            plain = reader.packed(pickle)
            missed = 0
            if plain is None:
                missed = -1
            elif sums is None or passing > 0:
                passing -= reader.rows
                missed = 0 if parts.add(plain) else -1
                if parts.full:
                    yield from parts.lists()
            else:
                missed = sums.add(plain, True)
                assert self._combine is not None
                if sums.nbytes >= self._combine.limit:
                    passing = self._combine.passing(sums, sums.rows - before)
                    before = sums.rows
                    yield from self._sent()
            if missed:
                some = list(loaded(iter((pickle,))))
                rest = chain(some if missed < 0 else some[-missed:], loaded(pickles))
                break
        yield from parts.lists()
        yield from self._sent()
        self._go_on(parts.read + (0 if sums is None else sums.rows), parts.proof + (0 if sums is None else sums.proof))
        return rest

    def _sent(self) -> Iterator[tuple[int, bytes]]:
        """The groups of what has been merged, which is forgotten then."""
        if self._sums is not None:
            yield from self._sums.packed(self._groups.partitions, self._wanted, self._groups.group_bytes)
            self._sums.clear()

    def _go_on(self, rows: int, proof: int) -> None:
        """With objects, when so many records have been read."""
        self._counts.rows, self._counts.proof = rows, proof & (1 << 64) - 1

    @property
    def rows(self) -> int:
        """Records read, at the end."""
        return int(self._counts.rows)

    @property
    def proof(self) -> int:
        """Sum over their keys, in any order, at the end; see RecordGroups."""
        return int(self._counts.proof)


def loaded(pickles: Iterator[bytes]) -> Iterator[Any]:
    """The records of pickled lists, as PySpark's own serializer loads them."""
    from pyspark.serializers import CPickleSerializer

    return chain.from_iterable(map(CPickleSerializer().loads, pickles))


class RecordSender:
    """See :class:`Sender`."""

    def __init__(self, codec: RecordCodec, wanted: Sequence[int]) -> None:
        import fastbuf as fb

        self._at = {partition: i for i, partition in enumerate(wanted)}
        self._reading = codec.reading(sorted(wanted))
        self.selector = fb.custom(self._place)

    def _place(self, item: tuple[int, Any], consumers: int) -> int:
        return self._at[item[0]]

    def items(self, source: Iterable[Any]) -> Iterator[tuple[int, bytes | list[Any]]]:
        return self._reading.items(source)

    def digest(self, writer: Any) -> tuple[int, int]:
        return self._reading.rows, self._reading.proof


def packed(groups: Iterable[tuple[int, list[Any]]]) -> Iterator[tuple[int, bytes | list[Any]]]:
    """Groups as they travel."""
    from fastbuf.serializers.plain_lists import pack_plain

    for partition, group in groups:
        yield partition, pack_plain(group) or group


def unpacked(group: bytes | list[Any]) -> list[Any]:
    """The records of a group that has travelled."""
    from fastbuf.serializers.plain_lists import unpack_plain

    return unpack_plain(group) if isinstance(group, bytes) else group


def own_partition_func(partition_func: Callable[[Any], int] | None) -> Callable[[Any], int] | None:
    """The user's function; None for PySpark's ``portable_hash``, which fastbuf computes without Python."""
    from pyspark.rdd import portable_hash

    return None if partition_func is portable_hash else partition_func

"""Merges or groups the pairs of an RDD by key, before and after the shuffle, in bounded memory.

Before the shuffle, pairs are merged in a table.  A full table is sent instead of spilled, since the other side merges
by the same function.  If merging hardly reduces the number of records, they are sent unmerged.

After the shuffle, what does not fit into memory is spilled to a nameless file, in parts by a hash of the keys.  Each
part is then processed like the whole input, with another hash.  The values of a key that has very many are written in
pieces of their own, so that they are never all in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, product, repeat
from typing import TYPE_CHECKING, Any

from fastbuf_spark.codec import CLOUDPICKLE, unpacked
from fastbuf_spark.worker.nameless import NamelessFile

if TYPE_CHECKING:
    from fastbuf.serializers.pair_table import PairTable
    from fastbuf.serializers.plain_groups import PlainGroups
    from fastbuf.serializers.plain_sums import PlainSums

Pairs = Iterable[tuple[Any, Any]]
Group = bytes | list[Any]  #: pairs that were sent together: packed by ``pack_plain``, or a list

WORTH = 0.75  #: if a full table has more keys per record than this, merging hardly reduces the records
PASS = 8  #: then this many times the records of the table are sent unmerged, before merging is tried again
SOME = 4 << 10  #: records that are passed on together
SLACK = 0.75  #: usable share of the memory: allocators keep more than they are asked for
FAN_OUT = 32  #: parts of a spill
LONG = 8  #: a key is long if its values need more than 1/LONG of the memory
PIECES = 256  #: pieces written to the file have 1/PIECES of the memory
DEEPEST = 6  #: most levels of spills; keys that are still together have the same hash, so only long ones are spilled
OBJECTS = 8  #: as objects, plain pairs may need this many times the memory
PAIR_BYTES = 64  #: bytes of the tuple around a value


@dataclass(frozen=True)
class Combine:
    """Merging before the shuffle.

    Attributes
    ----------
    create, merge
        See :class:`~fastbuf.serializers.pair_table.PairTable`.
    memory_bytes
        Memory for the table.
    """

    create: Callable[[Any], Any] | None
    merge: Callable[[Any, Any], Any]
    memory_bytes: int

    def table(self) -> PairTable:
        """An empty table."""
        from fastbuf.serializers.pair_table import PairTable

        return PairTable(self.create, self.merge)

    def sums(self) -> PlainSums | None:
        """An empty table for plain values, if the merge function is an operator that it supports."""
        from fastbuf.serializers.plain_sums import PlainSums, merge_name

        name = None if self.create is not None else merge_name(self.merge)
        return None if name is None else PlainSums(name)

    @property
    def limit(self) -> int:
        """Bytes of a full table."""
        return int(self.memory_bytes * SLACK)

    def full(self, table: PairTable | PlainSums, records: Iterator[Any]) -> tuple[bool, int]:
        """Fill a table; returns whether the records have ended, and how many of the next to send unmerged."""
        before = table.rows
        ended = table.fill(records, self.limit)
        return ended, 0 if ended else self.passing(table, table.rows - before)

    def passing(self, table: PairTable | PlainSums, read: int) -> int:
        """How many of the next records to send unmerged, if `read` records filled the table."""
        return PASS * read if len(table) > WORTH * read else 0

    def lists(self, table: PairTable, source: Iterable[Any], left: int = 0) -> Iterator[Pairs]:
        """The pairs to send for the records of ``source``, merged in ``table``, in several parts.

        The first ``left`` records are sent unmerged.
        """
        records, ended = iter(source), False
        while True:
            while left:
                some = table.passing(records, min(left, SOME))
                yield some
                ended = len(some) < min(left, SOME)
                left = 0 if ended else left - len(some)
            if ended:
                return
            ended, left = self.full(table, records)
            yield table.table.items()
            table.clear()


@dataclass(frozen=True)
class MergeStage:
    """Merging or grouping after the shuffle.

    Attributes
    ----------
    merge
        Merges two combiners; None: values are grouped.
    sides
        Number of RDDs, whose values are grouped separately for each key; 0: a single RDD.
    finish
        Applied to the pairs of all keys; None: they are the result.
    """

    merge: Callable[[Any, Any], Any] | None
    sides: int
    finish: Callable[[Pairs], Pairs] | None
    memory_bytes: int
    directory: str

    def __call__(self, groups: Iterable[Group]) -> Iterator[Pairs]:
        for pairs in self.merged(groups, 0):
            yield pairs if self.finish is None else self.finish(pairs)

    @property
    def limit(self) -> int:
        """Bytes of a full table."""
        return int(self.memory_bytes * SLACK)

    def merged(self, groups: Iterable[Group], level: int) -> Iterator[Pairs]:
        """All keys with their merged or grouped values, in several parts; ``level``: depth of nested spills."""
        from fastbuf.serializers.pair_table import PairTable

        table = PairTable(None, self.merge, self.sides)
        spill = None
        plain = self._plain() if level < DEEPEST else None
        for group in groups:
            if plain is not None:
                left = plain.add(group) if isinstance(group, bytes) else len(group)
                if plain.nbytes > (self.limit // OBJECTS if left else self.limit):
                    spill = spill or SpilledTable(self, level)
                    spill.write(plain.lists(), table)
                    plain = self._plain()
                    assert plain is not None  # as before
                if not left:
                    continue
                # Some pairs are not plain, so go on with objects
                for pairs in plain.lists():
                    self._put(table, pairs)
                plain = None
                group = unpacked(group)[-left:]
            table.add(unpacked(group))
            del group  # free it before the next one is read
            if table.nbytes > self.limit and (level < DEEPEST or self.merge is None):
                spill = spill or SpilledTable(self, level)
                spill.take(table)
        if spill is not None:
            if plain is not None:
                spill.write(plain.lists(), table)
                plain = None
            yield from spill.parts(table)
        elif plain is not None:
            yield from plain.lists()
        else:
            # An iterator, so that the table is freed when it is exhausted, before the next part's table is filled
            yield iter(table.table.items()) if self.merge is not None else table.groups()

    def _plain(self) -> PlainGroups | PlainSums | None:
        """An empty table that holds pairs without Python objects, if there is one for this operation."""
        from fastbuf.serializers.plain_groups import PlainGroups
        from fastbuf.serializers.plain_sums import PlainSums, merge_name

        if self.merge is None:
            return PlainGroups(self.sides)
        name = merge_name(self.merge)
        return None if name is None else PlainSums(name)

    def _put(self, table: PairTable, pairs: list[tuple[Any, Any]]) -> None:
        if self.merge is not None:
            table.add(pairs)
            return
        for key, groups in pairs:
            for side, values in enumerate(groups if self.sides else (groups,)):
                table.extend(key, side, list(values))


class SpilledTable:
    """Table entries spilled to a nameless file, in parts by a hash of their keys; long keys are stored separately."""

    def __init__(self, stage: MergeStage, level: int) -> None:
        self._stage = stage
        self._level = level
        self._pieces = Pieces(stage.directory)
        self._piece_bytes = max(1 << 10, stage.memory_bytes // PIECES)
        self._places: list[list[tuple[int, int]]] = [[] for _ in range(FAN_OUT)]
        self._long: dict[Any, list[Stored]] = {}

    def take(self, table: PairTable) -> None:
        """Write the entries of a table, and empty it; at the deepest level short keys remain in it."""
        entries = table.table
        rest = self.write(([entries.popitem()] for _ in iter(entries.__len__, 0)), table)
        table.clear()
        table.table.update(rest)

    def write(self, lists: Iterable[list[tuple[Any, Any]]], table: PairTable) -> list[tuple[Any, Any]]:
        """Write keys with their values; returns those that must stay in memory.  ``table`` estimates sizes."""
        stage = self._stage
        rest: list[tuple[Any, Any]] = []
        parts: list[list[tuple[Any, Any]]] = [[] for _ in range(FAN_OUT)]
        sizes = [0] * FAN_OUT
        for key, value in chain.from_iterable(lists):
            if stage.merge is not None:
                pairs: Pairs = ((key, value),)
            else:
                groups = value if stage.sides else (value,)
                used = sum(_bytes_of(values, table) for values in groups)
                if key in self._long or used > stage.limit // LONG:
                    self._put_long(key, groups, table)
                    continue
                if self._level >= DEEPEST:
                    rest.append((key, value))
                    continue
                sided = ((side, v) for side, values in enumerate(groups) for v in values) if stage.sides else value
                pairs = zip(repeat(key), sided)
            part = self._part(key)
            for pair in pairs:
                parts[part].append(pair)
                sizes[part] += PAIR_BYTES + table.bytes_of(pair[1])
                if sizes[part] >= self._piece_bytes:
                    self._places[part].append(self._pieces.write(parts[part]))
                    parts[part].clear()
                    sizes[part] = 0
        for part, some in enumerate(parts):
            if some:
                self._places[part].append(self._pieces.write(some))
        return rest

    def parts(self, table: PairTable) -> Iterator[Pairs]:
        """All keys with their values, at the end; ``table``: entries that are not written yet."""
        self.take(table)
        yield table.groups()  # those that stayed in memory
        for places in self._places:
            for pairs in self._stage.merged(map(self._pieces.group, places), self._level + 1):
                yield self._with_long(pairs) if self._long else pairs
            places.clear()
        yield ((key, self._values(stored, None)) for key, stored in self._long.items())

    def _part(self, key: Any) -> int:
        # The hash depends on the level, and differs from the one that chose this partition
        return hash((self._level, hash(key))) % FAN_OUT

    def _put_long(self, key: Any, lists: Iterable[list[Any]], table: PairTable) -> None:
        if key not in self._long:
            self._long[key] = [Stored(self._pieces) for _ in lists]
        for stored, values in zip(self._long[key], lists, strict=True):
            step = max(1, self._piece_bytes // max(1, _bytes_of(values, table) // max(1, len(values))))
            for start in range(0, len(values), step):
                some = values[start : start + step]
                stored.add(self._pieces.write(some), len(some))
            if isinstance(values, list):
                values.clear()

    def _with_long(self, pairs: Pairs) -> Pairs:
        """The same, with the stored values of keys that became long later."""
        for key, values in pairs:
            stored = self._long.pop(key, None)
            yield key, values if stored is None else self._values(stored, values)

    def _values(self, stored: list[Stored], first: Any) -> Any:
        from fastbuf.serializers.pair_table import Values

        if not self._stage.sides:
            return Values(stored[0].after(first))
        firsts = repeat(None, len(stored)) if first is None else first
        return tuple(Values(one.after(some)) for one, some in zip(stored, firsts, strict=True))


def _bytes_of(values: Any, table: PairTable) -> int:
    """Estimated memory of a key's values as objects."""
    return int(table.bytes_of(values) if isinstance(values, list) else values.nbytes)


class Pieces:
    """Lists in a nameless file, which is closed when its spill and all values that read from it are gone."""

    def __init__(self, directory: str) -> None:
        import fastbuf as fb

        self._file = NamelessFile(directory)
        self._serializer = fb.PickledSerializer(cloudpickle=CLOUDPICKLE)

    def write(self, values: list[Any]) -> tuple[int, int]:
        """Append a list; returns its place."""
        from fastbuf.serializers.plain_lists import pack_plain

        return self._file.append(self._serializer.encode(pack_plain(values) or values))

    def group(self, place: tuple[int, int]) -> Group:
        """The list at a place, still packed if it was written packed."""
        values: Group = self._serializer.decode(self._file.read(*place))
        return values

    def read(self, place: tuple[int, int]) -> list[Any]:
        """The list at a place."""
        return unpacked(self.group(place))


class Stored:
    """The values of a long key: it has a length, and each iteration reads them from the file."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._places: list[tuple[int, int]] = []
        self._first: Any = ()
        self._count = 0

    def add(self, place: tuple[int, int], count: int) -> None:
        """Add values that are at a place in the file."""
        self._places.append(place)
        self._count += count

    def after(self, first: Any) -> Stored:
        """Put values in memory before those in the file, if there are any."""
        if first is not None:
            self._first = first
            self._count += len(first)
        return self

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return chain(self._first, chain.from_iterable(map(self._pieces.read, self._places)))


@dataclass(frozen=True)
class Join:
    """A join: each value of one side with each value of the other.

    Attributes
    ----------
    left, right
        Whether keys that only this side has are in the result, with None for the other side's value.
    """

    left: bool
    right: bool

    def __call__(self, groups: Pairs) -> Iterator[tuple[Any, Any]]:
        return chain.from_iterable(self._products(groups))

    def _products(self, groups: Pairs) -> Iterator[Pairs]:
        nothing = (None,)
        for key, (left, right) in groups:
            if not len(left):
                if not self.right:
                    continue
                left = nothing
            if not len(right):
                if not self.left:
                    continue
                right = nothing
            if isinstance(getattr(right, "data", right), Stored) or isinstance(getattr(left, "data", left), Stored):
                yield ((key, (v, w)) for v in left for w in right)  # product() would load both sides into memory
            else:
                yield zip(repeat(key), product(left, right))


@dataclass(frozen=True)
class Sided:
    """Gives each value of an RDD the number of its side, for :class:`InPlace` of several."""

    side: int

    def __call__(self, source: Iterable[Any]) -> Iterator[tuple[Any, tuple[int, Any]]]:
        from fastbuf.serializers.pair_table import PairTable

        table, records, side = PairTable(), iter(source), self.side
        lists = iter(lambda: table.passing(records, SOME), [])
        return ((key, (side, value)) for some in lists for key, value in some)


@dataclass(frozen=True)
class InPlace:
    """Both sides of the shuffle in one task, for RDDs that are already partitioned as needed."""

    combine: Combine | None
    stage: Callable[[Iterable[list[tuple[Any, Any]]]], Iterable[Any]]

    def __call__(self, source: Iterable[Any]) -> Iterable[Any]:
        from fastbuf.serializers.pair_table import PairTable

        table, records = PairTable(self.combine.create if self.combine else None), iter(source)
        return self.stage(iter(lambda: table.passing(records, SOME), []))

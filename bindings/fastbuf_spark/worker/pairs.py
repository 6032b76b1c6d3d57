"""Pairs of an RDD by key: merged before they are sent, and merged or grouped when they have come, in bounded memory.

Before: a table that is full is sent, and not written to a file, for the other side merges by the same function.  Where
merging makes few records fewer, they are sent as they are.

After: what does not fit is written to a nameless file in parts, by a hash of the keys, and each part is treated as the
whole was, with another hash.  A key whose values are many by themselves has them in pieces of its own: nobody needs to
have them all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, product, repeat
from typing import TYPE_CHECKING, Any

from fastbuf_spark.codec import unpacked
from fastbuf_spark.worker.nameless import NamelessFile

if TYPE_CHECKING:
    from fastbuf.serializers.pair_table import PairTable

Pairs = Iterable[tuple[Any, Any]]

WORTH = 0.75  #: keys for a record in a table that is full: from there on merging hardly makes them fewer
PASS = 8  #: times as many are sent as they are then, before it is tried again
SOME = 4 << 10  #: records that are handed on together
SLACK = 0.75  #: of the memory may be reckoned with: allocators keep more than they are asked for
FAN_OUT = 32  #: parts
LONG = 8  #: values of a key are many from this part of the memory on
PIECES = 256  #: of the memory, a piece that is written
DEEPEST = 6  #: parts of parts: what is together then has one hash, and only the values of a long key still leave
PAIR_BYTES = 64  #: of the tuple that a value is written in


@dataclass(frozen=True)
class Combine:
    """What is done before records are sent.

    Attributes
    ----------
    create, merge
        See :class:`~fastbuf.serializers.pair_table.PairTable`.
    memory_bytes
        Of the table.
    """

    create: Callable[[Any], Any] | None
    merge: Callable[[Any, Any], Any]
    memory_bytes: int

    def table(self) -> PairTable:
        """An empty one."""
        from fastbuf.serializers.pair_table import PairTable

        return PairTable(self.create, self.merge)

    def lists(self, table: PairTable, source: Iterable[Any]) -> Iterator[Pairs]:
        """What is sent of the records of ``source``: some of them at a time, merged by ``table``."""
        records, limit = iter(source), int(self.memory_bytes * SLACK)
        ended = False
        while not ended:
            before = table.rows
            ended = table.fill(records, limit)
            read = table.rows - before
            left = PASS * read if not ended and len(table.table) > WORTH * read else 0
            yield table.table.items()
            table.clear()
            while left:
                some = table.passing(records, min(left, SOME))
                yield some
                ended = len(some) < min(left, SOME)
                left = 0 if ended else left - len(some)


@dataclass(frozen=True)
class MergeStage:
    """What is done with the records that have come.

    Attributes
    ----------
    merge
        Of two combiners; None: values are put into groups.
    sides
        Of how many RDDs the groups have values each; 0: of one.
    finish
        What becomes of the pairs of all keys; None: that is the result.
    """

    merge: Callable[[Any, Any], Any] | None
    sides: int
    finish: Callable[[Pairs], Pairs] | None
    memory_bytes: int
    directory: str

    def __call__(self, lists: Iterable[list[tuple[Any, Any]]]) -> Iterator[Pairs]:
        for made in self.merged(lists, 0):
            yield made if self.finish is None else self.finish(made)

    @property
    def limit(self) -> int:
        """Bytes of a table that is full."""
        return int(self.memory_bytes * SLACK)

    def merged(self, lists: Iterable[list[tuple[Any, Any]]], level: int) -> Iterator[Pairs]:
        """The keys and what there is of them, some at a time; ``level``: part of a part of the whole."""
        from fastbuf.serializers.pair_table import PairTable

        table = PairTable(None, self.merge, self.sides)
        spill = None
        for pairs in lists:
            table.add(pairs)
            del pairs  # before the next are made
            if table.nbytes > self.limit and (level < DEEPEST or self.merge is None):
                spill = spill or Spill(self, level)
                spill.take(table)
        if spill is None:
            # An iterator, which lets go of the table at its end: the next part's may be made then
            yield iter(table.table.items()) if self.merge is not None else table.groups()
        else:
            yield from spill.parts(table)


class Spill:
    """Entries of tables in a nameless file, by a hash of their keys, and those of long keys apart."""

    def __init__(self, stage: MergeStage, level: int) -> None:
        self._stage = stage
        self._level = level
        self._pieces = Pieces(stage.directory)
        self._piece_bytes = max(1 << 10, stage.memory_bytes // PIECES)
        self._places: list[list[tuple[int, int]]] = [[] for _ in range(FAN_OUT)]
        self._long: dict[Any, list[Stored]] = {}

    def take(self, table: PairTable) -> None:
        """Write a table's entries, and empty it; at the deepest level short keys stay, for no hash parts them."""
        stage, entries = self._stage, table.table
        kept: list[tuple[Any, Any]] = []
        held: list[list[tuple[Any, Any]]] = [[] for _ in range(FAN_OUT)]
        sizes = [0] * FAN_OUT
        while entries:
            key, value = entries.popitem()
            if stage.merge is not None:
                pairs: Pairs = ((key, value),)
            else:
                lists = value if stage.sides else (value,)
                used = sum(map(table.bytes_of, lists))
                if key in self._long or used > stage.limit // LONG:
                    self._put_long(key, lists, table)
                    continue
                if self._level >= DEEPEST:
                    kept.append((key, value))
                    continue
                sided = ((side, v) for side, values in enumerate(lists) for v in values) if stage.sides else value
                pairs = zip(repeat(key), sided)
            part = self._part(key)
            for pair in pairs:
                held[part].append(pair)
                sizes[part] += PAIR_BYTES + table.bytes_of(pair[1])
                if sizes[part] >= self._piece_bytes:
                    self._places[part].append(self._pieces.write(held[part]))
                    held[part].clear()
                    sizes[part] = 0
        for part, some in enumerate(held):
            if some:
                self._places[part].append(self._pieces.write(some))
        table.clear()
        table.table.update(kept)

    def parts(self, table: PairTable) -> Iterator[Pairs]:
        """All keys and what there is of them, in the end; ``table``: those that have not been taken."""
        self.take(table)
        yield table.groups()  # that have stayed
        for places in self._places:
            for made in self._stage.merged(map(self._pieces.read, places), self._level + 1):
                yield self._with_long(made) if self._long else made
            places.clear()
        yield ((key, self._values(stored, None)) for key, stored in self._long.items())

    def _part(self, key: Any) -> int:
        # Another one at each level, and not by the bits that placed the key in this partition
        return hash((self._level, hash(key))) % FAN_OUT

    def _put_long(self, key: Any, lists: Iterable[list[Any]], table: PairTable) -> None:
        if key not in self._long:
            self._long[key] = [Stored(self._pieces) for _ in lists]
        for stored, values in zip(self._long[key], lists, strict=True):
            step = max(1, self._piece_bytes // max(1, table.bytes_of(values) // max(1, len(values))))
            for start in range(0, len(values), step):
                some = values[start : start + step]
                stored.add(self._pieces.write(some), len(some))
            values.clear()

    def _with_long(self, made: Pairs) -> Pairs:
        """The same, with what else there is of those whose values became many later."""
        for key, values in made:
            stored = self._long.pop(key, None)
            yield key, values if stored is None else self._values(stored, values)

    def _values(self, stored: list[Stored], first: Any) -> Any:
        from fastbuf.serializers.pair_table import Values

        if not self._stage.sides:
            return Values(stored[0].after(first))
        firsts = repeat(None, len(stored)) if first is None else first
        return tuple(Values(one.after(some)) for one, some in zip(stored, firsts, strict=True))


class Pieces:
    """Lists in a nameless file; it is closed when neither its spill nor any values in it are there any more."""

    def __init__(self, directory: str) -> None:
        import fastbuf as fb

        self._file = NamelessFile(directory)
        self._serializer = fb.PickledSerializer()

    def write(self, found: list[Any]) -> tuple[int, int]:
        """Append a list; its place."""
        from fastbuf.serializers.plain_lists import pack_plain

        return self._file.append(self._serializer.encode(pack_plain(found) or found))

    def read(self, place: tuple[int, int]) -> list[Any]:
        """The list at a place."""
        return unpacked(self._serializer.decode(self._file.read(*place)))


class Stored:
    """The values of a key in a file: sized, and read from it each time."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._places: list[tuple[int, int]] = []
        self._first: Any = ()
        self._count = 0

    def add(self, place: tuple[int, int], count: int) -> None:
        """More of them."""
        self._places.append(place)
        self._count += count

    def after(self, first: Any) -> Stored:
        """With these before them, if there are any."""
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
    """Every value of one side with every one of the other.

    Attributes
    ----------
    left, right
        Whether a key that this side alone has comes out, with None for the other side's value.
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
                yield ((key, (v, w)) for v in left for w in right)  # product would have all of both in memory
            else:
                yield zip(repeat(key), product(left, right))


@dataclass(frozen=True)
class InPlace:
    """Both ends in one task, for an RDD whose keys are in their places already."""

    combine: Combine | None
    stage: Callable[[Iterable[list[tuple[Any, Any]]]], Iterable[Any]]

    def __call__(self, source: Iterable[Any]) -> Iterable[Any]:
        from fastbuf.serializers.pair_table import PairTable

        table, records = PairTable(self.combine.create if self.combine else None), iter(source)
        return self.stage(iter(lambda: table.passing(records, SOME), []))

"""What travels through an exchange: record batches of a DataFrame, or groups of an RDD's records.

A codec is shipped to the workers.  It makes their serializers and selectors, turns what a task reads into the
items a writer takes, and what a gate gives into what the user sees.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fastbuf_spark.schema import conform

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_BYTES = 32 << 10  #: about one segment: a group that is longer spans segments, one that is shorter wastes pickles
GROUP_RECORDS = 512


class Codec(Protocol):
    """The interface of both kinds."""

    def serializer(self, checksum: bool) -> Any:
        """A new serializer."""

    def selector(self) -> Any:
        """Which subpartition an item goes to."""

    def items(self, source: Iterable[Any]) -> Iterator[Any]:
        """What the writer takes, from what the task reads."""

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
        Arrow schema of what travels.
    before
        The user's function on the map side, or None.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    before: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]] | None = None

    def serializer(self, checksum: bool) -> Any:
        import fastbuf as fb

        return fb.ColumnarSerializer(fb.Schema.from_arrow(self.schema), checksum=checksum)

    def selector(self) -> Any:
        import fastbuf as fb

        return fb.hash_by(*self.keys) if self.keys else fb.round_robin()

    def items(self, source: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        whose = "the function before the shuffle" if self.before is not None else "the input"
        made: Iterable[pa.RecordBatch] = source if self.before is None else self.before(iter(source))
        for batch in made:
            if batch.num_rows:
                yield conform(batch, self.schema, whose)

    def opened(self, polled: Any) -> Iterable[pa.RecordBatch]:
        # Names inside nested types are Arrow's own on the wire; the user sees Spark's
        return (conform(polled, self.schema, "the exchange"),)

    def count(self, item: pa.RecordBatch) -> int:
        return int(item.num_rows)


@dataclass(frozen=True)
class RecordCodec:
    """Records of an RDD, grouped by partition: one pickle for a few hundred records instead of one for each.

    Attributes
    ----------
    place
        From a record to its partition.
    """

    place: Callable[[Any], int]

    def serializer(self, checksum: bool) -> Any:
        import fastbuf as fb

        return fb.PickledSerializer(checksum=checksum)

    def selector(self) -> Any:
        import fastbuf as fb

        return fb.custom(_partition_of)

    def items(self, source: Iterable[Any]) -> Iterator[tuple[int, list[Any]]]:
        return grouped(source, self.place)

    def opened(self, polled: Any) -> Iterable[Any]:
        for _, group in polled:
            yield from group

    def count(self, item: tuple[int, list[Any]]) -> int:
        return len(item[1])


def _partition_of(item: tuple[int, list[Any]], partitions: int) -> int:
    return item[0]


def grouped(
    source: Iterable[Any], place: Callable[[Any], int], group_bytes: int = GROUP_BYTES
) -> Iterator[tuple[int, list[Any]]]:
    """Group records by partition, each group about ``group_bytes`` when pickled.

    The size of a record is guessed from the last group's first record, so that large records are not hoarded.
    """
    groups: dict[int, list[Any]] = {}
    limit = 1
    for record in source:
        partition = place(record)
        group = groups.get(partition)
        if group is None:
            group = groups[partition] = []
        group.append(record)
        if len(group) >= limit:
            limit = _records_per_group(record, group_bytes)
            if len(group) >= limit:
                yield partition, group
                del groups[partition]
    yield from groups.items()


def _records_per_group(record: Any, group_bytes: int) -> int:
    try:
        size = len(pickle.dumps(record, protocol=pickle.HIGHEST_PROTOCOL))
    except Exception:
        # Only cloudpickle can: such records are few and long; the serializer says so if it cannot either
        return 1
    return max(1, min(GROUP_RECORDS, group_bytes // max(1, size)))

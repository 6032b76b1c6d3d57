"""Functions over record batches that are called in one task, each with the output of the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fastbuf_spark.results import Checked, about
from fastbuf_spark.schema import conform, within_precision
from fastbuf_spark.worker.signs import GivesSigns
from fastbuf_spark.worker.task_input import InputGuard

if TYPE_CHECKING:
    import pyarrow as pa

    from fastbuf_spark.schema import BatchFunction


@dataclass(frozen=True)
class Link:
    """A function, and the schema that its output must have.

    Attributes
    ----------
    is_users
        Whether it is a user's: it may go on writing to the memory of a batch that it gave, and keep one that it got.
    several
        What it gives batches in, as :func:`~fastbuf_spark.results.iterables` says.
    """

    func: BatchFunction
    schema: pa.Schema
    is_users: bool = False
    several: Any = Iterable

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        guard, whose = InputGuard(), about(self.func)
        for batch in Checked(self.func, several=self.several)(guard.items(batches)):
            # A batch without rows may also lack columns, as in Spark
            if batch.num_rows or isinstance(self.func, GivesSigns):
                yield within_precision(conform(batch, self.schema, whose), whose)
        guard.check()


@dataclass(frozen=True)
class Chain:
    """The functions, in order; empty: the batches stay unchanged."""

    links: tuple[Callable[[Any], Iterable[pa.RecordBatch]], ...] = field(default=())

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        before: object = None
        for link in self.links:
            if getattr(before, "is_users", False) and getattr(link, "is_users", False):
                batches = _copies(batches)
            batches = link(batches)
            before = link
        return batches

    def then(self, link: Callable[[Any], Iterable[pa.RecordBatch]]) -> Chain:
        """This chain and one more function."""
        return Chain((*self.links, link))


def _copies(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches between two users' functions: what the one writes, the other does not see, as if Spark were between."""
    import pyarrow as pa

    for batch in batches:
        yield pa.ipc.read_record_batch(batch.serialize(), batch.schema)


class Head(Protocol):
    """The first part of a task."""

    def batches(self, source: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """The function of ``mapInArrow``: its output goes to Spark."""

    def chained(self, source: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """The same if the output is used in the same task."""

    def then(self, link: Callable[[Any], Iterable[pa.RecordBatch]]) -> Head:
        """The same, with ``link`` called on the output."""


@dataclass(frozen=True)
class Called:
    """A :class:`Head` that is a chain of functions over Spark's input."""

    chain: Chain

    def batches(self, source: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        return iter(self.chain(source))

    chained = batches

    def then(self, link: Callable[[Any], Iterable[pa.RecordBatch]]) -> Called:
        return Called(self.chain.then(link))

"""Functions over record batches that are called in one task, each with what the one before it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fastbuf_spark.schema import conform
from fastbuf_spark.worker.task_input import Given

if TYPE_CHECKING:
    import pyarrow as pa

    BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True)
class Link:
    """A user's function, and the schema of what it has to give."""

    func: BatchFunction
    schema: pa.Schema
    name: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = Given()
        for batch in self.func(given.items(batches)):
            # What has no rows may have no columns either, as Spark allows
            if getattr(batch, "num_rows", 1):
                yield conform(batch, self.schema, f"the function '{self.name}'")
        given.check()


@dataclass(frozen=True)
class Chain:
    """The functions, in order; none: the batches as they are."""

    links: tuple[Callable[[Any], Iterable[pa.RecordBatch]], ...] = field(default=())

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for link in self.links:
            batches = link(batches)
        return batches

    def then(self, link: Callable[[Any], Iterable[pa.RecordBatch]]) -> Chain:
        """This, and one more."""
        return Chain((*self.links, link))


class Head(Protocol):
    """What a task begins with."""

    def batches(self, source: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """The function of ``mapInArrow``: what it gives goes to Spark."""

    def chained(self, source: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """The same, where what it gives goes on in the same task."""

    def then(self, link: Callable[[Any], Iterable[pa.RecordBatch]]) -> Head:
        """The same, and ``link`` called with what it gives."""


@dataclass(frozen=True)
class Called:
    """A :class:`Head` that is a chain of functions over what Spark gives."""

    chain: Chain

    def batches(self, source: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        return iter(self.chain(source))

    chained = batches

    def then(self, link: Callable[[Any], Iterable[pa.RecordBatch]]) -> Called:
        return Called(self.chain.then(link))

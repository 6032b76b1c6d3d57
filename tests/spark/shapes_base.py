"""What a shape is: something people do with shuffled rows, that gives the same whoever shuffled them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastbuf_spark as fbs

MODES = ("pipelined", "blocking", "auto")
FOUR, SIX = "local[4]", "local[6]"  # SIX: for shapes with more consumers at once than local[4] has slots for
ROWS = 2_000

Run = Callable[[Any, "Shuffle", "Shuffle", Path], Any]


@dataclass(frozen=True)
class Shuffle:
    """Shuffles frames and RDDs: fastbuf in a mode, or Spark's own (no mode)."""

    mode: str | None
    parts: int

    def __call__(self, df: Any, *keys: str, parts: int | None = None) -> Any:
        parts, keys = parts or self.parts, keys or ("k",)
        if self.mode is None:
            return df.repartition(parts, *keys)
        return fbs.repartition(df, parts, *keys, mode=self.mode)

    def pairs(self, rdd: Any, parts: int | None = None) -> Any:
        """By key, the pairs of an RDD."""
        if self.mode is None:
            return rdd.partitionBy(parts or self.parts)
        return fbs.partition_by(rdd, parts or self.parts, mode=self.mode)


@dataclass(frozen=True)
class Shape:
    """One line of the table.

    ``run(spark, made, own, tmp_path)`` gives what is compared: once with ``made`` being fastbuf's shuffle, once with it
    being Spark's own; ``own`` is Spark's own both times.
    """

    name: str
    run: Run
    parts: int = 2  #: R
    master: str = FOUR
    modes: tuple[str, ...] = MODES
    chooses: bool = False  #: mode auto has to choose here: it is tried in short runs too
    cheap: bool = False  #: one or two short jobs: fit to be run many times
    conf: dict[str, str] = field(default_factory=dict)  #: of the session, while it runs


class Table:
    """Shapes in the order in which they were added."""

    def __init__(self) -> None:
        self.shapes: list[Shape] = []

    def add(self, run: Run, name: str = "", **more: Any) -> None:
        self.shapes.append(Shape(name or getattr(run, "__name__", ""), run, **more))

    def shape(self, **more: Any) -> Callable[[Run], Run]:
        """A decorator: the function is a shape, by its name."""

        def keep(run: Run) -> Run:
            self.add(run, **more)
            return run

        return keep


@contextmanager
def settings(spark: Any, conf: dict[str, str]) -> Iterator[None]:
    """Sets them for a while; all that was set meanwhile by others is put back too."""
    watched = {*conf, "spark.sql.limit.initialNumPartitions"}
    before = {name: spark.conf.get(name, None) for name in watched}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


def numbers(spark: Any, rows: int = ROWS, parts: int = 4) -> Any:
    """The input of most shapes: ``id`` is unique, ``k`` the key."""
    return spark.range(0, rows, 1, parts).selectExpr(
        "id", "id % 97 as k", "concat('u', id % 13) as u", "id * 0.5D as x"
    )


def pairs(spark: Any, rows: int = ROWS, parts: int = 4) -> Any:
    """The input of RDD shapes; the values are unique."""
    return spark.sparkContext.parallelize([(i % 97, i) for i in range(rows)], parts)


def told(rows: Iterable[Any]) -> list[str]:
    """Rows with their columns' names, in an order of their own."""
    return sorted(map(repr, rows))


def rows(df: Any) -> tuple[Any, list[str]]:
    """Types and rows of a frame whose order is not defined."""
    return df.dtypes, told(df.collect())


def placed(df: Any) -> tuple[Any, list[str]]:
    """The same, with the partition that each row is in."""
    from pyspark.sql import functions as F

    return rows(df.select(F.spark_partition_id().alias("partition"), "*"))


def in_parts(rdd: Any) -> list[list[str]]:
    """The elements of each partition of an RDD."""
    return [told(part) for part in rdd.glom().collect()]


def some(found: Iterable[Any], rows: int = ROWS) -> tuple[int, bool, bool]:
    """Of rows that Spark may choose: how many, whether all differ, and whether each is one of ``numbers``."""
    found = list(found)
    fits = all((r.k, r.u, r.x) == (r.id % 97, f"u{r.id % 13}", r.id * 0.5) and 0 <= r.id < rows for r in found)
    return len(found), len({r.id for r in found}) == len(found), fits

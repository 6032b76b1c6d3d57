"""A Spark stage whose DataFrame is not made yet, so that more functions can be added to its tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fastbuf_spark.driver.keys import numbered, plain
from fastbuf_spark.results import iterables
from fastbuf_spark.schema import arrow_schema, large_types, renaming, session_zone
from fastbuf_spark.shipping import named
from fastbuf_spark.worker.chains import Called, Chain, Head, Link

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.resource import ResourceProfile
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from fastbuf_spark.schema import BatchFunction


@dataclasses.dataclass(frozen=True)
class Staged:
    """One stage of Spark.

    Attributes
    ----------
    frame
        The DataFrame that its tasks read.
    schema
        Schema of its output rows.
    head
        The function of its tasks; None: ``frame`` has the rows already.
    name
        Name of that function in Spark's plans.
    in_order
        Whether each partition, after ``head``, has its rows in the same order whenever its task runs again.
    mode, why
        Mode of the exchange that it begins with, if any, and the reason for it.
    numbered
        Each partition of ``frame`` has at least one row, and ``head`` needs it: the number of what the task is to read.
    """

    frame: DataFrame
    schema: StructType
    head: Head | None = None
    name: str = "fastbuf_maps"
    in_order: bool = True
    mode: str = ""
    why: str = ""
    numbered: bool = False

    def then(self, func: BatchFunction, schema: StructType, is_users: bool = False) -> Staged:
        """This stage with one more function, called in the same tasks."""
        spark = self.frame.sparkSession
        shape = arrow_schema(schema, session_zone(spark), large_types(spark))
        link = Link(func, shape, is_users, iterables(spark) if is_users else Iterable)
        if self.head is not None:
            return dataclasses.replace(self, schema=schema, head=self.head.then(link))
        frame = plain(self.frame)
        renamed = () if frame is self.frame else (Renamed(self.frame.schema.names),)
        return dataclasses.replace(self, frame=frame, schema=schema, head=Called(Chain((*renamed, link))))

    def to_df(self, barrier: bool = False, profile: ResourceProfile | None = None) -> DataFrame:
        """The DataFrame; ``barrier`` and ``profile`` are those of Spark's ``mapInArrow``."""
        if self.head is None:
            return self.frame
        names = self.schema.names
        if len(set(names)) < len(names):  # the JVM cannot tell columns of the same name apart when it reads Arrow's
            bare = numbered(self.schema)
            return self.then(Renamed(bare.names), bare).to_df(barrier, profile).toDF(*names)
        return self.frame.mapInArrow(named(self.head.batches, self.name), self.schema, barrier, profile)

    @property
    def before(self) -> BatchFunction | None:
        """The function that a producer applies to the rows of ``frame``."""
        return None if self.head is None else self.head.chained


@dataclasses.dataclass(frozen=True)
class Renamed:
    """Gives the columns of batches the names that users see."""

    names: list[str]

    def __call__(self, batches: Any) -> Iterable[pa.RecordBatch]:
        return renaming(lambda rows: rows, self.names)(iter(batches))

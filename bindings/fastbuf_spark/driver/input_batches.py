"""How Spark splits a producer's input into Arrow batches.

Spark limits a batch to ``maxBytesPerBatch`` (64 MiB) by measuring the whole batch after every row, which takes two
thirds of the time to move a narrow table into Python.  If rows are known to be short, the limit on rows
(``maxRecordsPerBatch``, 10,000) is enough, and the producers' job runs without the other limit.  A user's setting in
the session wins: it overrides the job's own properties.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fastbuf_spark.conf import MAX_RECORDS
from fastbuf_spark.pyspark_private import average_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

MAX_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
NO_LIMIT = str(2**31 - 1)  #: the only value with which Spark does not measure
SKEW = 8  #: assumed ratio of the rows of one batch to the average of all rows, if only the average is known
_BYTES = re.compile(r"^(\d+)b?$")


def properties(df: DataFrame, max_row_bytes: int) -> dict[str, str]:
    """Local properties for a job that reads ``df`` into Python.

    Parameters
    ----------
    df
        The producers' input.
    max_row_bytes
        The user's limit for the longest row; 0: none given.

    Returns
    -------
    dict
        Empty if rows may be so long that Spark must measure batches.
    """
    conf = df.sparkSession.conf
    rows = int(conf.get(MAX_RECORDS) or 0)
    limit = _BYTES.match(conf.get(MAX_BYTES) or "")
    if rows <= 0 or limit is None:
        return {}
    longest = max_row_bytes or fixed_bytes(df.schema) or SKEW * average_bytes(df)
    if not longest:
        return {}
    fit = int(limit[1]) // longest
    if fit >= rows:
        return {MAX_BYTES: NO_LIMIT}
    return {MAX_BYTES: NO_LIMIT, MAX_RECORDS: str(fit)} if max_row_bytes and fit else {}


def is_measured(df: DataFrame, max_row_bytes: int, pipelined: bool) -> bool:
    """Whether Spark measures the batches of ``df`` after every row; ``pipelined``: the next exchange is."""
    limit = _BYTES.match(df.sparkSession.conf.get(MAX_BYTES) or "")
    return limit is not None and limit[1] != NO_LIMIT and not (pipelined and properties(df, max_row_bytes))


def fixed_bytes(kind: DataType) -> int:
    """Bytes of a value in Arrow, including validity, if all values of its type have the same length; else 0."""
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        widths = [fixed_bytes(field.dataType) for field in kind.fields]
        return sum(widths) + 1 if all(widths) else 0
    if isinstance(kind, T.StringType | T.BinaryType | T.ArrayType | T.MapType):
        return 0
    if isinstance(kind, T.DecimalType):
        return 17
    # Types that are not known to be short count as long
    return (
        9 if isinstance(kind, T.NumericType | T.BooleanType | T.DateType | T.TimestampType | T.TimestampNTZType) else 0
    )

"""How Spark cuts a producer's input into Arrow batches.

Spark keeps a batch below ``maxBytesPerBatch`` (64 MiB) by adding up the whole batch after every row, which takes
two thirds of the time of a narrow table's way into Python.  Where the rows are known to be short the bound in rows
(``maxRecordsPerBatch``, 10,000) is bound enough, and the producers' job runs without the other.  What a user has set in
the session holds: Spark puts it over the job's own properties.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

MAX_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
MAX_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
NO_LIMIT = str(2**31 - 1)  #: the one value for which Spark does not measure
SKEW = 8  #: how much longer than all rows' average those of one batch may be, where only an average is known
_BYTES = re.compile(r"^(\d+)b?$")


def properties(df: DataFrame, max_row_bytes: int) -> dict[str, str]:
    """Local properties for a job that reads ``df`` into Python.

    Parameters
    ----------
    df
        The producers' input.
    max_row_bytes
        What the user says of the longest row; 0: nothing.

    Returns
    -------
    dict
        Empty if rows may be so long that batches have to be measured.
    """
    conf = df.sparkSession.conf
    rows = int(conf.get(MAX_RECORDS) or 0)
    found = _BYTES.match(conf.get(MAX_BYTES) or "")
    if rows <= 0 or found is None:
        return {}
    longest = max_row_bytes or fixed_bytes(df.schema) or SKEW * average_bytes(df)
    if not longest:
        return {}
    fit = int(found[1]) // longest
    if fit >= rows:
        return {MAX_BYTES: NO_LIMIT}
    return {MAX_BYTES: NO_LIMIT, MAX_RECORDS: str(fit)} if max_row_bytes and fit else {}


def fixed_bytes(kind: DataType) -> int:
    """Bytes that a value takes in Arrow, validity included, if all values of its type are of one length; else 0."""
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        widths = [fixed_bytes(field.dataType) for field in kind.fields]
        return sum(widths) + 1 if all(widths) else 0
    if isinstance(kind, T.StringType | T.BinaryType | T.ArrayType | T.MapType):
        return 0
    if isinstance(kind, T.DecimalType):
        return 17
    # Types that are not known to be short are taken for long
    return (
        9 if isinstance(kind, T.NumericType | T.BooleanType | T.DateType | T.TimestampType | T.TimestampNTZType) else 0
    )


def average_bytes(df: DataFrame) -> int:
    """Bytes of a row on average, where Spark has counted them: in a cached DataFrame.  Else 0."""
    try:
        plan: Any = df._jdf.queryExecution().optimizedPlan()
        if plan.getClass().getSimpleName() != "InMemoryRelation":
            return 0
        if not plan.cacheBuilder().isCachedColumnBuffersLoaded():
            return 0
        stats = plan.stats()
        rows = int(stats.rowCount().get()) if stats.rowCount().isDefined() else 0
        return -(-int(str(stats.sizeInBytes())) // rows) if rows else 0
    except Exception:  # private doors of Spark: where one is shut, batches are measured
        return 0

"""10,000 random values of each type: our hash and our partitions against Spark's own, live."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from fastbuf.serializers.murmur3 import murmur3_hash
from fastbuf.serializers.partition import hash_partition

pytestmark = pytest.mark.spark
ROWS = 10_000
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def text(r: random.Random) -> str:
    return "".join(
        chr(r.choice((r.randrange(32, 127), r.randrange(0xA0, 0x800), r.randrange(0x10000, 0x1F000))))
        for _ in range(r.randrange(20))
    )


def real(r: random.Random) -> float:
    return r.choice([r.gauss(0, 1e6), 0.0, -0.0, float("nan"), float("inf"), -float("inf")])


def number(digits: int, scale: int) -> Callable[[random.Random], Decimal]:
    return lambda r: Decimal(
        r.randrange(-(10 ** r.randrange(1, digits + 1)) + 1, 10 ** r.randrange(1, digits + 1))
    ).scaleb(-scale)


TYPES: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "boolean": (pa.bool_(), lambda r: r.random() < 0.5),
    "byte": (pa.int8(), lambda r: r.randrange(-128, 128)),
    "short": (pa.int16(), lambda r: r.randrange(-(2**15), 2**15)),
    "int": (pa.int32(), lambda r: r.randrange(-(2**31), 2**31)),
    "long": (pa.int64(), lambda r: r.randrange(-(2**63), 2**63) >> r.randrange(60)),
    "float": (pa.float32(), real),
    "double": (pa.float64(), real),
    "string": (pa.string(), text),
    "binary": (pa.binary(), lambda r: r.randbytes(r.randrange(20))),
    "date": (pa.date32(), lambda r: dt.date(1970, 1, 1) + dt.timedelta(days=r.randrange(-20000, 30000))),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        lambda r: EPOCH + dt.timedelta(microseconds=r.randrange(-(10**15), 4 * 10**15)),
    ),
    "interval": (pa.duration("us"), lambda r: dt.timedelta(microseconds=r.randrange(-(10**15), 10**15))),
    "decimal 18": (pa.decimal128(18, 4), number(18, 4)),
    "decimal 38": (pa.decimal128(38, 10), number(38, 10)),
    "list": (pa.list_(pa.int64()), lambda r: [r.choice([None, r.randrange(-9, 9)]) for _ in range(r.randrange(5))]),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        lambda r: {"a": r.choice([None, r.randrange(99)]), "b": text(r)},
    ),
}


@pytest.mark.parametrize("name", TYPES)
def test_hash_is_sparks(spark: Any, name: str) -> None:
    from pyspark.sql import functions as F

    kind, make = TYPES[name]
    r = random.Random(name)
    column = pa.array([None if r.random() < 0.05 else make(r) for _ in range(ROWS)], kind)
    table = pa.table({"n": pa.array(range(ROWS)), "v": column})
    frame = spark.createDataFrame(table).select("n", F.hash("v").alias("h"), F.hash("v", "n", "v").alias("c"))
    found = frame.toArrow().sort_by("n")
    assert murmur3_hash([column]).tolist() == found["h"].to_pylist()
    assert murmur3_hash([column, table["n"].combine_chunks(), column]).tolist() == found["c"].to_pylist()


def test_rows_land_where_repartition_puts_them(spark: Any) -> None:
    from pyspark.sql import functions as F

    r = random.Random(1)
    batch = pa.record_batch(
        {
            "k": pa.array([text(r) for _ in range(ROWS)]),
            "v": pa.array([r.choice([None, r.randrange(50)]) for _ in range(ROWS)]),
        }
    )
    for n in (2, 7, 200):
        placed = (
            spark.createDataFrame(pa.table(batch))
            .repartition(n, "v", "k")
            .withColumn("p", F.spark_partition_id())
            .toArrow()
        )
        expected = {(row["k"], row["v"]): row["p"] for row in placed.to_pylist()}
        rows = zip(batch["k"].to_pylist(), batch["v"].to_pylist(), strict=True)
        assert hash_partition(batch, ["v", "k"], n).tolist() == [expected[row] for row in rows]

"""10,000 random values of each type: our hash and our partitions against Spark's own, live."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from fastbuf.errors import SchemaError
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
    "timestamp without zone": (
        pa.timestamp("us"),
        lambda r: dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=r.randrange(-(10**15), 4 * 10**15)),
    ),
    "time": (pa.time64("ns"), lambda r: (EPOCH + dt.timedelta(microseconds=r.randrange(86_400_000_000))).time()),
    "null": (pa.null(), lambda r: None),
    "decimal 1": (pa.decimal128(1, 0), number(1, 0)),
    "decimal 19": (pa.decimal128(19, 0), number(19, 0)),
    "list": (pa.list_(pa.int64()), lambda r: [r.choice([None, r.randrange(-9, 9)]) for _ in range(r.randrange(5))]),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        lambda r: {"a": r.choice([None, r.randrange(99)]), "b": text(r)},
    ),
    "list of lists": (
        pa.list_(pa.list_(pa.string())),
        lambda r: [r.choice([None, [], [text(r), None], [text(r)]]) for _ in range(r.randrange(4))],
    ),
    "list of decimals, dates, binaries": (
        pa.struct([("d", pa.list_(pa.decimal128(30, 3))), ("t", pa.list_(pa.date32())), ("b", pa.list_(pa.binary()))]),
        lambda r: {
            "d": r.choice([None, [None, number(30, 3)(r)]]),
            "t": [dt.date(1970, 1, 1) + dt.timedelta(days=r.randrange(-999, 999))] * r.randrange(3),
            "b": r.choice([[], [r.randbytes(5), None]]),
        },
    ),
    "structs within": (
        pa.struct([("x", pa.float64()), ("s", pa.list_(pa.struct([("y", pa.float32()), ("z", pa.bool_())])))]),
        lambda r: {"x": real(r), "s": r.choice([None, [{"y": real(r), "z": r.choice([None, True])}, None]])},
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


@pytest.mark.parametrize("kind", ["map<int,int>", "array<map<int,int>>", "struct<a:map<int,int>>"])
def test_what_spark_refuses_is_refused(spark: Any, kind: str) -> None:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    frame = spark.createDataFrame([], f"v {kind}")
    with pytest.raises(AnalysisException, match="HASH_MAP_TYPE"):
        frame.select(F.hash("v"))
    batch = pa.RecordBatch.from_pylist([], frame.toArrow().schema)
    with pytest.raises(SchemaError, match="Spark cannot hash maps"):
        hash_partition(batch, "v", 2)
    with pytest.raises(SchemaError, match="Spark cannot hash maps"):
        murmur3_hash([pa.array([], batch.schema.field("v").type)])


def test_every_type_of_sparks_is_here() -> None:
    """What Spark's Arrow schemas can be made of; intervals of months have no Arrow type that Spark gives."""
    from pyspark.sql import types as T
    from pyspark.sql.pandas.types import to_arrow_type

    atoms = [T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType, T.StringType]
    atoms += [
        T.BinaryType,
        T.DateType,
        T.TimestampType,
        T.TimestampNTZType,
        T.DayTimeIntervalType,
        T.NullType,
        T.TimeType,
    ]
    here = {kind for kind, _ in TYPES.values()}
    for atom in atoms:
        assert to_arrow_type(atom(), timezone="UTC") in here, atom


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

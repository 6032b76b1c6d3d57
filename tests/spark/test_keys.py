"""Every key and column that Spark has: rows where Spark's own ``repartition`` puts them, or a refusal on the driver."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from nights import nightly

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, RecordTooLong, SchemaError
from fastbuf.serializers.partition import hash_partition

LONG = os.environ.get("FASTBUF_LONG") == "1"
pytestmark = pytest.mark.spark
MODES = ["blocking", "pipelined"]
REAL = "elt(1 + id % 6, '0.0', '-0.0', 'NaN', 'Infinity', '-1.5', cast(id as string))"
WORDS = "elt(1 + id % 5, 'a', 'A ', 'a ', 'b', 'É')"
POINT = "st_{}fromwkb(X'0101000000000000000000F03F0000000000000040')"
WIDE = "if(id % 5 = 0, null, cast(id - 40 as decimal(38, 10)) * 1234567890123456789)"

#: types that both modes place, with an expression of ``id`` for each
PLACED = {
    "boolean": "id % 3 = 0",
    "byte": "cast(id - 40 as byte)",
    "short": "cast(id * -7 as short)",
    "int": "cast(id - 40 as int)",
    "long": "id * 7919 - 40",
    "float": f"cast({REAL} as float)",
    "double": f"cast({REAL} as double)",
    "decimal(1,0)": "cast(id % 10 as decimal(1,0))",
    "decimal(18,4)": "cast((id - 40) * 1234567.8901 as decimal(18,4))",
    "decimal(19,0)": "cast(-id * 123456789 as decimal(19,0))",
    "decimal(38,10)": f"cast({WIDE} as decimal(38,10))",
    "string": f"if(id % 7 = 0, null, {WORDS})",
    "binary": "cast(cast(id as string) as binary)",
    "date": "date_add(date'1969-12-01', cast(id as int))",
    "timestamp": "timestamp_micros((id - 40) * 86400123456)",
    "timestamp_ntz": "cast(timestamp_micros((id - 40) * 86400123456) as timestamp_ntz)",
    "time": "time_from_micros(id * 86400123)",
    "interval day to second": "make_dt_interval(cast(id - 40 as int), 0, 0, 1.5)",
    "interval day": "cast(make_dt_interval(cast(id - 40 as int)) as interval day)",
    "void": "null",
    "array<int>": "if(id % 4 = 0, null, array(cast(id as int), null))",
    "array<array<string>>": f"array(array({WORDS}), null, array())",
    "struct": f"if(id % 4 = 0, null, named_struct('x', cast(id as int), 'y', named_struct('z', {WORDS})))",
    "struct of decimals": f"named_struct('d', array({WIDE}), 'e', cast({REAL} as float))",
    "empty struct": "struct()",
    "cast to char": "cast(id as char(5))",
    "cast to varchar": "cast(id as varchar(9))",
}
#: those that Spark places and fastbuf does not: Spark's own shuffle, in mode auto and blocking
BY_SPARK = {
    "UTF8_LCASE": f"{WORDS} collate UTF8_LCASE",
    "UNICODE_CI": f"{WORDS} collate UNICODE_CI",
    "UTF8_BINARY_RTRIM": f"{WORDS} collate UTF8_BINARY_RTRIM",
    "struct of UTF8_LCASE": f"named_struct('x', id % 2, 'y', {WORDS} collate UTF8_LCASE)",
    "array of UNICODE_CI": f"array({WORDS} collate UNICODE_CI)",
    "map": "map_from_arrays(if(id % 2 = 0, array(1, 2), array(2, 1)), array(id % 3, id % 3))",
    "array<void>": "array(null, null)",
    "map within": "named_struct('m', map('a', id % 5))",
}
#: types that Spark refuses as a key, or fails at
NO_KEY = {
    "variant": ("parse_json(cast(id as string))", "variants"),
    "array<variant>": ("array(parse_json(cast(id as string)))", "variants"),
    "geometry": (POINT.format("geom"), "geometries"),
    "geography": (POINT.format("geog"), "geographies"),
    "struct<x:geometry>": (f"named_struct('x', {POINT.format('geom')})", "geometries"),
}
#: types that Spark's own mapInArrow does not carry
NOT_CARRIED = {
    "interval year to month": "make_ym_interval(cast(id as int), 1)",
    "array<interval year to month>": "array(make_ym_interval(cast(id as int), 1))",
    "interval": "make_interval(cast(id as int))",
    "array<void>": "array()",
}


def whole(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The stage that does nothing, of the user's own."""
    yield from batches


def first_column(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a user's function sees: how many columns, and the first one's name and type."""
    for batch in batches:
        seen = [f"{batch.num_columns} {batch.schema.names[0]} {batch.schema.field(0).type}"]
        yield pa.RecordBatch.from_arrays([pa.array(seen)], ["t"])


@pytest.fixture
def spark(spark: Any) -> Iterator[Any]:
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.timeType.enabled")


def frame(spark: Any, expression: str) -> Any:
    """80 rows in 2 partitions; a test of what this Spark has not is skipped by its words."""
    from pyspark.errors import AnalysisException

    try:
        return spark.range(0, 80, 1, 2).selectExpr("id as n", f"{expression} as k")
    except AnalysisException as error:  # a type or function of a later Spark
        pytest.skip(f"this Spark has no such type: {str(error).splitlines()[0]}")


def places(df: Any) -> list[Any]:
    """Partition of each row, by its number."""
    from pyspark.sql import functions as F

    rows = df.select(F.spark_partition_id().alias("p"), "n", F.col("k").cast("string").alias("k")).collect()
    return sorted(tuple(row) for row in rows)


@pytest.mark.parametrize("mode", MODES if LONG else ["pipelined"])
@pytest.mark.parametrize("kind", PLACED)
def test_a_key_of_every_type(spark: Any, kind: str, mode: str) -> None:
    df = frame(spark, PLACED[kind])
    want = places(df.repartition(2, "k"))
    assert len(want) == 80
    assert places(fbs.repartition(df, 2, "k", mode=mode)) == want
    made = fbs.map_in_arrow(df, whole, df.schema, keys=["k", "n"], num_partitions=2, mode=mode)
    assert places(made) == places(df.repartition(2, "k", "n"))


@pytest.mark.parametrize("kind", BY_SPARK)
def test_a_key_that_spark_alone_places(spark: Any, kind: str) -> None:
    df = frame(spark, BY_SPARK[kind])
    want = places(df.repartition(2, "k"))
    for mode in ("auto", "blocking"):
        assert places(fbs.repartition(df, 2, "k", mode=mode)) == want
        assert places(fbs.map_in_arrow(df, whole, df.schema, keys="k", num_partitions=2, mode=mode)) == want
    with pytest.raises(SchemaError, match=r"mode='pipelined' cannot run: (key column|field) 'k' has Spark's type"):
        fbs.repartition(df, 2, "k", mode="pipelined")


@pytest.mark.parametrize("mode", ["auto", "blocking", "pipelined"])
@pytest.mark.parametrize("kind", NO_KEY)
def test_a_key_that_spark_does_not_hash(spark: Any, kind: str, mode: str) -> None:
    expression, why = NO_KEY[kind]
    df = frame(spark, expression)
    with pytest.raises(Exception, match=r"."):
        df.repartition(2, "k").collect()
    with pytest.raises(SchemaError, match=rf"key column 'k' has Spark's type .*: Spark cannot hash {why}"):
        fbs.repartition(df, 2, "k", mode=mode)


@pytest.mark.parametrize("mode", MODES if LONG else ["pipelined"])
@pytest.mark.parametrize("kind", sorted({*NO_KEY, *BY_SPARK} - {"array<void>"}))
def test_it_is_carried_all_the_same(spark: Any, kind: str, mode: str) -> None:
    df = frame(spark, BY_SPARK.get(kind) or NO_KEY[kind][0])
    made = fbs.map_in_arrow(df, whole, df.schema, keys="n", num_partitions=2, mode=mode)
    assert made.schema == df.schema
    assert sorted(map(repr, made.collect())) == sorted(map(repr, df.collect()))


@pytest.mark.parametrize("kind", NOT_CARRIED)
def test_what_map_in_arrow_does_not_carry(spark: Any, kind: str) -> None:
    df = frame(spark, NOT_CARRIED[kind])
    with pytest.raises(Exception, match=r"."):
        df.mapInArrow(whole, df.schema).collect()
    for key in ("n", "k"):
        with pytest.raises(SchemaError, match=f"field 'k' has Spark's type {kind}"):
            fbs.repartition(df, 2, key, mode="blocking")
    with pytest.raises(SchemaError, match="field 'c' has Spark's type char"):
        fbs.map_in_arrow(
            df.select("n"), whole, "n long", keys="c", num_partitions=2, before=whole, before_schema="c char(5)"
        )


def test_every_type_of_sparks_is_here(spark: Any) -> None:
    """A type that a later Spark brings has to be put into one of the tables above."""
    from pyspark.sql import types as T

    known = (
        "NullType CharType VarcharType StringType BinaryType BooleanType DateType TimeType TimestampType "
        "TimestampNTZType DecimalType DoubleType FloatType GeographyType GeometryType ByteType IntegerType LongType "
        "ShortType VariantType DayTimeIntervalType YearMonthIntervalType CalendarIntervalType ArrayType MapType "
        "StructType UserDefinedType"
    )
    abstract = {
        "DataType",
        "AtomicType",
        "NumericType",
        "IntegralType",
        "FractionalType",
        "DatetimeType",
        "AnyTimeType",
    }
    abstract |= {"SpatialType", "AnsiIntervalType", "DataTypeSingleton"}
    found = {name for name, made in vars(T).items() if isinstance(made, type) and issubclass(made, T.DataType)}
    assert found - set(known.split()) - abstract - {"StructField"} == set()


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_a_user_defined_type(spark: Any, mode: str) -> None:
    from pyspark.sql import types as T
    from pyspark.testing.objects import PythonOnlyPoint, PythonOnlyUDT

    schema = T.StructType([T.StructField("n", T.LongType()), T.StructField("k", PythonOnlyUDT())])
    df = spark.createDataFrame([(i, PythonOnlyPoint(i % 9 - 4.0, -0.0)) for i in range(80)], schema)
    assert places(fbs.repartition(df, 2, "k", mode=mode)) == places(df.repartition(2, "k"))


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_a_char_column_of_a_table(spark: Any, mode: str, tmp_path: Any) -> None:
    spark.sql(f"create table chars (n long, k char(4), v varchar(9)) using parquet location '{tmp_path}/chars'")
    try:
        spark.range(0, 80, 1, 2).selectExpr("id", "cast(id % 9 as string)", "cast(id as string)").write.insertInto(
            "chars"
        )
        df = spark.table("chars")
        assert places(fbs.repartition(df, 2, "k", "v", mode=mode)) == places(df.repartition(2, "k", "v"))
    finally:
        spark.sql("drop table chars")


NAMES = ["n", "k", "a.b", "x y", "t`u", "é", "", "s"]


@nightly(but_one="mode")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("key", ["k", "K", "`a.b`", "x y", "`x y`", "`t``u`", "é", "É", "s.b", "S.B", "`s`.`b`"])
def test_names(spark: Any, key: str, mode: str) -> None:
    values = [f"id * {i + 3}" for i in range(1, 7)]
    df = spark.range(0, 80, 1, 2).selectExpr("id", *values, "named_struct('b', id * 5)").toDF(*NAMES)
    made = fbs.repartition(df, 2, key, mode=mode)
    assert made.schema == df.schema
    assert places(made) == places(df.repartition(2, key))
    seen = fbs.map_in_arrow(df, first_column, "t string", keys=key, num_partitions=2, mode=mode).collect()
    assert {row.t for row in seen} == {"8 n int64"}


def test_names_where_spark_places_the_rows(spark: Any) -> None:
    """By a key that Spark alone can place, with a name that others are given; and rows in turn in no fixed order."""
    df = spark.range(0, 80, 1, 2).selectExpr("id as `a.b`", "id as v", "id as V", "map('m', id % 5) as c0")

    def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            assert batch.schema.names == ["a.b", "v", "V", "c0"]
            yield pa.record_batch({"n": batch["a.b"], "k": batch["a.b"]})

    made = fbs.map_in_arrow(df, seen, "n long, k long", keys="c0", num_partitions=2, mode="blocking")
    assert places(made) == places(df.repartition(2, "c0").toDF("n", "k", "V", "c0"))
    made = fbs.repartition(df, 2, "c0")
    assert made.schema == df.schema
    assert places(made.toDF("n", "k", "V", "c0")) == places(df.repartition(2, "c0").toDF("n", "k", "V", "c0"))
    made = fbs.map_in_arrow(df.repartition(2), seen, "n long, k long", keys=(), num_partitions=2, mode="blocking")
    assert made.count() == 80


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_names_that_stand_twice(spark: Any, mode: str) -> None:
    df = spark.range(0, 80, 1, 2).selectExpr("id as n", "id % 7 as k", "id as v", "id * 3 as V", "id * 5 as v")
    made = fbs.repartition(df, 2, "k", mode=mode)
    assert made.schema.names == ["n", "k", "v", "V", "v"]
    assert places(made) == places(df.repartition(2, "k"))
    assert sorted(made.collect()) == sorted(df.collect())
    with pytest.raises(ConfigError, match=r"no key column 'v': .*[Aa]mbiguous"):
        fbs.repartition(df, 2, "v", mode=mode)

    def seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            assert batch.schema.names == ["n", "k", "v", "V", "v"]
            yield batch.rename_columns(list("nkabc"))

    schema = "n long, k long, a long, b long, c long"
    made = fbs.map_in_arrow(df, seen, schema, keys="k", num_partitions=2, mode=mode)
    assert places(made) == places(df.repartition(2, "k"))
    made = fbs.map_in_arrow(df, whole, schema, keys="k", num_partitions=2, mode=mode)  # whose batches have them too
    assert places(made) == places(df.repartition(2, "k"))
    made = fbs.map_in_arrow(df, whole, schema, keys="a", num_partitions=2, before=seen, before_schema=schema, mode=mode)
    assert places(made) == places(df.toDF(*"nkabc").repartition(2, "a"))


def test_case_is_sparks(spark: Any) -> None:
    df = spark.range(0, 80, 1, 2).selectExpr("id as n", "id % 7 as k", "id % 11 as K")
    with pytest.raises(ConfigError, match="no key column 'K'"):
        fbs.repartition(df, 2, "K")
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        for key in ("k", "K"):
            assert places(fbs.repartition(df, 2, key, mode="blocking")) == places(df.repartition(2, key))
        with pytest.raises(ConfigError, match="no key column 'N'"):
            fbs.repartition(df, 2, "N")
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


Key = Callable[[Any, Any], Any]
EXPRESSIONS: dict[str, Key] = {
    "column": lambda df, F: F.col("k"),
    "column of the frame": lambda df, F: df["k"],
    "attribute": lambda df, F: df.k,
    "alias": lambda df, F: F.col("k").alias("z"),
    "field": lambda df, F: F.col("s.b"),
    "remainder": lambda df, F: F.expr("n % 7"),
    "text": lambda df, F: F.concat(F.col("n").cast("string"), F.lit("x")),
    "literal": lambda df, F: F.lit(3),
    "collation": lambda df, F: F.expr(f"{WORDS.replace('id', 'n')} collate UTF8_LCASE"),
    "interval": lambda df, F: F.expr("make_ym_interval(cast(n as int), 1)"),
}


@pytest.mark.parametrize("key", EXPRESSIONS)
def test_a_column_or_an_expression(spark: Any, key: str) -> None:
    from pyspark.sql import functions as F

    df = spark.range(0, 80, 1, 2).selectExpr("id as n", "id % 13 as k", "named_struct('b', id % 5) as s")
    made = EXPRESSIONS[key](df, F)
    want = places(df.repartition(2, made, "k"))
    for mode in MODES:
        if key in ("collation", "interval") and mode == "pipelined":
            with pytest.raises(SchemaError, match=r"cannot run: key Column<.*> has Spark's type"):
                fbs.repartition(df, 2, made, "k", mode=mode)
            continue
        moved = fbs.repartition(df, 2, made, "k", mode=mode)
        assert moved.schema == df.schema
        assert places(moved) == want
        assert places(fbs.map_in_arrow(df, whole, df.schema, keys=[made, "k"], num_partitions=2, mode=mode)) == want


def test_an_expression_over_what_the_function_before_gives(spark: Any) -> None:
    from pyspark.sql import functions as F

    df = spark.range(0, 80, 1, 2).selectExpr("id as `n.`", "id % 13 as k")

    def before(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            assert batch.schema.names == ["n.", "k"]
            yield batch.rename_columns(["n", "k"])

    want = places(df.toDF("n", "k").repartition(2, F.expr("n % 7")))
    given: dict[str, Any] = {"num_partitions": 2, "before": before, "before_schema": "n long, k long"}
    schema = "n long, k long"
    for mode in ("auto", "blocking"):
        assert places(fbs.map_in_arrow(df, whole, schema, keys=F.expr("n % 7"), mode=mode, **given)) == want
    with pytest.raises(SchemaError, match="is computed from what the function before the shuffle gives"):
        fbs.map_in_arrow(df, whole, schema, keys=F.expr("n % 7"), mode="pipelined", **given)
    for mode in MODES:
        made = fbs.map_in_arrow(df, whole, schema, keys=F.col("N"), mode=mode, **given)
        assert places(made) == places(df.toDF("n", "k").repartition(2, "n"))


def test_keys_that_are_none(spark: Any) -> None:
    from pyspark.sql import functions as F

    df = spark.range(0, 80, 1, 2).selectExpr("id as n", "id % 13 as k")
    for key in ("nope", "s.b", F.explode(F.array("k")), F.sum("k"), F.col("k").asc(), "*"):
        with pytest.raises(ConfigError, match=r"no key column .*what is shuffled has the columns \['n', 'k'\]"):
            fbs.repartition(df, 2, key)
    for wrong in (3, None, [None], ["k", 3]):
        with pytest.raises(ConfigError, match="key"):
            fbs.map_in_arrow(df, whole, df.schema, keys=wrong, num_partitions=2)  # type: ignore[arg-type]
    assert places(fbs.repartition(df, 2, ["k", "n"], mode="blocking")) == places(df.repartition(2, "k", "n"))  # type: ignore[arg-type]
    assert fbs.map_in_arrow(df, whole, df.schema, keys=(), num_partitions=2, mode="blocking").count() == 80


def test_arguments(spark: Any) -> None:
    import numpy as np
    from pyspark.sql import functions as F

    df = spark.range(0, 80, 1, 2).selectExpr("id as n", "id % 13 as k")
    for wrong in ("k", F.col("k"), True, 2.0, None, 0, -1, 2**31, 2**30 + 1):
        with pytest.raises(ConfigError, match="never guessed"):
            fbs.repartition(df, wrong, "k")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"2147483648.*1073741824 \(2\*\*30\)"):
        fbs.repartition(df, 2**31, "k")
    assert places(fbs.repartition(df, np.int32(2), "k", mode="blocking")) == places(df.repartition(2, "k"))  # type: ignore[arg-type]
    for frame, words in [
        (df.rdd, "partition_by"),
        (pa.table({"k": [1]}), "createDataFrame"),
        ([1], "builtins.list"),
        (None, "NoneType"),
    ]:
        with pytest.raises(ConfigError, match=words):
            fbs.repartition(frame, 2, "k")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"func is 'n long' \(str\)"):
        fbs.map_in_arrow(df, "n long", whole, keys="k", num_partitions=2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="before is 7"):
        fbs.map_in_arrow(df, whole, "n long", keys="k", num_partitions=2, before=7, before_schema="k long")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="a schema is a Schema"):
        fbs.map_in_arrow(df, whole, pa.schema([]), keys="k", num_partitions=2)
    with pytest.raises(ConfigError, match="mode is 3"):
        fbs.repartition(df, 2, "k", mode=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"ShuffleConf\(\*\*conf\)"):
        fbs.repartition(df, 2, "k", conf={"memory_bytes": 1})  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="no columns"):
        fbs.repartition(df.select(), 2)


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_strings_of_64_bit_offsets(spark: Any, mode: str) -> None:
    """What Spark's own mapInArrow gives a function under this setting."""
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        df = spark.range(0, 80, 1, 2).selectExpr("cast(id as string) as k", "id as n")
        want = df.mapInArrow(first_column, "t string").first()
        made = fbs.map_in_arrow(df, first_column, "t string", keys="k", num_partitions=2, mode=mode).collect()
        assert {row.t for row in made} == {want.t} == {"2 k large_string"}
        assert places(fbs.repartition(df, 2, "k", mode=mode)) == places(df.repartition(2, "k"))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


@pytest.mark.parametrize("mode", MODES)
def test_a_record_that_is_too_long(spark: Any, mode: str) -> None:
    df = spark.range(0, 20, 1, 2).selectExpr("id as k", "repeat('x', if(id = 17, 100000, 10)) as s")
    made = fbs.repartition(df, 2, "k", mode=mode, conf=fbs.ShuffleConf(max_record_bytes=64 << 10))
    words = rf"{RecordTooLong.__name__}: .*\b1[0-9,]+ bytes.* raise spark\.fastbuf\.maxRecordBytes, or leave"
    with pytest.raises(Exception, match=words):
        made.collect()


@pytest.mark.parametrize("key", ["k", "K", "`a.b`", "s.b", "n % 7"])
def test_spark_connect_resolves_them_too(spark: Any, key: str) -> None:
    """Where there is no ``_jdf``: what is no plain name is an expression, which Spark has looked at before."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    from fastbuf_spark.driver.keys import resolve
    from fastbuf_spark.driver.staged import Staged

    class Connects(DataFrame):
        """A DataFrame without the doors that Spark Connect has not."""

        __module__ = "pyspark.sql.connect.dataframe"

        def __new__(cls, df: Any) -> Any:
            return object.__new__(cls)

        def __init__(self, df: Any) -> None:
            self._df = df

        def __getattribute__(self, name: str) -> Any:
            own = object.__getattribute__(self, "_df") if name != "__class__" else None
            if name in ("schema", "columns", "sparkSession"):
                return getattr(own, name)
            if name in ("repartition", "select", "toDF"):
                return lambda *args: Connects(getattr(own, name)(*args))
            if name in ("_df", "__class__"):
                return object.__getattribute__(self, name)
            raise AttributeError(f"Spark Connect has no {name}")

    df = spark.range(0, 80, 1, 2).selectExpr("id as n", "id % 13 as k", "id % 3 as `a.b`", "named_struct('b', id) as s")
    made: Any = F.expr(key) if "%" in key else key
    found = resolve(Staged(Connects(df), df.schema), made, 2)
    assert not found.by_spark
    assert found.codec.keys == ((1,) if key == "k" else (4,))
    table = pa.table(found.frame._df.toArrow())  # type: ignore[attr-defined]
    pids = hash_partition(table.combine_chunks().to_batches()[0], list(found.codec.keys), 2).tolist()
    want = dict((n, p) for p, n, _ in places(df.repartition(2, made)))
    assert dict(zip(table.column(0).to_pylist(), pids, strict=True)) == want
    for wrong in ("nope", F.explode(F.array("k"))):
        with pytest.raises(ConfigError, match="no key column"):
            resolve(Staged(Connects(df), df.schema), wrong, 2)


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_columns_of_one_side_of_a_join(spark: Any, mode: str) -> None:
    left = spark.range(0, 80, 1, 2).selectExpr("id as n", "id % 13 as k")
    right = spark.range(0, 80, 1, 2).selectExpr("id as m", "id * 7 as k")
    df = left.join(right, left.n == right.m)
    for key in (right["k"], left["k"], right["k"] % 5):
        want = sorted(tuple(row) for row in df.repartition(2, key).rdd.mapPartitionsWithIndex(numbered).collect())
        made = fbs.repartition(df, 2, key, mode=mode)
        assert sorted(tuple(row) for row in made.rdd.mapPartitionsWithIndex(numbered).collect()) == want


def numbered(partition: int, rows: Any) -> Any:
    """Rows with their partition."""
    return ((partition, *row) for row in rows)

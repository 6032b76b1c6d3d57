"""Values in directories' names: the types and values that Spark infers, of each alone and of any two."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fastbuf_spark as fbs
from fastbuf.errors import SchemaError
from fastbuf_spark.worker.writing import folder_of

pytestmark = pytest.mark.spark
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def of_text(text: str, by: str = " ") -> list[str]:
    return text.split(by)


WHOLE = of_text(
    "1 007 +7 -0 2147483647 2147483648 -2147483648 -2147483649 9223372036854775807 9223372036854775808"
    " -9223372036854775808 -9223372036854775809 \u0661\u0662 \uff11\uff12 \U0001d7cf 1_0 1L -- +-1 + - 20200101"
)
LARGE = of_text(
    f"{'1' * 38} {'1' * 39} {'0' * 20} {'0' * 40} {'1' * 38}. 1. -1. 00. -0. 5. 1e3 1E+3 -1e3 1.5E3 .5e3 1.00e2 100e-1"
    " 0e5 0e37 0e38 0.0e1 1e30 1E37 1E38 9.9E37 12345678901234567890 1.2345678901234567E19 \u0663e\u0665"
)
REAL = of_text(
    ".5 1.0 -0.0 1.5 1e-3 1.0E-10 1.50E1 10e-1 1E400 -1E400 1E-400 1e2147483648 1e99999999999 NaN +NaN -NaN nan NAN"
    " Infinity -Infinity +Infinity inf Inf infinity 1d 1D 1f 1.5f 1.d 1e3d NaNd Infinityd 0x10 0x1p3 0x1.8p1 0x1.p3"
    " 0x.8p1 0x.p1 0X1P-3 -0x1p3f 0x1p9999 -0x1p9999 \u0661.\u0662 1,5 . e5 1e .e3 0x"
)
DAYS = of_text(
    "2020-01-01 2020-1-1 2020-01 2020-02-29 2019-02-29 1900-02-29 2020-06-31 2020-13-01 2020-00-01 2020-01-00"
    " 1582-10-10 0001-01-01 -0000-01-01 10000-01-01 +2020-01-01 +09999-01-01 +5881580-07-12 -5877641-06-22"
    " +12345678-01-01 2020/01/01 2020-01-01T \u0662\u0660\u0662\u0660-\u0660\u0661-\u0660\u0661 epoch now"
)
TIMES = of_text(
    "2020-01-01 10:00:00|2020-01-01T10:00:00|2020-01-01 10:00|2020-01-01 10|2020-01-01 1:00:00|2020-01-01 10:00:00.1"
    "|2020-01-01 10:00:00.0|2020-01-01 10:00:00.10|2020-01-01 10:00:00.123456|2020-01-01 10:00:00.|2020-01-01 10:00:00Z"
    "|2020-01-01 24:00:00|2020-01-01 23:59:60|2020-01-01 10:60:00|2020-02-30 10:00:00|1582-10-10 00:00:00"
    "|+300000-01-01 10:00:00"
    "|2020-03-08 02:30:00|2020-11-01 01:30:00|2040-03-11 02:30:00|2040-07-01 12:00:00|1883-11-18 12:00:00"
    "|10:00:00|1:00:00|10:00|10:00:00.5|10:00:00.123456|10:00:00.1234567|10:00:00.|24:00:00|23:59:60|10:00:00Z",
    "|",
)
OTHER = [" 1", "1 ", " 1.5 ", "\t1.5", "1\x0c", "\x7f1", "1\u00a0", " NaN ", " ", "1.0 2.0", "2020-01-01 "]
OTHER += ["2020-01-01 x", "true", "null", "a b", "a/b", "1%", "a%20b", "%31", "é", NO_VALUE]
#: Python does not have these
FAR = ["0000-01-01", "-0001-01-01", "-00001-01-01", "+10000-01-01", "+5881580-07-11", "-5877641-06-23"]
FAR += ["+10000-01-01 10:00:00", "-0001-01-01 10:00:00", "0000-01-01 10:00:00", "+290000-01-01 10:00:00"]
#: One of each type that is inferred
KINDS = ["1", "2147483648", "9223372036854775808", "1" * 38, "1.", "1e3", "1e30", "1.0E-10", "NaN", "-Infinity"]
KINDS += ["2020-01-01", "2020-01-01 10:00:00", "10:00:00", "text", NO_VALUE]
MANY = [
    ["1", "2147483648", "1.5"],
    ["1.5", "1", "2147483648"],
    [NO_VALUE, "1", "NaN"],
    ["2020-01-01", NO_VALUE, "2020-01-01 10:00:00"],
    ["1.", "5", "1e3"],
    ["1", "9223372036854775808", "1.5"],
    ["1.0E-10", "NaN", "Infinity"],
]
COLUMNS = 80  #: of one table: a path has at most 4,096 bytes


def directories(base: Path, columns: Sequence[Sequence[str]]) -> str:
    """A table with a column for each list of values, in whose names directories have them one after the other."""
    for row in range(max(map(len, columns))):
        named = folder_of((f"c{i}", values[row % len(values)]) for i, values in enumerate(columns))
        (base / named).mkdir(parents=True)
        pq.write_table(pa.table({"n": [row]}), base / named / "a.parquet")
    return str(base)


def shown(df: Any) -> list[tuple[str, str, list[str]]]:
    """Names, types and values of all columns, these as texts: NaN equals itself then."""
    table = df.toArrow().sort_by("n")
    return [
        (field.name, field.dataType.simpleString(), [str(value) for value in column.to_pylist()])
        for field, column in zip(df.schema.fields, table.columns, strict=True)
    ]


def both(spark: Any, base: Path, columns: Sequence[Sequence[str]]) -> None:
    for at in range(0, len(columns), COLUMNS):
        path = directories(base / f"t{at}", columns[at : at + COLUMNS])
        assert shown(fbs.read_parquet(spark, path).to_df()) == shown(spark.read.parquet(path))


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_values_alone(spark: Any, tmp_path: Path, zone: str) -> None:
    """As Spark infers each."""
    values = [*WHOLE, *LARGE, *REAL, *DAYS, *TIMES, *OTHER] if zone == "UTC" else [*DAYS, *TIMES]
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        both(spark, tmp_path, [[value] for value in values])
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_years_that_python_does_not_have(spark: Any, tmp_path: Path) -> None:
    """Are days and times for Spark, which shows them in Scala alone: here they are told, with a type that helps."""
    path = directories(tmp_path / "all", [[value] for value in FAR])
    theirs = spark.read.parquet(path).schema
    assert [field.dataType.simpleString() for field in theirs.fields[1:]] == ["date"] * 6 + ["timestamp"] * 4
    for value in FAR:
        path = directories(tmp_path / value, [[value]])
        with pytest.raises(SchemaError, match=r"Python does not have .*partition_types=\{'c0': 'string'\}"):
            fbs.read_parquet(spark, path)
        (row,) = fbs.read_parquet(spark, path, partition_types={"c0": "string"}).collect()
        assert row.c0 == value


def test_values_together(spark: Any, tmp_path: Path) -> None:
    """The type for any two kinds, in both orders, and for more."""
    both(spark, tmp_path, [*map(list, itertools.permutations(KINDS, 2)), *MANY])


def test_values_of_lines(spark: Any, tmp_path: Path) -> None:
    """Of files of lines too."""
    values = ["2020-01-01 10:00:00", "1e3", "NaN", "10:00:00", "a b", "2020-01-01", NO_VALUE]
    folder = tmp_path / folder_of((f"c{i}", value) for i, value in enumerate(values))
    folder.mkdir(parents=True)
    for name, text in (("json", '{"n": 1}\n'), ("csv", "1\n")):
        (folder / f"a.{name}").write_text(text)
        own = getattr(spark.read.schema("n long"), name)(str(tmp_path))
        ours = getattr(fbs, f"read_{name}")(spark, str(tmp_path), "n long")
        assert shown(ours.to_df()) == shown(own)
        (folder / f"a.{name}").unlink()

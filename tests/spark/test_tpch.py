"""TPC-H's lines grouped by keys of every shape, and beside their orders: row for row what Spark's own groups give.

Twelve thousand lines here; ``FASTBUF_LONG=1``: scale 1, six million of them; ``FASTBUF_TPCH``: any other scale.  Of
millions of groups Spark's own take more than an hour: from a tenth of scale 1 on, its answer is that of its SQL,
which is shown here to be the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from nights import nightly
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import fastbuf_spark as fbs

pytestmark = pytest.mark.spark
MODES = ["pipelined", "blocking"]
SCALE = float(os.environ.get("FASTBUF_TPCH", 1.0 if os.environ.get("FASTBUF_LONG") == "1" else 0.002))
KEYS = {
    "order key": ("l_orderkey",),
    "part and supplier": ("l_partkey", "l_suppkey"),
    "ship date": ("l_shipdate",),
    "comment": ("l_comment",),
}
BY_SQL = SCALE >= 0.1
RESULT = "lines long, quantity decimal(25,2), revenue decimal(38,4), first date, last string"


class Tables(NamedTuple):
    """Folders of Parquet files."""

    orders: str
    lineitem: str


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """The rows of TPC's own generator, which is the same whoever runs it."""
    folder = tmp_path_factory.mktemp("tpch")
    tool = Path(sys.executable).with_name("tpchgen-cli")
    names = ",".join(Tables._fields)
    options = [f"--scale-factor={SCALE}", f"--tables={names}", "--parts=4", f"--output-dir={folder}"]
    subprocess.run([str(tool), "parquet", *options], check=True, timeout=600, capture_output=True)
    return Tables(*(str(folder / name) for name in Tables._fields))


def summed(key: tuple[pa.Scalar, ...], lines: pa.Table) -> pa.Table:
    """What is asked of a group here depends on all of its rows, and on no order of them."""
    price = lines["l_extendedprice"].combine_chunks()
    share = pc.subtract(pa.scalar(Decimal("1.00"), pa.decimal128(3, 2)), lines["l_discount"].combine_chunks())
    revenue = pc.sum(pc.multiply(price.cast(pa.decimal128(20, 2)), share.cast(pa.decimal128(16, 2))))
    columns: list[Any] = [pa.array([part]) for part in key]
    columns += [
        pa.array([lines.num_rows]),
        pa.array([pc.sum(lines["l_quantity"]).as_py()], pa.decimal128(25, 2)),
        pa.array([revenue.as_py()], pa.decimal128(38, 4)),
        pa.array([pc.min(lines["l_shipdate"]).as_py()], pa.date32()),
        pa.array([pc.max(lines["l_comment"]).as_py()], pa.string()),
    ]
    return pa.table(
        columns, names=[*(f"k{i}" for i in range(len(key))), "lines", "quantity", "revenue", "first", "last"]
    )


def beside(order: pa.Table, lines: pa.Table) -> pa.Table:
    """An order, with what its lines say of it."""
    made = order.select(["o_orderkey", "o_totalprice", "o_orderstatus", "o_comment"])
    flags = "".join(sorted(lines["l_linestatus"].to_pylist()))
    more = {"lines": lines.num_rows, "flags": flags}
    for name, value in more.items():
        made = made.append_column(name, pa.array([value] * len(order), pa.int64() if name == "lines" else pa.string()))
    return made


def summed_by_sql(lines: DataFrame, *keys: str) -> DataFrame:
    """The same as :func:`summed`."""
    return lines.groupBy(*(F.col(key).alias(f"k{i}") for i, key in enumerate(keys))).agg(
        F.count("*").alias("lines"),
        F.sum("l_quantity").cast("decimal(25,2)").alias("quantity"),
        F.sum(F.col("l_extendedprice") * (1 - F.col("l_discount"))).cast("decimal(38,4)").alias("revenue"),
        F.min("l_shipdate").alias("first"),
        F.max("l_comment").alias("last"),
    )


def beside_by_sql(orders: DataFrame, lines: DataFrame) -> DataFrame:
    """The same as :func:`beside`."""
    flags = F.concat_ws("", F.sort_array(F.collect_list("l_linestatus"))).alias("flags")
    counted = lines.groupBy("l_orderkey").agg(F.count("*").alias("lines"), flags)
    joined = orders.join(counted, orders["o_orderkey"] == counted["l_orderkey"])
    return joined.select("o_orderkey", "o_totalprice", "o_orderstatus", "o_comment", "lines", "flags")


_seconds: dict[str, dict[str, float]] = {}


@pytest.fixture(scope="module", autouse=True)
def times(request: pytest.FixtureRequest) -> Iterator[None]:
    """Prints how long each way took, where that says something."""
    yield
    if BY_SQL:
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            for what, ways in _seconds.items():
                print(f"\n{what}: " + ", ".join(f"{way} {seconds:.1f} s" for way, seconds in ways.items()), end="")


def rows(df: Any, what: str = "", way: str = "") -> pa.Table:
    """All rows, in the order of all columns; the time that they took to come is noted."""
    begin = time.monotonic()
    if BY_SQL:  # millions of rows would need gigabytes of the JVM's heap on their way
        with tempfile.TemporaryDirectory() as folder:
            df.write.parquet(f"{folder}/rows")
            found = pq.read_table(f"{folder}/rows")
    else:
        found = df.toArrow()
    if what:
        _seconds.setdefault(what, {})[way] = time.monotonic() - begin
    found = found.cast(pa.schema([field.with_nullable(True) for field in found.schema]))
    return found.sort_by([(name, "ascending") for name in found.column_names]).combine_chunks()


@nightly(by=["ship date", "comment"])
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("by", KEYS)
def test_lines_grouped(spark: Any, tables: Tables, by: str) -> None:
    lines = spark.read.parquet(tables.lineitem)
    keys = KEYS[by]
    types = dict(lines.dtypes)
    schema = ", ".join([*(f"k{i} {types[key]}" for i, key in enumerate(keys)), RESULT])
    wanted = rows(summed_by_sql(lines, *keys))
    if not BY_SQL:
        assert rows(lines.groupBy(*keys).applyInArrow(summed, schema)).equals(wanted)
    assert wanted.num_rows == lines.select(*keys).distinct().count()
    for mode in MODES:
        groups = fbs.group_by(lines, *keys, num_partitions=2, mode=mode)
        found = rows(groups.apply_in_arrow(summed, schema), by, mode)
        assert found.equals(wanted), mode


@nightly
@pytest.mark.timeout(7200)
def test_orders_beside_their_lines(spark: Any, tables: Tables) -> None:
    orders, lines = spark.read.parquet(tables.orders), spark.read.parquet(tables.lineitem)
    schema = (
        "o_orderkey long, o_totalprice decimal(15,2), o_orderstatus string, o_comment string, lines long, flags string"
    )
    wanted = rows(beside_by_sql(orders, lines))
    if not BY_SQL:
        theirs = orders.groupBy("o_orderkey").cogroup(lines.groupBy("l_orderkey"))
        assert rows(theirs.applyInArrow(beside, schema)).equals(wanted)
    assert wanted.num_rows == orders.count()
    statuses = {"O": {"O"}, "F": {"F"}, "P": {"F", "O"}}
    for status, flags in zip(wanted["o_orderstatus"].to_pylist(), wanted["flags"].to_pylist(), strict=True):
        assert set(flags) == statuses[status]
    for mode in MODES:
        by_order = fbs.group_by(orders, "o_orderkey", num_partitions=2, mode=mode)
        ours = by_order.cogroup(fbs.group_by(lines, "l_orderkey", num_partitions=2, mode=mode))
        assert rows(ours.apply_in_arrow(beside, schema), "orders beside lines", mode).equals(wanted), mode


def test_a_stream_of_lines_is_read_in_order(spark: Any, tables: Tables) -> None:
    """The iterator form, sorted: each ship date's lines by their order and number."""

    def in_order(key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        last = (-1, -1)
        count = 0
        for batch in batches:
            for place in zip(batch["l_orderkey"].to_pylist(), batch["l_linenumber"].to_pylist(), strict=True):
                assert place > last
                last = place
                count += 1
        yield pa.record_batch({"day": pa.array([key[0].as_py()], pa.date32()), "lines": pa.array([count])})

    lines = spark.read.parquet(tables.lineitem)
    conf = fbs.ShuffleConf(memory_bytes="8m")
    groups = fbs.group_by(lines, "l_shipdate", num_partitions=2, sort_by=["l_orderkey", "l_linenumber"], conf=conf)
    found = rows(groups.apply_in_arrow(in_order, "day date, lines long"))
    wanted = rows(lines.groupBy("l_shipdate").count().toDF("day", "lines"))
    assert found.equals(wanted.cast(found.schema))

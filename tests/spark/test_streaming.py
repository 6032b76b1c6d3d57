"""In Structured Streaming: every mode in foreachBatch; inside a query blocking, which auto takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import in_time
from nights import nightly

import fastbuf_spark as fbs
from fastbuf.errors import PreflightError

pytestmark = pytest.mark.spark
SOON_S = 120.0
ROWS = 3_000


@pytest.fixture
def stream(spark: Any, tmp_path: Path) -> Any:
    """Three files, read one in each micro-batch."""
    for part in range(3):
        rows = spark.range(part * 1_000, (part + 1) * 1_000, 1, 1).selectExpr("id % 17 as k", "id")
        rows.write.mode("append").parquet(str(tmp_path / "input"))
    return spark.readStream.schema("k long, id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "input"))


def run(query: Any) -> None:
    in_time(SOON_S, query.processAllAvailable)
    query.stop()


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", ["pipelined", "blocking", "auto"])
def test_in_foreach_batch(stream: Any, mode: str, tmp_path: Path) -> None:
    found: list[list[tuple[int, int]]] = []

    def batch(df: Any, number: int) -> None:
        made = fbs.repartition(df, 2, "k", mode=mode)
        found.append(sorted(map(tuple, made.collect())))
        assert made.count() == len(found[-1]), "each action runs it again"

    run(stream.writeStream.foreachBatch(batch).option("checkpointLocation", str(tmp_path / "checkpoint")).start())
    assert [len(rows) for rows in found] == [1_000] * 3
    assert sorted(i for rows in found for _, i in rows) == list(range(ROWS))


@nightly(but_one="mode")
@pytest.mark.parametrize("output", ["append", "update"])
@pytest.mark.parametrize("mode", ["auto", "blocking"])
def test_inside_a_query(spark: Any, stream: Any, mode: str, output: str, tmp_path: Path) -> None:
    made = fbs.repartition(stream, 3, "k", mode=mode)
    assert made.isStreaming
    sums: dict[int, int] = {}
    rows: list[Any] = []

    def batch(df: Any, number: int) -> None:
        if output == "update":
            sums.update({row.k: row.total for row in df.collect()})
        else:
            rows.extend(df.collect())

    query = made.groupBy("k").agg({"id": "sum"}).toDF("k", "total") if output == "update" else made
    sink = query.writeStream.foreachBatch(batch).outputMode(output)
    run(sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start())
    if output == "update":
        assert sums == {k: sum(i for i in range(ROWS) if i % 17 == k) for k in range(17)}
    else:
        assert sorted(row.id for row in rows) == list(range(ROWS))


def test_pipelined_inside_a_query_is_refused_by_name(stream: Any) -> None:
    with pytest.raises(PreflightError, match="streaming input"):
        fbs.repartition(stream, 2, "k", mode="pipelined")

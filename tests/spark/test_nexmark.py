"""Nexmark's queries (``benches/nexmark``), each beside SQL over all of its events in DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from nexmark import queries
from nexmark.events import SCHEMAS, Nexmark
from nights import LONG, nightly

import fastbuf_spark as fbs

duckdb = pytest.importorskip("duckdb", reason="pip install duckdb")

# Some 40 seconds of event time by day, with five sessions, auctions that are open for up to half of that
EVENTS, RATE = (400_000, 2_000) if LONG else (4_000, 100)
NEXMARK = Nexmark(EVENTS, RATE, seed=3, block=500)

WINNING = """
    SELECT auction, category, seller, max(price) AS price, time_bucket(INTERVAL '1 second', expires) AS closes
    FROM bid JOIN auction USING (auction) WHERE placed BETWEEN opened AND expires GROUP BY ALL
"""
WINDOWS = """
    SELECT unnest([time_bucket(INTERVAL '2 seconds', placed) - INTERVAL '2 seconds' * i FOR i IN range(5)]) AS began,
           auction
    FROM bid
"""
SQL = {
    "q0": "FROM bid",
    "q1": "SELECT auction, bidder, price * 0.908::double, placed, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": "SELECT name, city, state, auction FROM auction JOIN person ON seller = person "
    "WHERE category = 10 AND state IN ('OR', 'ID', 'CA')",
    "q4": f"SELECT category, avg(price) FROM ({WINNING}) GROUP BY ALL",
    "q5": f"WITH counts AS (SELECT began, auction, count(*) AS bids FROM ({WINDOWS}) GROUP BY ALL) "
    "SELECT began + INTERVAL '9.999999 seconds', auction, bids FROM counts "
    "QUALIFY bids = max(bids) OVER (PARTITION BY began)",
    "q6": "SELECT seller, avg(price) OVER (PARTITION BY seller ORDER BY closes, auction ROWS 9 PRECEDING) "
    f"FROM ({WINNING})",
    "q7": "SELECT auction, bidder, price, placed FROM bid "
    "QUALIFY price = max(price) OVER (PARTITION BY time_bucket(INTERVAL '10 seconds', placed))",
    "q8": "SELECT DISTINCT person, name, time_bucket(INTERVAL '10 seconds', joined) AS began FROM person JOIN auction "
    "ON person = seller WHERE began = time_bucket(INTERVAL '10 seconds', opened)",
    "q11": """
        WITH begins AS (SELECT bidder, placed, placed > lag(placed) OVER mine + INTERVAL '10 seconds' AS new
                        FROM bid WINDOW mine AS (PARTITION BY bidder ORDER BY placed)),
             numbered AS (SELECT *, count(*) FILTER (new) OVER (PARTITION BY bidder ORDER BY placed) AS session
                          FROM begins)
        SELECT bidder, min(placed), max(placed) + INTERVAL '10 seconds', count(*) FROM numbered
        GROUP BY bidder, session""",
    "q12": "SELECT bidder, count(*) FROM bid GROUP BY ALL",
}
#: The columns of a stream's result that SQL gives
COLUMNS = {"q8": ["person", "name", "window_start"]}


def by_sql(name: str) -> pa.Table:
    with duckdb.connect(config={"threads": 1}) as db:
        for kind in SCHEMAS:
            db.register(kind, without_zones(NEXMARK.table(kind)))
        return db.sql(SQL[name]).to_arrow_table()


def without_zones(table: pa.Table) -> pa.Table:
    """DuckDB has zones in an extension alone, which it fetches."""
    kinds = [pa.timestamp("us") if pa.types.is_timestamp(field.type) else field.type for field in table.schema]
    return table.cast(pa.schema(zip(table.column_names, kinds, strict=True)))


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """In an order of their own; floats to so many digits as sums in another order agree in."""
    columns = [column.to_pylist() for column in table.columns]
    return sorted(tuple(f"{v:.9g}" if isinstance(v, float) else v for v in row) for row in zip(*columns, strict=True))


@nightly(tasks=2)
@pytest.mark.parametrize("name", queries.QUERIES)
@pytest.mark.parametrize("tasks", [1, 2])
def test_a_query_gives_what_sql_gives(sessions: Any, tmp_path: Path, name: str, tasks: int) -> None:
    spark = sessions.get(f"local[{2 + 3 * tasks}]")  # q4 has two sources, and three stages behind them
    clock = {"every": 0.05} if name == "q12" else {}
    stream, sink = queries.QUERIES[name](queries.Input(spark, NEXMARK, parts=2), tasks, **clock), fbs.to_memory()
    query = stream.write_stream(sink, tmp_path, every="1 second", output_mode="update" if name == "q4" else "append")
    assert query.await_termination(120)
    result, wanted = sink.table(), by_sql(name)
    assert wanted.num_rows
    if name == "q4":  # the last of each category
        last = dict(zip(*(column.to_pylist() for column in result.columns), strict=True))
        result = pa.table({"category": list(last), "average": list(last.values())})
    if name == "q12":
        result = result.group_by("bidder").aggregate([("count_all", "sum")])
    result = result.select(COLUMNS.get(name, result.column_names))
    assert rows_of(without_zones(result)) == rows_of(wanted)
    assert not sum(stage.get("late_rows", 0) for stage in query.progress()["stages"])

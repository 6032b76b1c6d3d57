"""What the operators of event time tell of themselves."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: install fastbuf[spark]")

from fastbuf.event_time.joins import Side
from fastbuf.event_time.rules import at_end
from fastbuf.event_time.windows import Session, Tumbling
from fastbuf.event_time.work import agg_arrow
from fastbuf_spark.streams.joins import JoinSpec, OfSide, both_schema, interval_join, window_join
from fastbuf_spark.streams.windows import WindowSpec

SCHEMAS = [pa.schema([("k", pa.int64()), (time, pa.timestamp("us"))]) for time in ("lt", "rt")]
BOTH = both_schema(*SCHEMAS)
SIDES = (Side(SCHEMAS[0], ["k"], "lt"), Side(SCHEMAS[1], ["k"], "rt"))
ROWS = pa.RecordBatch.from_arrays([pa.array([1, 2]), pa.array([None, 5]).cast(pa.timestamp("us"))], schema=SCHEMAS[0])


def counted() -> Any:
    return agg_arrow([("", "count_all")])


@pytest.mark.parametrize(
    "spec",
    [
        JoinSpec(SIDES, interval_join(0, 5, "left")),
        JoinSpec(SIDES, window_join(Tumbling(10), "inner")),
        WindowSpec(("k",), "lt", SCHEMAS[0], Tumbling(10), counted, 0, at_end, True),
        WindowSpec(("k",), "lt", SCHEMAS[0], Session(10), counted, 0, at_end, True),
    ],
    ids=["interval join", "window join", "window", "session"],
)
def test_rows_without_a_time_are_counted(spec: Any) -> None:
    operator = spec()
    operator.open(8)
    (batch,) = OfSide(0, BOTH)([ROWS]) if isinstance(spec, JoinSpec) else (ROWS,)
    list(operator.rows(batch))
    frozen = operator.freeze(frozenset(range(8)))
    assert sum(bool(piece()) for piece in frozen.values()) == 1  # groups without rows write nothing
    figures = operator.figures()
    assert (figures["null_times"], figures["state_rows"], figures["late_rows"]) == (1, 1, 0)

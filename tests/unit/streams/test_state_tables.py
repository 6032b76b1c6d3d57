"""Tables of state as readers get them, of each kind of windows, of joins, and of running aggregates."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from fastbuf.event_time.joins import Side
from fastbuf.event_time.rules import Trigger
from fastbuf.event_time.windows import Global, Session, Sliding, Tumbling
from fastbuf.event_time.work import agg_arrow, apply_in_arrow, reduce
from fastbuf_spark.streams.joins import JoinSpec, interval_join, window_join
from fastbuf_spark.streams.running import RunningSpec
from fastbuf_spark.streams.state_files import _streams
from fastbuf_spark.streams.state_tables import SIDES, is_join, readable
from fastbuf_spark.streams.windows import WindowSpec

UTC = dt.UTC
HOUR = 3_600_000_000
AGGREGATES = [("v", "sum"), ("v", "mean"), ("", "count_all"), ("d", "mean"), ("v", "product")]


def at(hour: int, minute: int = 0, day: int = 1) -> dt.datetime:
    return dt.datetime(2024, 7, day, hour, minute, tzinfo=UTC)


def rows() -> pa.RecordBatch:
    times = pa.array([at(9, 10), at(9, 50)], pa.timestamp("us", "UTC"))
    return pa.record_batch({"user id": ["ada", "ada"], "t": times, "v": [1, 2], "d": [0.5, 1.5]})


def of_windows(assigner: Any, work: Any, trigger: Trigger | None = None, accumulate: bool = True) -> list[Any]:
    """The rows that are told of a state."""
    time = "" if isinstance(assigner, Global) else "t"
    rules = trigger or Trigger()
    spec = WindowSpec(("user id",), time, rows().schema, assigner, work, 0, rules, accumulate, "update")
    operator = spec()
    operator.open(1)
    list(operator.rows(rows()))
    ((_, table),) = _streams(operator.freeze(frozenset([0]))[0]())
    assert not is_join(spec.description(), table)
    return readable(spec.description(), "", table).to_pylist()


PARTIAL = {"v_sum": 3, "v_sum_double": 3.0, "v_count": 2, "count_all": 2, "d_sum": 2.0, "d_count": 2, "v_product": 2.0}


def test_aggregates_of_windows() -> None:
    work = partial(agg_arrow, AGGREGATES)
    ada = {"user id": "ada"}
    (found,) = of_windows(Tumbling(HOUR), work)
    assert found == {**ada, "window_start": at(9), "window_end": at(10), **PARTIAL}
    (found,) = of_windows(Tumbling(24 * HOUR, zone="Europe/Berlin"), work)
    assert found == {**ada, "window_start": at(22, day=30) - dt.timedelta(30), "window_end": at(22), **PARTIAL}
    first, second = of_windows(Sliding(HOUR, HOUR // 2), work)
    assert (first["pane_start"], first["pane_end"], second["pane_end"]) == (at(9), at(9, 30), at(10))
    assert (first["v_sum"], second["v_sum"]) == (1, 2)
    (found,) = of_windows(Session(HOUR), work)
    assert found == {**ada, "window_start": at(9, 10), "window_end": at(10, 50), **PARTIAL}
    (found,) = of_windows(Global(), work, Trigger(5), accumulate=False)
    assert found == {**ada, "new_rows": 2, **PARTIAL}


def test_sessions_that_have_fired() -> None:
    first, *rest = of_windows(Session(HOUR), partial(agg_arrow, [("v", "sum")]), Trigger(2), accumulate=False)
    assert rest == []
    assert first["fired"] is True
    assert (first["window_start"], first["window_end"]) == (at(9, 10), at(10, 50))


def test_rows_of_windows() -> None:
    (found,) = of_windows(Tumbling(HOUR), partial(reduce, lambda one, other: other))
    assert found == {"user id": "ada", "window_start": at(9), "window_end": at(10), "v": 2, "d": 1.5}
    found = of_windows(Session(HOUR), partial(apply_in_arrow, lambda *_: None, rows().schema))
    assert [list(row) for row in found] == [["user id", "window_start", "window_end", "t", "v", "d"]] * 2
    assert [row["t"] for row in found] == [at(9, 10), at(9, 50)]
    assert {row["window_end"] for row in found} == {at(10, 50)}


@pytest.mark.parametrize("in_windows", [False, True])
def test_both_sides_of_a_join(in_windows: bool) -> None:
    left = Side(rows().schema, ["user id"], "t")
    other = pa.schema([("name", pa.string()), ("window_start", pa.timestamp("us", "UTC"))])
    make = window_join(Tumbling(HOUR), "left") if in_windows else interval_join(-HOUR, HOUR, "left")
    if in_windows:
        other = other.set(1, pa.field("at", pa.timestamp("us", "UTC")))
    spec = JoinSpec((left, Side(other, ["name"], other.names[1])), make)
    join = spec.make(*spec.sides, groups=1)
    list(join.rows(0, rows()))
    list(join.rows(1, pa.record_batch([pa.array(["bob"]), pa.array([at(9)], other.types[1])], schema=other)))
    tables = [table for _, table in _streams(join.freeze().group(0))]
    for of in (spec.description(), None):  # versions of before wrote none
        assert is_join(of, tables[0])
    bounds = {"window_start": at(9), "window_end": at(10)} if in_windows else {}
    found = [readable(spec.description(), side, table).to_pylist() for side, table in zip(SIDES, tables, strict=True)]
    mine = {"user id": "ada", **bounds, **({} if in_windows else {"matched": False})}
    assert found[0] == [{**mine, "t": at(9, 10), "v": 1, "d": 0.5}, {**mine, "t": at(9, 50), "v": 2, "d": 1.5}]
    assert found[1] == [{"name": "bob", **bounds, other.names[1]: at(9)}]
    assert readable(None, "left", tables[0]).equals(tables[0])


def test_running_aggregates_and_names_that_come_twice() -> None:
    spec = RunningSpec(("v_sum",), pa.schema([("v_sum", pa.int64()), ("v", pa.int64())]), (("v", "sum"),), None)  # type: ignore[arg-type]
    table = pa.table({"v_sum": [7], "p0": [3]})
    assert readable(spec.description(), "", table).to_pylist() == [{"v_sum": 7, "v_sum_": 3}]

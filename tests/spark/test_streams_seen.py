"""A stream that runs, as it is seen: in its progress, by REST, on the page in a real browser, in Prometheus."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import in_the_end

import fastbuf_spark as fbs
from fastbuf_spark.driver import page
from fastbuf_spark.streams.query import KEPT_QUERIES, queries

pytest.importorskip("uvicorn", reason="pip install 'fastbuf[monitor]'")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(0.05)
        yield batch


@pytest.fixture
def held(spark: Any, tmp_path: Path) -> Iterator[Any]:
    """A query whose second stage is slow, so that the first is held back, and checkpoints wait behind rows."""
    conf = fbs.ShuffleConf(memory_bytes="1m", segment_size="8k", batch_rows=200, batch_bytes="8k", buffer_timeout=0.005)
    stream = fbs.stream_rate(spark, 0.0, tasks=1, conf=conf).shuffle("value", partitions=1).map_in_arrow(slow, SCHEMA)
    query = stream.write_stream(fbs.to_parquet(tmp_path / "out"), tmp_path / "chk", every=0.2, name="held")
    page._open = None
    server = fbs.ui(spark)
    yield query, server
    query.stop()
    server.close()
    page._open = None


SCHEMA = "timestamp timestamp, value long"


def ask(server: Any, path: str) -> bytes:
    request = urllib.request.Request(server.address + path, headers={"Authorization": f"Bearer {server.token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read()  # type: ignore[no-any-return]


def is_seen(told: dict[str, Any]) -> bool:
    stages = told.get("stages", [])
    return bool(stages) and stages[0]["level"] == "HIGH" and any(c["state"] == "completed" for c in told["checkpoints"])


REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "streams.md").read_text()


def undocumented(told: Any) -> set[str]:
    """Names in progress that the reference does not have."""
    if isinstance(told, list):
        return set().union(*map(undocumented, told))
    if not isinstance(told, dict):
        return set()
    inner = set().union(*(undocumented(value) for name, value in told.items() if name != "seconds"))
    return {name for name in told if f"`{name}`" not in REFERENCE} | inner


def test_a_stream_that_is_held_back_is_seen(held: Any, spark: Any) -> None:
    query, server = held
    waits: list[str] = []

    def look() -> dict[str, Any]:
        waits.append(query.progress().get("waiting", ""))
        (told,) = (one for one in json.loads(ask(server, "/streams")) if one["name"] == "held")
        return told  # type: ignore[no-any-return]

    told = in_the_end(look, is_seen)
    source, behind = told["stages"]
    assert (told["state"], told["running"]) == ("running", True)
    assert source["waits"] == "credit"
    assert undocumented(query.progress()) == set()
    assert behind["rowsInPerSecond"] > 0
    assert "stream `held` holds up those before it: `source` waits for it" in told["sentence"]
    done = [one for one in told["checkpoints"] if one["state"] == "completed"][-1]
    assert done["duration_s"] >= done["start_delay_s"] >= 0
    assert done["slowest"] in ("task 0 of source", "task 0 of shuffle by value")
    for_task = re.compile(r"waits \d+\.\d s for task 0 of ")
    in_the_end(look, lambda _: any(map(for_task.match, waits)))
    assert any(map(for_task.match, waits)), set(waits)
    assert 'fastbuf_stream_info{query="held",state="running"} 1.0' in ask(server, "/metrics").decode()
    query.stop()
    over = [one for one in queries() if one["id"] == query.id]
    assert [one["state"] for one in over] == ["stopped"]
    assert "waiting" not in over[0]


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on PATH: apt-get install chromium")
def test_a_running_stream_in_a_real_browser(held: Any) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    _, server = held
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if os.getuid() == 0 else ["--disable-gpu"]
        )
        shown = browser.new_page()
        complaints: list[str] = []
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.goto(server.url)
        article = 'article[data-query="held"]'
        shown.wait_for_function(
            f"""() => document.querySelectorAll('{article} table.checkpoints tbody tr').length > 2
                && document.querySelector('{article} .waiting')
                && document.querySelector('{article} table.stages .level.high')""",
            timeout=60_000,
        )
        assert "holds up those before it" in shown.inner_text(f"{article} .sentence")
        assert "waits for credit" in shown.inner_text(f"{article} table.stages tbody tr:first-child")
        assert complaints == []
        browser.close()


class Rows:
    """A split that is slow, and one that runs ahead: neither ends.  Behind a gate the slow one has a late row."""

    bounded = False

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def splits(self) -> dict[str, int]:
        return {"slow": 0, "ahead": 0}

    def read(self, split: str, offset: int) -> Any:
        seconds = {"slow": [[10, 11, 12], [1]], "ahead": [[20 * n] for n in range(50)]}[split]
        while True:
            if offset == len(seconds) or (split == "slow" and offset and not self.gate.exists()):
                time.sleep(0.01)  # as a source with nothing to give does
                yield None, offset
                continue
            times = pa.array([second * 1_000_000 for second in seconds[offset]], pa.timestamp("us", "UTC"))
            offset += 1
            yield pa.record_batch([times, pa.array(range(len(times)))], names=["at", "v"]), offset


def test_who_holds_the_watermark_back_is_named(spark: Any, tmp_path: Path) -> None:
    """In progress and in metrics: the split, for the stage behind the source and for the one behind that."""
    gate = tmp_path / "gate"
    rows = fbs.stream(spark, Rows(gate), "at timestamp, v long", tasks=1).with_watermark("at", align="30 seconds")
    sums = rows.group_by("v", partitions=1).window("5 seconds").agg_arrow([([], "count_all")], name="sums")
    query = sums.shuffle("v", partitions=1).write_stream(fbs.to_memory(), tmp_path / "chk", every=0.2, name="times")
    page._open = None
    server = fbs.ui(spark)

    def look(late: int) -> Any:
        def fits(stages: Any) -> bool:
            return bool(stages) and stages[1].get("late_rows") == late and stages[2].get("watermark_ms") == 11_999

        return in_the_end(lambda: query.progress()["stages"], fits)

    try:
        look(0)
        gate.touch()
        source, windows, last = look(1)
        assert [each["watermark_held_by"] for each in (source, windows, last)] == ["split slow of source"] * 3
        assert [each["watermark_ms"] for each in (source, windows, last)] == [11_999] * 3
        assert source["watermark_lag_s"] == pytest.approx(time.time() - 12, abs=60)
        assert source["paused_splits"] == 1
        assert windows["windows"] > 0
        assert windows["late_rows"] == 1
        assert undocumented(query.progress()) == set()
        late = 'fastbuf_stream_late_rows_total{query="times",stage="sums"} 1.0'
        metrics = in_the_end(lambda: ask(server, "/metrics").decode(), lambda text: late in text)
        assert late in metrics
        held = 'fastbuf_stream_watermark_held_by_info{query="times",split="split slow of source",stage="sums"} 1.0'
        assert held in metrics
        assert f'fastbuf_stream_open_windows{{query="times",stage="sums"}} {windows["windows"]:.1f}' in metrics
    finally:
        query.stop()
        server.close()
        page._open = None


def test_of_ended_queries_the_last_are_kept() -> None:
    assert len(queries()) <= KEPT_QUERIES + 1

"""What the demo says: it fits a terminal of 80 characters, and of a stream it is the truth."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from fastbuf.cli import demo_stream
from fastbuf.cli.demo import show_times
from fastbuf.cli.ways import FASTBUF, LIFTED, SPARK, Measured


def test_figures_are_shown_in_full_on_a_narrow_terminal() -> None:
    run = SimpleNamespace(producers={0: {"transports": {"memfd": 1}}, 1: {"transports": {"tcp": 2}}})
    results = {
        way: Measured(way, [seconds], bytes_moved=120_000_000, rows_moved=5_256_336, runs=[run] * (way == FASTBUF))
        for way, seconds in ((FASTBUF, 3.07), (SPARK, 12.08), (LIFTED, 10.19))
    }
    said = Console(file=io.StringIO(), width=80)
    show_times(said, results, 2_694_208, "title")
    shown = said.file.getvalue()  # type: ignore[attr-defined]
    for expected in (
        "seconds",
        "times Spark",
        "3.07",
        "12.08",
        "877,592",
        "3.93 x",
        "5,256,336 rows",
        "120 MB",
        "files",
    ):
        assert expected in shown, shown
    for expected in ("shared", "memory", "sockets"):
        assert expected in shown, shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("values", "counts", "says"),
    [
        ([0, 1, 1000], [1, 1, 2], None),
        ([0, 1000], [1, 2], "999 lost, 0 doubled, 0 with a wrong count"),
        ([0, 1, 1, 1000], [1, 1, 1, 2], "0 lost, 1 doubled, 0 with a wrong count"),
        ([0, 1, 1000], [1, 1, 1], "0 lost, 0 doubled, 1 with a wrong count"),
    ],
)
def test_of_a_stream_what_is_lost_doubled_or_wrong_is_told(
    values: list[int], counts: list[int], says: str | None, tmp_path: Path
) -> None:
    rest = [value for value in range(2, 1000) if says is None or "999" not in says]
    table = pa.table({"value": values + rest, "n": counts + [1] * len(rest)})
    pq.write_table(table, tmp_path / "some.parquet")
    said = Console(file=io.StringIO(), width=120)
    assert demo_stream.verdict(said, tmp_path, 1001) == (0 if says is None else 1)
    assert (says or "0 lost, 0 doubled, 0 with a wrong count") in said.file.getvalue()  # type: ignore[attr-defined]

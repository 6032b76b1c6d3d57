"""The window operator beside Flink itself: the same rows, results and late rows, whatever the order they come in."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from nights import nightly

from fastbuf.event_time.operator import WindowOperator
from fastbuf.event_time.watermarks import MAX
from fastbuf.event_time.windows import Session, Sliding, Tumbling
from fastbuf.event_time.work import agg_arrow

SOURCE = Path(__file__).parents[2] / "flink" / "FlinkWindows.java"
LIB = os.environ.get("FASTBUF_FLINK_LIB", "")
CASES = int(os.environ.get("FASTBUF_FLINK_CASES", 1000))
SCHEMA = pa.schema([("t", pa.timestamp("ms")), ("k", pa.string()), ("v", pa.int64())])
MS = 1000  #: microseconds
# What Flink's own start scripts open of Java 17's modules
OPENED = ("lang", "lang.reflect", "net", "io", "nio", "text", "time", "util", "util.concurrent")

Row = tuple[int, str, int]


def case_of(seed: int) -> tuple[dict[str, Any], list[Row]]:
    """Rows out of order, late, before 1970, with equal times and with gaps."""
    dice = random.Random(seed)
    kind = dice.choice(["tumbling", "sliding", "session"])
    size = dice.choice([1, 7, 10, 20])
    slide = dice.choice([size, max(1, size // 2), max(1, size // 3), size + 3]) if kind == "sliding" else size
    offset = 0 if kind == "session" else dice.randrange(slide)
    how = {
        "kind": kind,
        "size": size,
        "slide": slide,
        "offset": offset,
        "delay": dice.choice([0, 3, 12]),
        "lateness": dice.choice([0, 0, 6, 25]),
        "purge": dice.randrange(2),
    }
    now, rows = dice.choice([-50, 0, 1_700_000_000_000]), []
    for _ in range(dice.randrange(1, 120)):
        now += dice.choice([0, 0, 1, 1, 2, 5, 40])
        back = dice.choice([0, 0, 0, 1, 4, 11, 30])
        rows.append((now - back, dice.choice("abc"), dice.randrange(-5, 100)))
    return how, rows


def by_fastbuf(how: dict[str, Any], rows: list[Row]) -> Counter[tuple[Any, ...]]:
    size, slide, offset = (how[name] * MS for name in ("size", "slide", "offset"))
    assigner = {
        "tumbling": lambda: Tumbling(size, offset),
        "sliding": lambda: Sliding(size, slide, offset),
        "session": lambda: Session(size),
    }[how["kind"]]()
    one = WindowOperator(
        ["k"],
        "t",
        SCHEMA,
        assigner,
        agg_arrow([("", "count_all"), ("v", "sum")]),
        lateness_us=how["lateness"] * MS,
        accumulate=not how["purge"],
        output_mode="update",
        keep_late=True,
    )
    results: Counter[tuple[Any, ...]] = Counter()
    greatest = None
    for time, key, value in rows:
        batch = pa.record_batch([pa.array([time], SCHEMA.field("t").type), [key], [value]], schema=SCHEMA)
        results.update(lines("r", one.rows(batch)))
        greatest = time if greatest is None else max(greatest, time)
        results.update(lines("r", one.watermark((greatest - how["delay"]) * MS - 1)))
    results.update(lines("r", one.watermark(MAX)))
    results.update(lines("l", one.late))
    return results


def lines(what: str, batches: Any) -> list[tuple[Any, ...]]:
    if what == "l":
        return [("l", row["k"], row["t"], row["v"]) for batch in batches for row in numbers(batch)]
    return [
        ("r", row["k"], row["window_start"] // MS, row["window_end"] // MS, row["count_all"], row["v_sum"])
        for batch in batches
        for row in numbers(batch)
    ]


def numbers(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows with times as whole numbers."""
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()


def by_flink(cases: list[tuple[dict[str, Any], list[Row]]], folder: Path) -> list[Counter[tuple[Any, ...]]]:
    jars = ":".join(map(str, Path(LIB).glob("*.jar")))
    subprocess.run(["javac", "-cp", jars, "-d", str(folder), str(SOURCE)], check=True, timeout=120)
    text = ""
    for how, rows in cases:
        order = (how[name] for name in ("kind", "size", "slide", "offset", "delay", "lateness", "purge"))
        text += f"case {' '.join(map(str, order))}\n" + "".join(f"{time} {k} {v}\n" for time, k, v in rows)
    opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in OPENED]
    run = subprocess.run(
        ["java", "-Xmx1g", *opened, "-cp", f"{folder}:{jars}", "FlinkWindows"],
        input=text,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=1200,
    )
    results: list[Counter[tuple[Any, ...]]] = [Counter() for _ in cases]
    for line in run.stdout.splitlines():
        number, what, key, *values = line.split(" ")
        results[int(number)][(what, key, *map(int, values))] += 1
    return results


@nightly
@pytest.mark.timeout(1500)
@pytest.mark.skipif(
    not list(Path(LIB or "/none").glob("flink-dist-*.jar")),
    reason="FASTBUF_FLINK_LIB is not the folder of Flink's jars: pip download --no-deps apache-flink-libraries==2.3.0 "
    "&& unzip -q apache_flink_libraries-*.whl 'pyflink/lib/*'",
)
@pytest.mark.skipif(shutil.which("javac") is None, reason="no javac: apt-get install openjdk-17-jdk-headless")
def test_windows_are_those_of_flink(tmp_path: Path) -> None:
    cases = [case_of(seed) for seed in range(CASES)]
    for seed, ((how, rows), theirs) in enumerate(zip(cases, by_flink(cases, tmp_path), strict=True)):
        ours = by_fastbuf(how, rows)
        assert sum(theirs.values())
        assert ours == theirs, (seed, how, rows, sorted(ours - theirs), sorted(theirs - ours))

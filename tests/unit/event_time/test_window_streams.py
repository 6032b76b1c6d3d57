"""Random streams through the operator, against the same by hand: every window, trigger, lateness and output mode.

Out of order, late, idle, before 1970, over the change of summer time, with duplicates and nulls; restored now and then
by another number of owners.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from nights import LONG
from windows_by_hand import EPOCH, MAX, MIN, ByHand, Spec

from fastbuf.event_time import sliding, spill
from fastbuf.event_time.aggregates import normal as normal_column
from fastbuf.event_time.operator import WindowOperator
from fastbuf.event_time.rules import Trigger
from fastbuf.event_time.windows import Global, Session, Sliding, Tumbling, Window
from fastbuf.event_time.work import agg_arrow, apply_in_arrow, reduce
from fastbuf.serializers.partition import HashPartitioner

HOUR = 3600 * 10**6
GROUPS = 8
SPRING = (datetime(2024, 3, 31, tzinfo=UTC) - EPOCH).days * 24 * HOUR
AUTUMN = (datetime(2024, 10, 27, tzinfo=UTC) - EPOCH).days * 24 * HOUR

KINDS: dict[str, dict[str, Any]] = {
    "tumbling": {"kind": "tumbling", "size": 10, "slide": 10},
    "offset": {"kind": "tumbling", "size": 10, "slide": 10, "offset": -3},
    "local days": {"kind": "local", "size": 24 * HOUR, "slide": 24 * HOUR, "zone": "Europe/Berlin"},
    "local three days": {"kind": "local", "size": 72 * HOUR, "slide": 24 * HOUR, "zone": "Europe/Berlin"},
    # They begin at a time that clocks leave out in spring, and show twice in autumn
    "local offset": {
        "kind": "local",
        "size": 48 * HOUR,
        "slide": 24 * HOUR,
        "offset": 5 * HOUR // 2,
        "zone": "Europe/Berlin",
    },
    "local hours": {"kind": "local", "size": 6 * HOUR, "slide": 2 * HOUR, "zone": "America/New_York"},
    "sliding": {"kind": "sliding", "size": 20, "slide": 5, "offset": 2},
    "by gcd": {"kind": "sliding", "size": 15, "slide": 10},
    "with holes": {"kind": "sliding", "size": 4, "slide": 10},
    "session": {"kind": "session", "size": 4},
    "global": {"kind": "global"},
}
UNITS = {"local days": HOUR, "local three days": 4 * HOUR, "local offset": 3 * HOUR, "local hours": HOUR}
OVERLAPS = ("sliding", "by gcd", "local three days", "local offset", "local hours")
TRIGGERS: dict[str, dict[str, Any]] = {
    "end": {},
    "rows": {"rows": 3},
    "clock": {"every_ms": 1000},
    "event time": {"every_us": 7},
    "rows or clock": {"rows": 3, "every_ms": 1000},
}
MODES = {
    "append": {"mode": "append", "accumulate": True},
    "append new": {"mode": "append", "accumulate": False},
    "update": {"mode": "update", "accumulate": True},
    "update new": {"mode": "update", "accumulate": False},
    "complete": {"mode": "complete", "accumulate": True},
}


def allowed(trigger: str, mode: str) -> bool:
    return mode != "append" or trigger == "end"


CASES = [c for c in itertools.product(KINDS, TRIGGERS, (0, 6), MODES) if allowed(c[1], c[3])]
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["a", "b", "", None, "long enough to be apart"]),
    "numbers": (pa.int64(), [0, -1, None, 1 << 40]),
    "floats": (pa.float64(), [0.0, -0.0, math.nan, 1.5, None]),
}


def normal(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def none_last(value: Any) -> tuple[bool, Any]:
    return value is None, value or 0


class Stream:
    """One case with one seed: the operators that own the key groups, and the same by hand."""

    def __init__(self, case: tuple[str, str, int, str], seed: int, memory_bytes: int | None) -> None:
        self.memory_bytes = memory_bytes
        kind, trigger, lateness, mode = case
        self.dice = dice = random.Random(f"{case}{seed}")
        unit = UNITS.get(kind, 1)
        given = KINDS[kind] | TRIGGERS[trigger] | MODES[mode]
        if unit > 1 and "every_us" in given:
            given["every_us"] = 7 * unit
        self.spec = Spec(lateness=lateness * unit, **given)
        self.hand = ByHand(self.spec)
        self.unit = unit
        self.centre = dice.choice([SPRING, AUTUMN]) if unit > 1 else dice.choice([0, 0, -40, 10**15])
        self.kinds = dice.choice([("text",), ("numbers",), ("floats",), ("text", "numbers"), ()])
        fields = [pa.field(f"key{i}", KEYS[k][0]) for i, k in enumerate(self.kinds)]
        zone = dice.choice([None, "UTC"])
        self.schema = pa.schema([*fields, pa.field("ts", pa.timestamp("us", zone)), pa.field("v", pa.int64())])
        self.work = dice.choice(["agg", "agg", "reduce", "apply"])
        self.parts = 1 if mode == "complete" else dice.choice([1, 2, 3])
        self.owners = [self.operator() for _ in range(self.parts)]
        self.late = self.null_times = self.nulls = 0
        self.fired = Counter[str]()

    def operator(self) -> WindowOperator:
        spec = self.spec
        assigner: Any = {
            "tumbling": lambda: Tumbling(spec.size, spec.offset),
            "local": lambda: (
                Tumbling(spec.size, spec.offset, spec.zone)
                if spec.size == spec.slide
                else Sliding(spec.size, spec.slide, spec.offset, spec.zone)
            ),
            "sliding": lambda: Sliding(spec.size, spec.slide, spec.offset),
            "session": lambda: Session(spec.size),
            "global": Global,
        }[spec.kind]()
        names = [f"key{i}" for i in range(len(self.kinds))]
        work: Any
        if self.work == "agg":
            work = agg_arrow(
                [("v", "sum"), ("v", "mean"), ("v", "min"), ("v", "max"), ("v", "count"), ("", "count_all")]
            )
        elif self.work == "reduce":
            work = reduce(lambda a, b: {"v": None if a["v"] is None or b["v"] is None else a["v"] + b["v"]})
        else:
            made = [("start", pa.int64()), ("end", pa.int64()), ("rows", pa.list_(pa.int64()))]
            kind = pa.schema([*(self.schema.field(name) for name in names), *made])

            def function(key: tuple[Any, ...], window: Window, table: pa.Table) -> pa.Table:
                assert table.schema.equals(self.schema)
                columns = [pa.array([k.as_py()], f.type) for k, f in zip(key, kind, strict=False)]
                rows = sorted(table.column("v").to_pylist(), key=none_last)
                return pa.table(
                    [*columns, [window.start], [window.end], pa.array([rows], kind.field("rows").type)], schema=kind
                )

            work = apply_in_arrow(function, kind)
        return WindowOperator(
            names,
            "ts",
            self.schema,
            assigner,
            work,
            lateness_us=spec.lateness,
            trigger=Trigger(spec.rows, spec.every_ms, spec.every_us),
            accumulate=spec.accumulate,
            output_mode=spec.mode,
            groups=GROUPS,
            keep_late=True,
            memory_bytes=self.memory_bytes,
        )

    # ---- what is expected, and what came

    def expected(self) -> list[tuple[Any, ...]]:
        out = []
        for key, start, end, rows in self.hand.out:
            values = [v for _, _, v in rows]
            known = [v for v in values if v is not None]
            window = (None, None) if self.spec.kind == "global" else (start, end)
            if self.work == "agg":
                total = sum(known) if known else None
                mean = total / len(known) if total is not None else None
                made: tuple[Any, ...] = (total, mean, min(known, default=None), max(known, default=None))
                made += (len(known), len(values))
            elif self.work == "reduce":
                made = (sum(known) if len(known) == len(values) else None,)
            else:
                made = (tuple(sorted(values, key=none_last)),)
            out.append((*key, *window, *made))
        self.hand.out = []
        return out

    def came(self, batches: Any) -> list[tuple[Any, ...]]:
        out = []
        for batch in batches:
            assert batch.schema.equals(self.owners[0].schema)
            assert batch.num_rows
            for name in ("window_start", "window_end"):
                if name in batch.schema.names:
                    at = batch.schema.get_field_index(name)
                    batch = batch.set_column(at, name, batch.column(at).cast(pa.int64()))
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            out += [tuple(tuple(v) if isinstance(v, list) else normal(v) for v in row) for row in rows]
        if self.spec.rows is None:  # then all that fires fires for one reason
            keys = len(self.kinds)
            ends = [row[keys + 1] for row in out if row[keys + 1] is not None]
            assert ends == sorted(ends)
        return out

    def check(self, each: list[Any]) -> None:
        came = [row for batches in each for row in self.came(batches)]
        expected = self.expected()
        self.fired["rows"] += len(expected)
        assert Counter(came) == Counter(expected)
        late = [row for owner in self.owners for batch in owner.late for row in batch.to_pylist()]
        for owner in self.owners:
            owner.late.clear()
        names = [f"key{i}" for i in range(len(self.kinds))]
        zone = EPOCH if self.schema.field("ts").type.tz else EPOCH.replace(tzinfo=None)
        rows = Counter(
            (tuple(normal(r[n]) for n in names), round((r["ts"] - zone).total_seconds() * 10**6), r["v"]) for r in late
        )
        assert rows == Counter(self.hand.late)
        self.fired["late"] += len(self.hand.late)
        self.hand.late = []

    # ---- events

    def rows(self) -> None:
        dice = self.dice
        rows: list[tuple[tuple[Any, ...], int | None, Any]] = []
        for _ in range(dice.choice([0, 1, 5, 12])):
            key = tuple(dice.choice(KEYS[kind][1]) for kind in self.kinds)
            time = self.centre + dice.randrange(-25, 25) * self.unit
            rows.append((key, None if dice.random() < 0.05 else time, dice.choice([None, 1, 2, 30, -7])))
            if dice.random() < 0.1:
                rows.append(rows[-1])
        self.centre += dice.randrange(0, 6) * self.unit
        columns = [[key[i] for key, _, _ in rows] for i in range(len(self.kinds))]
        columns += [[time for _, time, _ in rows], [value for _, _, value in rows]]
        batch = pa.record_batch(
            [pa.array(c, f.type) for c, f in zip(columns, self.schema, strict=True)], schema=self.schema
        )
        owners = np.zeros(len(rows), int)
        if self.kinds and rows:
            names = [f"key{i}" for i in range(len(self.kinds))]
            hashed = pa.record_batch([normal_column(a) for a in batch.columns[: len(names)]], names=names)
            owners = HashPartitioner(names, GROUPS).partition(hashed).astype(int) * self.parts // GROUPS
        self.hand.rows([(tuple(map(normal, key)), time, v) for key, time, v in rows if time is not None])
        self.nulls += sum(time is None for _, time, _ in rows)
        self.check([o.rows(batch.filter(pa.array(owners == i, pa.bool_()))) for i, o in enumerate(self.owners)])

    def watermark(self, mark: int) -> None:
        self.hand.advance(mark)
        self.check([list(owner.watermark(mark)) for owner in self.owners])

    def clock(self, now_ms: int) -> None:
        self.hand.processing_time(now_ms)
        self.check([list(owner.processing_time(now_ms)) for owner in self.owners])

    def restore(self) -> None:
        """By another number of owners."""
        before, parts = self.owners, self.parts
        states = [json.loads(json.dumps(owner.state())) for owner in before]
        frozen = [owner.freeze() for owner in before]
        assert all(owner.dirty == [] for owner in before)
        for owner in before:  # what comes later is not in it
            list(owner.rows(pa.RecordBatch.from_pylist([{"ts": EPOCH, "v": 10**6}], self.schema)))
        self.parts = 1 if self.spec.mode == "complete" else self.dice.choice([1, 2, 3, 5])
        self.owners = [self.operator() for _ in range(self.parts)]
        for owner in self.owners:
            owner.restore_state(states)
        for group in range(GROUPS):
            if self.kinds or group == 0:
                self.owners[group * self.parts // GROUPS].restore(group, frozen[group * parts // GROUPS].group(group))
        self.null_times += sum(owner.null_times for owner in before)
        spec = self.spec
        self.hand.ticked = None
        if spec.mode == "complete":
            self.hand.late_in = any(content.rows for content in self.hand.state.values())
            self.hand.since = MAX if self.hand.late_in else 0
        elif spec.early and spec.rows is None and spec.accumulate and spec.kind != "session":
            for content in self.hand.state.values():  # the next early results have all windows
                content.new = max(content.new, 1)

    def run(self, events: int = 30) -> None:
        dice, now = self.dice, 0
        mark = MIN
        for _ in range(events):
            step = dice.random()
            if step < 0.5:
                self.rows()
            elif step < 0.8:
                mark = max(mark, self.centre + dice.randrange(-20, 8) * self.unit)
                self.watermark(mark if dice.random() < 0.9 else mark - 1)
            elif step < 0.93:
                now += dice.choice([10, 700, 1500])
                self.clock(now)
            else:
                self.restore()
            self.fired["in files"] += any(owner.figures()["file_bytes"] for owner in self.owners)
        self.watermark(MAX)
        held = [owner.figures() for owner in self.owners]
        assert sum(owner.null_times for owner in self.owners) + self.null_times == self.nulls
        if self.spec.mode != "complete":  # nothing grows behind the watermark
            names = ("rows", "bytes", "file_bytes", "windows")
            assert all(figures[name] == 0 for figures in held for name in names)


@pytest.mark.parametrize("kind", KINDS)
def test_streams_give_what_windows_by_hand_give(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their state in memory, in files, or in both; by day one of these for each case."""
    monkeypatch.setattr(spill, "PART_ROWS", 5)
    monkeypatch.setattr(spill, "LEAST_PART_BYTES", 200)
    if kind in OVERLAPS:  # so few rows would not be worth it
        monkeypatch.setattr(sliding, "LEAST_OVERLAP", 2)
    fired = Counter[str]()
    # By day one of three, which has each trigger, lateness and mode
    cases = [case for case in CASES[:: 1 if LONG else 3] if case[0] == kind]
    for number, case in enumerate(cases):
        for seed in range(4) if LONG else [0]:
            stream = Stream(case, seed, (None, 1, 4000)[(number + seed) % 3])
            try:
                stream.run()
            except AssertionError as error:
                raise AssertionError(f"{case}, seed {seed}: {stream.spec}") from error
            fired += stream.fired
    assert fired["rows"] > 100
    assert fired["in files"] > 10 or kind == "session"
    assert fired["late"] > 10 or kind == "global"

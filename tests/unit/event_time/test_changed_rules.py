"""Windows that go on with another lateness or output mode: no result is lost, and none is of fewer rows than before."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from fastbuf.event_time.operator import WindowOperator
from fastbuf.event_time.rules import Rules
from fastbuf.event_time.watermarks import MAX, MIN
from fastbuf.event_time.windows import Session, Sliding, Tumbling
from fastbuf.event_time.work import agg_arrow

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us")), ("v", pa.int64())])
GROUPS = 4
MODES = ("append", "update", "complete")


def batch(rows: list[tuple[int, int, int]]) -> pa.RecordBatch:
    keys, times, values = zip(*rows, strict=True)
    columns = [pa.array(keys, pa.int64()), pa.array(times, pa.int64()).view(pa.timestamp("us")), pa.array(values)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def made(assigner: Any, rules: Rules) -> WindowOperator:
    return WindowOperator(
        ["k"], "t", SCHEMA, assigner, agg_arrow([("v", "sum")]), lateness_us=rules.lateness_us,
        accumulate=rules.accumulate, output_mode=rules.output_mode, groups=GROUPS,
    )  # fmt: skip


def moved(before: WindowOperator, after: WindowOperator, dice: random.Random) -> WindowOperator:
    """A checkpoint, and the program that goes on from it."""
    frozen, state = before.freeze(), before.state()
    if dice.random() < 0.5:
        after.restore_state([state])
    for group in range(GROUPS):
        after.restore(group, frozen.group(group))
    if after.current == MIN:
        after.restore_state([state])
    return after


Results = list[tuple[tuple[int, int, int], int]]  # (start, end, key) and a sum


def results(batches: Any) -> Results:
    return [
        ((row["window_start"].value, row["window_end"].value, row["k"].as_py()), row["v_sum"].as_py())
        for each in batches
        for row in (dict(zip(each.schema.names, columns, strict=True)) for columns in zip(*each.columns, strict=True))
    ]


@pytest.mark.parametrize("assigner", [Tumbling(10), Sliding(10, 4), Sliding(4, 10)], ids=str)
@pytest.mark.parametrize("seed", range(40))
def test_aligned_windows_have_the_rows_that_each_rule_let_in(assigner: Any, seed: int) -> None:
    dice = random.Random(seed)
    one_mode = dice.choice([*MODES, None, None])

    def rules() -> Rules:
        return Rules(dice.choice([0, 5, 12, 40]), output_mode=one_mode or dice.choice(MODES))

    now = rules()
    operator, watermark, gone = made(assigner, now), MIN, MIN
    wanted: dict[tuple[int, int, int], int] = {}
    shown: Results = []
    late = 0
    for _ in range(dice.randrange(5, 40)):
        step = dice.random()
        if step < 0.5:
            middle = max(watermark, 0)
            rows = [(dice.randrange(3), middle + dice.randrange(-40, 30), dice.randrange(100)) for _ in range(5)]
            for key, time, value in rows:
                # What has not fired yet fires with the next watermark: until then the time is that of before
                gone = max(gone, MIN if now.complete else operator.current - now.lateness_us)
                first = -(-(time - assigner.size + 1) // assigner.slide) * assigner.slide
                for start in range(first, time + 1, assigner.slide):
                    if start + assigner.size - 1 > gone:
                        window = start, start + assigner.size, key
                        wanted[window] = wanted.get(window, 0) + value
                late += time <= gone
            shown += results(operator.rows(batch(rows)))
        elif step < 0.8:
            watermark = max(watermark, 0) + dice.randrange(1, 20)
            shown += results(operator.watermark(watermark))
        else:
            if not now.complete:
                gone = max(gone, operator.current - now.lateness_us)
            now = rules()
            operator = moved(operator, made(assigner, now), dice)
    shown += results(operator.watermark(MAX))
    assert dict(shown) == wanted
    if one_mode == "append":
        assert len(shown) == len(wanted), "each once"


def sessions(rows: list[tuple[int, int, int]], gap: int) -> dict[tuple[int, int, int], int]:
    found: dict[tuple[int, int, int], int] = {}
    for key in {row[0] for row in rows}:
        open_: list[int] | None = None
        for time, value in sorted((time, value) for each, time, value in rows if each == key):
            if open_ is not None and time <= open_[1]:
                open_ = [open_[0], time + gap, open_[2] + value]
            else:
                if open_ is not None:
                    found[open_[0], open_[1], key] = open_[2]
                open_ = [time, time + gap, value]
        assert open_ is not None
        found[open_[0], open_[1], key] = open_[2]
    return found


@pytest.mark.parametrize("seed", range(60))
def test_sessions_of_rows_that_are_in_time_are_whole(seed: int) -> None:
    dice = random.Random(seed)
    one_mode = dice.choice([*MODES, None, None])
    assigner, rows, shown, watermark = Session(5), [], [], 0

    def operator() -> WindowOperator:
        return made(assigner, Rules(dice.choice([0, 6, 30]), output_mode=one_mode or dice.choice(MODES)))

    now = operator()
    for _ in range(dice.randrange(10, 60)):
        step = dice.random()
        if step < 0.5:  # even times and an odd gap: no two sessions touch
            new = [
                (dice.randrange(3), watermark // 2 * 2 + 2 * dice.randrange(1, 12), dice.randrange(100)) for _ in "abc"
            ]
            rows += new
            shown += results(now.rows(batch(new)))
        elif step < 0.85:
            watermark += dice.randrange(1, 8)
            shown += results(now.watermark(watermark))
        else:
            now = moved(now, operator(), dice)
    shown += results(now.watermark(MAX))
    wanted = sessions(rows, 5) if rows else {}
    assert {window: dict(shown).get(window) for window in wanted} == wanted
    assert now.late_rows == 0
    if one_mode == "append":
        assert sorted(shown) == sorted(wanted.items()), "each once"


def test_a_checkpoint_of_a_version_that_kept_the_watermark_alone() -> None:
    rules = Rules(5, output_mode="update")
    assert rules.restored([{"watermark": 20}, {"watermark": 30}]) == (rules, 20)
    assert rules.restored([]) == (rules, MIN)
    once = replace(rules, output_mode="append")
    assert once.restored([{"watermark": 20}]) == (once, 20)
    assert once.restored([once.state(MAX, False)]) == (replace(once, dropped_us=MAX), MAX)
    assert once.restored([once.state(MIN, False)]) == (once, MIN)


def test_a_session_row_before_what_is_dropped_is_late() -> None:
    """Where all fires again with the next watermark, the operator has none until then: the row was in no window."""
    dice = random.Random(1)
    one = made(Session(5), Rules())
    results(one.watermark(18))
    between = moved(one, made(Session(5), Rules(output_mode="complete")), dice)
    results(between.rows(batch([(0, 50, 1)])))
    last = moved(between, made(Session(5), Rules(40)), dice)
    results(last.rows(batch([(1, 0, 1000)])))
    assert last.late_rows == 1


@pytest.mark.parametrize("before", ["append", "update"])
def test_a_late_row_of_a_session_in_mode_complete_is_shown(before: str) -> None:
    dice = random.Random(1)
    one = made(Session(5), Rules(output_mode=before))
    results(one.watermark(10))
    one = moved(one, made(Session(5), Rules(output_mode="complete")), dice)
    results(one.rows(batch([(1, 20, 1)])))
    assert results(one.watermark(30)) == [((20, 25, 1), 1)]
    results(one.rows(batch([(1, 21, 100)])))
    assert results(one.watermark(40)) == [((20, 26, 1), 101)]

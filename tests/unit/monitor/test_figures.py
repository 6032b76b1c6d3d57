"""What a task tells: bounded, and in shares of its time."""

from __future__ import annotations

import json

from fastbuf.monitor.figures import MOST_BYTES, Lately, Shares, bounded, longest


def size(figures: dict[str, object]) -> int:
    return len(json.dumps(figures, separators=(",", ":")))


def test_a_report_is_two_kilobytes_at_most_and_keeps_its_counters() -> None:
    figures = {
        "records": 10**12,
        "seconds": {name: 12345.678901 for name in ("credit", "link", "segment", "input", "user", "engine_in")},
        "blocked": {str(k): 1234.56789 for k in range(9)},
        "frames": {f"a_rather_long_name_{k}.py:1234 some_function_of_the_user_{k}": k + 1 for k in range(5)},
        "stacks": {
            kind: {";".join(f"file_{k}.py:{i} function_{i}" for i in range(40)): k + 1 for k in range(5)}
            for kind in ("on", "off")
        },
    }
    assert size(figures) > 2 * MOST_BYTES
    told = bounded(figures)
    assert size(told) <= MOST_BYTES
    assert told["records"] == 10**12
    assert told["blocked"].keys() == figures["blocked"].keys()  # type: ignore[attr-defined]
    assert list(told["frames"]) == list(figures["frames"])  # type: ignore[call-overload]
    short = {"records": 1, "stacks": {"on": {"a;b": 3}}, "state": "user"}
    assert bounded(short) == short


def test_shares_sum_to_one() -> None:
    shares = Shares()
    shares.of({})
    found = shares.of({"credit": 1e-9, "input": 2e-9, "user": 5.0})
    assert abs(sum(found.values()) - 1) < 1e-9


def test_no_share_is_less_than_none_or_more_than_all() -> None:
    shares = Shares()
    shares.of({"input": 5.0, "user": 0.0})
    shares._window.popleft()  # the next is compared with that report
    assert shares.of({"input": 0.1, "user": 0.2}) == {"backPressured": 0.0, "idle": 0.0, "busy": 1.0}


def test_in_a_long_run_who_is_waited_for_now_is_named_too() -> None:
    lately, waited = Lately(), [1000.0 + k for k in range(20)]
    found: dict[str, float] = {}
    for _ in range(60):
        waited[3] += 1.0
        found = longest(waited, list(range(20)), lately.of(waited))
    assert "3" in found
    assert {"19", "18", "17", "16"} <= set(found), "and who was waited for longest"
    assert sum(found.values()) == sum(waited)
    assert len(found) == 9


def test_longest_keeps_all_of_few() -> None:
    assert longest([1.0, 0.0], [0, 1]) == {"0": 1.0}

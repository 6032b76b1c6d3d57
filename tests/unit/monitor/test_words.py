"""What a verdict says: a stranger knows who it is, why, and what to do next."""

from __future__ import annotations

import pytest

from fastbuf.monitor.words import CAUSES, ON_CPU, THROTTLED, TIMES, Root, remedy, sentence, share_of


def said(
    cause: str, evidence: dict[str, float], subtask: int | None = 3, key: str | None = None, **more: object
) -> str:
    told = remedy(cause, subtask, evidence, key)
    root = Root("e", "total", subtask, cause, 0.9, 0.9, evidence=evidence, remedy=told, key=key)
    return sentence(root)


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_has_words_and_something_to_do(cause: str) -> None:
    found = said(cause, {})
    assert found.startswith("Subtask 3 of `total` ")
    assert CAUSES[cause] in found
    assert found.endswith(".")
    assert len(remedy(cause, 3, {})) > 20
    assert not found.endswith(f"{CAUSES[cause]}. ")


@pytest.mark.parametrize(
    ("cause", "evidence", "words"),
    [
        ("user_function", {"share": 0.93, ON_CPU: 0.02, TIMES: 41.2},
         "(93% of its time, on a CPU for 2% of that, 41.2 times its peers for each row). It waits for something"),
        ("user_function", {"share": 0.93, ON_CPU: 0.99, TIMES: 41.2}, "See what is different about its rows"),
        ("user_function", {"share": 0.93, ON_CPU: 0.99, TIMES: 1.0}, "Make that function faster, or use more"),
        ("stopped", {"seconds stopped": 2.13, "of": 4.8}, "process was stopped (for 2.1 s of 4.8 s). See what stops"),
        ("gc", {"seconds in the collector": 3.7, "of": 4.3}, "(for 3.7 s of 4.3 s)"),
        ("cpu_starved", {"seconds waiting for a CPU": 3.7, "of": 4.9}, "Use fewer slots than cores"),
        ("cpu_starved", {"seconds waiting for a CPU": 0.1, "of": 4.9, THROTTLED: 3.0},
         "a limit kept it from running for 3.0 s). Raise the CPU limit"),
        ("paging", {"pages read from disk": 1200, "seconds": 5.0}, "(1,200 pages in 5.0 s)"),
        ("skew", {"rows": 28_359, "rows of the others": 4_985, share_of("key with hash 77"): 0.65},
         "the key with hash 77 has 65% of all). Choose a key with more values, or add one to it (salting). To see"),
        ("slow_link", {"credit": 0.7, "link": 0.05, "consumer idle": 0.84, "segments sent again": 3},
         "(a producer waited 75% of its time, the consumer had no rows 84% of its time, 3 packets sent again). Send"),
        ("slow_sink", {"share": 0.9}, "whoever reads its rows is slow (it waited 90% of its time)"),
        ("unknown", {"user": 0.4, "input": 0.4, "codec": 0.004},
         "is behind 90% of the lost time: no rule is sure why (40% in its function, 40% for rows)."),
    ],
)  # fmt: skip
def test_figures_say_what_they_are(cause: str, evidence: dict[str, float], words: str) -> None:
    assert words in said(cause, evidence)


def test_a_stage_is_no_subtask_and_has_no_peers() -> None:
    found = said("user_function", {"share": 0.93, TIMES: 1.1}, subtask=None)
    assert found.startswith("`total` causes 90% of the lost time")
    assert "peers" not in found
    assert "the network takes no more" in said("slow_link", {}, subtask=None)


def test_a_key_that_was_asked_for_is_named_and_nobody_is_told_how_to_ask() -> None:
    found = said("skew", {"rows": 9, share_of("key 'LAX'"): 0.61}, key="'LAX'")
    assert "; key 'LAX' has 61% of the rows (9 rows). Choose a key" in found
    assert "monitorKeyValues" not in found

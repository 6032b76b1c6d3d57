"""Whether runs that serve one action have read the same: what is compared with what."""

from __future__ import annotations

import logging

import pytest

from fastbuf_spark.driver.agreement import KEPT_SCOPES, MASK, WARN_AT, Agreement


def read(*pairs: tuple[int, int], cut: bool = False) -> list[dict[str, int]]:
    """The figures of producers that read so many rows, with such a digest."""
    return [{"rows": rows, "digest": digest, "cut": int(cut)} for rows, digest in pairs]


def test_runs_of_one_action_agree_however_the_input_was_cut() -> None:
    seen = Agreement()
    assert seen.ends(("a",), [0], read((10, 5), (20, MASK)), whole=False) == ""
    assert seen.ends(("a",), [1], read((30, 4)), whole=False) == "", "the same sum, modulo 2**64"


@pytest.mark.parametrize(("other", "words"), [((31, 4), "30 rows, then 31"), ((30, 3), "other keys")])
def test_runs_of_one_action_that_differ_are_told_apart(other: tuple[int, int], words: str) -> None:
    seen = Agreement()
    assert seen.ends(("a",), [0, 1], read((30, 4)), whole=True) == ""
    text = seen.ends(("a",), [1], read(other), whole=False)
    for part in ("not deterministic", "partitions [0, 1]", "again for [1]", words, "cache()", "mode='blocking'"):
        assert part in text


def test_two_actions_need_not_agree_but_what_fills_one_cache_must() -> None:
    seen = Agreement()
    assert seen.ends(("1", "cache 7"), [0], read((30, 4)), whole=False) == ""
    assert seen.ends(("2",), [0], read((31, 4)), whole=False) == ""
    assert "not deterministic" in seen.ends(("3", "cache 7"), [1], read((31, 4)), whole=False)


def test_actions_without_a_name_need_not_agree_where_each_run_was_for_all() -> None:
    seen = Agreement()
    for rows in (30, 31):
        assert seen.ends(("",), [0, 1], read((rows, 4)), whole=True) == ""
    assert "30" not in seen.ends(("",), [1], read((31, 4)), whole=False)
    assert "31 rows, then 30" in seen.ends(("",), [1], read((30, 4)), whole=False), "a part must agree with the last"
    assert seen.ends(("",), [0], read((30, 4)), whole=False) == "", "so begins another action that takes some rows"
    assert seen.ends(("",), [1], read((30, 4)), whole=False) == ""
    assert seen.ends(("",), [0, 1], read((31, 4)), whole=True) == "", "and after it one that takes all"


def test_tasks_of_one_stage_agree_though_their_action_has_no_name() -> None:
    seen = Agreement()
    assert seen.ends(("", "stage 3"), [0, 1], read((30, 4)), whole=True) == ""
    assert "not deterministic" in seen.ends(("", "stage 3"), [0], read((31, 4)), whole=False)
    assert seen.ends(("", "stage 4"), [0, 1], read((31, 4)), whole=True) == ""


def test_what_nobody_wanted_to_its_end_proves_nothing() -> None:
    seen = Agreement()
    assert seen.ends(("a",), [0], read((3, 1), cut=True), whole=False) == ""
    assert seen.ends(("a",), [1], read((30, 4)), whole=False) == ""


def test_an_input_that_may_differ_is_read_once_and_whole() -> None:
    seen = Agreement("x", "rand()")
    assert seen.begins(("1",), part=False) == ""
    assert seen.begins(("1",), part=False) == "", "the one before has not ended: nobody has a partition of it"
    assert seen.ends(("1",), [0, 1], read((30, 4)), whole=True) == ""
    assert "reads it twice" in seen.begins(("1",), part=False)
    assert seen.ends(("",), [0, 1], read((30, 4)), whole=True) == ""
    assert seen.begins(("",), part=False) == "", "perhaps another action: of an RDD nobody knows"
    assert seen.begins(("2",), part=False) == "", "another action"
    assert "some of the partitions" in seen.begins(("3",), part=True)


def test_it_warns_once_of_an_input_that_is_read_for_one_partition_after_the_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = Agreement("x")
    with caplog.at_level(logging.WARNING, "fastbuf_spark"):
        for _ in range(3 * WARN_AT):
            assert seen.begins(("1",), part=True) == ""
    assert len(caplog.records) == 1
    assert "cache()" in caplog.text


def test_it_forgets_the_oldest() -> None:
    seen = Agreement()
    for i in range(KEPT_SCOPES + 1):
        assert seen.ends((str(i),), [0], read((30, 4)), whole=False) == ""
    assert seen.ends(("0",), [1], read((31, 4)), whole=False) == ""
    assert "not deterministic" in seen.ends((str(KEPT_SCOPES),), [1], read((31, 4)), whole=False)

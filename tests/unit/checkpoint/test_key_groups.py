"""Key groups, by brute force: each has one task, ranges follow one another, and all ways to ask agree."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import numpy as np
import pytest

from fastbuf.checkpoint import DEFAULT_KEY_GROUPS, key_group_range, owner, owners
from fastbuf.checkpoint.key_groups import MOST_KEY_GROUPS
from fastbuf.errors import ConfigError

SIZES = [
    *((tasks, groups) for groups in (1, 2, 3, 7, 64, 100, 127, 128) for tasks in range(1, groups + 1)),
    *((tasks, MOST_KEY_GROUPS) for tasks in (1, 3, 1000, MOST_KEY_GROUPS - 1, MOST_KEY_GROUPS)),
]


def test_every_group_has_one_task_and_all_ways_to_ask_agree() -> None:
    for tasks, groups in SIZES:
        ranges = [key_group_range(task, tasks, groups) for task in range(tasks)]
        assert list(chain(*ranges)) == list(range(groups)), (tasks, groups)
        sizes = {len(each) for each in ranges}
        assert max(sizes) - min(sizes) <= 1, (tasks, groups)
        all_owners = owners(tasks, groups)
        assert all_owners.dtype == np.int32
        assert all_owners.shape == (groups,)
        of_ranges = np.repeat(np.arange(tasks), [len(each) for each in ranges])
        assert (all_owners == of_ranges).all(), (tasks, groups)
        for group in range(0, groups, max(1, groups // 200)):
            assert owner(group, tasks, groups) == all_owners[group]


def test_the_default_is_flinks_and_so_are_the_ranges() -> None:
    """Of 128 groups and 3 tasks Flink's ``KeyGroupRangeAssignment`` gives 0 to 42, 43 to 85, 86 to 127."""
    assert DEFAULT_KEY_GROUPS == 128
    assert [key_group_range(task, 3) for task in range(3)] == [range(43), range(43, 86), range(86, 128)]
    assert [owner(group, 3) for group in (0, 42, 43, 85, 86, 127)] == [0, 0, 1, 1, 2, 2]
    assert owners(3).tolist() == [0] * 43 + [1] * 43 + [2] * 42


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: owners(129), r"129 tasks share 128 key groups: .*; take at most 128 tasks, or a new checkpoint with"),
        (lambda: owners(0), "tasks is 0: it must be an integer from 1"),
        (lambda: owners(1, 0), "groups is 0: it must be an integer from 1 to 32768"),
        (lambda: owners(1, MOST_KEY_GROUPS + 1), "groups is 32769"),
        (lambda: key_group_range(3, 3), "task is 3: it must be an integer from 0 to 2"),
        (lambda: key_group_range(-1, 3), "task is -1"),
        (lambda: key_group_range(0, 3.0), "tasks is 3.0"),  # type: ignore[arg-type]
        (lambda: owner(128, 3), "group is 128: it must be an integer from 0 to 127"),
        (lambda: owner(0, 5, 4), "5 tasks share 4 key groups"),
    ],
)
def test_wrong_numbers_are_named(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call()

"""Key groups: the shares in which state is kept, of which each task has a range.

A key is in the same group for the life of a checkpoint, however many tasks there are; a restart with another number of
tasks gives out whole groups.  The formulas are Flink's (``KeyGroupRangeAssignment``): ranges in the order of the tasks,
whose sizes differ by one at most.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastbuf.checks import whole
from fastbuf.errors import ConfigError

DEFAULT_KEY_GROUPS = 128  #: unless the user says otherwise; never more tasks than groups
MOST_KEY_GROUPS = 1 << 15


def key_group_range(task: int, tasks: int, groups: int = DEFAULT_KEY_GROUPS) -> range:
    """The groups of a task.

    Parameters
    ----------
    task
        Its number, from 0.
    tasks
        How many there are, `groups` at most.
    groups
        How many there are, 32768 at most.

    Returns
    -------
    range
        At least one group.

    Raises
    ------
    ConfigError
        A number is out of range, or there are more tasks than groups.
    """
    _check(tasks, groups)
    task = whole("task", task, 0, tasks - 1)
    return range(-(-task * groups // tasks), -(-(task + 1) * groups // tasks))


def owner(group: int, tasks: int, groups: int = DEFAULT_KEY_GROUPS) -> int:
    """The task that has a group: the inverse of :func:`key_group_range`."""
    _check(tasks, groups)
    return whole("group", group, 0, groups - 1) * tasks // groups


def owners(tasks: int, groups: int = DEFAULT_KEY_GROUPS) -> npt.NDArray[np.int32]:
    """The task of every group: ``int32``, of length `groups`, ascending."""
    _check(tasks, groups)
    return (np.arange(groups, dtype=np.int64) * tasks // groups).astype(np.int32)


def _check(tasks: int, groups: int) -> None:
    whole("groups", groups, 1, MOST_KEY_GROUPS)
    if whole("tasks", tasks, 1) > groups:
        raise ConfigError(
            f"{tasks} tasks share {groups} key groups: a task without one would have no keys; take at most {groups} "
            f"tasks, or a new checkpoint with more groups (up to {MOST_KEY_GROUPS})"
        )

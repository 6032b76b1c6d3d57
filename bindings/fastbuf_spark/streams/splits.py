"""Which task of a source reads which splits, and what of that a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastbuf_spark.streams.source import StreamSource

Share = list[tuple[str, Any]]  #: names and offsets


class SplitShares:
    """The splits of one source in one run.

    Parameters
    ----------
    tasks
        Numbers of the source's tasks.
    restored
        What :meth:`snapshot` gave; None: nothing was read before.

    Attributes
    ----------
    state
        The source's own, as it gave it with the splits found last.
    is_last
        Whether no more splits are to come.
    is_listed
        Whether the source has been listed in this run.
    any_yet
        Whether it has had a split, in this run or before.
    """

    def __init__(self, source: StreamSource, tasks: range, restored: Mapping[str, Any] | None) -> None:
        last = restored or {}
        self.source = source
        self.tasks = tasks
        self.state: Any = last.get("state")
        self.is_last = self.is_listed = False
        self.any_yet = bool(last.get("any", restored is not None))  # older checkpoints do not say
        self._begun = False
        self._open: dict[str, Any] = dict(last.get("open", {}))  # where each that has not ended was begun
        self._owners: dict[str, int] = {}

    def begin(self) -> dict[int, Share]:
        """The share of each task at the start, in the order in which they came."""
        self._begun = True
        shares: dict[int, Share] = {number: [] for number in self.tasks}
        for i, (name, offset) in enumerate(self._open.items()):
            task = self.tasks[i % len(self.tasks)]
            self._owners[name] = task
            shares[task].append((name, offset))
        return shares

    def add(self, splits: Iterable[tuple[str, Any]], state: Any) -> dict[int, Share]:
        """Splits that were found: each goes to the task that has the fewest; what is to be sent to tasks now.

        All tasks are told of the first listing, and of the first ones: until then they do not know that they have none.
        """
        self.state = state
        self.is_last = self.is_last or self.source.bounded
        fresh = list(splits)
        is_first = not self.is_listed or (bool(fresh) and not self.any_yet)
        self.is_listed, self.any_yet = True, self.any_yet or bool(fresh)
        self._open.update(fresh)
        if not self._begun:
            return {}
        counts = dict.fromkeys(self.tasks, 0)
        for name, task in self._owners.items():
            counts[task] += name in self._open
        shares: dict[int, Share] = {number: [] for number in self.tasks if is_first}
        for name, offset in fresh:
            task = min(counts, key=lambda number: (counts[number], number))
            counts[task] += 1
            self._owners[name] = task
            shares.setdefault(task, []).append((name, offset))
        return shares

    def snapshot(self, offsets: Mapping[str, Any], ended: Iterable[str]) -> dict[str, Any]:
        """What a checkpoint keeps: a split of which no task says anything is where it was begun."""
        gone = set(ended)
        opened = {name: offsets.get(name, offset) for name, offset in self._open.items() if name not in gone}
        return {"open": opened, "state": self.state, "any": self.any_yet}

    def end(self, names: Iterable[str]) -> None:
        """These have ended before a checkpoint that is complete."""
        for name in names:
            self._open.pop(name, None)
            self._owners.pop(name, None)

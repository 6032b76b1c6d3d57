"""Checks that all runs of an exchange found the same keys in its input.

Several runs may serve one action (some partitions first and others later, or a task that Spark tries again); it then
gets each partition from one of them.  If the input was not the same each time, rows are lost or duplicated, and no
single run can detect that.  So producers count their rows and sum up a mix of each key's hash, whether the row is sent
or dropped; both sums are independent of the order of rows and of the input's partitions.  Runs that serve one action
must have the same sums, or the action fails.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("fastbuf_spark")

KEPT_SCOPES = 256  #: most recent actions and caches that are remembered
#: The scope of every action of an RDD, since Spark gives those no name.  A run for all partitions, or for the first
#: one, with which ``take`` and ``toLocalIterator`` begin, may be of another action: it need not agree with those before
NAMELESS = ""
WARN_AT = 3  #: warn from this number of partial runs of one action on
MASK = 2**64 - 1
REMEDY = "cache() the input, or use mode='blocking', which reads it once"


@dataclass
class _Scope:
    parts: int = 0
    totals: tuple[int, int] | None = None
    served: tuple[int, ...] = ()  # partitions served by the run whose totals these are


class Agreement:
    """The agreement of one exchange.

    Parameters
    ----------
    name
        Name of the exchange, for the log.
    unsteady
        Why the input may differ each time it is read, as far as Spark's plan shows; empty: no reason is known.
    """

    def __init__(self, name: str = "", unsteady: str = "") -> None:
        self._name = name
        self._unsteady = unsteady
        self._scopes: OrderedDict[str, _Scope] = OrderedDict()
        self._warned = False

    def begins(self, scopes: Iterable[str], part: bool) -> str:
        """Call it when a run is about to read the input; ``part``: for some of the partitions only.

        Returns
        -------
        str
            Why it may not read; empty if it may.
        """
        again, names = False, tuple(scopes)
        for name, scope in zip(names, self._of(names), strict=True):
            # A run that failed has delivered no complete partition, so it does not count
            again |= scope.totals is not None and not (name == NAMELESS and not part)
            scope.parts += part
            if scope.parts == WARN_AT and not self._warned:
                self._warned = True
                log.warning(
                    "exchange '%s': an action asks for some partitions at a time, and its input is read again for each "
                    "of them; cache() the result before, or use mode='blocking'",
                    self._name,
                )
        if self._unsteady and (part or again):
            what = "an action that asks for some of the partitions" if part else "an action that reads it twice"
            return f"its input is not deterministic ({self._unsteady}), and {what} may lose or double rows: {REMEDY}"
        return ""

    def ends(
        self, scopes: Iterable[str], served: Sequence[int], producers: Iterable[Mapping[str, Any]], whole: bool
    ) -> str:
        """Call it when all producers of a run have ended.

        Parameters
        ----------
        served
            Partitions that the run served.
        producers
            The figures of each: ``rows`` and ``digest`` of its input; ``cut`` if it stopped early because no consumer
            was left.
        whole
            Whether the run was for all partitions.

        Returns
        -------
        str
            How it differs from an earlier run; empty if it does not.
        """
        figures = list(producers)
        if any(f.get("cut") for f in figures):
            return ""
        rows = sum(int(f.get("rows", 0)) for f in figures)
        digest = sum(int(f.get("digest", 0)) for f in figures) & MASK
        names = tuple(scopes)
        for name, scope in zip(names, self._of(names), strict=True):
            if scope.totals is None or (name == NAMELESS and (whole or 0 in served)):
                scope.totals, scope.served = (rows, digest), tuple(served)
            elif scope.totals != (rows, digest):
                what = f"{scope.totals[0]:,} rows, then {rows:,}" if scope.totals[0] != rows else "other keys"
                return (
                    f"its input is not deterministic: read for partitions {_short(scope.served)} and again for "
                    f"{_short(served)} of the same result, it had {what}, so rows would be lost or doubled. {REMEDY}"
                )
        return ""

    def _of(self, scopes: Iterable[str]) -> list[_Scope]:
        entries = []
        for name in scopes:
            entries.append(self._scopes.setdefault(name, _Scope()))
            self._scopes.move_to_end(name)
        while len(self._scopes) > KEPT_SCOPES:
            self._scopes.popitem(last=False)
        return entries


def _short(partitions: Sequence[int]) -> str:
    shown = ", ".join(map(str, partitions[:8]))
    return f"[{shown}{', ...' if len(partitions) > 8 else ''}]"

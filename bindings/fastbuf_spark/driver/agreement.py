"""Whether the runs of one exchange have found the same keys in its input.

An action that is served by several runs (some partitions first and others later, a task that Spark tries again) gets
each partition from one of them.  If the input was not the same each time, rows are lost or doubled, and no run by
itself can see it.  So producers count their rows and add up a mix of each key's hash, whether the row is sent or
dropped; both sums do not depend on the order of rows, nor on how the input was cut into partitions.  Runs that serve
one action must have the same sums, or the action fails.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

log = logging.getLogger("fastbuf_spark")

KEPT_SCOPES = 256  #: of the actions and caches that were served last
#: The scope of every action of an RDD, for Spark gives those no name.  Two whole runs in it may serve two actions, so
#: they need not agree
NAMELESS = ""
WARN_AT = 3  #: runs of one action that each serve some partitions
MASK = 2**64 - 1
REMEDY = "cache() the input, or use mode='blocking', which reads it once"


@dataclass
class _Scope:
    parts: int = 0
    found: tuple[int, int] | None = None
    served: tuple[int, ...] = ()  # by the run that found it
    whole: bool = False  # which was for all partitions


class Agreement:
    """Of one exchange.

    Parameters
    ----------
    name
        Of the exchange, for the log.
    unsteady
        Why the input may differ each time it is read, as far as Spark's plan tells; empty: it tells nothing.
    """

    def __init__(self, name: str = "", unsteady: str = "") -> None:
        self._name = name
        self._unsteady = unsteady
        self._scopes: OrderedDict[str, _Scope] = OrderedDict()
        self._warned = False

    def begins(self, scopes: Iterable[str], part: bool) -> str:
        """A run is about to read the input; ``part``: for some of the partitions only.

        Returns
        -------
        str
            Why it may not; else empty.
        """
        again, names = False, tuple(scopes)
        for name, scope in zip(names, self._of(names), strict=True):
            again |= scope.found is not None and not (
                name == NAMELESS and scope.whole and not part
            )  # a run that failed before its end has given nobody a whole partition
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
        """All producers of a run have ended.

        Parameters
        ----------
        served
            Partitions that the run was for.
        producers
            The figures of each: ``rows`` and ``digest`` of what it read; ``cut`` if nobody wanted the rest.
        whole
            The run was for all partitions.

        Returns
        -------
        str
            How it differs from a run before; else empty.
        """
        figures = list(producers)
        if any(f.get("cut") for f in figures):
            return ""
        rows = sum(int(f.get("rows", 0)) for f in figures)
        digest = sum(int(f.get("digest", 0)) for f in figures) & MASK
        names = tuple(scopes)
        for name, scope in zip(names, self._of(names), strict=True):
            if scope.found is None or (name == NAMELESS and whole and scope.whole):
                scope.found, scope.served, scope.whole = (rows, digest), tuple(served), whole
            elif scope.found != (rows, digest):
                what = f"{scope.found[0]:,} rows, then {rows:,}" if scope.found[0] != rows else "other keys"
                return (
                    f"its input is not deterministic: read for partitions {_short(scope.served)} and again for "
                    f"{_short(served)} of the same result, it had {what}, so rows would be lost or doubled. {REMEDY}"
                )
        return ""

    def _of(self, scopes: Iterable[str]) -> list[_Scope]:
        found = []
        for name in scopes:
            found.append(self._scopes.setdefault(name, _Scope()))
            self._scopes.move_to_end(name)
        while len(self._scopes) > KEPT_SCOPES:
            self._scopes.popitem(last=False)
        return found


def _short(partitions: Sequence[int]) -> str:
    shown = ", ".join(map(str, partitions[:8]))
    return f"[{shown}{', ...' if len(partitions) > 8 else ''}]"

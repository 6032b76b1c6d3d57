"""How well the planted faults were found: precision and recall with Wilson's intervals, causes confused, time taken."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from scenarios import Truth

WITHIN_S = 15.0
Named = tuple[str, int | None]


@dataclass
class Outcome:
    """What was said in one run.

    Attributes
    ----------
    first
        When each root was first named, and when with its cause, in seconds from the run's beginning.
    alarms, windows
        Verdicts that named somebody, and all.
    others
        What other judges named last.
    """

    name: str
    seed: int
    truths: list[Truth]
    windows: int = 0
    alarms: int = 0
    first: dict[str, float] = field(default_factory=dict)
    others: dict[str, list[Named]] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)

    def add(self, stage: str, subtask: int | None, cause: str, seconds: float) -> None:
        self.first.setdefault(f"{stage}|{'' if subtask is None else subtask}|{cause}", seconds)

    def said(self) -> list[tuple[Named, str, float]]:
        found = []
        for key, seconds in self.first.items():
            stage, subtask, cause = key.split("|")
            found.append(((stage, int(subtask) if subtask else None), cause, seconds))
        return found

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def wilson(hits: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Bounds of a share that was found so often, at 95 %."""
    if not n:
        return 0.0, 1.0
    share = hits / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def share(hits: int, n: int) -> str:
    low, high = wilson(hits, n)
    return f"{hits}/{n} = {hits / n if n else 0:.3f} [{low:.3f}, {high:.3f}]"


def meets(truth: Truth, named: Named) -> bool:
    """Where there is one subtask only, it may be called by its number or by its stage."""
    return truth.stage == named[0] and truth.subtask == named[1]


def _judged(outcomes: list[Outcome], judge: str) -> tuple[int, int, int, int]:
    right = named = found = planted = 0
    for outcome in outcomes:
        theirs = {tuple(place) for place in outcome.others.get(judge, [])}
        # They know subtasks only: of a stage that is slow as a whole any of its subtasks will do
        fits = [{p for p in theirs if p[0] == t.stage and t.subtask in (None, p[1])} for t in outcome.truths]
        right += len(set().union(*fits)) if fits else 0
        named += len(theirs)
        found += sum(bool(f) for f in fits)
        planted += len(outcome.truths)
    return right, named, found, planted


def report(outcomes: Iterable[Outcome]) -> str:
    """All of it, as text."""
    outcomes = sorted(outcomes, key=lambda o: (o.name, o.seed))
    roots_right = roots_named = roots_found = planted = 0
    cause_right = cause_named = cause_found = 0
    false_alarms = quiet = 0
    times: list[float] = []
    confused: Counter[tuple[str, str]] = Counter()
    lines = ["scenario           runs  roots named right   planted found     cause right       median s"]
    for name in dict.fromkeys(o.name for o in outcomes):
        mine = [o for o in outcomes if o.name == name]
        r = n = f = p = cr = cn = cf = 0
        took: list[float] = []
        for o in mine:
            places = {place for place, _, _ in o.said()}
            n += len(places)
            r += sum(any(meets(t, place) for t in o.truths) for place in places)
            p += len(o.truths)
            if not o.truths:
                quiet += o.windows
                false_alarms += o.alarms
                for _, cause, _ in o.said():
                    confused["nothing", cause] += 1
            for t in o.truths:
                here = [(cause, s) for place, cause, s in o.said() if meets(t, place) and s <= WITHIN_S]
                f += bool(here)
                right = [s for cause, s in here if cause in t.causes]
                cf += bool(right)
                took += right[:1]
                last = [cause for cause, _ in here if cause != "unknown"] or [cause for cause, _ in here]
                confused[t.causes[0], (t.causes[0] if right else last[-1] if last else "nothing")] += 1
            for place, cause, _ in o.said():
                if cause != "unknown":
                    cn += 1
                    cr += any(meets(t, place) and cause in t.causes for t in o.truths)
        middle = f"{sorted(took)[len(took) // 2]:.1f}" if took else "-"
        lines.append(f"{name:18} {len(mine):4}  {r:3}/{n:<12} {f:5}/{p:<10} {cr:5}/{cn:<12} {middle:>7}")
        roots_right, roots_named, roots_found, planted = roots_right + r, roots_named + n, roots_found + f, planted + p
        cause_right, cause_named, cause_found = cause_right + cr, cause_named + cn, cause_found + cf
        times += took
    times.sort()
    lines += [
        "",
        f"root: precision {share(roots_right, roots_named)}, recall {share(roots_found, planted)}",
        f"cause: precision {share(cause_right, cause_named)}, recall {share(cause_found, planted)}",
        f"false alarms: {share(false_alarms, quiet)} of windows in runs without a fault",
    ]
    if times:
        median, most = times[len(times) // 2], times[min(len(times) - 1, int(0.95 * len(times)))]
        lines.append(f"time to verdict: median {median:.1f} s, 95 % within {most:.1f} s, worst {times[-1]:.1f} s")
    for judge in ("Flink's rule", "pool table"):
        right, named, found, of = _judged(outcomes, judge)
        lines.append(f"{judge}, same runs: root precision {share(right, named)}, recall {share(found, of)}, no causes")
    lines += ["", "planted -> said (runs)"]
    lines += [f"  {a:15} {b:15} {n}" for (a, b), n in sorted(confused.items())]
    return "\n".join(lines)

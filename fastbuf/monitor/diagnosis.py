"""Which task of an exchange holds up the rest, and why: pure functions of figures.

The time that producers were blocked is followed to the consumers that they waited for; whoever has a large share of it
is a root.  Its own figures say why, by rules that are tried in order.  Where no producer was blocked and the consumers
waited, the producers are looked at instead: a slow head causes no pressure at all.

Source: the walk is that of Flink's rule (the busiest vertex behind a pressed one), by measured time in place of samples
and by subtask in place of vertex.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OK, LOW, HIGH = "OK", "LOW", "HIGH"
LEVELS = ((0.1, OK), (0.5, LOW))  #: of the producers' blocked share, as Flink has them; above: HIGH
ROOT_SHARE = 0.2  #: of the lost time, from which a subtask is named
TAIL = 0.5  #: producers that took less than this of the last consumer's time have long ended
IDLE_HEAD = 0.5  #: of the consumers' time, from which a slow head is looked for
SURE, LIKELY = 0.8, 0.6  #: confidence from which it "is", or "probably is"
ENOUGH_S = 3.0  #: of observation: less lowers the confidence
REST = -1  #: in place of a consumer's number
OUTPUT_WAITS = ("credit", "link", "segment")
ALIKE = 1.5  #: costs for each row that differ by less are alike
TIMES_ITS_PEERS = 2.0  #: so much more than its peers' median, and a subtask is a case of its own


@dataclass(frozen=True)
class Task:
    """Figures of one subtask over a window.

    Attributes
    ----------
    stage
        The function that runs in it, or ``"source"``.
    subtask
        Its partition.
    seconds
        By what it did: ``credit``, ``link``, ``segment``, ``input``, ``engine_in``, ``engine_out``, ``user``.
    blocked
        Of a producer: seconds by the consumer that it waited for; ``REST``: for all that have no figure of their own.
    rows, bytes
        Sent or received.
    cpu_s, queued_s, gc_s, stopped_s
        Of its thread: on a CPU; ready to run, with no CPU free; in Python's collector; of its process: standing still.
        ``None``: not known here, and its rule is off.
    frames
        How often each line of the user's code was found running.
    """

    stage: str
    subtask: int
    seconds: Mapping[str, float]
    blocked: Mapping[int, float] = field(default_factory=dict)
    rows: int = 0
    bytes: int = 0
    cpu_s: float | None = None
    queued_s: float | None = None
    gc_s: float | None = None
    stopped_s: float | None = None
    frames: Mapping[str, int] = field(default_factory=dict)

    @property
    def wall_s(self) -> float:
        """All its time."""
        return sum(self.seconds.values())

    def share(self, *names: str) -> float:
        """Of its time that it spent so."""
        return sum(self.seconds.get(name, 0.0) for name in names) / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def cost(self) -> float:
        """Seconds of the user's for each row; 0 without rows."""
        return self.seconds.get("user", 0.0) / self.rows if self.rows else 0.0

    @property
    def frame(self) -> str | None:
        """The line of the user's code that was found most often."""
        return max(self.frames, key=self.frames.__getitem__, default=None)


@dataclass(frozen=True)
class Root:
    """What holds up an exchange.

    Attributes
    ----------
    exchange, stage, subtask
        Where; ``None``: all subtasks alike.
    cause
        ``user_function``, ``skew``, ``stopped``, ``cpu_starved``, ``gc``, ``slow_link``, ``segments``, ``credits``,
        ``slow_sink``, ``source_bound`` or ``unknown``.
    share
        Of the lost time that it is to blame for, 0 to 1.
    confidence
        0 to 1; below 0.6 the cause is ``unknown``.
    frame
        File, line and function of the user's, if it was seen.
    evidence
        The figures that the rule looked at.
    remedy
        What to change.
    """

    exchange: str
    stage: str
    subtask: int | None
    cause: str
    share: float
    confidence: float
    frame: str | None = None
    evidence: dict[str, float] = field(default_factory=dict)
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Whether an exchange is held up, where, and why.

    Attributes
    ----------
    level
        ``"OK"``, ``"LOW"`` or ``"HIGH"``: the share of their time that producers could not go on, by Flink's bounds.
    blocked
        That share.
    roots
        Those to blame, the greatest first; none where nothing is held up.
    """

    level: str
    blocked: float
    roots: list[Root] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """All of it in words."""
        if not self.roots:
            return f"Nothing holds up this exchange (producers were blocked {self.blocked:.0%} of their time)."
        return " ".join(_sentence(root) for root in self.roots)


def _sentence(root: Root) -> str:
    who = f"`{root.stage}`" if root.subtask is None else f"Subtask {root.subtask} of `{root.stage}`"
    sure = "causes" if root.confidence >= SURE else "probably causes"
    if root.cause == "unknown":
        sure = "is behind"
    figures = ", ".join(f"{name} {value:.3g}" for name, value in root.evidence.items())
    where = f" in {root.frame}" if root.frame else ""
    return f"{who} {sure} {root.share:.0%} of the lost time: {_WORDS[root.cause]}{where} ({figures}). {root.remedy}"


_WORDS = {
    "user_function": "the user's function is slow",
    "skew": "it gets far more rows than the others",
    "stopped": "its process stood still",
    "cpu_starved": "it waits for a CPU that others use",
    "gc": "Python's garbage collector runs",
    "slow_link": "the network takes no more",
    "segments": "the writer's memory is used up",
    "credits": "both ends wait for each other's credit",
    "slow_sink": "whoever reads its rows is slow",
    "source_bound": "the input comes slowly",
    "unknown": "no rule fits",
}
_REMEDIES = {
    "user_function": "Make that function faster, or use more partitions.",
    "skew": "Choose a key with more values, or add one to it (salting).",
    "stopped": "See what stops the process: a debugger, a container's limits, swapping.",
    "cpu_starved": "Use fewer slots than cores, or keep others off these machines.",
    "gc": "Keep fewer objects, or call gc.freeze() once the function's own data are loaded.",
    "slow_link": "Send less (select columns, aggregate before the shuffle), or use a faster network.",
    "segments": "Raise memory_bytes.",
    "credits": "Raise exclusive or floating.",
    "slow_sink": "Look at what comes after this stage.",
    "source_bound": "Use more input partitions, or read fewer columns.",
    "unknown": "Look at the figures of its task.",
}


def diagnose(exchange: str, producers: Sequence[Task], consumers: Sequence[Task]) -> Diagnosis:
    """Who holds up an exchange.

    Parameters
    ----------
    exchange
        Its name.
    producers, consumers
        Their figures over the same window; of producers ``blocked`` names consumers by `subtask`.
    """
    wall = sum(task.wall_s for task in producers)
    lost = sum(task.seconds.get(name, 0.0) for task in producers for name in OUTPUT_WAITS)
    blocked = lost / wall if wall > 0 else 0.0
    level = next((level for bound, level in LEVELS if blocked <= bound), HIGH)
    if level == OK:
        return Diagnosis(level, blocked, _unblocked(exchange, producers, consumers))
    roots = _of_the_way(exchange, producers, consumers, lost)
    if not roots:
        roots = _of_consumers(exchange, producers, consumers)
    return Diagnosis(level, blocked, sorted(roots, key=lambda root: -root.share))


def _unblocked(exchange: str, producers: Sequence[Task], consumers: Sequence[Task]) -> list[Root]:
    """No producer is held up: the consumers may wait for them, or be busy long after they have ended."""
    if not producers or not consumers:
        return []
    wall = sum(task.wall_s for task in consumers)
    idle = sum(task.seconds.get("input", 0.0) for task in consumers) / wall if wall > 0 else 0.0
    first = max(producers, key=lambda task: task.wall_s)
    last = max(consumers, key=lambda task: task.wall_s - task.seconds.get("input", 0.0))
    if first.wall_s < TAIL * last.wall_s:
        found = _verdict(exchange, last, consumers, 1 - last.share("input"))
    elif idle >= IDLE_HEAD:
        found = _verdict(exchange, first, producers, idle, head=True)
    else:
        return []
    return [found] if found.cause != "unknown" and found.share >= 0.5 else []


def _waited_for(producers: Sequence[Task], consumers: Sequence[Task]) -> dict[int, float]:
    """Which share of the producers' waits was for each consumer."""
    waited = {task.subtask: 0.0 for task in consumers}
    for producer in producers:
        unnamed = [target for target in waited if target not in producer.blocked]
        for target in waited:
            spread = producer.blocked.get(REST, 0.0) / len(unnamed) if target in unnamed else 0.0
            waited[target] += producer.blocked.get(target, spread)
    total = sum(waited.values())
    return {target: seconds / total for target, seconds in waited.items()} if total > 0 else {}


def _of_the_way(exchange: str, producers: Sequence[Task], consumers: Sequence[Task], lost: float) -> list[Root]:
    """What is between producers and consumers: sockets, the writers' own memory, too little credit."""
    shares = _waited_for(producers, consumers)
    # Of those that were waited for: the others wait in any case
    idle = sum(shares.get(task.subtask, 0.0) * task.share("input") for task in consumers)
    waits = {name: sum(task.seconds.get(name, 0.0) for task in producers) / lost for name in OUTPUT_WAITS}
    kind = max(OUTPUT_WAITS, key=waits.__getitem__)
    needed, cause = {"link": (0.3, "slow_link"), "segment": (0.0, "segments"), "credit": (0.7, "credits")}[kind]
    if waits[kind] < 0.5 or idle < needed:
        return []
    worst = max(producers, key=lambda task: sum(task.seconds.get(name, 0.0) for name in OUTPUT_WAITS))
    evidence = {f"share of waits for {kind}": waits[kind], "consumers idle": idle}
    return [_root(exchange, worst.stage, None, cause, waits[kind], 2 * waits[kind], worst.wall_s, evidence)]


def _of_consumers(exchange: str, producers: Sequence[Task], consumers: Sequence[Task]) -> list[Root]:
    shares = _waited_for(producers, consumers)
    if not shares:
        return []
    if len(shares) > 1 and max(shares.values()) < TIMES_ITS_PEERS * min(shares.values()):
        # All are waited for alike: it is the stage that is slow, and no subtask of it
        busiest = max(consumers, key=lambda task: shares[task.subtask])
        return [dataclasses.replace(_verdict(exchange, busiest, consumers, 1.0), subtask=None)]
    named = [task for task in consumers if shares[task.subtask] >= ROOT_SHARE]
    return [_verdict(exchange, task, consumers, shares[task.subtask]) for task in named]


def _verdict(exchange: str, task: Task, peers: Sequence[Task], share: float, head: bool = False) -> Root:
    """The first rule that fits this task's figures."""
    others = [peer for peer in peers if peer is not task]
    rows = statistics.median([peer.rows for peer in others]) if others else 0.0
    cost = statistics.median([peer.cost for peer in others]) if others else 0.0
    user, wall = task.share("user"), task.wall_s
    evidence: dict[str, float]
    found = "unknown"
    margin = 0.0
    if task.stopped_s is not None and task.stopped_s >= 0.1 * wall:
        found, margin, evidence = "stopped", task.stopped_s / (0.1 * wall), {"seconds stopped": task.stopped_s}
    elif _starved(task):
        assert task.queued_s is not None
        found, margin = "cpu_starved", task.queued_s / (0.15 * wall)
        evidence = {"seconds waiting for a CPU": task.queued_s, "of": wall}
    elif task.gc_s is not None and task.gc_s >= 0.1 * wall:
        found, margin, evidence = "gc", task.gc_s / (0.1 * wall), {"seconds in the collector": task.gc_s, "of": wall}
    elif not head and rows and task.rows >= TIMES_ITS_PEERS * rows and (not cost or task.cost < ALIKE * cost):
        found, margin = "skew", task.rows / (TIMES_ITS_PEERS * rows) * 1.25
        evidence = {"rows": task.rows, "rows of the others": rows}
    elif task.share("engine_out") >= 0.5:
        found, margin, evidence = "slow_sink", 2 * task.share("engine_out"), {"share": task.share("engine_out")}
    elif user >= 0.5:
        found, margin = "user_function", 2 * user
        evidence = {"share": user, **({"times its peers for each row": task.cost / cost} if cost else {})}
    elif head and task.share("engine_in") >= 0.5:
        found, margin, evidence = "source_bound", 2 * task.share("engine_in"), {"share": task.share("engine_in")}
    else:
        evidence = {name: task.share(name) for name in task.seconds}
    alone = bool(others) and (found != "user_function" or task.cost >= TIMES_ITS_PEERS * cost or not cost)
    stage = "source" if found == "source_bound" else task.stage
    subtask = task.subtask if alone and not (head and found == "source_bound") else None
    frame = task.frame if found == "user_function" else None
    return _root(exchange, stage, subtask, found, share, margin, wall, evidence, frame)


def _starved(task: Task) -> bool:
    if task.queued_s is None or task.cpu_s is None:
        return False
    # A third of what its function took: one that sleeps, or waits for a service, is not held up by its neighbours
    mostly = task.queued_s >= 0.3 * task.seconds.get("user", 0.0)
    return mostly and task.queued_s >= 0.25 * (task.cpu_s + task.queued_s) and task.queued_s >= 0.15 * task.wall_s


def _root(
    exchange: str,
    stage: str,
    subtask: int | None,
    cause: str,
    share: float,
    margin: float,
    observed_s: float,
    evidence: dict[str, Any],
    frame: str | None = None,
) -> Root:
    """With the confidence that its share, the rule's margin (1: just fits) and the time of observation give."""
    confidence = min(1.0, 0.5 + 0.5 * share) * min(1.0, 0.7 + 0.3 * (margin - 1)) * min(1.0, observed_s / ENOUGH_S)
    if cause == "unknown" or confidence < LIKELY:
        cause, frame = "unknown", None
    return Root(exchange, stage, subtask, cause, share, max(0.0, confidence), frame, evidence, _REMEDIES[cause])

"""Diagnosis: which task slows down an exchange, and why; pure functions of figures.

The time that producers were blocked is attributed to the consumers that they waited for.  A consumer with a large share
of it is a root.  Rules, tried in order, find the cause in its figures.  If no producer was blocked and the consumers
waited for data, the producers are examined instead, since a slow source causes no back pressure.

Source: Flink's rule (the busiest vertex behind a back-pressured one), but with measured time instead of samples, and by
subtask instead of vertex.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fastbuf.monitor.task import IDLE, OK, OUTPUT_WAITS, REST, SINK_FULL, Task, level
from fastbuf.monitor.words import (
    HASH,
    LEAST_SHOWN,
    LIKELY,
    ON_CPU,
    ROOT_SHARE,
    THROTTLED,
    TIMES,
    UNREAD,
    Diagnosis,
    Root,
    remedy,
    share_of,
)

TAIL = 0.5  #: if producers took less than this share of the last consumer's time, they ended long before it
MISSED = 0.05  #: if producers lost this share of their time, too few segments are reported even at level OK
IDLE_HEAD = 0.6  #: if consumers are idle for this share of their time, a slow producer is looked for
ENOUGH_S = 3.0  #: seconds of observation; fewer lower the confidence
#: If a consumer that producers wait for is idle for this share of its time, the cause may be the link (WAY_IDLE) or too
#: little credit (CREDITS_IDLE); from WAY_IDLE on it does not lack a CPU.
WAY_IDLE, CREDITS_IDLE = 0.3, 0.6
#: Up to this lost share of the producers' time (FIRM), a consumer that is idle for OFTEN_IDLE of its own is not named.
FIRM, OFTEN_IDLE = 0.5, 0.2
#: A consumer that is idle for less than FULLY_BUSY has no capacity left; neither has a link with unsent bytes in
#: FULL_LINK of the samples.
FULLY_BUSY, FULL_LINK = 0.15, 0.4
#: A consumer that would need this many times its time if producers were not held back would be the next bottleneck.
AT_FULL_FLOW = 1.25
FAULTS = ("stopped", "gc", "jvm_gc", "paging")  #: causes that are faults by themselves, whatever the task's load
MOST_ALIKE = 16  #: of many consumers with similar waits, at most this many are examined
NEIGHBOURS = 0.4  #: if other processes use this share of all CPUs, they may be the cause
PAGING = 20.0  #: pages read from disk per second
ALIKE = 1.5  #: costs per row are similar if they differ by less than this factor
TIMES_ITS_PEERS = 2.0  #: a subtask with this many times its peers' median is different from them


def diagnose(
    exchange: str,
    producers: Sequence[Task],
    consumers: Sequence[Task],
    behind: Mapping[str, Diagnosis] | None = None,
) -> Diagnosis:
    """Diagnose one exchange.

    Parameters
    ----------
    exchange
        Its name.
    producers, consumers
        Their figures over the same window; ``blocked`` of producers names consumers by `subtask`.
    behind
        Of consumers that also write to an exchange, by ``task``: the diagnosis of that exchange. If such a consumer is
        blocked more than it is busy, the roots of that diagnosis are the cause.
    """
    wall = sum(task.wall_s for task in producers)
    lost = sum(task.seconds.get(name, 0.0) for task in producers for name in OUTPUT_WAITS)
    blocked = lost / wall if wall > 0 else 0.0
    look = _Look(exchange, list(producers), list(consumers), lost, behind or {})
    roots = look.unblocked() if level(blocked) == OK else look.blocked()
    return Diagnosis(level(blocked), blocked, sorted(roots, key=lambda root: -root.share))


def diagnose_all(exchanges: Mapping[str, tuple[Sequence[Task], Sequence[Task]]]) -> dict[str, Diagnosis]:
    """Diagnose several exchanges, also across exchanges if consumers of one are producers of another.

    Parameters
    ----------
    exchanges
        Producers and consumers of each, by name; a task in two exchanges has the same ``task`` in both.
    """
    diagnoses: dict[str, Diagnosis] = {}

    def look(name: str, way: frozenset[str]) -> Diagnosis:
        if name not in diagnoses:
            producers, consumers = exchanges[name]
            mine = {task.task for task in consumers} - {""}
            behind = {
                task.task: look(other, way | {name})
                for other, (writers, _) in exchanges.items()
                for task in writers
                if task.task in mine and other not in way and other != name
            }
            diagnoses[name] = diagnose(name, producers, consumers, behind)
        return diagnoses[name]

    for name in exchanges:
        look(name, frozenset())
    return diagnoses


@dataclass(frozen=True)
class _Look:
    """The diagnosis of one exchange, step by step."""

    exchange: str
    producers: list[Task]
    consumers: list[Task]
    lost: float  #: seconds that producers were blocked
    behind: Mapping[str, Diagnosis]
    _tables: dict[str, dict[int, float]] = field(default_factory=dict)
    _cpu_s: dict[str, float] = field(default_factory=dict)

    @property
    def wall_s(self) -> float:
        """Total time of the producers."""
        return sum(task.wall_s for task in self.producers)

    def unblocked(self) -> list[Root]:
        """Roots if no producer is blocked: a slow producer, or a consumer that runs long after the producers ended."""
        producers, consumers = self.producers, self.consumers
        if not producers or not consumers:
            return []
        wall = sum(task.wall_s for task in consumers)
        idle = sum(task.seconds.get("input", 0.0) for task in consumers) / wall if wall > 0 else 0.0
        first = max(producers, key=lambda task: task.wall_s)
        last = max(consumers, key=lambda task: task.wall_s - task.seconds.get("input", 0.0))
        if first.wall_s < TAIL * last.wall_s:
            share = 1 - last.share("input")
            roots = [replace(root, share=share) for root in self.consumer(last, share)]
        elif idle >= IDLE_HEAD:
            slowest = max(producers, key=lambda task: (task.share("input") < IDLE_HEAD, task.cost, task.wall_s))
            if slowest.share("input") >= IDLE_HEAD:
                return []  # the producers wait too: the cause is in the exchange that feeds them
            roots = [self.verdict(slowest, producers, idle, head=True)]
        elif self.lost >= MISSED * self.wall_s and all(self.way(task) == "segments" for task in consumers):
            return [self.edge(None, "segments", 1.0)]  # little time is lost, but more segments would avoid it
        else:
            return []
        return [root for root in roots if root.cause != "unknown" and root.share >= 0.5]

    def blocked(self) -> list[Root]:
        """Roots if producers are blocked."""
        shares = self.waited_for()
        if not shares:
            cause = self.way(None)
            return [self.edge(None, cause, 1.0)] if cause else []
        if len(shares) > 1 and max(shares.values()) < TIMES_ITS_PEERS * min(shares.values()):
            # Producers wait for all consumers alike: if the cause is the same, the stage is slow and not one subtask
            first = sorted(self.consumers, key=lambda task: -shares[task.subtask])[:MOST_ALIKE]
            alike = [root for task in first for root in self.consumer(task, 1.0)]
            if len({(root.exchange, root.stage, root.cause) for root in alike}) == 1:
                best = max(alike, key=lambda root: root.confidence)
                return [replace(best, subtask=None if best.exchange == self.exchange else best.subtask)]
        named = [task for task in self.consumers if shares[task.subtask] >= ROOT_SHARE]
        roots = _merged([root for task in named for root in self.consumer(task, shares[task.subtask])])
        return roots + (self.next_ones(named, shares) if roots else [])

    def next_ones(self, named: list[Task], shares: Mapping[int, float]) -> list[Root]:
        """Consumers that would be the next bottleneck: fully busy, or with a full link, while others are idle."""
        rested = any(task.share(*IDLE) >= WAY_IDLE for task in self.consumers)
        others = [task for task in self.consumers if task not in named and task.wall_s > 0] if rested else []
        roots = [(task, self.next_one(task)) for task in others]
        return [
            replace(root, share=shares[task.subtask])
            for task, root in roots
            if root is not None and root.cause != "unknown" and root.subtask is not None
        ]

    def next_one(self, task: Task) -> Root | None:
        """Why this one has no capacity left, or would have none if slower ones did not hold the producers back."""
        idle, backpressured = task.share(*IDLE), task.share(*OUTPUT_WAITS)
        if idle <= FULLY_BUSY and backpressured <= FULLY_BUSY:
            return self.verdict(task, self.consumers, 1.0)
        if self.full(task) >= FULL_LINK:
            return self.edge(task, "slow_link", 1.0)
        if task.sink_full:
            return self.verdict(task, self.consumers, 1.0)
        flow = 1 - self.lost / self.wall_s if self.wall_s > 0 else 1.0
        if idle > WAY_IDLE or backpressured > FULLY_BUSY or 1 - idle - backpressured < AT_FULL_FLOW * flow:
            return None
        root = self.verdict(task, self.consumers, 1.0)
        return root if root.cause in FAULTS else None

    def waited_for(self) -> dict[int, float]:
        """The share of the producers' waits for each consumer."""
        waited = self.by_target("blocked")
        total = sum(waited.values())
        return {target: seconds / total for target, seconds in waited.items()} if total > 0 else {}

    def by_target(self, name: str) -> dict[int, float]:
        """A table of the producers, summed by consumer; ``REST`` is spread evenly over the consumers not named."""
        if name in self._tables:
            return self._tables[name]
        waited = self._tables[name] = {task.subtask: 0.0 for task in self.consumers}
        of_all = 0.0
        for producer in self.producers:
            named = {k: v for k, v in getattr(producer, name).items() if k in waited}
            rest = getattr(producer, name).get(REST, 0.0)
            spread = rest / (len(waited) - len(named)) if len(waited) > len(named) else 0.0
            of_all += spread
            for target, seconds in named.items():
                waited[target] += seconds - spread
        for target in waited:
            waited[target] = max(0.0, waited[target] + of_all)
        return waited

    def consumer(self, task: Task, share: float) -> list[Root]:
        """The cause of the waits for this consumer: itself, the link to it, or the exchange that it writes to."""
        backpressured = task.share(*OUTPUT_WAITS)
        if task.task in self.behind and backpressured > 1 - backpressured - task.share(*IDLE):
            return [replace(root, share=root.share * share) for root in self.behind[task.task].roots]
        root = self.verdict(task, self.consumers, share)
        if root.cause in ("silent", "stopped", "cpu_starved", "gc", "jvm_gc", "paging"):
            return [root]
        cause = self.way(task)
        if cause:
            return [self.edge(task, cause, share)]
        # Sometimes waited for and sometimes idle: rows come in bursts, and nothing is slow
        return [] if self.lost <= FIRM * self.wall_s and task.share(*IDLE) >= OFTEN_IDLE else [root]

    def way(self, task: Task | None) -> str | None:
        """The cause between producers and a consumer: full sockets, too few segments, too little credit; None: none."""
        if not self.lost:
            return None
        idle = task.share("input") if task is not None else 0.0
        waits = {name: sum(t.seconds.get(name, 0.0) for t in self.producers) / self.lost for name in OUTPUT_WAITS}
        if task is None or waits["segment"] >= 0.5:
            return "segments" if waits["segment"] >= 0.5 else None
        waited, linked = self.by_target("blocked")[task.subtask], self.by_target("linked")[task.subtask]
        has_link_figures = any(t.linked or t.unsent or t.looks for t in self.producers)
        full = max(linked / waited if waited else 0.0, self.full(task)) if has_link_figures else waits["link"]
        if idle >= WAY_IDLE and full >= 0.5:
            return "slow_link"
        # The consumer and its reader have capacity left, so with more segments nobody would wait for it
        if idle > FULLY_BUSY and not task.sink_full and sum(t.short_s for t in self.producers) >= 0.5 * self.lost:
            return "segments"
        return "credits" if idle >= CREDITS_IDLE else None

    def full(self, task: Task) -> float:
        """Share of the samples in which the kernel had unsent bytes for this consumer; the fullest producer's."""
        if "full" not in self._tables:
            full = self._tables["full"] = {}
            for producer in self.producers:
                for target, looks in producer.unsent.items():
                    full[target] = max(full.get(target, 0.0), looks / producer.looks if producer.looks else 0.0)
        return self._tables["full"].get(task.subtask, 0.0)

    def edge(self, task: Task | None, cause: str, share: float) -> Root:
        """A root between the tasks: for one slow link it names the consumer at its end, else the producers' stage."""
        worst = max(self.producers, key=lambda t: sum(t.seconds.get(name, 0.0) for name in OUTPUT_WAITS))
        if cause == "segments" and self.jvm_collects(worst):
            return self.verdict(worst, self.producers, share, head=True)  # rows come in bursts, between its collections
        evidence = {name: worst.share(name) for name in OUTPUT_WAITS if worst.share(name) >= LEAST_SHOWN}
        if cause == "segments" and worst.wall_s:
            short_s = max(worst.short_s, worst.seconds.get("segment", 0.0))
            evidence = {"without a segment": short_s / worst.wall_s}
        if task is not None:
            evidence["consumer idle"] = task.share("input")
            evidence.update(self.link_of(task) if cause == "slow_link" else {})
        to_one = cause == "slow_link" and task is not None and len(self.consumers) > 1
        stage, subtask = (task.stage, task.subtask) if to_one and task is not None else (worst.stage, None)
        return _root(self.exchange, stage, subtask, cause, share, 2.0, worst.wall_s, evidence)

    def link_of(self, task: Task) -> dict[str, float]:
        """The kernel's figures of the fullest link to this consumer, if there are any."""
        links = [producer.links[task.subtask] for producer in self.producers if task.subtask in producer.links]
        if not links:
            return {}
        fullest = max(links, key=lambda link: link["busy"])
        return {
            "link busy": fullest["busy"],
            "bytes a second": fullest["bytes_per_s"],
            "round trip in seconds": fullest["rtt_s"],
            "segments sent again": fullest["resent"],
        }

    def verdict(self, task: Task, peers: Sequence[Task], share: float, head: bool = False) -> Root:
        """A root for this task, by the first rule that fits its figures."""
        others = [peer for peer in peers if peer is not task]
        rows = statistics.median([peer.rows for peer in others]) if others else 0.0
        cost = statistics.median([peer.cost for peer in others]) if others else 0.0
        user, wall = task.share("user"), task.wall_s
        evidence: dict[str, float]
        cause, margin = "unknown", 0.0
        key: str | None = None
        if not wall:
            evidence = {}
        elif task.silent_s >= 0.3 * wall:
            cause, margin, evidence = "silent", task.silent_s / (0.3 * wall), {"seconds without a word": task.silent_s}
        elif task.stopped_s is not None and task.stopped_s >= 0.1 * wall:
            cause, margin = "stopped", task.stopped_s / (0.1 * wall)
            evidence = {"seconds stopped": task.stopped_s, "of": wall}
        elif self.lacks_cpu(task) and (task.gc_s or 0.0) < max(0.1 * wall, task.queued_s or 0.0):
            queued = task.queued_s or 0.0
            cause, margin = "cpu_starved", max(queued, task.throttled_s or 0.0) / (0.15 * wall)
            evidence = {"seconds waiting for a CPU": queued, "of": wall}
            if task.throttled_s:
                evidence[THROTTLED] = task.throttled_s
        elif task.gc_s is not None and task.gc_s >= 0.1 * wall:
            cause, margin = "gc", task.gc_s / (0.1 * wall)
            evidence = {"seconds in the collector": task.gc_s, "of": wall}
        elif self.jvm_collects(task):
            assert task.jvm_gc_s is not None
            cause, margin = "jvm_gc", task.jvm_gc_s / (0.1 * wall)
            evidence = {"seconds in the collector": task.jvm_gc_s, "of": wall}
        elif task.major_faults >= PAGING * wall and (task.cpu_s or 0.0) < 0.5 * wall:
            cause, margin = "paging", task.major_faults / (PAGING * wall)
            evidence = {"pages read from disk": task.major_faults, "seconds": wall}
        elif not head and rows and task.rows >= TIMES_ITS_PEERS * rows and task.cost < ALIKE * cost:
            cause, margin = "skew", task.rows / (TIMES_ITS_PEERS * rows) * 1.25
            hot, key = self.hot_key(task)
            evidence = {"rows": task.rows, "rows of the others": rows, **hot}
        elif task.sink_full:
            waits, full = task.share("engine_out"), task.unread / task.looks if task.looks else 0.0
            cause, margin = "slow_sink", max(2 * waits, full / SINK_FULL)
            evidence = {"share": waits} if waits >= 0.5 else {UNREAD: full}
        elif task.share("codec") >= 0.5:
            cause, margin, evidence = "codec", 2 * task.share("codec"), {"share": task.share("codec")}
        elif user >= 0.5:
            cause, margin = "user_function", 2 * user
            evidence = {"share": user, **({TIMES: task.cost / cost} if cost else {})}
            if task.cpu_s is not None and task.queued_s is not None:  # the function does not cause waits for a CPU
                ran = task.cpu_s + task.queued_s
                evidence = {"share": user, ON_CPU: min(1.0, ran / task.seconds["user"]), **evidence}
        elif head and task.share("engine_in") >= 0.5:
            cause, margin, evidence = "source_bound", 2 * task.share("engine_in"), {"share": task.share("engine_in")}
        else:
            evidence = {name: task.share(name) for name in task.seconds}
        alone = bool(others) and (cause != "user_function" or task.cost >= TIMES_ITS_PEERS * cost or not cost)
        if cause == "cpu_starved":  # other tasks that lack a CPU do so for the same reason
            alone = bool(others) and not any(self.lacks_cpu(peer) for peer in others)
        if cause == "jvm_gc":
            alone = bool(others) and not any(self.jvm_collects(peer) for peer in others)
        if cause == "slow_sink":
            alone = bool(others) and sum(peer.sink_full for peer in others) <= 0.5 * len(others)
        stage = "source" if cause == "source_bound" else task.stage
        subtask = task.subtask if alone and not (head and cause == "source_bound") else None
        frame = task.frame if cause == "user_function" else None
        return _root(self.exchange, stage, subtask, cause, share, margin, wall, evidence, frame, key)

    def hot_key(self, task: Task) -> tuple[dict[str, float], str | None]:
        """The most frequent key of this consumer: evidence with its share of all rows, and its text if known."""
        shares: dict[str, float] = {}
        for producer in self.producers:
            for name, share in producer.hot_keys.items():
                target, _, key = name.partition(":")
                if target == str(task.subtask):
                    shares[key] = shares.get(key, 0.0) + share / len(self.producers)
        hottest = max(shares, key=shares.__getitem__, default=None)
        if hottest is None:
            return {}, None
        value = next((p.key_values[hottest] for p in self.producers if hottest in p.key_values), None)
        # Estimated from a sample, so it may be too large: bounded by the share of rows that this consumer got
        share = min(shares[hottest], task.rows / (sum(each.rows for each in self.consumers) or 1))
        return {share_of(f"{HASH}{hottest}" if value is None else f"key {value}"): share}, value

    def cpu_s(self, host: str) -> float:
        """CPU seconds of these tasks on one machine."""
        if host not in self._cpu_s:
            tasks = (*self.producers, *self.consumers)
            self._cpu_s[host] = sum(task.cpu_s or 0.0 for task in tasks if task.host == host)
        return self._cpu_s[host]

    def jvm_collects(self, task: Task) -> bool:
        """Whether it waits for the JVM, which collects garbage for at least half of that time."""
        engine_s = sum(task.seconds.get(name, 0.0) for name in ("engine_in", "engine_out"))
        spent = task.jvm_gc_s or 0.0
        return spent >= 0.1 * task.wall_s > 0 and engine_s >= 0.3 * task.wall_s and spent >= 0.5 * engine_s

    def lacks_cpu(self, task: Task) -> bool:
        """Whether it waits for a CPU, because of other processes or of a limit."""
        # Some of its wait for rows is one for a CPU.  If the rest is long, it has time left, and the rows are too slow
        lacked = max(task.queued_s or 0.0, task.throttled_s or 0.0)
        if task.seconds.get("input", 0.0) - lacked >= WAY_IDLE * task.wall_s:
            return False
        if (task.throttled_s or 0.0) >= 0.25 * task.wall_s > 0:
            return True
        if task.queued_s is None or task.cpu_s is None:
            return False
        if task.machine_s is not None and task.cores:
            mine = self.cpu_s(task.host)
            if task.machine_s - mine < max(NEIGHBOURS * task.cores * task.wall_s, mine):
                return False
        # Its wait for a CPU must be half of its function's time: a function that sleeps or waits for a service does not
        # lack a CPU.  It must also explain the producers' blocked share: else it would be too slow with a CPU as well
        blocked = self.lost / self.wall_s if self.wall_s > 0 else 0.0
        mostly = task.queued_s >= max(0.5, blocked) * task.seconds.get("user", 0.0)
        # A task that runs for longer than it waits for a CPU is slow by itself
        return mostly and task.queued_s >= task.cpu_s and task.queued_s >= 0.15 * task.wall_s


def _merged(roots: list[Root]) -> list[Root]:
    """Merge roots with the same place and cause."""
    by_place: dict[tuple[str, str, int | None, str], Root] = {}
    for root in roots:
        place = (root.exchange, root.stage, root.subtask, root.cause)
        before = by_place.get(place)
        if before is not None:
            share = min(1.0, before.share + root.share)
            best = max(before, root, key=lambda root: root.confidence)
            root = replace(best, share=share, confidence=max(before.confidence, root.confidence))
        by_place[place] = root
    return list(by_place.values())


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
    key: str | None = None,
) -> Root:
    """A root; its confidence comes from its share, the rule's margin (1: just fits) and the observed time."""
    confidence = min(1.0, 0.5 + 0.5 * share) * min(1.0, 0.7 + 0.3 * (margin - 1)) * min(1.0, observed_s / ENOUGH_S)
    suspected = None
    if cause != "unknown" and confidence < LIKELY:
        cause, key, suspected = "unknown", None, cause
    advice = remedy(cause, subtask, evidence, key)
    return Root(exchange, stage, subtask, cause, share, max(0.0, confidence), frame, evidence, advice, key, suspected)

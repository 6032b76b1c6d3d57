"""Snapshots: the current figures of all tasks of some exchanges as plain data, for the page, REST and metrics.

::

    Exchange (one run of one exchange, as its driver knows it)  --snapshot-->  jobs -> vertices -> subtasks, and edges

A job is a chain of exchanges: the consumers of one, or tasks that read their results, are the producers of the next.
Each exchange has two vertices, its producers and its consumers.  Pure functions; figures that a task does not report
are left out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastbuf.monitor.figures import ended
from fastbuf.monitor.task import IDLE as RUNNING_IDLE
from fastbuf.monitor.task import OK, OUTPUT_WAITS, PRESSED, level
from fastbuf.monitor.words import ROOT_SHARE, Diagnosis, Root, sentence

Figures = Mapping[str, Any]  #: of one task, by name

IDLE = ("starting", *RUNNING_IDLE)  #: waits for tasks upstream
PRODUCERS, CONSUMERS = "producers", "consumers"
STATES = {"running": "RUNNING", "ok": "FINISHED", "cancelled": "CANCELED", "aborted": "FAILED"}  #: Flink's names
PLAIN = "exchange"  #: mode of exchanges without Spark
UNSAID = ("frames", "stacks")  #: figures that are too long for a snapshot; the flame graph has them


@dataclass(frozen=True)
class Exchange:
    """One run of one exchange.

    Attributes
    ----------
    id
        Unique for this run, and used in URLs: letters, digits, ``-`` and ``.``.
    name, mode, epoch
        Its name in the plan, how it runs, and its epoch on the wire.
    outcome, reason
        ``"running"``, ``"ok"``, ``"cancelled"`` (all consumers have cancelled) or ``"aborted"``, and why.
    began, seconds
        When it began, in seconds since 1970, and how long it took so far.
    tasks
        Number of all producers, if known.
    upstream
        ``id`` of the runs whose results its producers read; without Spark: whose consumers its producers are.
    producers, consumers
        Figures of each task, by partition; any may be missing.
    diagnosis
        Which task slows it down; None: not known.
    """

    id: str
    name: str
    mode: str = "pipelined"
    epoch: int = 0
    outcome: str = "running"
    reason: str = ""
    began: float = 0.0
    seconds: float = 0.0
    tasks: int | None = None
    upstream: tuple[str, ...] = ()
    producers: Mapping[int, Figures] = field(default_factory=dict)
    consumers: Mapping[int, Figures] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None

    def side(self, side: str) -> Mapping[int, Figures]:
        """Its producers or its consumers."""
        return self.producers if side == PRODUCERS else self.consumers

    def vertex(self, side: str) -> str:
        """Identifier of one of its two vertices."""
        return f"{self.id}-{side}"

    def stage(self, side: str) -> str:
        """Display name of that vertex."""
        return self.name if side == CONSUMERS else f"producers of {self.name}"

    def of_root(self, root: Root) -> str:
        """The side to which the tasks of a root belong."""
        return CONSUMERS if root.stage == self.name else PRODUCERS

    def to_json(self) -> dict[str, Any]:
        """As plain data; :meth:`from_json` reads it."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for side in (PRODUCERS, CONSUMERS):
            data[side] = {str(partition): dict(figures) for partition, figures in self.side(side).items()}
        data["upstream"] = list(self.upstream)
        # As text, since it has 63 bits and JavaScript's numbers only 53
        data["epoch"] = f"{self.epoch:x}"
        data["diagnosis"] = None if self.diagnosis is None else diagnosis_json(self.diagnosis)
        return plain(data)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Exchange:
        """Read what :meth:`to_json` of this or a later version made; unknown names are ignored."""
        names = {f.name for f in dataclasses.fields(cls)}
        values = {name: value for name, value in data.items() if name in names}
        for side in (PRODUCERS, CONSUMERS):
            values[side] = {int(partition): dict(figures) for partition, figures in values.get(side, {}).items()}
        values["upstream"] = tuple(values.get("upstream", ()))
        values["epoch"] = int(values.get("epoch", "0"), 16)
        if values.get("diagnosis") is not None:
            values["diagnosis"] = _diagnosis_of(values["diagnosis"])
        return cls(**values)


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """A diagnosis as plain data, with its sentence and that of each root."""
    data = {**dataclasses.asdict(diagnosis), "sentence": diagnosis.sentence}
    for root, root_data in zip(diagnosis.roots, data["roots"], strict=True):
        root_data["sentence"] = sentence(root)
    return data


def _diagnosis_of(data: Mapping[str, Any]) -> Diagnosis:
    def of(kind: Any, values: Mapping[str, Any]) -> Any:
        return kind(**{f.name: values[f.name] for f in dataclasses.fields(kind) if f.name in values})

    return of(Diagnosis, {**data, "roots": [of(Root, root) for root in data.get("roots", [])]})


def plain(value: Any) -> Any:
    """Convert to JSON types: floats are rounded to four digits after the point; infinite ones and NaN become None."""
    kind = type(value)  # exact types first, for speed: this is called for every figure of every task, each second
    if kind is float:
        return round(value, 4) if math.isfinite(value) else None
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    try:
        return plain(float(value))
    except (TypeError, ValueError):
        return str(value)


def seconds_of(figures: Figures) -> dict[str, float]:
    """A task's seconds by state; values that are not finite numbers are left out."""
    seconds = figures.get("seconds") or {}
    return {name: took for name, took in seconds.items() if isinstance(took, int | float) and math.isfinite(took)}


def shares(figures: Figures) -> dict[str, float]:
    """``backPressured``, ``idle`` and ``busy``: over the last seconds if the task runs, else over its whole time."""
    if "busy" in figures:
        return {name: float(figures.get(name) or 0.0) for name in ("backPressured", "idle", "busy")}
    seconds = seconds_of(figures)
    total = sum(seconds.values())
    if total <= 0:
        return {"backPressured": 0.0, "idle": 0.0, "busy": 0.0}
    pressed, idle = (sum(seconds.get(name, 0.0) for name in names) / total for names in (PRESSED, IDLE))
    return {"backPressured": pressed, "idle": idle, "busy": max(0.0, 1.0 - pressed - idle)}


def waited_for(exchange: Exchange) -> dict[int, float]:
    """Seconds that its producers waited for each consumer; only consumers that they report by number."""
    waits: dict[int, float] = {}
    for figures in exchange.producers.values():
        for target, seconds in (figures.get("blocked") or {}).items():
            if str(target).isdecimal():
                waits[int(target)] = waits.get(int(target), 0.0) + seconds
    return waits


def lost(figures: Figures) -> float:
    """Seconds in which a producer was blocked."""
    seconds = seconds_of(figures)
    return float(sum(seconds.get(name, 0.0) for name in OUTPUT_WAITS))


def groups(exchanges: Sequence[Exchange]) -> list[list[Exchange]]:
    """Exchanges by job, the last one downstream first; jobs in the order in which they began."""
    by_id = {exchange.id: exchange for exchange in exchanges}
    below = {up: exchange.id for exchange in exchanges for up in exchange.upstream if up in by_id}

    def last(id: str) -> tuple[str, int]:
        steps = 0
        while id in below and steps <= len(by_id):  # a cycle would be an error of the source: stop anyway
            id, steps = below[id], steps + 1
        return id, steps

    jobs: dict[str, list[tuple[int, Exchange]]] = {}
    for exchange in exchanges:
        id, steps = last(exchange.id)
        jobs.setdefault(id, []).append((steps, exchange))
    rows = [[exchange for _, exchange in sorted(row, key=lambda pair: pair[0])] for row in jobs.values()]
    return sorted(rows, key=lambda row: min(exchange.began for exchange in row))


def of_job(row: Sequence[Exchange]) -> Diagnosis | None:
    """The diagnosis of a chain of exchanges; roots that only follow from another exchange's root are left out.

    If the exchange downstream is slowed down, it explains a stage that mostly waits for the reader of its rows, and
    roots of an exchange that is not blocked itself.  If the exchange upstream has a root, it explains a slow input.
    Ended exchanges are ignored while others run, and so are waits that are small compared to another exchange's.
    """
    under_way = [exchange for exchange in row if exchange.outcome == "running"] or row
    owners = {exchange.id: exchange for exchange in under_way if exchange.diagnosis is not None}
    diagnoses = {exchange.id: exchange.diagnosis for exchange in owners.values() if exchange.diagnosis is not None}
    if not diagnoses:
        return None
    below = {up: exchange.id for exchange in row for up in exchange.upstream}
    waits = {id: sum(lost(figures) for figures in exchange.producers.values()) for id, exchange in owners.items()}
    candidates: list[tuple[float, Root]] = []
    for id, diagnosis in diagnoses.items():
        behind = diagnoses.get(below.get(id, ""))
        before = [diagnoses[up] for up in owners[id].upstream if up in diagnoses]
        for root in diagnosis.roots:
            pressed = behind is not None and behind.level != OK
            echo = pressed and (diagnosis.level == OK or _passes_on(owners[id], root))
            echo = echo or (root.cause == "source_bound" and any(other.roots for other in before))
            small = diagnosis.level != OK and waits[id] * root.share < ROOT_SHARE * sum(waits.values())
            if not echo and (not small or waits[id] == max(waits.values())):
                candidates.append((waits[id] * root.share, root))
    worst = max(diagnoses.values(), key=lambda diagnosis: diagnosis.blocked)
    # Two exchanges in the chain may have the same root
    places: dict[tuple[str, str, int | None, str], Root] = {}
    for _, root in sorted(candidates, key=lambda pair: -pair[0]):
        places.setdefault((root.exchange, root.stage, root.subtask, root.cause), root)
    return dataclasses.replace(worst, roots=list(places.values()))


def _passes_on(exchange: Exchange, root: Root) -> bool:
    """Whether the tasks of a root wait for the reader of their rows for longer than they work."""
    tasks = exchange.side(exchange.of_root(root))
    named = [figures for number, figures in tasks.items() if root.subtask in (None, number)]
    waits, works = (sum(seconds_of(task).get(name, 0.0) for task in named) for name in ("engine_out", "user"))
    return root.cause == "slow_sink" or waits > works


Rates = Mapping[tuple[str, int], tuple[float, float]]  #: records and bytes per second, by vertex and subtask


def snapshot(exchanges: Sequence[Exchange], at: float, rates: Rates | None = None) -> dict[str, Any]:
    """A snapshot of the exchanges as plain data.

    Parameters
    ----------
    exchanges
        In any order.
    at
        Now, in seconds since 1970.
    rates
        Rates of running tasks; tasks that are missing get none.
    """
    return {"at": round(at, 3), "jobs": [_job(row, rates or {}) for row in groups([*map(_settled, exchanges)])]}


def _settled(exchange: Exchange) -> Exchange:
    """Once it has ended no task of it runs, also where a task's last figures were not told."""
    if exchange.outcome == "running":
        return exchange
    producers, consumers = (
        {number: ended(figures) if "state" in figures else figures for number, figures in exchange.side(side).items()}
        for side in (PRODUCERS, CONSUMERS)
    )
    return dataclasses.replace(exchange, producers=producers, consumers=consumers)


def _job(row: Sequence[Exchange], rates: Rates) -> dict[str, Any]:
    last = row[0]
    diagnosis = of_job(row)
    began = min(exchange.began for exchange in row)
    shown = None if diagnosis is None else plain(diagnosis_json(diagnosis))
    vertices = [_vertex(exchange, side, rates) for exchange in reversed(row) for side in (PRODUCERS, CONSUMERS)]
    edges = [_edge(exchange) for exchange in reversed(row)]
    ids = {exchange.id: exchange for exchange in row}
    for exchange in row:
        edges += [
            {
                "from": ids[up].vertex(CONSUMERS),
                "to": exchange.vertex(PRODUCERS),
                "kind": "forward",
                "through": "the same tasks" if exchange.mode == PLAIN else "through Spark",
            }
            for up in exchange.upstream
            if up in ids
        ]
    if shown is not None and diagnosis is not None:
        for root, root_data in zip(diagnosis.roots, shown["roots"], strict=True):
            owner = next((exchange for exchange in row if root.exchange in (exchange.id, exchange.name)), last)
            root_data["vertex"] = owner.vertex(owner.of_root(root))
    states = [exchange.outcome for exchange in row]
    outcome = next((state for state in ("aborted", "running", "cancelled") if state in states), "ok")
    return {
        "id": last.id,
        "name": " → ".join(dict.fromkeys(exchange.name for exchange in reversed(row))),
        "state": STATES.get(outcome, "RUNNING"),
        "began": round(began, 3),
        "seconds": round(max(exchange.began + exchange.seconds for exchange in row) - began, 3),
        "diagnosis": shown,
        "vertices": vertices,
        "edges": edges,
        "exchanges": [_about(exchange) for exchange in reversed(row)],
    }


def _about(exchange: Exchange) -> dict[str, Any]:
    """An exchange without its tasks."""
    bare = dataclasses.replace(exchange, producers={}, consumers={}).to_json()
    return {name: value for name, value in bare.items() if name not in (PRODUCERS, CONSUMERS)}


def _vertex(exchange: Exchange, side: str, rates: Rates) -> dict[str, Any]:
    id, tasks = exchange.vertex(side), exchange.side(side)
    behind = waited_for(exchange) if side == CONSUMERS else {}
    subtasks = []
    for number, figures in sorted(tasks.items()):
        subtask = plain({name: value for name, value in figures.items() if name not in UNSAID})
        subtask.update(plain(shares(figures)))
        subtask["subtask"] = number
        subtask["lost"] = round(behind.get(number, 0.0) if side == CONSUMERS else lost(figures), 3)
        if "state" in figures and (id, number) in rates:
            subtask["recordsPerSecond"], subtask["bytesPerSecond"] = plain(rates[id, number])
        subtasks.append(subtask)
    live = [task for task in subtasks if "state" in task] or subtasks

    def spread(name: str) -> dict[str, float]:
        values = [task[name] for task in live]
        return {"max": max(values, default=0.0), "mean": round(sum(values) / len(values), 6) if values else 0.0}

    running = sum("state" in task for task in subtasks)
    return {
        "id": id,
        "exchange": exchange.id,
        "name": exchange.stage(side),
        "side": side,
        "state": "RUNNING" if running and exchange.outcome == "running" else STATES.get(exchange.outcome, "RUNNING"),
        "parallelism": max(len(subtasks), (exchange.tasks or 0) if side == PRODUCERS else 0),
        "running": running,
        **{name: spread(name) for name in ("busy", "idle", "backPressured")},
        "level": level(max((task["backPressured"] for task in live), default=0.0)),
        "records": int(sum(task.get("records") or 0 for task in subtasks)),
        "bytes": int(sum(task.get("bytes") or 0 for task in subtasks)),
        "recordsPerSecond": round(sum(task.get("recordsPerSecond", 0.0) for task in subtasks), 1),
        "bytesPerSecond": round(sum(task.get("bytesPerSecond", 0.0) for task in subtasks), 1),
        "subtasks": subtasks,
    }


def _edge(exchange: Exchange) -> dict[str, Any]:
    """The edge between the two vertices of an exchange: how far its producers are blocked, and by which wait."""
    live = [figures for figures in exchange.producers.values() if "state" in figures]
    if live:
        blocked = sum(shares(figures)["backPressured"] for figures in live) / len(live)
    else:
        blocked = exchange.diagnosis.blocked if exchange.diagnosis is not None else 0.0
    waits = {name: 0.0 for name in OUTPUT_WAITS}
    for figures in exchange.producers.values():
        seconds = seconds_of(figures)
        for name in OUTPUT_WAITS:
            waits[name] += seconds.get(name, 0.0)
    return {
        "from": exchange.vertex(PRODUCERS),
        "to": exchange.vertex(CONSUMERS),
        "kind": "exchange",
        "exchange": exchange.id,
        "mode": exchange.mode,
        "blocked": round(blocked, 4),
        "level": level(blocked),
        "waits": plain(waits),
        "cause": max(waits, key=waits.__getitem__) if any(waits.values()) else None,
    }

"""A bounded history of snapshots: one per second for ten minutes, one per ten seconds for hours, and the last runs.

Times in which nothing ran are not stored.  A moment is a compressed snapshot: some kilobytes for hundreds of tasks.
"""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastbuf.errors import ConfigError
from fastbuf.monitor.snapshot import CONSUMERS, PRODUCERS, Exchange

FINE_S, FINE = 1.0, 600  #: one per second, for ten minutes
COARSE_S, COARSE = 10.0, 2160  #: one per ten seconds, for six hours
RUNS = 32
MOST_BYTES = 64 << 20  #: most bytes of all moments; beyond that the oldest are dropped
FORMAT = "fastbuf history 1"


@dataclass(frozen=True)
class _Moment:
    at: float
    #: By job: share in which producers were blocked, busy share of the busiest task, records per second
    line: dict[str, tuple[float | None, float | None, float]]
    packed: bytes

    def open(self) -> dict[str, Any]:
        return json.loads(zlib.decompress(self.packed))


class History:
    """A bounded history of snapshots and runs.  One thread adds; others may read."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._fine: deque[_Moment] = deque(maxlen=FINE)
        self._coarse: deque[_Moment] = deque(maxlen=COARSE)
        self._runs: OrderedDict[str, bytes] = OrderedDict()
        self._seen: dict[str, tuple[Any, ...]] = {}  # state and records of each job at the last snapshot
        self._ended: dict[str, tuple[Any, ...]] = {}  # outcome and records of each ended run when it was stored

    def add(self, snapshot: dict[str, Any], exchanges: Sequence[Exchange] = ()) -> None:
        """Store a snapshot, and its exchanges that have ended.

        Parameters
        ----------
        snapshot
            Newer than all before; ignored if it is less than a second newer.
        exchanges
            The exchanges of the snapshot, with their tasks' stacks.
        """
        for exchange in exchanges:
            # Figures may still arrive after a run has ended, as in the blocking mode
            mark = (exchange.outcome, *(_records(exchange.side(side)) for side in (PRODUCERS, CONSUMERS)))
            if exchange.outcome != "running" and self._ended.get(exchange.id) != mark:
                self._ended[exchange.id] = mark
                self._runs[exchange.id] = _pack(exchange.to_json())
        while len(self._runs) > RUNS:
            self._runs.popitem(last=False)
        # A run that was dropped and is still given must not come again
        ids = self._runs.keys() | {exchange.id for exchange in exchanges}
        self._ended = {id: mark for id, mark in self._ended.items() if id in ids}
        at = float(snapshot["at"])
        if self._fine and at - self._fine[-1].at < 0.9 * FINE_S:
            return
        # A job that has ended is stored once more, with its final figures
        seen = {
            job["id"]: (job["state"], [vertex["records"] for vertex in job["vertices"]]) for job in snapshot["jobs"]
        }
        jobs = [
            job for job in snapshot["jobs"] if job["state"] == "RUNNING" or self._seen.get(job["id"]) != seen[job["id"]]
        ]
        self._seen = seen
        running = [query for query in snapshot.get("queries", ()) if query["running"]]
        if not jobs and not running:
            return
        packed = _pack({"at": at, "jobs": jobs, "queries": running})
        moment = _Moment(at, {job["id"]: _line(job) for job in jobs}, packed)
        self._fine.append(moment)
        if not self._coarse or at - self._coarse[-1].at >= 0.99 * COARSE_S:
            self._coarse.append(moment)
        while self.size > self._most and len(self._fine) + len(self._coarse) > 1:
            (self._coarse if len(self._coarse) > 1 else self._fine).popleft()

    @property
    def size(self) -> int:
        """Bytes of all moments; one that is in both lists counts once."""
        return sum(len(moment.packed) for moment in self._all())

    def _all(self) -> list[_Moment]:
        first = self._fine[0].at if self._fine else float("inf")
        return [moment for moment in list(self._coarse) if moment.at < first] + list(self._fine)

    def moments(self) -> Iterator[dict[str, Any]]:
        """All snapshots, the oldest first: one per ten seconds, then one per second."""
        return (moment.open() for moment in self._all())

    def at(self, when: float) -> dict[str, Any] | None:
        """The snapshot nearest to a time; None: there is none."""
        nearest = min(self._all(), key=lambda moment: abs(moment.at - when), default=None)
        return None if nearest is None else nearest.open()

    def line(self, job: str) -> dict[str, list[float | None]]:
        """A job's time line: ``at``, and for each moment ``blocked``, ``busy`` (shares) and ``recordsPerSecond``.

        Shares are None where the tasks tell no times.
        """
        rows = [(moment.at, *moment.line[job]) for moment in self._all() if job in moment.line]
        columns = zip(*rows, strict=True) if rows else ((), (), (), ())
        return {
            name: list(column)
            for name, column in zip(("at", "blocked", "busy", "recordsPerSecond"), columns, strict=True)
        }

    def exchanges(self) -> list[Exchange]:
        """The last runs that have ended."""
        return [Exchange.from_json(json.loads(zlib.decompress(packed))) for packed in list(self._runs.values())]

    def pieces(self, running: Sequence[Exchange] = ()) -> Iterator[bytes]:
        """The whole history as JSON, in pieces, as it may be long.

        Parameters
        ----------
        running
            Unfinished runs, to be included as they are now.
        """
        yield f'{{"format": {json.dumps(FORMAT)}, "moments": ['.encode()
        for number, moment in enumerate(self._all()):
            yield (b",\n" if number else b"\n") + zlib.decompress(moment.packed)
        yield b'\n], "runs": ['
        runs = [*list(self._runs.values()), *(_pack(exchange.to_json()) for exchange in running)]
        for number, packed in enumerate(runs):
            yield (b",\n" if number else b"\n") + zlib.decompress(packed)
        yield b"\n]}\n"

    @classmethod
    def from_json(cls, data: Any) -> History:
        """The history from parsed JSON.

        Raises
        ------
        ConfigError
            It is not a history, or damaged.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            its_format = data.get("format") if isinstance(data, dict) else type(data).__name__
            raise ConfigError(f"this is not a history of fastbuf: its format is {its_format!r}, not {FORMAT!r}")
        history = cls()
        history._coarse = deque(maxlen=COARSE + FINE)  # takes the loaded fine moments too
        try:
            for exchange in map(Exchange.from_json, data["runs"]):
                history._runs[exchange.id] = _pack(exchange.to_json())
            for moment in data["moments"]:
                lines = {job["id"]: _line(job) for job in moment["jobs"]}
                history._coarse.append(_Moment(float(moment["at"]), lines, _pack(moment)))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"this history is damaged: {type(error).__name__}: {error}") from error
        return history

    def save(self, path: str | os.PathLike[str], running: Sequence[Exchange] = ()) -> None:
        """Write it to a file as JSON; an existing file is replaced atomically."""
        target = Path(path)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.writelines(self.pieces(running))
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Read what :meth:`save` wrote.

        Raises
        ------
        ConfigError
            The file cannot be read, or is not a history.
        """
        try:
            data = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read as a history: {error}") from error
        return cls.from_json(data)


def _pack(value: Any) -> bytes:
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 1)


def _records(tasks: Mapping[int, Any]) -> tuple[int, int]:
    return len(tasks), sum(int(figures.get("records") or 0) for figures in tasks.values())


def _line(job: dict[str, Any]) -> tuple[float | None, float | None, float]:
    received = [vertex["recordsPerSecond"] for vertex in job["vertices"] if vertex["side"] == "consumers"]
    rows = max(received, default=0.0)
    tasks = [task for vertex in job["vertices"] for task in vertex["subtasks"]]
    if tasks and not any(task.get("seconds") for task in tasks):
        return (None, None, rows)
    blocked = max((edge["blocked"] for edge in job["edges"] if edge["kind"] == "exchange"), default=0.0)
    busy = max((vertex["busy"]["max"] for vertex in job["vertices"]), default=0.0)
    return (blocked, busy, rows)

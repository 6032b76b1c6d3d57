"""The files in which map tasks hold rows, removed when Spark needs the run's shuffle no more.

A folder has the files of one exchange and action, and is written by the map stage of a shuffle.  Spark's ContextCleaner
removes the files of a shuffle when its dependency is garbage; the same object decides here.  On hosts of their own
executors have file servers, which are told to remove them; readers ask here which server has which file.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastbuf_spark import pyspark_private
from fastbuf_spark.protocol import Files, FromDriver, Remove, Serves

log = logging.getLogger("fastbuf_spark")

MOST_BLAMED = 3  #: executors that are replaced for a run though their servers live
SWEEP_S = 5.0  #: interval to ask whether runs are needed still: each is a call to the JVM


Run = tuple[str, int]  #: exchange, and number of the action


class Peer(Protocol):
    """The connection of a file server."""

    def send(self, message: FromDriver) -> None:
        """Send, without waiting."""


@dataclass
class _RunFiles:
    """What is known of a run's files."""

    #: Weak references of the JVM's to its shuffles, by stage; None: not known, kept until the application ends
    shuffles: dict[int, Any] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    servers: dict[int, list[str]] = field(default_factory=dict)  # those that have the file of each map task
    blamed: int = 0  # executors that were replaced though their servers lived
    #: The answer to readers that ask where the files are; None: it is to be made anew, since servers or files changed
    files: Files | None = None


@dataclass
class _Server:
    about: Serves
    peer: Peer | None  # None: its connection has ended, but it may come again
    executor: str = ""  # as Spark numbers it, once that is known


class HeldRuns:
    """The files of runs, the shuffles that they are of, and the servers that have them.

    Used by the rendezvous' thread, and at the exit.
    """

    def __init__(self) -> None:
        self._runs: dict[Run, _RunFiles] = {}
        self._servers: dict[str, _Server] = {}
        self._connected: dict[object, _Server] = {}  # by connection
        self._replaced: set[tuple[str, str]] = set()  # executors, by application
        self._swept = 0.0

    def add(self, sc: Any, exchange: str, stage: int, number: int, stats: dict[str, Any]) -> None:
        """What a map task of this stage has told; it has a file if it tells of a folder."""
        if "folder" not in stats:
            return
        if not self._runs:
            atexit.register(self.clear)
        entry = self._runs.setdefault((exchange, int(stats["run"])), _RunFiles())
        if stage not in entry.shuffles:
            entry.shuffles[stage] = pyspark_private.shuffle_of(sc, stage)
        entry.folders.add(str(stats["folder"]))
        if server := str(stats.get("server", "")):
            entry.servers[number] = [*(each for each in entry.servers.get(number, ()) if each != server), server]
            entry.files = None

    def serves(self, about: Serves, peer: Peer) -> None:
        """A file server listens."""
        self._servers[about.id] = self._connected[peer] = _Server(about, peer)
        self._moved()

    def gone(self, peer: object) -> None:
        """A connection has ended."""
        server = self._connected.pop(peer, None)
        if server is not None:
            server.peer = None
            self._moved()

    def _moved(self) -> None:
        """Readers are to be told anew where files are."""
        for entry in self._runs.values():
            entry.files = None

    def where(self, exchange: str, run: int) -> Files:
        """The servers of a run's files, and for each map task which of them it is; -1: none is known.

        Where several attempts have been told of, it is the last one whose server is connected.
        """
        entry = self._runs.get((exchange, run), _RunFiles())
        if entry.files is None:
            entry.files = self._files(entry)
        return entry.files

    def _files(self, entry: _RunFiles) -> Files:
        names: dict[str, int] = {}
        at = [-1] * (max(entry.servers, default=-1) + 1)
        for number, servers in entry.servers.items():
            candidates = [each for each in servers if each in self._servers]
            live = [each for each in candidates if self._servers[each].peer is not None]
            for name in (live or candidates)[-1:]:
                at[number] = names.setdefault(name, len(names))
        messages = [self._servers[name].about for name in names]
        return Files(tuple((each.host, each.port, each.roots) for each in messages), tuple(at))

    def replace(self, sc: Any, exchange: str, run: int, number: int, why: str) -> str | None:
        """Have Spark make the rows of a map task anew, whose file is gone: end the executor that has made it.

        Then Spark forgets what the executor's tasks gave to the shuffle.  It does not where an external service serves
        shuffle files, nor in local mode, whose one executor is the driver: there the action fails.

        Returns
        -------
        str | None
            The executor that goes; empty: none; None: some of this run have gone in vain, though their servers lived.
        """
        entry = self._runs.get((exchange, run), _RunFiles())
        server = self._servers.get(entry.servers.get(number, [""])[-1])
        executor = server.executor if server is not None else ""
        for stage in () if executor else sorted(entry.shuffles, reverse=True):
            if executor := pyspark_private.executor_of(sc, stage, number):
                break
        if not executor or executor == "driver":
            return ""
        if server is not None:
            server.executor = executor  # a call for each task that misses rows of it would be too many
        if (about := (str(sc.applicationId), executor)) not in self._replaced:
            if server is not None and server.peer is not None:  # as with a firewall between executors
                if entry.blamed >= MOST_BLAMED:
                    return None
                entry.blamed += 1
            self._replaced.add(about)
            log.warning("executor %s is replaced: %s", executor, why.partition("\n")[0])
            pyspark_private.replace_executor(sc, executor)
        return executor

    def sweep(self, now: float) -> None:
        """Remove the files that are needed no more; called when a task tells something, asks once in ``SWEEP_S``."""
        if now - self._swept < SWEEP_S:
            return
        self._swept = now
        for run, entry in list(self._runs.items()):
            # A Spark that has stopped answers None; it has removed its directories itself
            shuffles = entry.shuffles.values()
            if all(each is not None and pyspark_private.is_garbage(each) is not False for each in shuffles):
                self._remove(run)
                for server in self._servers.values() if entry.servers else ():  # attempts that failed have files too
                    if server.peer is not None:
                        server.peer.send(Remove(f"{run[0]}/{run[1]}"))

    def clear(self) -> None:
        """Remove all: the application has ended, and its servers with it."""
        for run in list(self._runs):
            self._remove(run)

    def _remove(self, run: Run) -> None:
        for folder in self._runs.pop(run).folders:
            shutil.rmtree(folder, ignore_errors=True)
            for parent in (os.path.dirname(folder), os.path.dirname(os.path.dirname(folder))):
                with contextlib.suppress(OSError):  # there are other runs, or other exchanges
                    os.rmdir(parent)

"""Back pressure, seen: what the tasks of an exchange do, which of them holds up the rest, and a page that shows it."""

from fastbuf.monitor.diagnosis import REST, Diagnosis, Root, Task, diagnose
from fastbuf.monitor.history import History
from fastbuf.monitor.recorder import Recorder
from fastbuf.monitor.server import Server, serve
from fastbuf.monitor.snapshot import Exchange, snapshot

__all__ = [
    "REST",
    "Diagnosis",
    "Exchange",
    "History",
    "Recorder",
    "Root",
    "Server",
    "Task",
    "diagnose",
    "serve",
    "snapshot",
]

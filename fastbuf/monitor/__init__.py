"""Monitoring of back pressure: figures of an exchange's tasks, a diagnosis of the slow one, and a web page."""

from fastbuf.exchange.connection import register_monitor
from fastbuf.monitor.collector import Monitor, MonitorAddress
from fastbuf.monitor.diagnosis import diagnose, diagnose_all
from fastbuf.monitor.history import History
from fastbuf.monitor.local import EnvironmentMonitor
from fastbuf.monitor.recorder import Recorder
from fastbuf.monitor.server import Server, serve
from fastbuf.monitor.snapshot import Exchange, snapshot
from fastbuf.monitor.task import REST, Task
from fastbuf.monitor.words import Diagnosis, Root

register_monitor(EnvironmentMonitor)

__all__ = [
    "REST",
    "Diagnosis",
    "EnvironmentMonitor",
    "Exchange",
    "History",
    "Monitor",
    "MonitorAddress",
    "Recorder",
    "Root",
    "Server",
    "Task",
    "diagnose",
    "diagnose_all",
    "serve",
    "snapshot",
]

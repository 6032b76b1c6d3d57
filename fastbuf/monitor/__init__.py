"""Back pressure, seen: what the tasks of an exchange do, and which of them holds up the rest."""

from fastbuf.exchange.connection import register_monitor
from fastbuf.monitor.collector import Monitor, MonitorAddress
from fastbuf.monitor.diagnosis import REST, Diagnosis, Root, Task, diagnose, diagnose_all
from fastbuf.monitor.local import EnvironmentMonitor

register_monitor(EnvironmentMonitor)

__all__ = [
    "REST",
    "Diagnosis",
    "EnvironmentMonitor",
    "Monitor",
    "MonitorAddress",
    "Root",
    "Task",
    "diagnose",
    "diagnose_all",
]

"""Back pressure, seen: what the tasks of an exchange do, and which of them holds up the rest."""

from fastbuf.monitor.diagnosis import REST, Diagnosis, Root, Task, diagnose

__all__ = ["REST", "Diagnosis", "Root", "Task", "diagnose"]

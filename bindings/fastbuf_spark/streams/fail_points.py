"""Points of the checkpoint protocol by name, at which tests kill the process; nothing happens unless they ask for it.

A test sets ``asked`` on the driver, to ``"name;folder"`` or ``"name@role;folder"``; tasks get it with the description
of their run.  The first process that comes to the point of this name, in this role, and makes the file of that name in
the folder, which holds its process number, is killed by the kernel; with ``;stop`` behind it, the kernel stops it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

POINTS = (
    "before prepare",
    "after prepare",
    "barrier out",
    "file written",
    "after fsync",
    "acknowledged",
    "before metadata",
    "after metadata",
    "notified",
    "before commit",
    "in commit",
    "after commit",
)
FIRST = 3  #: checkpoints below this are left alone: one of them is to be restored
asked = ""
roles: frozenset[str] = frozenset()  #: of the task in this process: "source", "state", "sink"


def ask(point: str, of: Iterable[str] = ()) -> None:
    """Have this process, which has these roles, killed at a point; empty: at none."""
    global asked, roles
    asked, roles = point, frozenset(of)


def reach(point: str, checkpoint: int) -> None:
    """The process has come to this point."""
    if not asked:
        return
    where, folder, *how = asked.split(";")
    name, _, role = where.partition("@")
    if name != point or checkpoint < FIRST or (role and role not in roles):
        return
    try:
        file = os.open(os.path.join(folder, point.replace(" ", "-")), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return
    os.write(file, b"%d" % os.getpid())
    os.close(file)
    os.kill(os.getpid(), signal.SIGSTOP if how == ["stop"] else signal.SIGKILL)

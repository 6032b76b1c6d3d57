"""Points of the checkpoint protocol by name, at which tests kill the process; nothing happens unless they ask for it.

A test sets ``asked`` on the driver, to ``"name;folder"``; tasks get it with the description of their run.  The first
process that comes to the point of this name, and makes the file of that name in the folder, is killed by the kernel.
"""

from __future__ import annotations

import os
import signal

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


def ask(point: str) -> None:
    """Have this process killed at a point; empty: at none."""
    global asked
    asked = point


def reach(point: str, checkpoint: int) -> None:
    """The process has come to this point."""
    if not asked:
        return
    name, _, folder = asked.partition(";")
    if name != point or checkpoint < FIRST:
        return
    try:
        os.close(os.open(os.path.join(folder, point.replace(" ", "-")), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

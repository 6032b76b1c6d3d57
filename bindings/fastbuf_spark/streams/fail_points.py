"""Points of the checkpoint protocol by name, at which tests kill the process; nothing happens unless they ask for it.

``FASTBUF_FAIL_POINT="name;folder"``: the first process that comes to the point of this name, and makes the file of that
name in the folder, is killed by the kernel.
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
_ASKED = os.environ.get("FASTBUF_FAIL_POINT", "")


def reach(point: str, checkpoint: int) -> None:
    """The process has come to this point; the first two checkpoints are left alone: one of them is to be restored."""
    if _ASKED:
        _kill(point, checkpoint)


def _kill(point: str, checkpoint: int) -> None:
    name, _, folder = _ASKED.partition(";")
    if name != point or checkpoint < 3:
        return
    try:
        os.close(os.open(os.path.join(folder, point.replace(" ", "-")), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

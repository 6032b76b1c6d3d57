"""What benches between two processes share."""

from __future__ import annotations

import resource
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import fastbuf as fb


def cpu_s() -> float:
    """CPU seconds of this process so far, its own and the kernel's for it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class TwoProcesses:
    """An environment of this process, and another process that ends when it is told None."""

    control: Connection
    process: BaseProcess
    env: fb.ShuffleEnvironment

    def close(self) -> None:
        self.control.send(None)
        self.env.close()
        self.process.join(10)

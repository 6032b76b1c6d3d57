"""Processes that are killed at a step of what they do, each a fork of this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any


def killer(step: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wraps calls: the process is killed at this step, where one is before a call, and the next is behind it."""
    count = iter(range(10**9))

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def of(*arguments: Any, **options: Any) -> Any:
            if next(count) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            made = call(*arguments, **options)
            if next(count) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return made

        return of

    return counted


def forked(work: Callable[[], None]) -> int:
    """The status of a child that does something."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_steps(kill: Callable[[int], None], look: Callable[[int], None], most: int) -> None:
    """Kill at one step after the other until a process comes to its end; then look at what these have left."""
    for step in range(most):
        status = forked(partial(kill, step))
        assert status in (0, -signal.SIGKILL)
        if status == 0:
            break
    assert forked(partial(look, step + 1)) == 0


def lines_of(program: str, *arguments: str) -> list[Any]:
    """What one of the programs beside this file says, a JSON value in each line."""
    command = [sys.executable, str(Path(__file__).with_name(program)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]

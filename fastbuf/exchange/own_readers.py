"""Writers whose consumers are read in the same process: a thread that waits for what only itself could read."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fastbuf.errors import StallTimeout
from fastbuf.exchange.address import gate_key, is_loopback

if TYPE_CHECKING:
    from fastbuf.exchange.environment import ShuffleEnvironment
    from fastbuf.exchange.input_gate import InputGate
    from fastbuf.exchange.result_partition import ResultPartition

_HANDED_ON_S = 1.0  # a gate that this thread has read may be about to be read by another one


def refuse_to_wait_for_oneself(partition: ResultPartition, waited_s: float) -> None:
    """Raise StallTimeout if all that is queued could only be read by the thread that waits, which is this one."""
    parts = partition.undrained()
    alone = is_only_thread()
    in_loop = asyncio._get_running_loop() is not None
    if not parts or not (alone or in_loop or waited_s >= _HANDED_ON_S):
        return
    gates = _own_gates(partition, parts, alone)
    if len(gates) < len(parts):
        return
    names = ", ".join(str(gate.gate_id) for gate in gates)
    if in_loop:
        why = "a coroutine of this thread reads them, and runs only when this one awaits something"
        advice = "await writer.emit_async(...) (or emit_batch_async, flush_async, close_async) instead"
    else:
        why = "there is no other thread that could read" if alone else "this thread itself was the last to read there"
        advice = "read in another thread, or write by try_emit, and read by poll(0.01) while it or resume() is False"
    if "gevent" in sys.modules:
        advice += "; greenlets of gevent are one thread: give the reader or the writer to gevent's thread pool"
    raise StallTimeout(
        f"writer {partition.channel} waits for ever: the queues of gate {names} are full, and {why}. What was given "
        f"to the writer is kept, and its next call goes on with it: {advice}"
    )


def reader_of(partition: ResultPartition, part: int) -> str:
    """What is wrong with the reader of that subpartition, if it is a gate of this process; else ``""``."""
    for gate in _own_gates(partition, [part], True):
        if not gate.read_by:
            return f"Gate {gate.gate_id} of this process has never been read"
        if gate.read_by == threading.get_ident():
            return f"Gate {gate.gate_id} was last read by this thread itself"
    return ""


def _own_gates(partition: ResultPartition, parts: Iterable[int], alone: bool) -> list[InputGate]:
    """The gates behind `parts` that nobody but this thread reads, as far as can be seen."""
    from fastbuf.exchange.environment import open_environments

    me = threading.get_ident()
    wanted = {gate for part in parts if (gate := partition.gates[part]) is not None}
    return [
        gate
        for environment in open_environments()
        for gate in environment.gates()
        if (alone or gate.read_by == me)
        and any(
            key == gate_key(gate.secret, gate.epoch, gate.gate_id) and _is_here(where, environment)
            for key, where in wanted
        )
    ]


def _is_here(where: str, environment: ShuffleEnvironment) -> bool:
    """Whether an address is that of this environment.  Gates of one number and secret may be in many processes."""
    if not where or environment.address is None:
        return not where
    host, _, port = where.rpartition(":")
    own, number = environment.address
    return port == str(number) and (host == own or is_loopback(host))


def is_only_thread() -> bool:
    """Whether no other thread runs Python code, but fastbuf's own, which read no gate."""
    own = {thread.ident for thread in threading.enumerate() if thread.name.startswith("fastbuf-")}
    return len(sys._current_frames().keys() - own) <= 1

"""Which producers a gate awaits, whether all have ended, and which are refused (map in the ``.pxd``)."""

import logging

from libc.stdint cimport uint32_t

from fastbuf.exchange.gate_core cimport (
    LOSS_ERROR, LOSS_FORGET, GateCore, gate_all_wait, gate_channel, gate_channels, gate_unfinished,
)
from fastbuf.exchange.input_channel cimport CHANNEL_LOCAL, CHANNEL_LOST, InputChannel

from fastbuf.errors import SequenceError, StallTimeout
from fastbuf.exchange.connection import StillConnected
from fastbuf.exchange.own_readers import is_only_thread

log = logging.getLogger("fastbuf")


cdef Py_ssize_t _expected(GateCore *g, channels, dict sealed, dict lost) except -1:
    """How many producers have connected, or are awaited; lost ones do not count where they are forgotten."""
    if g.on_loss != LOSS_FORGET:
        return len(sealed) if sealed is not None else channels
    if sealed is not None:
        return len(sealed.keys() - lost.keys())
    return channels - <Py_ssize_t> g.lost


cdef bint awaits_producers(GateCore *g, channels, dict sealed, dict lost) except -1:
    """Whether producers are expected that have not connected."""
    cdef uint32_t n
    if channels is None and sealed is None:
        return False
    gate_unfinished(g, &n)
    return n < _expected(g, channels, sealed, lost)


cdef bint all_have_ended(GateCore *g, gate, dict sealed, dict lost) except -1:
    """Whether every channel was read to its end of partition, with as many buffers as announced."""
    cdef uint32_t i, n
    cdef Py_ssize_t expected
    cdef bint unfinished = gate_unfinished(g, &n)
    cdef InputChannel *c
    if gate.channels is None and sealed is None:
        return False
    expected = _expected(g, gate.channels, sealed, lost)
    if (unfinished or n < expected) and n <= expected:
        return False
    # All connected channels have ended, so no other thread uses them; or there are more than were announced.
    for i in range(gate_channels(g) if sealed is not None else 0):
        c = gate_channel(g, i)
        if c.state == CHANNEL_LOST:
            continue
        if c.number not in sealed:
            raise SequenceError(
                f"gate {gate.gate_id}: channel {c.number} has connected, but is not among the {len(sealed)} channels "
                "that were announced")
        if not unfinished and sealed[c.number] != c.announced_total:
            raise SequenceError(
                f"gate {gate.gate_id}: channel {c.number} sent {c.announced_total} buffers, but {sealed[c.number]} "
                "were announced")
    return not unfinished


cdef int refuse_producer(GateCore *g, gate, dict peers, uint32_t number, bint is_local, str peer) except -1:
    first = peers.get(number)
    if first is None or gate.closed:
        raise SequenceError(f"channel {number} cannot be connected: gate {gate.gate_id} is closed")
    words = f"channel {number} is connected already: gate {gate.gate_id} has a producer of that number, {first}"
    if g.on_loss != LOSS_ERROR:
        raise StillConnected(f"{words}, or has not read all that it sent")
    gate.refused = (f"A second producer of channel {number}, {peer}, was refused: the first is {first}; give each a "
                    "number of its own, as channel=")
    if not is_local:
        log.warning("%s (gate %d)", gate.refused, gate.gate_id)
    raise SequenceError(f"{words}; give each a number of its own, as channel=")


cdef int refuse_to_wait_for_oneself(GateCore *g, gate, dict sealed, dict lost, bint stalled) except -1:
    cdef uint32_t i, n = gate_channels(g)
    cdef bint is_complete = gate.channels is not None or sealed is not None
    # Another producer may come in the place of a lost one.
    if n == 0 or not (stalled or is_complete and g.lost == 0) or awaits_producers(g, gate.channels, sealed, lost) or \
            not is_only_thread():
        return 0
    if is_complete and gate_all_wait(g):
        raise StallTimeout(
            f"gate {gate.gate_id} waits for ever: all its channels that have not ended are blocked, and no other "
            "thread could unblock one. Unblock one before the gate is read, or in another thread")
    for i in range(n):
        if gate_channel(g, i).kind != CHANNEL_LOCAL:
            return 0
    raise StallTimeout(
        f"gate {gate.gate_id} waits for ever: its writers are in this process, and there is no other thread that could "
        "write or close them. Close the writer before the gate is read, or write in another thread")

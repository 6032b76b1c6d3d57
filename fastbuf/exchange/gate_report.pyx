"""Reports on a gate's channels: audit of the credits, text of a stall, gauges."""

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, realloc

from fastbuf.exchange.gate_core cimport ChannelAccount, GateAccount, GateCore, gate_accounts, gate_channels
from fastbuf.exchange.input_channel cimport CHANNEL_OPEN
from fastbuf.flow.credit_ledger cimport credit_holds

from fastbuf.errors import SequenceError


cdef ChannelAccount *_accounts(GateCore *core, uint32_t *n, GateAccount *gate) except NULL:
    """A snapshot of every channel; the caller frees it."""
    cdef ChannelAccount *out = NULL
    cdef ChannelAccount *grown
    cdef uint32_t room = gate_channels(core)
    while True:
        grown = <ChannelAccount *> realloc(out, (room + 1) * sizeof(ChannelAccount))
        if grown == NULL:
            free(out)
            raise MemoryError
        out = grown
        n[0] = gate_accounts(core, out, room, gate)
        if n[0] <= room:
            return out
        room = n[0]


cdef object stalled_channels(GateCore *core):
    """-> (how many channels have connected, a description of each open one)."""
    cdef uint32_t i, n
    cdef GateAccount gate
    cdef ChannelAccount *accounts = _accounts(core, &n, &gate)
    waiting = []
    for i in range(n):
        a = accounts[i]
        if a.is_local:
            waiting.append(f"channel {a.number}, read in place{', blocked' if a.blocked else ''}")
        elif a.state == CHANNEL_OPEN:
            waiting.append(
                f"channel {a.number}: credit {a.credit.available}, backlog {a.credit.backlog}, "
                f"{a.received} buffers so far{', blocked' if a.blocked else ''}")
    free(accounts)
    return n, waiting


cdef dict gate_gauges(GateCore *core):
    """Flink's gauges: shares of segments that hold data; announced credit that is not used does not count."""
    cdef uint32_t i, n
    cdef GateAccount gate
    cdef int64_t exclusive = 0, own = 0, floating = 0, used, shared
    cdef int64_t queued = 0
    cdef ChannelAccount *accounts = _accounts(core, &n, &gate)
    for i in range(n):
        a = accounts[i]
        queued += a.queued
        if a.is_local or a.closed:
            continue
        used = a.with_reader
        shared = min(used, a.credit.floating)       # as in Flink: floating segments are filled first
        exclusive += a.credit.exclusive
        own += used - shared
        floating += shared
    free(accounts)
    cdef int64_t limit = core.buffers.floating_limit
    return {
        "exclusiveBuffersUsage": min(1.0, own / exclusive) if exclusive else 0.0,
        "floatingBuffersUsage": min(1.0, floating / limit) if limit else 0.0,
        "inPoolUsage": min(1.0, (own + floating) / (exclusive + limit)) if exclusive else 0.0,
        "inputQueueLength": queued,
    }


cdef int audit_gate(GateCore *core) except -1:
    """Raises SequenceError naming the channel whose credits do not add up; -> 0."""
    cdef uint32_t i, n
    cdef GateAccount gate
    cdef int64_t floating = 0
    cdef int64_t ready = 0
    cdef ChannelAccount *accounts = _accounts(core, &n, &gate)
    try:
        for i in range(n):
            a = accounts[i]
            if a.is_local:
                continue
            # All segments are ready or with the reader: a buffer in flight has a ready segment.
            held = a.credit.floating + (0 if a.closed else a.credit.exclusive - a.missing)
            if not credit_holds(&accounts[i].credit) or a.ready != a.credit.available or (
                    a.ready + a.with_reader < held if a.closed else a.ready + a.with_reader != held):
                raise SequenceError(
                    f"channel {a.number}: announced {a.credit.announced}, used {a.credit.used}, "
                    f"available {a.credit.available}, ready {a.ready}, with the reader {a.with_reader}, exclusive "
                    f"{a.credit.exclusive} of which {a.missing} are missing, floating {a.credit.floating}")
            floating += a.credit.floating
            ready += a.ready
    finally:
        free(accounts)
    if ready != gate.ready:
        raise SequenceError(f"channels own {ready} segments that wait for data, but {gate.ready} segments wait")
    if floating != gate.floating_out or floating > core.buffers.floating_limit:
        raise SequenceError(
            f"channels hold {floating} floating segments, {gate.floating_out} are out of "
            f"{core.buffers.floating_limit}")
    return 0

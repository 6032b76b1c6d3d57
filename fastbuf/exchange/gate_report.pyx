"""Reports on a gate's channels: audit of the credits, text of a stall, gauges, counters."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from fastbuf._native.threads cimport pthread_mutex_lock, pthread_mutex_unlock
from fastbuf.exchange.gate_core cimport GateCore
from fastbuf.exchange.input_channel cimport CHANNEL_OPEN, CHANNEL_WIRE, ChannelCounters, InputChannel
from fastbuf.flow.buffer_manager cimport bm_count_ready
from fastbuf.flow.credits cimport CreditFigures, credit_holds, credit_look

from fastbuf.errors import SequenceError


cdef struct GateAccount:
    int64_t floating_out        # floating segments held by channels
    int64_t ready               # segments that wait for data, counted in the list


cdef struct ChannelAccount:     # of a channel read in place: only number, is_local and blocked
    CreditFigures credit
    int32_t ready
    int32_t with_reader         # buffers that the reader has not released yet
    int32_t missing
    bint closed                 # has given up its segments, except those with the reader
    uint32_t number
    int state
    bint is_local
    bint blocked
    uint64_t received


cdef ChannelAccount *_accounts(GateCore *g, uint32_t *n, GateAccount *gate) except NULL:
    """All channels, and what they share, at one moment; the caller frees it."""
    cdef ChannelAccount *out
    cdef ChannelAccount *a
    cdef InputChannel *c
    cdef uint32_t i
    pthread_mutex_lock(&g.lock)
    n[0] = g.n_channels
    gate.floating_out = g.buffers.floating_out
    gate.ready = bm_count_ready(&g.buffers)
    out = <ChannelAccount *> calloc(n[0] + 1, sizeof(ChannelAccount))
    for i in range(n[0] if out != NULL else 0):
        c = g.channels[i]
        a = &out[i]
        a.number = c.number
        a.blocked = c.buffers.blocked
        a.is_local = c.kind != CHANNEL_WIRE
        if not a.is_local:
            credit_look(c.buffers.credit, &a.credit)
            a.ready = c.buffers.ready_count
            a.with_reader = c.buffers.with_reader
            a.missing = c.buffers.missing
            a.closed = c.buffers.closed
            a.state = c.state
            a.received = c.counted.buffers
    pthread_mutex_unlock(&g.lock)
    if out == NULL:
        raise MemoryError
    return out


cdef ChannelCounters gate_counters(GateCore *g) noexcept:
    cdef ChannelCounters sums
    cdef uint32_t i, k
    memset(&sums, 0, sizeof(sums))
    pthread_mutex_lock(&g.lock)
    for i in range(g.n_channels):
        for k in range(<uint32_t> (sizeof(sums) // sizeof(uint64_t))):
            (<uint64_t *> &sums)[k] += (<uint64_t *> &g.channels[i].counted)[k]
    pthread_mutex_unlock(&g.lock)
    return sums


cdef object stall_text(gate, GateCore *core):
    """The state of a waiting gate, as text."""
    n, waiting = _stalled_channels(core)
    expected = gate.channels if gate.channels is not None else "an unknown number of"
    lost = "".join(f"{why}. " for why in list(gate.lost.values())[:8])
    stall_s = gate.config.stall_timeout_s
    return (
        f"gate {gate.gate_id} got nothing for {stall_s} s: {n} of {expected} channels have connected; "
        f"{'; '.join(waiting[:8]) or 'none is open'}; pool: {gate.pool.in_use} segments in use, limit "
        f"{gate.pool.limit}. {gate.refused and gate.refused + '. '}{lost}The producers are slow or stuck, or were not "
        f"started; raise stall_timeout_s ({stall_s}; None: no limit)")


cdef object _stalled_channels(GateCore *core):
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
        queued += a.with_reader
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
            segments = a.credit.floating + (0 if a.closed else a.credit.exclusive - a.missing)
            if not credit_holds(&accounts[i].credit) or a.ready != a.credit.available or (
                    a.ready + a.with_reader < segments if a.closed else a.ready + a.with_reader != segments):
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

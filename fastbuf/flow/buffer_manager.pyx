"""Exclusive and floating segments of a gate (C level; see the ``.pxd`` for owner and source).

Credit returns when the reader *releases* a segment, not when it has read it.  What a function here
grants is added to ``ChannelBuffers.unannounced``; the gate then has the transport announce it.
"""

from libc.stdint cimport int32_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from fastbuf.flow.credit_ledger cimport credit_announce, credit_init, credit_required, credit_take
from fastbuf.memory.pool_core cimport LocalCore, PoolCore, local_try_acquire, segment_recycle


cdef int bm_init(GateBuffers *g, PoolCore *pool, LocalCore *local, int32_t segments, int32_t exclusive,
                 int32_t floating) noexcept nogil:
    memset(g, 0, sizeof(GateBuffers))
    g.pool = pool
    g.local = local
    g.segments = segments
    g.exclusive = exclusive
    g.floating_limit = floating
    g.link = <int32_t *> malloc(sizeof(int32_t) * <size_t> segments)
    return 0 if g.link != NULL else -1


cdef void bm_free(GateBuffers *g) noexcept nogil:
    free(g.link)
    g.link = NULL


cdef inline void _grant(GateBuffers *g, ChannelBuffers *c, int32_t segment) noexcept nogil:
    g.link[segment] = c.ready
    c.ready = segment
    c.ready_count += 1
    credit_announce(&c.credit, 1)
    c.unannounced += 1
    if not c.announcing:
        c.announcing = True
        c.next_announce = g.announce
        g.announce = c


cdef ChannelBuffers *bm_next_announce(GateBuffers *g) noexcept nogil:
    """Takes one channel off the list of those with something to announce; NULL: none."""
    cdef ChannelBuffers *c = g.announce
    if c != NULL:
        g.announce = c.next_announce
        c.announcing = False
    return c


cdef inline bint _satisfied(ChannelBuffers *c) noexcept nogil:
    return c.missing == 0 and c.ready_count >= credit_required(&c.credit)


cdef bint _feed(GateBuffers *g, ChannelBuffers *c) noexcept nogil:
    # Gives c what it wants while the pool has it; False when the pool ran dry first.
    cdef int32_t s
    while c.missing > 0:
        s = local_try_acquire(g.local)
        if s < 0:
            return False
        c.missing -= 1
        _grant(g, c, s)
    while c.ready_count < credit_required(&c.credit):
        if g.floating_out >= g.floating_limit:
            return False
        s = local_try_acquire(g.local)
        if s < 0:
            return False
        g.floating_out += 1
        c.credit.floating += 1
        _grant(g, c, s)
    return True


cdef inline void _enqueue(GateBuffers *g, ChannelBuffers *c) noexcept nogil:
    if c.waiting or c.closed:
        return
    c.waiting = True
    c.next_waiter = NULL
    if g.last_waiter == NULL:
        g.first_waiter = c
    else:
        g.last_waiter.next_waiter = c
    g.last_waiter = c


cdef void bm_open(GateBuffers *g, ChannelBuffers *c, void *owner) noexcept nogil:
    memset(c, 0, sizeof(ChannelBuffers))
    c.owner = owner
    credit_init(&c.credit, g.exclusive)
    c.ready = -1
    c.missing = g.exclusive
    if not _feed(g, c):
        _enqueue(g, c)


cdef int32_t bm_take(GateBuffers *g, ChannelBuffers *c, uint32_t backlog) noexcept nogil:
    """The segment for a buffer that has come, with the backlog behind it; -1: the sender had no credit."""
    cdef int32_t s = c.ready
    if s < 0 or not credit_take(&c.credit):
        return -1
    c.ready = g.link[s]
    c.ready_count -= 1
    c.with_reader += 1
    c.credit.backlog = backlog
    if not _satisfied(c) and not _feed(g, c):
        _enqueue(g, c)
    return s


cdef void bm_release(GateBuffers *g, ChannelBuffers *c, int32_t segment) noexcept nogil:
    """The reader is done with `segment`: exclusive ones stay with their channel, floating ones go on to who waits."""
    c.with_reader -= 1
    if c.closed:
        if c.credit.floating > 0:
            c.credit.floating -= 1
            g.floating_out -= 1
        segment_recycle(g.pool, segment)
    elif c.credit.floating > 0:
        # Segments of a channel are alike, so a floating one goes back as long as it holds any.
        c.credit.floating -= 1
        g.floating_out -= 1
        segment_recycle(g.pool, segment)
        if c.ready_count < credit_required(&c.credit):
            _enqueue(g, c)
    else:
        _grant(g, c, segment)
    bm_serve(g)


cdef void bm_close(GateBuffers *g, ChannelBuffers *c) noexcept nogil:
    """The channel ends: segments that wait for data go home, those with the reader follow when released."""
    cdef int32_t s
    cdef ChannelBuffers *w
    cdef ChannelBuffers *previous = NULL
    c.closed = True
    if c.waiting:
        w = g.first_waiter
        while w != NULL and w != c:
            previous = w
            w = w.next_waiter
        if w == c:
            if previous == NULL:
                g.first_waiter = c.next_waiter
            else:
                previous.next_waiter = c.next_waiter
            if g.last_waiter == c:
                g.last_waiter = previous
        c.waiting = False
    while c.ready >= 0:
        s = c.ready
        c.ready = g.link[s]
        c.ready_count -= 1
        if c.credit.floating > 0:
            c.credit.floating -= 1
            g.floating_out -= 1
        segment_recycle(g.pool, s)
    # The sender can no longer use them: close the account so that audit still holds.
    c.credit.announced -= c.credit.available
    c.credit.available = 0
    c.unannounced = 0
    bm_serve(g)


cdef void bm_serve(GateBuffers *g) noexcept nogil:
    """Hands what the pool can give to the channels that wait, in the order they came."""
    cdef ChannelBuffers *c
    while g.first_waiter != NULL:
        c = g.first_waiter
        if not _feed(g, c):
            return
        g.first_waiter = c.next_waiter
        if g.first_waiter == NULL:
            g.last_waiter = NULL
        c.waiting = False

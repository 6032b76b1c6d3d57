"""Exclusive and floating segments of a gate (C level; see the ``.pxd`` for ownership and source).

A channel gets credit again when the reader *releases* a segment, not when it has read it.  Credits granted here are
added to ``ChannelBuffers.unannounced``; the gate then tells the transport to announce them.
"""

from libc.stdint cimport int32_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from fastbuf._native.atomics cimport fb_i64_load_relaxed, fb_i64_store_release
from fastbuf.flow.credits cimport (
    CreditRow, credit_announce, credit_close, credit_drop_floating, credit_floating, credit_init, credit_required,
    credit_return, credit_take,
)
from fastbuf.memory.pool_core cimport *

cdef enum Fed:
    FED = 1                     # has all it needs
    FED_FLOATING_OUT = 0        # all floating segments are taken
    FED_POOL_DRY = -1           # the pool has no segment for this gate


cdef int bm_init(GateBuffers *g, PoolCore *pool, LocalCore *local, int32_t segments, int32_t exclusive,
                 int32_t floating, CreditRow *rows, int32_t n_rows) noexcept nogil:
    memset(g, 0, sizeof(GateBuffers))
    g.pool = pool
    g.local = local
    g.segments = segments
    g.exclusive = exclusive
    g.floating_limit = floating
    g.rows = rows
    g.n_rows = n_rows
    g.ready = -1
    g.link = <int32_t *> malloc(sizeof(int32_t) * <size_t> segments)
    return 0 if g.link != NULL else -1


cdef void bm_free(GateBuffers *g) noexcept nogil:
    free(g.link)
    g.link = NULL


cdef inline int32_t _pop(GateBuffers *g, ChannelBuffers *c) noexcept nogil:
    # A ready segment for c, which has at least one.
    cdef int32_t s = g.ready
    g.ready = g.link[s]
    c.ready_count -= 1
    return s


cdef inline void _grant(GateBuffers *g, ChannelBuffers *c, int32_t segment, int32_t floating) noexcept nogil:
    g.link[segment] = g.ready
    g.ready = segment
    c.ready_count += 1
    credit_announce(c.credit, 1, floating)
    c.unannounced += 1
    c.recalled = False
    if c.lacks_segment:
        c.lacks_segment = False
        g.lacking -= 1
    if not c.announcing:
        c.announcing = True
        c.next_announce = g.announce
        g.announce = c


cdef ChannelBuffers *bm_next_announce(GateBuffers *g) noexcept nogil:
    """Takes one channel off the list of those with credit to announce; NULL: the list is empty."""
    cdef ChannelBuffers *c = g.announce
    if c != NULL:
        g.announce = c.next_announce
        c.announcing = False
    return c


cdef inline bint _satisfied(ChannelBuffers *c) noexcept nogil:
    return c.blocked or (c.missing == 0 and c.ready_count >= credit_required(c.credit))


cdef int32_t _acquire(GateBuffers *g, ChannelBuffers *c) noexcept nogil:
    # One segment for c; -1: none.  Only this gate takes from its pool, and it holds its lock, so in_use cannot grow.
    cdef int64_t room
    if not c.lacks_segment and g.lacking + g.unopened > 0:
        room = <int64_t> local_limit(g.local) - local_in_use(g.local)
        if room <= g.lacking + g.unopened:
            return -1
    return local_try_acquire(g.local)


cdef Fed _feed(GateBuffers *g, ChannelBuffers *c) noexcept nogil:
    # Gives c the segments it needs, as long as the pool has them.
    cdef int32_t s
    while c.missing > 0:
        s = _acquire(g, c)
        if s < 0:
            return FED_POOL_DRY
        c.missing -= 1
        g.missing -= 1
        _grant(g, c, s, 0)
    while c.ready_count < credit_required(c.credit):
        if g.floating_out >= g.floating_limit:
            return FED_FLOATING_OUT
        s = _acquire(g, c)
        if s < 0:
            return FED_POOL_DRY
        g.floating_out += 1
        _grant(g, c, s, 1)
    return FED


cdef inline void _enqueue(GateBuffers *g, ChannelBuffers *c) noexcept nogil:
    if c.waiting or c.closed or c.blocked:
        return
    c.waiting = True
    c.next_waiter = NULL
    if g.last_waiter == NULL:
        g.first_waiter = c
    else:
        g.last_waiter.next_waiter = c
    g.last_waiter = c


cdef void bm_open(GateBuffers *g, ChannelBuffers *c, void *owner) noexcept nogil:
    cdef CreditRow *row = c.credit          # of the producer before, in whose place this one comes
    memset(c, 0, sizeof(ChannelBuffers))
    c.owner = owner
    g.open += 1
    c.credit = row if row != NULL else &c.own
    if row == NULL and g.rows_used < g.n_rows:
        c.credit = &g.rows[g.rows_used]
        g.rows_used += 1
    credit_init(c.credit, g.exclusive)
    c.missing = g.exclusive
    g.missing += g.exclusive
    c.lacks_segment = True
    g.lacking += 1
    if _feed(g, c) != FED:
        _enqueue(g, c)


cdef int32_t bm_take(GateBuffers *g, ChannelBuffers *c, uint32_t backlog) noexcept nogil:
    """The segment for a buffer that arrived, with the sender's backlog; -1: the sender had no credit."""
    cdef int32_t s
    if c.ready_count == 0 or not credit_take(c.credit):
        return -1
    s = _pop(g, c)
    c.with_reader += 1
    g.with_reader += 1
    g.withheld += c.blocked
    fb_i64_store_release(&c.credit.backlog, backlog)
    if not _satisfied(c) and _feed(g, c) != FED:
        _enqueue(g, c)
    return s


cdef inline void _drop_floating(GateBuffers *g, ChannelBuffers *c) noexcept nogil:
    credit_drop_floating(c.credit)
    g.floating_out -= 1


cdef void bm_release(GateBuffers *g, ChannelBuffers *c, int32_t segment) noexcept nogil:
    """The reader released `segment`: its channel keeps an exclusive one, a floating one goes to a waiting channel."""
    c.with_reader -= 1
    g.with_reader -= 1
    g.withheld -= c.blocked
    if c.closed:
        if credit_floating(c.credit) > 0:
            _drop_floating(g, c)
        segment_recycle(g.pool, segment)
    elif credit_floating(c.credit) > 0:
        # Segments of a channel are alike, so a floating one goes back as long as it holds any.
        _drop_floating(g, c)
        segment_recycle(g.pool, segment)
        if c.ready_count < credit_required(c.credit):
            _enqueue(g, c)
    elif c.blocked or (g.lacking and (c.ready_count + c.with_reader > 0 or c.reports_backlog)):
        # Not for c now: it is blocked; or another channel has no segment, while c has one or can ask for one.  That
        # channel is served first (bm_serve), and c once there are more segments.
        c.missing += 1
        g.missing += 1
        segment_recycle(g.pool, segment)
        _enqueue(g, c)
        if c.ready_count + c.with_reader == 0 and fb_i64_load_relaxed(&c.credit.backlog) > 0:
            _mark_lacking(g, c)
    else:
        _grant(g, c, segment, 0)
    bm_serve(g)


cdef inline void _mark_lacking(GateBuffers *g, ChannelBuffers *c) noexcept nogil:
    if not c.lacks_segment and not c.blocked:
        c.lacks_segment = True
        g.lacking += 1


cdef inline void _wait_for_nothing(GateBuffers *g, ChannelBuffers *c) noexcept nogil:
    # The channel leaves the queue, so that others get the segments.
    cdef ChannelBuffers *w
    cdef ChannelBuffers *previous = NULL
    if c.lacks_segment:
        c.lacks_segment = False
        g.lacking -= 1
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


cdef inline void _take_one_back(GateBuffers *g, ChannelBuffers *c) noexcept nogil:
    # A credit that the sender has not used: a floating segment, as long as the channel has any.
    cdef int32_t s = _pop(g, c)
    credit_return(c.credit)
    if credit_floating(c.credit) > 0:
        _drop_floating(g, c)
    else:
        c.missing += 1
        g.missing += 1
    segment_recycle(g.pool, s)


cdef void bm_take_back(GateBuffers *g, ChannelBuffers *c, uint32_t n, uint32_t backlog) noexcept nogil:
    """The sender gives back `n` credits (it has them), and has `backlog` buffers that wait for one."""
    while n:
        _take_one_back(g, c)
        n -= 1
    fb_i64_store_release(&c.credit.backlog, backlog)
    if backlog and c.ready_count + c.with_reader == 0:
        _mark_lacking(g, c)
    if not _satisfied(c):
        _enqueue(g, c)
    bm_serve(g)


cdef void bm_close(GateBuffers *g, ChannelBuffers *c) noexcept nogil:
    """The channel ends: segments that wait for data go home, those with the reader follow when released."""
    cdef int32_t s
    c.closed = True
    g.open -= 1
    g.missing -= c.missing
    c.missing = 0
    _wait_for_nothing(g, c)
    # The sender can no longer use its credit.  First: a row says at no moment that more may come than has a place.
    credit_close(c.credit)
    while c.ready_count > 0:
        s = _pop(g, c)
        if credit_floating(c.credit) > 0:
            _drop_floating(g, c)
        segment_recycle(g.pool, s)
    c.unannounced = 0
    bm_serve(g)


cdef void bm_block(GateBuffers *g, ChannelBuffers *c) noexcept nogil:
    """From now on `c` gets no segments; floating ones that were not announced go to other channels."""
    c.blocked = True
    g.withheld += c.with_reader
    _wait_for_nothing(g, c)
    # A sender that needs no credit may have used what was not announced
    while c.unannounced and c.ready_count and credit_floating(c.credit) > 0:
        c.unannounced -= 1
        _take_one_back(g, c)
    bm_serve(g)


cdef void bm_unblock(GateBuffers *g, ChannelBuffers *c) noexcept nogil:
    c.blocked = False
    g.withheld -= c.with_reader
    if c.closed:
        return
    # A channel that reports its backlog gets a segment when it has data; any other must always have one.
    if c.ready_count + c.with_reader == 0 and (not c.reports_backlog or fb_i64_load_relaxed(&c.credit.backlog) > 0):
        _mark_lacking(g, c)
    if not _satisfied(c) and _feed(g, c) != FED:
        _enqueue(g, c)


cdef void bm_serve(GateBuffers *g) noexcept nogil:
    """Gives segments from the pool to waiting channels: first to those that have none, then in order of arrival."""
    cdef ChannelBuffers *c = g.first_waiter
    cdef ChannelBuffers *previous = NULL
    cdef ChannelBuffers *following
    cdef int32_t s
    cdef Fed fed
    while c != NULL and g.lacking > 0:
        if c.lacks_segment:
            s = local_try_acquire(g.local)
            if s < 0:
                return
            c.missing -= 1
            g.missing -= 1
            _grant(g, c, s, 0)
        c = c.next_waiter
    c = g.first_waiter
    while c != NULL:
        following = c.next_waiter
        fed = _feed(g, c)
        # A channel that waits for floating segments must not block the next one, which may wait for exclusive ones.
        if fed == FED_POOL_DRY or (fed == FED_FLOATING_OUT and g.missing == 0):
            return
        if fed == FED:
            if previous == NULL:
                g.first_waiter = following
            else:
                previous.next_waiter = following
            if g.last_waiter == c:
                g.last_waiter = previous
            c.waiting = False
        else:
            previous = c
        c = following


cdef int32_t bm_count_ready(GateBuffers *g) noexcept nogil:
    """Counts the ready list one by one; one more than possible if the list is circular."""
    cdef int32_t s = g.ready
    cdef int32_t n = 0
    while s >= 0 and n <= g.segments:
        s = g.link[s]
        n += 1
    return n

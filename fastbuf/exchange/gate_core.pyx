"""The native half of an input gate: channels, their queues, and their segments (map in the ``.pxd``)."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc

from fastbuf._native.atomics cimport fb_now_ns, fb_u32_init, fb_u32_load_relaxed
from fastbuf._native.sockets cimport eventfd_read
from fastbuf._native.threads cimport *
from fastbuf.exchange.doorbell cimport Bell, bell_arm, bell_ring
from fastbuf.exchange.failure cimport FailureCode, failure_code, failure_init, failure_set
from fastbuf.exchange.input_channel cimport *
from fastbuf.exchange.result_subpartition cimport EventBlob, event_new
from fastbuf.flow.buffer_manager cimport *
from fastbuf.flow.credits cimport CreditRow
from fastbuf.flow.flow_control cimport FLOW_CREDIT, flow_released, flow_took
from fastbuf.memory.pool_core cimport LocalCore, PoolCore, local_limit


cdef enum:
    LEAST_FLUSH_NS = 100000
    LEAST_QUEUE = 8

cdef const int64_t MOST_FLUSH_NS = 4000000000000000000


cdef GateCore *gate_new(PoolCore *pool, LocalCore *local, int32_t segments, int32_t exclusive, int32_t floating,
                        CreditRow *rows, int32_t n_rows, Bell *bell) noexcept nogil:
    cdef GateCore *g = <GateCore *> calloc(1, sizeof(GateCore))
    if g == NULL:
        return NULL
    if bm_init(&g.buffers, pool, local, segments, exclusive, floating, rows, n_rows) != 0:
        free(g)
        return NULL
    pthread_mutex_init(&g.lock, NULL)
    g.bell = bell
    g.event = &bell.event
    failure_init(&g.failure)
    fb_u32_init(&g.wake_fd, <uint32_t> -1)
    return g


cdef void gate_free(GateCore *g) noexcept nogil:
    """Recycles all segments; no transport points to a channel any more, and the reader has ended."""
    cdef uint32_t i
    cdef InputChannel *c
    for i in range(g.n_channels):
        c = g.channels[i]
        _drop(g, c)
        if not c.buffers.closed:
            bm_close(&g.buffers, &c.buffers)
    for i in range(g.n_channels):
        free(g.channels[i].queue)
        free(g.channels[i])
    free(g.channels)
    free(g.places)
    bm_free(&g.buffers)
    pthread_mutex_destroy(&g.lock)
    free(g)


cdef void gate_notify(GateCore *g) noexcept nogil:
    """Wakes the reader, however it waits: something came, failed or ended."""
    bell_ring(g.bell, &g.wake_fd)


cdef bint gate_arm(GateCore *g) noexcept nogil:
    """The next gate_notify makes `wake_fd` readable; the caller checks for data once more before it waits for that.

    True: it was readable, so others who wait for it may miss what it was for.
    """
    cdef uint64_t ignored
    cdef bint cleared = eventfd_read(<int> fb_u32_load_relaxed(&g.wake_fd), &ignored) == 0
    bell_arm(g.bell)
    return cleared


cdef inline void _tell(InputChannel *c) noexcept nogil:
    # Credit is announced in lots: when a quarter of the channel's credit is unannounced (of 3 or fewer: more than
    # half).  So there are few messages.  The condition is checked whenever credit is granted or given back and whenever
    # a buffer arrives, so the sender does not run out.  If channels share segments by recall, every credit is announced
    # at once.
    cdef uint32_t untold = c.buffers.unannounced
    cdef uint32_t there = <uint32_t> c.buffers.ready_count
    if c.connection != NULL and c.announce != NULL and untold and (
            c.buffers.reports_backlog or (4 * untold >= there if there > 3 else 2 * untold > there)):
        c.announce(c.connection)


cdef void _announce(GateCore *g) noexcept nogil:
    # Lock held.  The transport's callback only sets a flag and wakes its thread.
    cdef ChannelBuffers *b = bm_next_announce(&g.buffers)
    while b != NULL:
        _tell(<InputChannel *> b.owner)
        b = bm_next_announce(&g.buffers)


cdef void _recall(GateCore *g) noexcept nogil:
    # Lock held.  If a channel has no segment, asks all others to give back credit that they do not need.
    cdef uint32_t i
    cdef InputChannel *c
    if g.buffers.lacking == 0:
        return
    for i in range(g.n_channels):
        c = g.channels[i]
        if c.kind == CHANNEL_WIRE and c.state == CHANNEL_OPEN and c.connection != NULL and \
                not c.buffers.lacks_segment and not c.buffers.recalled:
            c.buffers.recalled = True
            c.buffers.recall = True
            c.buffers.reports_backlog = True
            c.announce(c.connection)


cdef uint32_t _room(GateCore *g) noexcept nogil:
    # Lock held.  Segments that the gate may hold now, without those of blocked channels.
    cdef int64_t wanted = <int64_t> g.buffers.exclusive * g.buffers.open + g.buffers.floating_limit
    return <uint32_t> max(<int64_t> 1, min(wanted, <int64_t> local_limit(g.buffers.local)) - g.buffers.withheld)


cdef inline uint32_t _used(GateCore *g) noexcept nogil:
    return <uint32_t> (g.buffers.with_reader - g.buffers.withheld)


cdef void _say(GateCore *g) noexcept nogil:
    # Lock held.  Flow control without credit: makes the transport send the announcement to every sender.
    cdef uint32_t i
    cdef InputChannel *c
    for i in range(g.n_channels):
        c = g.channels[i]
        if c.kind == CHANNEL_WIRE and c.state == CHANNEL_OPEN and c.connection != NULL:
            c.announce(c.connection)


cdef uint32_t *_place(GateCore *g, uint32_t number) noexcept nogil:
    # Lock held.  The entry of the hash table that has the channel of that number, or a free one for it.
    cdef uint32_t at = (number * <uint32_t> 2654435769) >> 7        # Knuth's multiplicative hash
    while True:
        at &= g.places_mask
        g.looks += 1
        if g.places[at] == 0 or g.channels[g.places[at] - 1].number == number:
            return &g.places[at]
        at += 1


cdef bint _grow(GateCore *g) noexcept nogil:
    # Lock held.  Makes room for twice as many channels; False: no memory, nothing has changed.
    cdef uint32_t capacity = max(<uint32_t> 16, g.channels_capacity * 2)
    cdef uint32_t i
    cdef uint32_t *places = <uint32_t *> calloc(2 * <size_t> capacity, sizeof(uint32_t))
    cdef InputChannel **grown = NULL
    if places != NULL:
        grown = <InputChannel **> realloc(g.channels, sizeof(void *) * <size_t> capacity)
    if grown == NULL:
        free(places)
        return False
    free(g.places)
    g.places = places
    g.places_mask = 2 * capacity - 1
    g.channels = grown
    g.channels_capacity = capacity
    for i in range(g.n_channels):
        _place(g, g.channels[i].number)[0] = i + 1
    return True


cdef inline void _took(GateCore *g) noexcept nogil:
    # Lock held.  Flow control without credit: the number of segments in use has changed.
    if g.flow.kind != FLOW_CREDIT and flow_took(&g.flow, _used(g), _room(g), fb_now_ns()):
        _say(g)


cdef InputChannel *_new_channel(GateCore *g, uint32_t number, uint32_t *place) noexcept nogil:
    # Lock held.  NULL: no memory.
    cdef InputChannel *c = <InputChannel *> calloc(1, sizeof(InputChannel))
    if c != NULL:
        c.gate = g
        c.number = number
        c.index = g.n_channels
        g.channels[g.n_channels] = c
        g.n_channels += 1
        place[0] = g.n_channels
        if g.buffers.unopened > 0:
            g.buffers.unopened -= 1
    return c


cdef InputChannel *_replaced(GateCore *g, InputChannel *c, bint again) noexcept nogil:
    # Lock held.  The channel for another producer of that number, once all of the one before was read, and no transport
    # points to it any more; else NULL.
    if c.connection != NULL or not (c.state == CHANNEL_LOST or again and c.state == CHANNEL_FINISHED):
        return NULL
    g.lost -= c.state == CHANNEL_LOST
    c.before = c.counted.buffers
    c.buffers.blocked = False
    c.next_sequence = 0
    c.gap = 0
    c.events_queued = 0
    c.events_untold = 0
    c.flow_told = 0
    return c


cdef InputChannel *gate_open_channel(GateCore *g, uint32_t number, ChannelKind kind, int64_t flush_ns,
                                     bint again) noexcept nogil:
    """A new channel; NULL: no memory, the gate is closed, or the producer's number is in use."""
    cdef InputChannel *c = NULL
    cdef uint32_t *place
    pthread_mutex_lock(&g.lock)
    if not g.closed and (g.n_channels < g.channels_capacity or _grow(g)):
        place = _place(g, number)
        c = _replaced(g, g.channels[place[0] - 1], again) if place[0] else _new_channel(g, number, place)
        if c != NULL:
            c.state = CHANNEL_OPEN
            # It may come from another process: with too small a value the reader would only poll, and too large a one
            # would overflow.
            c.flush_ns = flush_ns if flush_ns <= 0 else min(max(flush_ns, <int64_t> LEAST_FLUSH_NS), MOST_FLUSH_NS)
            c.flush_turn = fb_now_ns() // c.flush_ns if c.flush_ns > 0 else 0
            c.kind = kind
            if kind != CHANNEL_WIRE:
                c.buffers.closed = True         # it needs no segment of the gate's
            else:
                # Credit is granted now, and announced when the connection is set.
                bm_open(&g.buffers, &c.buffers, c)
                _announce(g)
                _recall(g)
    pthread_mutex_unlock(&g.lock)
    return c


# ---- transport's thread


cdef void gate_connect(GateCore *g, InputChannel *c, void *connection, channel_fn announce,
                       channel_fn cancel) noexcept nogil:
    """Sets the connection; from now on the gate may ask it to announce credit, or to cancel."""
    pthread_mutex_lock(&g.lock)
    c.announce = announce
    c.cancel = cancel
    c.connection = connection
    if c.state == CHANNEL_OPEN and failure_code(&g.failure):
        _cancel_channel(g, c)           # a producer that connects after the failure must learn of it
    elif c.state == CHANNEL_CANCELLED:
        cancel(connection)
    else:
        _recall(g)
    pthread_mutex_unlock(&g.lock)


cdef int32_t gate_segment(GateCore *g, InputChannel *c, uint32_t backlog) noexcept nogil:
    """A segment for an arriving buffer; -1: it was sent without credit; -2: the channel is not open."""
    cdef int32_t s
    pthread_mutex_lock(&g.lock)
    if c.state != CHANNEL_OPEN:
        s = -2
    else:
        s = bm_take(&g.buffers, &c.buffers, backlog)
        _announce(g)
        _tell(c)
        if s >= 0:
            _took(g)
    pthread_mutex_unlock(&g.lock)
    return s


cdef inline void _schedule(GateCore *g, InputChannel *c) noexcept nogil:
    # Lock held.  The channel has data: puts it at the end of the queue of channels.
    if c.scheduled or c.buffers.blocked:
        return
    c.scheduled = True
    c.next_scheduled = NULL
    if g.first_scheduled == NULL:
        g.first_scheduled = c
    else:
        g.last_scheduled.next_scheduled = c
    g.last_scheduled = c


cdef int _push(GateCore *g, InputChannel *c, int32_t segment, uint32_t length, EventBlob *event) noexcept nogil:
    # The queue is bounded: buffers by credit, events by EVENT_CREDIT.
    cdef ReadyBuffer *grown
    cdef ReadyBuffer *b
    cdef uint32_t i, capacity
    if c.count == c.capacity:
        capacity = max(<uint32_t> LEAST_QUEUE, 2 * c.capacity)
        grown = <ReadyBuffer *> malloc(capacity * sizeof(ReadyBuffer))
        if grown == NULL:
            return -1
        for i in range(c.count):
            grown[i] = c.queue[(c.head + i) & (c.capacity - 1)]
        free(c.queue)
        c.queue = grown
        c.head = 0
        c.capacity = capacity
    b = &c.queue[(c.head + c.count) & (c.capacity - 1)]
    b.channel = c
    b.segment = segment
    b.length = length
    b.event = event
    b.gap = c.gap
    c.gap = 0
    c.count += 1
    _schedule(g, c)
    return 0


cdef void _drop(GateCore *g, InputChannel *c) noexcept nogil:
    # Lock held, or no other thread is left.  Recycles what waits for the reader.
    cdef ReadyBuffer *b
    while c.count:
        b = &c.queue[c.head & (c.capacity - 1)]
        c.head += 1
        c.count -= 1
        if b.segment >= 0:
            bm_release(&g.buffers, &c.buffers, b.segment)
        else:
            free(b.event)


cdef int gate_deliver(GateCore *g, InputChannel *c, int32_t segment, uint32_t length) noexcept nogil:
    cdef int rc
    cdef bint waits
    pthread_mutex_lock(&g.lock)
    if g.closed or c.state != CHANNEL_OPEN:
        bm_release(&g.buffers, &c.buffers, segment)
        pthread_mutex_unlock(&g.lock)
        return 0
    rc = _push(g, c, segment, length, NULL)
    c.counted.buffers += 1
    c.counted.bytes += length
    g.bytes += length
    waits = c.buffers.blocked
    pthread_mutex_unlock(&g.lock)
    if rc == 0 and not waits:
        gate_notify(g)
    return rc


cdef void gate_miss(GateCore *g, InputChannel *c, uint32_t records) noexcept nogil:
    """The writer has dropped so many records before what it sends next."""
    pthread_mutex_lock(&g.lock)
    c.gap += records
    pthread_mutex_unlock(&g.lock)


cdef int gate_deliver_event(GateCore *g, InputChannel *c, EventBlob *event) noexcept nogil:
    """Queues the event, which the gate owns from here on; -1: the sender had no event credit."""
    cdef int rc = -1
    pthread_mutex_lock(&g.lock)
    if g.closed or c.state != CHANNEL_OPEN:
        rc = 0
    elif c.events_queued < EVENT_CREDIT and _push(g, c, READY_EVENT, event.length, event) == 0:
        c.events_queued += 1
        pthread_mutex_unlock(&g.lock)
        gate_notify(g)
        return 0
    pthread_mutex_unlock(&g.lock)
    free(event)
    return rc


cdef void gate_return(GateCore *g, InputChannel *c, int32_t segment) noexcept nogil:
    """Gives back a segment taken for a buffer that did not arrive completely."""
    pthread_mutex_lock(&g.lock)
    bm_release(&g.buffers, &c.buffers, segment)
    _announce(g)
    pthread_mutex_unlock(&g.lock)


cdef int gate_end_channel(GateCore *g, InputChannel *c, uint64_t total) noexcept nogil:
    """End of partition: `total` buffers were sent; -1: some did not arrive."""
    cdef int rc = 0
    pthread_mutex_lock(&g.lock)
    if c.state == CHANNEL_OPEN:
        # The wire counts modulo 2**32, as its sequence numbers do.
        c.announced_total = c.counted.buffers - c.before
        if <uint32_t> total != <uint32_t> c.announced_total:
            rc = -1
        elif _push(g, c, READY_END, 0, NULL) == 0:
            c.state = CHANNEL_ENDED
            # Other channels can use its segments from now on.
            bm_close(&g.buffers, &c.buffers)
            _announce(g)
        else:
            rc = -1
    pthread_mutex_unlock(&g.lock)
    gate_notify(g)
    return rc


cdef void gate_lose(GateCore *g, InputChannel *c, FailureCode code, const char *text, size_t length) noexcept nogil:
    """The producer was lost, or gave up: fails the gate, or ends the channel behind everything that came of it."""
    cdef EventBlob *reason = NULL
    cdef bint fails = True
    if g.on_loss != LOSS_ERROR:
        reason = event_new(<const uint8_t *> text, <uint32_t> length)
    if reason != NULL:
        pthread_mutex_lock(&g.lock)
        fails = False
        if c.state != CHANNEL_OPEN or g.closed:
            free(reason)
        elif _push(g, c, READY_LOST, reason.length, reason) == 0:
            c.state = CHANNEL_ENDED
            if not c.buffers.closed:
                bm_close(&g.buffers, &c.buffers)
                _announce(g)
        else:
            free(reason)
            fails = True
        pthread_mutex_unlock(&g.lock)
    if fails:
        failure_set(&g.failure, code, text, length)
    gate_notify(g)


cdef bint gate_channel_is_open(GateCore *g, InputChannel *c) noexcept nogil:
    """Whether it is neither ended nor cancelled; losing the connection now is an error."""
    cdef bint is_open
    pthread_mutex_lock(&g.lock)
    is_open = c.state == CHANNEL_OPEN
    pthread_mutex_unlock(&g.lock)
    return is_open


cdef void gate_disconnect(GateCore *g, InputChannel *c) noexcept nogil:
    """The connection is gone; the gate does not call the transport for this channel any more."""
    pthread_mutex_lock(&g.lock)
    c.connection = NULL
    if not c.buffers.closed:
        bm_close(&g.buffers, &c.buffers)
        _announce(g)
    pthread_mutex_unlock(&g.lock)
    gate_notify(g)


cdef uint32_t gate_take_credit(GateCore *g, InputChannel *c, uint32_t *events) noexcept nogil:
    """Takes the credits to announce to the sender now; events: how many more events it may send."""
    cdef uint32_t n
    pthread_mutex_lock(&g.lock)
    n = c.buffers.unannounced
    c.buffers.unannounced = 0
    events[0] = c.events_untold
    c.events_untold = 0
    pthread_mutex_unlock(&g.lock)
    return n


cdef bint gate_take_announcement(GateCore *g, InputChannel *c, uint32_t *events, uint32_t *said) noexcept nogil:
    """Flow control without credit: whether to announce `said` to the sender; events: how many more it may send.

    The sender knows no credits, so a recall cannot be passed on to it: the gate gives the segments back here.
    """
    cdef bint there = False
    pthread_mutex_lock(&g.lock)
    events[0] = c.events_untold
    c.events_untold = 0
    c.buffers.unannounced = 0
    if c.state == CHANNEL_OPEN and not c.buffers.closed:
        if c.buffers.recall and c.buffers.ready_count:
            bm_take_back(&g.buffers, &c.buffers, <uint32_t> c.buffers.ready_count, 0)
            _announce(g)
        there = c.flow_told != g.flow.version
        c.flow_told = g.flow.version
        said[0] = g.flow.said
    c.buffers.recall = False
    pthread_mutex_unlock(&g.lock)
    return there


cdef void gate_wants(GateCore *g, InputChannel *c, uint32_t backlog) noexcept nogil:
    """Flow control without credit: the channel needs segments for `backlog` buffers that arrived or wait."""
    pthread_mutex_lock(&g.lock)
    if c.state == CHANNEL_OPEN and not c.buffers.closed:
        bm_take_back(&g.buffers, &c.buffers, 0, backlog)
        _announce(g)
        _recall(g)
    pthread_mutex_unlock(&g.lock)


cdef bint gate_take_recall(GateCore *g, InputChannel *c) noexcept nogil:
    """Whether to ask the sender now to give back unused credit."""
    cdef bint asked
    pthread_mutex_lock(&g.lock)
    asked = c.buffers.recall and c.state == CHANNEL_OPEN
    c.buffers.recall = False
    pthread_mutex_unlock(&g.lock)
    return asked


cdef int gate_take_back(GateCore *g, InputChannel *c, uint32_t n, uint32_t backlog) noexcept nogil:
    """The sender gives back `n` credits, and `backlog` of its buffers wait for credit; -1: it never had so many."""
    cdef int rc = 0
    pthread_mutex_lock(&g.lock)
    if c.state == CHANNEL_OPEN and not c.buffers.closed:
        if n > <uint32_t> c.buffers.ready_count - c.buffers.unannounced:
            rc = -1
        else:
            bm_take_back(&g.buffers, &c.buffers, n, backlog)
            _announce(g)
            _tell(c)
            _recall(g)
    pthread_mutex_unlock(&g.lock)
    return rc


cdef void gate_abort(GateCore *g) noexcept nogil:
    """The reader has failed: cancels every open remote channel, so that its connection sends the reason."""
    cdef uint32_t i
    cdef InputChannel *c
    pthread_mutex_lock(&g.lock)
    for i in range(g.n_channels):
        c = g.channels[i]
        if c.kind == CHANNEL_WIRE and c.state == CHANNEL_OPEN:
            _cancel_channel(g, c)
    _announce(g)
    pthread_mutex_unlock(&g.lock)


cdef inline void _cancel_channel(GateCore *g, InputChannel *c) noexcept nogil:
    c.state = CHANNEL_CANCELLED
    if not c.buffers.closed:
        bm_close(&g.buffers, &c.buffers)
    if c.connection != NULL:
        c.cancel(c.connection)


cdef void gate_fail(GateCore *g, FailureCode code, const char *text, size_t length) noexcept nogil:
    failure_set(&g.failure, code, text, length)
    gate_notify(g)


# ---- reader


cdef uint32_t gate_take_ready(GateCore *g, ReadyBuffer *out, uint32_t most) noexcept nogil:
    """Takes up to `most` buffers, in order within each channel; stops after an event."""
    cdef InputChannel *c
    cdef uint32_t n = 0
    cdef bint event = False
    pthread_mutex_lock(&g.lock)
    while n < most and not event and g.first_scheduled != NULL:
        c = g.first_scheduled
        g.first_scheduled = c.next_scheduled
        c.scheduled = False
        if c.buffers.blocked:   # blocked since it was scheduled; gate_block schedules it again
            continue
        while c.count and n < most and not event:
            out[n] = c.queue[c.head & (c.capacity - 1)]
            event = out[n].event != NULL
            c.head += 1
            c.count -= 1
            n += 1
        if c.count:
            _schedule(g, c)
    pthread_mutex_unlock(&g.lock)
    return n


cdef bint gate_block(GateCore *g, uint32_t number, bint blocked) noexcept nogil:
    """Blocks or unblocks a channel; False: no such channel has connected.  With the GIL."""
    cdef InputChannel *c
    cdef uint32_t place
    pthread_mutex_lock(&g.lock)
    place = _place(g, number)[0] if g.n_channels else 0
    if place and g.channels[place - 1].buffers.blocked != blocked:
        c = g.channels[place - 1]
        if blocked:
            bm_block(&g.buffers, &c.buffers)
        else:
            bm_unblock(&g.buffers, &c.buffers)
            if c.count:
                _schedule(g, c)
        _announce(g)
        _recall(g)
        _took(g)                # segments of blocked channels do not count
    pthread_mutex_unlock(&g.lock)
    if place and not blocked:
        gate_notify(g)
    return place != 0


cdef bint _released(GateCore *g, uint64_t bytes) noexcept nogil:
    # Lock held.  Flow control without credit: the reader has released so many bytes.
    return flow_released(&g.flow, _used(g), _room(g), <uint32_t> g.buffers.open, bytes,
                         g.bytes - g.flow.bytes - bytes, fb_now_ns())


cdef void gate_release(GateCore *g, ReadyBuffer *done, uint32_t n) noexcept nogil:
    """The reader has read these buffers: their segments become credit again."""
    cdef uint32_t i
    cdef InputChannel *c
    cdef bint serve
    cdef uint64_t bytes = 0
    if n == 0:
        return
    pthread_mutex_lock(&g.lock)
    g.serving = g.driver != NULL
    g.served = False
    for i in range(n):
        c = done[i].channel
        if done[i].segment >= 0:
            bytes += done[i].length
            bm_release(&g.buffers, &c.buffers, done[i].segment)
        elif done[i].segment == READY_EVENT:
            c.events_queued -= 1
            c.events_untold += 1
            if c.connection != NULL and c.state == CHANNEL_OPEN:
                c.announce(c.connection)
        elif c.state == CHANNEL_ENDED:
            c.state = CHANNEL_FINISHED if done[i].segment == READY_END else CHANNEL_LOST
            g.lost += c.state == CHANNEL_LOST
    _announce(g)
    _recall(g)
    if g.flow.kind != FLOW_CREDIT and bytes and _released(g, bytes):
        _say(g)
    g.serving = False
    serve = g.served
    pthread_mutex_unlock(&g.lock)
    if serve:
        g.driver.serve(g.driver)


cdef void gate_serve(GateCore *g) noexcept nogil:
    """Gives segments that the pool has again to channels that wait for them."""
    pthread_mutex_lock(&g.lock)
    if g.buffers.first_waiter != NULL:
        bm_serve(&g.buffers)
        _announce(g)
    pthread_mutex_unlock(&g.lock)


cdef void gate_set_lost(GateCore *g, InputChannel *c) noexcept nogil:
    """The reader has read what the lost producer of a channel read in place has left."""
    pthread_mutex_lock(&g.lock)
    c.state = CHANNEL_LOST
    g.lost += 1
    pthread_mutex_unlock(&g.lock)


cdef inline bint _is_over(InputChannel *c) noexcept nogil:
    return c.state == CHANNEL_FINISHED or c.state == CHANNEL_LOST


cdef bint gate_unfinished(GateCore *g, uint32_t *channels) noexcept nogil:
    """Whether some channel was not read to its end, or to its loss; channels: how many there are but lost ones."""
    cdef uint32_t i
    cdef bint unfinished = False
    pthread_mutex_lock(&g.lock)
    for i in range(g.n_channels):       # called at each poll; usually ends at the first channel
        if not _is_over(g.channels[i]):
            unfinished = True
            break
    channels[0] = g.n_channels - g.lost
    pthread_mutex_unlock(&g.lock)
    return unfinished


cdef bint gate_all_wait(GateCore *g) noexcept nogil:
    """Whether every channel that was not read to its end is blocked."""
    cdef uint32_t i
    cdef bint all_wait = True
    pthread_mutex_lock(&g.lock)
    for i in range(g.n_channels):
        if not _is_over(g.channels[i]) and not g.channels[i].buffers.blocked:
            all_wait = False
    pthread_mutex_unlock(&g.lock)
    return all_wait


cdef uint32_t gate_channels(GateCore *g) noexcept nogil:
    """How many channels have been opened."""
    cdef uint32_t n
    pthread_mutex_lock(&g.lock)
    n = g.n_channels
    pthread_mutex_unlock(&g.lock)
    return n


cdef InputChannel *gate_channel(GateCore *g, uint32_t index) noexcept nogil:
    """The channel at that index.  Its pointer stays valid, though the list may move."""
    cdef InputChannel *c
    pthread_mutex_lock(&g.lock)
    c = g.channels[index]
    pthread_mutex_unlock(&g.lock)
    return c


cdef void gate_cancel(GateCore *g) noexcept nogil:
    """Cancels every open channel and recycles what is queued."""
    cdef uint32_t i
    cdef InputChannel *c
    pthread_mutex_lock(&g.lock)
    g.closed = True
    for i in range(g.n_channels):
        c = g.channels[i]
        _drop(g, c)
        if c.state == CHANNEL_OPEN:
            _cancel_channel(g, c)
        elif c.state == CHANNEL_ENDED:
            c.state = CHANNEL_FINISHED
    _announce(g)
    pthread_mutex_unlock(&g.lock)
    gate_notify(g)

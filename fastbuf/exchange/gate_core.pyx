"""The native half of an input gate (C level; owners and lock order are in the ``.pxd``)."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset

from fastbuf._native.atomics cimport fb_now_ns, fb_u32_init, fb_u32_load_relaxed
from fastbuf._native.sockets cimport eventfd_read
from fastbuf._native.threads cimport (
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from fastbuf.exchange.doorbell cimport Bell, bell_arm, bell_ring
from fastbuf.exchange.failure cimport FailureCode, failure_code, failure_init, failure_set
from fastbuf.exchange.input_channel cimport (
    CHANNEL_CANCELLED,
    CHANNEL_ENDED,
    CHANNEL_FINISHED,
    CHANNEL_OPEN,
    CHANNEL_WIRE,
    READY_END,
    READY_EVENT,
    ChannelKind,
    InputChannel,
    ReadyBuffer,
    channel_fn,
)
from fastbuf.exchange.result_subpartition cimport EventBlob
from fastbuf.flow.buffer_manager cimport (
    ChannelBuffers,
    bm_block,
    bm_close,
    bm_count_ready,
    bm_free,
    bm_init,
    bm_next_announce,
    bm_open,
    bm_release,
    bm_serve,
    bm_take,
    bm_take_back,
    bm_unblock,
)
from fastbuf.flow.credit_ledger cimport CreditRow, credit_look
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
    """Transports have let go of every channel and the reader has ended: all segments go home."""
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
    """Something came, failed or ended: the reader looks again, whatever it waits on."""
    bell_ring(g.bell, &g.wake_fd)


cdef void gate_arm(GateCore *g) noexcept nogil:
    """From now on the next notice makes `wake_fd` readable; the caller looks once more before it waits for that."""
    cdef uint64_t ignored
    eventfd_read(<int> fb_u32_load_relaxed(&g.wake_fd), &ignored)
    bell_arm(g.bell)


cdef inline void _tell(InputChannel *c) noexcept nogil:
    # Credit is told in lots of a quarter of what there is, or of more than half of a few: the sender does not wait for
    # every word of ours, nor do we wait for it.  Looked at whenever some is granted or given back, and whenever a
    # buffer has come, so the sender never runs dry for want of it.  Where segments go round, every one is told at once.
    cdef uint32_t untold = c.buffers.unannounced
    cdef uint32_t there = <uint32_t> c.buffers.ready_count
    if c.connection != NULL and c.announce != NULL and untold and (
            c.buffers.poor or (4 * untold >= there if there > 3 else 2 * untold > there)):
        c.announce(c.connection)


cdef void _announce(GateCore *g) noexcept nogil:
    # Lock held.  The transport's callback only notes the wish and wakes its thread.
    cdef ChannelBuffers *b = bm_next_announce(&g.buffers)
    while b != NULL:
        _tell(<InputChannel *> b.owner)
        b = bm_next_announce(&g.buffers)


cdef void _recall(GateCore *g) noexcept nogil:
    # Lock held.  A channel has none, and the pool none for it: whoever has what it does not need is to give it back.
    cdef uint32_t i
    cdef InputChannel *c
    if g.buffers.starved == 0:
        return
    for i in range(g.n_channels):
        c = g.channels[i]
        if c.kind == CHANNEL_WIRE and c.state == CHANNEL_OPEN and c.connection != NULL and not c.buffers.starved and \
                not c.buffers.recalled:
            c.buffers.recalled = True
            c.buffers.recall = True
            c.buffers.poor = True
            c.announce(c.connection)


cdef uint32_t _room(GateCore *g) noexcept nogil:
    # Lock held.  Segments that the gate may hold, as it is now, beside what waits in blocked channels.
    cdef int64_t wanted = <int64_t> g.buffers.exclusive * g.buffers.open + g.buffers.floating_limit
    return <uint32_t> max(<int64_t> 1, min(wanted, <int64_t> local_limit(g.buffers.local)) - g.buffers.withheld)


cdef inline uint32_t _used(GateCore *g) noexcept nogil:
    return <uint32_t> (g.buffers.with_reader - g.buffers.withheld)


cdef void _say(GateCore *g) noexcept nogil:
    # Lock held.  Flow control without credit: every sender is to be told.
    cdef uint32_t i
    cdef InputChannel *c
    for i in range(g.n_channels):
        c = g.channels[i]
        if c.kind == CHANNEL_WIRE and c.state == CHANNEL_OPEN and c.connection != NULL:
            c.announce(c.connection)


cdef uint32_t *_place(GateCore *g, uint32_t number) noexcept nogil:
    # Lock held.  Where that number's channel is, or is to be.
    cdef uint32_t at = (number * <uint32_t> 2654435769) >> 7        # Knuth's: numbers in a row lie apart
    while True:
        at &= g.places_mask
        g.looks += 1
        if g.places[at] == 0 or g.channels[g.places[at] - 1].number == number:
            return &g.places[at]
        at += 1


cdef bint _grow(GateCore *g) noexcept nogil:
    # Lock held.  Room for twice as many channels; False: no memory, and all is as it was.
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
    # Lock held.  Flow control without credit: more segments are in use, or fewer.
    if g.flow.kind != FLOW_CREDIT and flow_took(&g.flow, _used(g), _room(g), fb_now_ns()):
        _say(g)


cdef InputChannel *gate_open_channel(GateCore *g, uint32_t number, ChannelKind kind, int64_t flush_ns) noexcept nogil:
    """A new channel, or NULL: out of memory, the gate is closed, or the producer's number is there already."""
    cdef InputChannel *c = NULL
    cdef uint32_t *place
    pthread_mutex_lock(&g.lock)
    if not g.closed and (g.n_channels < g.channels_capacity or _grow(g)):
        place = _place(g, number)
        if place[0] != 0:
            pthread_mutex_unlock(&g.lock)
            return NULL
        c = <InputChannel *> calloc(1, sizeof(InputChannel))
        if c != NULL:
            c.gate = g
            c.number = number
            c.index = g.n_channels
            c.state = CHANNEL_OPEN
            # From another process, maybe: neither is the reader to do nothing but look, nor is a sum to overflow.
            c.flush_ns = flush_ns if flush_ns <= 0 else min(max(flush_ns, <int64_t> LEAST_FLUSH_NS), MOST_FLUSH_NS)
            c.flush_turn = fb_now_ns() // c.flush_ns if c.flush_ns > 0 else 0
            c.kind = kind
            g.channels[g.n_channels] = c
            g.n_channels += 1
            place[0] = g.n_channels
            if g.buffers.unopened > 0:
                g.buffers.unopened -= 1
            if kind != CHANNEL_WIRE:
                c.buffers.closed = True         # it needs no segment of the gate's
            else:
                # Credit is granted now and told when the connection is in place.
                bm_open(&g.buffers, &c.buffers, c)
                _announce(g)
                _recall(g)
    pthread_mutex_unlock(&g.lock)
    return c


# ---- transport's thread


cdef void gate_connect(GateCore *g, InputChannel *c, void *connection, channel_fn announce,
                       channel_fn cancel) noexcept nogil:
    """The connection is in place: from now on the gate may ask it to announce credit, or to cancel."""
    pthread_mutex_lock(&g.lock)
    c.announce = announce
    c.cancel = cancel
    c.connection = connection
    if c.state == CHANNEL_OPEN and failure_code(&g.failure):
        _cancel_channel(g, c)           # whoever comes after the failure is told of it too
    elif c.state == CHANNEL_CANCELLED:
        cancel(connection)
    else:
        _recall(g)
    pthread_mutex_unlock(&g.lock)


cdef int32_t gate_segment(GateCore *g, InputChannel *c, uint32_t backlog) noexcept nogil:
    """The segment for a buffer whose header has come; -1: it was sent without credit; -2: the channel is cancelled."""
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
    # Lock held.  It has something: its turn comes behind that of those who had something before.
    if c.scheduled or c.blocked:
        return
    c.scheduled = True
    c.next_scheduled = NULL
    if g.first_scheduled == NULL:
        g.first_scheduled = c
    else:
        g.last_scheduled.next_scheduled = c
    g.last_scheduled = c


cdef int _push(GateCore *g, InputChannel *c, int32_t segment, uint32_t length, EventBlob *event) noexcept nogil:
    # What a channel may have waiting is bounded by its credit, for buffers and for events.
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
    c.count += 1
    _schedule(g, c)
    return 0


cdef void _drop(GateCore *g, InputChannel *c) noexcept nogil:
    # Lock held, or nobody is left.  What waits for the reader goes home.
    cdef ReadyBuffer *b
    while c.count:
        b = &c.queue[c.head & (c.capacity - 1)]
        c.head += 1
        c.count -= 1
        if b.segment >= 0:
            bm_release(&g.buffers, &c.buffers, b.segment)
        elif b.segment == READY_EVENT:
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
    c.received += 1
    c.bytes += length
    g.bytes += length
    waits = c.blocked
    pthread_mutex_unlock(&g.lock)
    if rc == 0 and not waits:
        gate_notify(g)
    return rc


cdef int gate_deliver_event(GateCore *g, InputChannel *c, EventBlob *event) noexcept nogil:
    """The gate owns the event from here on.  -1: the sender had no place for it."""
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
    """A segment taken for a buffer that never came whole."""
    pthread_mutex_lock(&g.lock)
    bm_release(&g.buffers, &c.buffers, segment)
    _announce(g)
    pthread_mutex_unlock(&g.lock)


cdef int gate_end_channel(GateCore *g, InputChannel *c, uint64_t total) noexcept nogil:
    """End of partition: `total` buffers were sent.  -1: not all of them came."""
    cdef int rc = 0
    pthread_mutex_lock(&g.lock)
    if c.state == CHANNEL_OPEN:
        # The wire counts modulo 2**32, as its sequence numbers do.
        c.announced_total = c.received
        if <uint32_t> total != <uint32_t> c.received:
            rc = -1
        elif _push(g, c, READY_END, 0, NULL) == 0:
            c.state = CHANNEL_ENDED
            # What it still held for data serves the other channels from now on.
            bm_close(&g.buffers, &c.buffers)
            _announce(g)
        else:
            rc = -1
    pthread_mutex_unlock(&g.lock)
    gate_notify(g)
    return rc


cdef bint gate_channel_is_open(GateCore *g, InputChannel *c) noexcept nogil:
    """Neither ended nor cancelled: an end of the connection now would be a loss."""
    cdef bint is_open
    pthread_mutex_lock(&g.lock)
    is_open = c.state == CHANNEL_OPEN
    pthread_mutex_unlock(&g.lock)
    return is_open


cdef void gate_disconnect(GateCore *g, InputChannel *c) noexcept nogil:
    """The connection is gone: from here on nobody calls into the transport for this channel."""
    pthread_mutex_lock(&g.lock)
    c.connection = NULL
    if not c.buffers.closed:
        bm_close(&g.buffers, &c.buffers)
        _announce(g)
    pthread_mutex_unlock(&g.lock)
    gate_notify(g)


cdef uint32_t gate_take_credit(GateCore *g, InputChannel *c, uint32_t *events) noexcept nogil:
    """Credits to tell the sender now, and places of events."""
    cdef uint32_t n
    pthread_mutex_lock(&g.lock)
    n = c.buffers.unannounced
    c.buffers.unannounced = 0
    events[0] = c.events_untold
    c.events_untold = 0
    pthread_mutex_unlock(&g.lock)
    return n


cdef bint gate_take_announcement(GateCore *g, InputChannel *c, uint32_t *events, uint32_t *said) noexcept nogil:
    """Flow control without credit: whether the sender is to be told `said`, and places of events.

    Nobody is told of credit: what is asked back of this channel, for one that has no segment, is given back here.
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
    """Flow control without credit: so many buffers have come, or wait, that there is no segment for."""
    pthread_mutex_lock(&g.lock)
    if c.state == CHANNEL_OPEN and not c.buffers.closed:
        bm_take_back(&g.buffers, &c.buffers, 0, backlog)
        _announce(g)
        _recall(g)
    pthread_mutex_unlock(&g.lock)


cdef bint gate_take_recall(GateCore *g, InputChannel *c) noexcept nogil:
    """Whether the sender is to be asked now for the credit that it does not need."""
    cdef bint asked
    pthread_mutex_lock(&g.lock)
    asked = c.buffers.recall and c.state == CHANNEL_OPEN
    c.buffers.recall = False
    pthread_mutex_unlock(&g.lock)
    return asked


cdef int gate_take_back(GateCore *g, InputChannel *c, uint32_t n, uint32_t backlog) noexcept nogil:
    """The sender gives back `n` credits, and has `backlog` buffers that wait for one; -1: it never had so many."""
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
    """The reader has failed and says so now: every remote channel that is open asks its connection to say why."""
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


cdef void gate_fail(GateCore *g, int code, const char *text, size_t length) noexcept nogil:
    failure_set(&g.failure, <FailureCode> code, text, length)
    gate_notify(g)


# ---- reader


cdef uint32_t gate_take_ready(GateCore *g, ReadyBuffer *out, uint32_t most) noexcept nogil:
    """What has come, a channel's in its order; an event is the last of what is given: what comes after it is later."""
    cdef InputChannel *c
    cdef uint32_t n = 0
    cdef bint event = False
    pthread_mutex_lock(&g.lock)
    while n < most and not event and g.first_scheduled != NULL:
        c = g.first_scheduled
        g.first_scheduled = c.next_scheduled
        c.scheduled = False
        if c.blocked:           # since it was scheduled; gate_block sees to its turn when that is over
            continue
        while c.count and n < most and not event:
            out[n] = c.queue[c.head & (c.capacity - 1)]
            event = out[n].segment == READY_EVENT
            c.head += 1
            c.count -= 1
            n += 1
        if c.count:
            _schedule(g, c)
    pthread_mutex_unlock(&g.lock)
    return n


cdef bint gate_block(GateCore *g, uint32_t number, bint blocked) noexcept nogil:
    """From now on the channel waits with all it has, or no more; False: no such channel has come.  With the GIL."""
    cdef InputChannel *c
    cdef uint32_t place
    pthread_mutex_lock(&g.lock)
    place = _place(g, number)[0] if g.n_channels else 0
    if place and g.channels[place - 1].blocked != blocked:
        c = g.channels[place - 1]
        c.blocked = blocked
        if c.kind != CHANNEL_WIRE:
            pass                # the producer's own segments are all there is
        elif blocked:
            bm_block(&g.buffers, &c.buffers)
        else:
            bm_unblock(&g.buffers, &c.buffers)
            if c.count:
                _schedule(g, c)
        _announce(g)
        _recall(g)
        _took(g)                # what a blocked channel has keeps no other from sending
    pthread_mutex_unlock(&g.lock)
    if place and not blocked:
        gate_notify(g)
    return place != 0


cdef bint _released(GateCore *g, uint64_t bytes) noexcept nogil:
    # Lock held.  Flow control without credit: the reader is done with so many.
    return flow_released(&g.flow, _used(g), _room(g), <uint32_t> g.buffers.open, bytes,
                         g.bytes - g.flow.bytes - bytes, fb_now_ns())


cdef void gate_release(GateCore *g, ReadyBuffer *done, uint32_t n) noexcept nogil:
    """The reader is done with these buffers: their segments become credit again."""
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
            c.state = CHANNEL_FINISHED
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
    """The pool may have segments again (another pool returned some): give them to who waits."""
    pthread_mutex_lock(&g.lock)
    if g.buffers.first_waiter != NULL:
        bm_serve(&g.buffers)
        _announce(g)
    pthread_mutex_unlock(&g.lock)


cdef bint gate_unfinished(GateCore *g, uint32_t *channels) noexcept nogil:
    """Whether there is a channel that the reader has not had everything of; `channels`: how many there are."""
    cdef uint32_t i
    cdef bint found = False
    pthread_mutex_lock(&g.lock)
    for i in range(g.n_channels):       # asked at each poll, and nearly always answered by the first
        if g.channels[i].state != CHANNEL_FINISHED:
            found = True
            break
    channels[0] = g.n_channels
    pthread_mutex_unlock(&g.lock)
    return found


cdef bint gate_all_wait(GateCore *g) noexcept nogil:
    """Whether every channel that the reader has not had everything of is blocked."""
    cdef uint32_t i
    cdef bint found = True
    pthread_mutex_lock(&g.lock)
    for i in range(g.n_channels):
        if g.channels[i].state != CHANNEL_FINISHED and not g.channels[i].blocked:
            found = False
    pthread_mutex_unlock(&g.lock)
    return found


cdef uint32_t gate_channels(GateCore *g) noexcept nogil:
    """How many channels there are so far."""
    cdef uint32_t n
    pthread_mutex_lock(&g.lock)
    n = g.n_channels
    pthread_mutex_unlock(&g.lock)
    return n


cdef InputChannel *gate_channel(GateCore *g, uint32_t index) noexcept nogil:
    """The channel at that place: the list moves as it grows, the channels stay."""
    cdef InputChannel *c
    pthread_mutex_lock(&g.lock)
    c = g.channels[index]
    pthread_mutex_unlock(&g.lock)
    return c


cdef void gate_figures(GateCore *g, uint64_t *bytes, uint64_t *received) noexcept nogil:
    cdef uint32_t i
    bytes[0] = received[0] = 0
    pthread_mutex_lock(&g.lock)
    for i in range(g.n_channels):
        bytes[0] += g.channels[i].bytes
        received[0] += g.channels[i].received
    pthread_mutex_unlock(&g.lock)


cdef uint32_t gate_accounts(GateCore *g, ChannelAccount *out, uint32_t most, GateAccount *gate) noexcept nogil:
    """All channels, and what they share, as they are at one moment; -> how many channels there are.

    More than `most`: nothing was copied, call again with more room.
    """
    cdef InputChannel *c
    cdef ChannelAccount *a
    cdef uint32_t i, n
    pthread_mutex_lock(&g.lock)
    n = g.n_channels
    gate.floating_out = g.buffers.floating_out
    gate.ready = bm_count_ready(&g.buffers)
    for i in range(n if n <= most else 0):
        c = g.channels[i]
        a = &out[i]
        memset(a, 0, sizeof(ChannelAccount))
        a.number = c.number
        a.is_local = c.kind != CHANNEL_WIRE
        if not a.is_local:          # else its state is the reader's
            credit_look(c.buffers.credit, &a.credit)
            a.ready = c.buffers.ready_count
            a.with_reader = c.buffers.with_reader
            a.missing = c.buffers.missing
            a.closed = c.buffers.closed
            a.state = c.state
            a.received = c.received
            a.queued = c.buffers.with_reader
        a.blocked = c.blocked
    pthread_mutex_unlock(&g.lock)
    return n


cdef void gate_cancel(GateCore *g) noexcept nogil:
    """The reader wants no more: every open channel is cancelled, what is queued goes home."""
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

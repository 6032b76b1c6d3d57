"""The native I/O thread: epoll over all connections of an environment (the ``.pxd`` has the wake-up protocol)."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset, strlen

from fastbuf._native.atomics cimport *
from fastbuf._native.sockets cimport *
from fastbuf._native.threads cimport PR_SET_NAME, prctl, pthread_mutex_lock, pthread_mutex_unlock
from fastbuf.exchange.failure cimport FAIL_PEER_LOST, failure_set
from fastbuf.exchange.gate_core cimport gate_connect
from fastbuf.flow.flow_control cimport FLOW_CREDIT
from fastbuf.transports.messages cimport FRAME_ABORT
from fastbuf.transports.tcp_connection cimport *
from fastbuf.transports.tcp_state cimport *
from fastbuf.transports.tcp_stream cimport receiver_let_go, sender_let_go

cdef extern from *:
    """
    /* 64-bit exchange of a pointer-sized atomic: takes the whole stack of dirty streams. */
    #include "fb_atomic.h"
    static inline uint64_t fb_take_all(fb_au64 *a) { return fb_u64_exchange_acq_rel(a, 0); }
    """
    uint64_t fb_take_all(fb_au64 *a) nogil

cdef enum:
    EVENTS = 64
    SWEEP_NS = 200000000        # how often lingering connections are checked
    # How often the I/O thread wakes while guests do its work: seldom, since it takes a core from a busy thread.
    LOOK_NS = 4000000
    LOOKS = 4                   # wake-ups in a row without a guest, after which it does the work again
    LAST_WORDS_NS = 200000000   # how long a stopping loop waits for peers to read their last frames

cdef const char *LOST = b"the consumer was lost as it welcomed the channel"


# ---- other threads


cdef void loop_wake(IoLoop *loop) noexcept nogil:
    """Makes the I/O thread look again, wherever it sleeps."""
    if fb_u32_exchange_acq_rel(&loop.sleeping, 0):
        eventfd_write(loop.event_fd, 1)
    fb_event_notify(&loop.parked)


cdef bint loop_push(IoLoop *loop, Stream *s) noexcept nogil:
    cdef uint64_t head
    if fb_u32_exchange_acq_rel(&s.dirty, 1):
        return False
    head = fb_u64_load_relaxed(&loop.dirty)
    while True:
        s.next_dirty = <Stream *> <size_t> head
        if fb_u64_cas_acq_rel(&loop.dirty, &head, <uint64_t> <size_t> s):
            return True


cdef void loop_mark(void *stream) noexcept nogil:
    """The stream has work to do; for any thread, whatever locks it holds."""
    cdef Stream *s = <Stream *> stream
    cdef IoLoop *loop = <IoLoop *> s.loop
    if loop_push(loop, s):
        if fb_u32_exchange_acq_rel(&loop.sleeping, 0):
            eventfd_write(loop.event_fd, 1)
            return
        fb_fence_seq_cst()              # G2
        if fb_u32_load_acquire(&loop.seat) != SEAT_GUEST:
            fb_event_notify(&loop.parked)


cdef void _announce(void *stream) noexcept nogil:
    # The gate's lock is held.  A reader that releases buffers serves its streams itself, after unlocking the gate.
    cdef Stream *s = <Stream *> stream
    if s.gate.serving:
        loop_push(<IoLoop *> s.loop, s)
        s.gate.served = True
    else:
        loop_mark(stream)


cdef void command_init(Command *k, int kind) noexcept nogil:
    memset(k, 0, sizeof(Command))
    k.kind = kind


cdef void _cancel(void *stream) noexcept nogil:
    fb_u32_store_release(&(<Stream *> stream).cancel_asked, 1)
    loop_mark(stream)


# ---- the I/O thread


cdef void _watch(IoLoop *loop, Connection *c) noexcept nogil:
    # Registers the events that the connection waits for; no call if they have not changed.
    cdef epoll_event e
    # While nothing is read: epoll reports anyway that the peer has closed.
    cdef uint32_t mask = (EPOLLERR if c.stopped else EPOLLIN) | (EPOLLOUT if c.blocked else 0)
    if c.fd < 0 or mask == c.epoll_mask:
        return
    e.events = mask
    e.data.ptr = c
    if epoll_ctl(loop.epoll_fd, EPOLL_CTL_MOD if c.epoll_mask else EPOLL_CTL_ADD, c.fd, &e) != 0:
        connection_lost(c, b"epoll refuses it (see fs.epoll.max_user_watches)")
        return
    c.epoll_fd = loop.epoll_fd
    c.epoll_mask = mask


cdef void _bury(IoLoop *loop, Connection *c) noexcept nogil:
    if c.previous != NULL:
        c.previous.next = c.next
    else:
        loop.all.connections = c.next
    if c.next != NULL:
        c.next.previous = c.previous
    fb_u32_sub_acq_rel(&loop.all.open, 1)
    connection_free(c)


cdef bint loop_run(IoLoop *loop, bint bury, bint eager) noexcept nogil:
    """Sends the frames of all connections that have some; True: there is work for the I/O thread.

    That is a connection that is ending, or a stream that may continue at a later time.

    bury: free the connections that died since the last time.  Only for the thread with the seat, without open events.
    """
    cdef Connection *c = loop.all.running
    cdef Connection *dead = NULL
    cdef bint ending = False
    cdef int64_t next_send = loop.all.next_send_ns
    while c != NULL:
        loop.all.running = c.next_running
        if c.phase == PHASE_DEAD and not bury:
            c.next_running = dead       # keep it marked
            dead = c
            ending = True
        else:
            c.running = False
            if c.phase == PHASE_DEAD:
                _bury(loop, c)
            else:
                if c.stopped:
                    connection_goes_on(c)
                connection_write(c, eager)
                _watch(loop, c)         # this, or the write, may have marked the connection again
                if c.phase == PHASE_CLOSING and loop.next_sweep_ns < 0:
                    loop.next_sweep_ns = c.linger_until_ns
                    ending = True
        c = loop.all.running
    loop.all.running = dead
    return ending or loop.all.next_send_ns != next_send


cdef void loop_run_dirty(IoLoop *loop) noexcept nogil:
    cdef Stream *s = <Stream *> <size_t> fb_take_all(&loop.dirty)
    cdef Stream *following
    while s != NULL:
        following = s.next_dirty
        # Clear the flag before handling the stream: later requests mark it again.
        fb_u32_exchange_acq_rel(&s.dirty, 0)
        stream_ready(s)
        s = following


cdef void _flush(IoLoop *loop, int64_t now) noexcept nogil:
    # Like Flink's OutputFlusher: at every buffer timeout, committed bytes may be sent though their buffer is not full.
    cdef Stream *s = loop.all.streams
    cdef int64_t due = -1
    if loop.next_flush_ns < 0 or now < loop.next_flush_ns:
        return
    while s != NULL:
        if s.role == ROLE_SENDER and s.state == STREAM_OPEN and s.flush_interval_ns > 0 and s.sub != NULL:
            s.flush_pending = True
            stream_ready(s)
            if due < 0 or s.flush_interval_ns < due:
                due = s.flush_interval_ns
        s = s.next
    loop.next_flush_ns = -1 if due < 0 else now + due


cdef void _flush_from(IoLoop *loop, Stream *s, int64_t now) noexcept nogil:
    # A stream was opened, perhaps with the shortest timeout so far.
    if s.flush_interval_ns > 0 and (loop.next_flush_ns < 0 or now + s.flush_interval_ns < loop.next_flush_ns):
        loop.next_flush_ns = now + s.flush_interval_ns


cdef void _send_on(IoLoop *loop, int64_t now) noexcept nogil:
    # The rate of a flow control lets some stream go on; look at all: there are few streams, and this is rare.
    cdef Stream *s = loop.all.streams
    if loop.all.next_send_ns < 0 or now < loop.all.next_send_ns:
        return
    loop.all.next_send_ns = -1
    while s != NULL:
        if s.flow.rate and s.sub != NULL:
            stream_ready(s)
        s = s.next


cdef void _look(IoLoop *loop, int64_t now) noexcept nogil:
    # Send PING to silent peers; give up those that stay silent.
    cdef Connection *c = loop.all.connections
    if loop.next_ping_ns < 0 or now < loop.next_ping_ns:
        return
    loop.next_ping_ns = -1
    while c != NULL:
        if c.phase == PHASE_OPEN and c.flow.kind == FLOW_CREDIT:
            if now >= c.ping_due_ns:
                c.ping_due_ns = now + c.ping_interval_ns
                connection_look(c)
            if loop.next_ping_ns < 0 or c.ping_due_ns < loop.next_ping_ns:
                loop.next_ping_ns = c.ping_due_ns
        c = c.next


cdef void _look_from(IoLoop *loop, Connection *c, int64_t interval, int64_t now) noexcept nogil:
    # A stream was added, perhaps with the connection's shortest interval so far.
    if c.ping_interval_ns == 0 or interval < c.ping_interval_ns:
        c.ping_interval_ns = interval
        c.ping_due_ns = now + interval
        if loop.next_ping_ns < 0 or c.ping_due_ns < loop.next_ping_ns:
            loop.next_ping_ns = c.ping_due_ns


cdef void _sweep(IoLoop *loop, int64_t now) noexcept nogil:
    """Ends connections that have lingered long enough."""
    cdef Connection *c = loop.all.connections
    if loop.next_sweep_ns < 0 or now < loop.next_sweep_ns:
        return
    loop.next_sweep_ns = -1
    while c != NULL:
        if c.phase == PHASE_CLOSING:
            if now >= c.linger_until_ns:
                connection_lost(c, b"it did not close its end")
            else:
                loop.next_sweep_ns = now + SWEEP_NS
        c = c.next


cdef void _free_doomed(IoLoop *loop) noexcept nogil:
    """Frees streams that are over and to which no pointer is left."""
    cdef Stream *s = loop.all.doomed
    cdef Stream *following
    loop.all.doomed = NULL
    while s != NULL:
        following = s.next_doomed
        if s.ready or s.piggybacks or fb_u32_load_acquire(&s.dirty):
            s.next_doomed = loop.all.doomed
            loop.all.doomed = s
        else:
            if s.previous != NULL:
                s.previous.next = s.next
            else:
                loop.all.streams = s.next
            if s.next != NULL:
                s.next.previous = s.previous
            stream_free(s)
        s = following


# ---- commands


cdef Connection *_connection(IoLoop *loop, uint64_t serial) noexcept nogil:
    cdef Connection *c = loop.all.connections
    while c != NULL and c.serial != serial:
        c = c.next
    return c if c != NULL and c.phase == PHASE_OPEN and loop.stop_at_ns < 0 else NULL


cdef int _add(IoLoop *loop, Command *k, int64_t now) noexcept nogil:
    cdef Connection *c = k.connection
    loop.last_serial += 1
    c.serial = loop.last_serial
    k.serial = c.serial
    c.loop = loop
    c.next = loop.all.connections
    if c.next != NULL:
        c.next.previous = c
    loop.all.connections = c
    fb_u32_add_acq_rel(&loop.all.open, 1)
    k.stream.state = STREAM_OPEN
    connection_add(c, k.stream, 0)
    _look_from(loop, c, k.ping_interval_ns, now)
    _flush_from(loop, k.stream, now)
    if k.stream.role == ROLE_RECEIVER:
        gate_connect(k.stream.gate, k.stream.channel, k.stream, _announce, _cancel)
    stream_ready(k.stream)
    return 0


cdef int _say(IoLoop *loop, Command *k, int64_t now) noexcept nogil:
    """Sends a handshake message; with a gate it is the receiver's last one, and the channel becomes connected."""
    cdef Connection *c = _connection(loop, k.serial)
    cdef Stream *s = connection_find(c, k.id) if c != NULL else NULL
    if s == NULL or s.state != STREAM_JOINING or s.heard_end or s.message_out != NULL or s.parting or \
            (k.gate != NULL and k.gate.flow.kind != c.flow.kind):
        return -1
    s.message_out = k.message
    s.refusing = k.kind == COMMAND_REFUSE
    if s.refusing and k.message == NULL:
        stream_part(s, FRAME_ABORT, b"the secret was not proved in time")
    if k.gate != NULL:
        s.state = STREAM_OPEN
        c.joining -= 1
        s.gate = k.gate
        s.channel = k.channel
        s.number = k.channel.number
        _look_from(loop, c, k.ping_interval_ns, now)
        gate_connect(s.gate, s.channel, s, _announce, _cancel)
    stream_ready(s)
    return 0


cdef int _join(IoLoop *loop, Command *k, int64_t now) noexcept nogil:
    cdef Connection *c = _connection(loop, k.serial)
    if c == NULL or c.next_id >= <uint32_t> -2:
        return -1
    k.stream.held = True
    connection_add(c, k.stream, c.next_id)
    _look_from(loop, c, k.ping_interval_ns, now)
    return 0


cdef void _leave(IoLoop *loop, Stream *s, bint opened, int64_t now) noexcept nogil:
    s.held = False
    if not opened:
        if not s.heard_end:
            s.sub = NULL            # nothing was sent: its queue is unchanged
        sender_let_go(s)
    elif s.connection == NULL:
        # The stream ended after its welcome.  If the peer sent no end, it was lost, and the writer does not know yet.
        if s.sub != NULL and not s.loss_is_cancel:
            failure_set(s.writer_failure, FAIL_PEER_LOST, LOST, strlen(LOST))
        stream_release_writer(s, True)
        stream_doom(s)
    else:
        s.state = STREAM_OPEN
        s.connection.joining -= 1
        _flush_from(loop, s, now)
        stream_ready(s)


cdef void _let_go(IoLoop *loop, void *whose) noexcept nogil:
    cdef Stream *s = loop.all.streams
    while s != NULL:
        if s.role == ROLE_RECEIVER:
            if s.gate != NULL and <void *> s.gate == whose:
                receiver_let_go(s)
        elif s.abort_asked != NULL and <void *> s.abort_asked == whose:
            sender_let_go(s)
        s = s.next


cdef void _stop(IoLoop *loop, int64_t now) noexcept nogil:
    """All streams were detached before; peers still get the last frames, if they are quick."""
    cdef Connection *c
    loop.stop_at_ns = now + LAST_WORDS_NS
    loop_run(loop, False, False)        # frees none: another thread may have the seat, and events of one
    c = loop.all.connections
    while c != NULL:
        connection_close(c)
        c = c.next


cdef void _carry_out(IoLoop *loop, Command *k) noexcept nogil:
    cdef int64_t now = fb_now_ns()
    if k.kind == COMMAND_ADD:
        k.result = _add(loop, k, now)
    elif k.kind == COMMAND_JOIN:
        k.result = _join(loop, k, now)
    elif k.kind == COMMAND_MESSAGE or k.kind == COMMAND_REFUSE:
        k.result = _say(loop, k, now)
    elif k.kind == COMMAND_OPEN or k.kind == COMMAND_LEAVE:
        _leave(loop, k.stream, k.kind == COMMAND_OPEN, now)
    elif k.kind == COMMAND_LET_GO:
        _let_go(loop, k.argument)
    elif k.kind == COMMAND_STOP:
        _stop(loop, now)


cdef bint _has_commands(IoLoop *loop) noexcept nogil:
    cdef bint there
    pthread_mutex_lock(&loop.all.lock)
    there = loop.commands != NULL
    pthread_mutex_unlock(&loop.all.lock)
    return there


cdef void _run_commands(IoLoop *loop) noexcept nogil:
    cdef Command *k
    cdef Command *following
    cdef Command *first = NULL
    pthread_mutex_lock(&loop.all.lock)
    k = loop.commands
    loop.commands = NULL
    pthread_mutex_unlock(&loop.all.lock)
    while k != NULL:            # commands were pushed at the front: reverse them
        following = k.next
        k.next = first
        first = k
        k = following
    k = first
    while k != NULL:
        following = k.next
        _carry_out(loop, k)
        fb_u32_store_release(&k.done, 1)        # the caller may free it from now on
        fb_event_notify(&loop.all.answered)
        k = following


cdef int64_t _sooner(int64_t a, int64_t b) noexcept nogil:
    return b if a < 0 or 0 <= b < a else a


cdef int _timeout_ms(IoLoop *loop, int64_t now) noexcept nogil:
    cdef int64_t until = _sooner(_sooner(loop.next_flush_ns, loop.next_sweep_ns),
                                 _sooner(_sooner(loop.next_ping_ns, loop.stop_at_ns), loop.all.next_send_ns))
    if until < 0:
        return -1
    if until <= now:
        return 0
    return <int> min((until - now + 999999) // 1000000, <int64_t> 3600000)      # a month in ms would overflow an int


cdef void loop_events(IoLoop *loop, epoll_event *events, int n, int reads) noexcept nogil:
    """Handles events from epoll; the caller has the seat and the turn."""
    cdef int i
    cdef uint64_t ignored
    cdef Connection *c
    for i in range(n):
        c = <Connection *> events[i].data.ptr
        if c == NULL:
            eventfd_read(loop.event_fd, &ignored)
            continue
        if c.stopped and events[i].events & <uint32_t> (EPOLLERR | EPOLLHUP):
            connection_lost(c, b"the connection was reset")
        elif c.phase != PHASE_DEAD:
            connection_read(c, reads)
        connection_mark(c)


cdef bint _sit(IoLoop *loop) noexcept nogil:
    cdef uint32_t seat = SEAT_FREE
    return fb_u32_cas_strong(&loop.seat, &seat, SEAT_IO)


cdef int64_t loop_parks_until(int64_t now, int timeout_ms) noexcept nogil:
    """Time until which guests are left alone; the next timer is due in `timeout_ms` (negative: none)."""
    return now + (LOOK_NS if timeout_ms < 0 else min(timeout_ms * <int64_t> 1000000, <int64_t> LOOK_NS))


cdef int _park(IoLoop *loop, epoll_event *events, int timeout, bint *seated) noexcept nogil:
    """Sleeps while guests do the work, and looks now and then for work that they left."""
    cdef int64_t now = fb_now_ns()
    cdef int64_t until = loop_parks_until(now, timeout)
    cdef uint32_t key
    cdef bint asked = False
    cdef bint had_turn = True           # until just now: T4 is needed, since a guest in epoll does not look
    while not asked and now < until and not seated[0]:
        key = fb_event_prepare(&loop.parked)
        fb_fence_seq_cst()              # T3, P1
        asked = fb_u32_exchange_acq_rel(&loop.left, 0) or _has_commands(loop) or (
            had_turn and fb_u64_load_acquire(&loop.dirty)) or (
            fb_u32_load_acquire(&loop.seat) != SEAT_GUEST
            and (fb_u64_load_acquire(&loop.dirty) or fb_u32_load_acquire(&loop.asleep)))
        had_turn = False
        if not asked:
            fb_event_wait(&loop.parked, key, until)
        seated[0] = _sit(loop)
        now = fb_now_ns()
    return epoll_wait(loop.epoll_fd, events, EVENTS, 0) if seated[0] else 0


cdef int _await(IoLoop *loop, epoll_event *events, int timeout, bint *seated) noexcept nogil:
    """Sleeps until there is work; returns the number of epoll events, if it called epoll: then `seated` is set."""
    if fb_u32_exchange_acq_rel(&loop.driven, 0):
        loop.looks = 0
    else:
        loop.looks += 1
    seated[0] = (loop.looks > LOOKS or fb_u32_load_acquire(&loop.asleep)) and _sit(loop)
    if not seated[0]:
        return _park(loop, events, timeout, seated)
    fb_u32_exchange_acq_rel(&loop.sleeping, 1)
    fb_fence_seq_cst()                  # T3
    if fb_u64_load_acquire(&loop.dirty) or fb_u32_exchange_acq_rel(&loop.left, 0) or _has_commands(loop) \
            or fb_u32_load_acquire(&loop.driven) or loop.unburied:
        timeout = 0
    timeout = epoll_wait(loop.epoll_fd, events, EVENTS, timeout)
    fb_u32_exchange_acq_rel(&loop.sleeping, 0)
    return timeout


cdef void *loop_main(void *argument) noexcept nogil:
    cdef IoLoop *loop = <IoLoop *> argument
    cdef epoll_event events[EVENTS]
    cdef bint seated = False
    cdef int n, timeout
    cdef int64_t now = 0
    cdef Connection *c
    prctl(PR_SET_NAME, b"fastbuf-io", 0, 0, 0)
    loop.looks = LOOKS                  # no guest has driven yet
    pthread_mutex_lock(&loop.turn)
    while loop.stop_at_ns < 0 or (loop.all.connections != NULL and now < loop.stop_at_ns):
        now = fb_now_ns()
        timeout = _timeout_ms(loop, now)
        pthread_mutex_unlock(&loop.turn)
        n = _await(loop, events, timeout, &seated)
        pthread_mutex_lock(&loop.turn)
        loop_events(loop, events, n, READS_A_TURN if loop.looks > LOOKS else READS_A_LOOK)
        _run_commands(loop)
        loop_run_dirty(loop)
        now = fb_now_ns()
        _flush(loop, now)
        _send_on(loop, now)
        _look(loop, now)
        _sweep(loop, now)
        loop.unburied = loop_run(loop, seated, False) and not seated
        _free_doomed(loop)
        if seated:
            fb_u32_store_release(&loop.seat, SEAT_FREE)
    c = loop.all.connections
    while c != NULL:
        connection_lost(c, b"the environment was closed")
        c = c.next
    _run_commands(loop)
    pthread_mutex_unlock(&loop.turn)
    return NULL

"""Guests of the I/O loop: writers that send their own data, readers and writers that drive the loop while they wait.

What they gain: without guests 64 bytes there and back take ten times as long, messages of 32 KiB and more a quarter
longer, rows to one consumer 47 % longer; rows to two consumers are a quarter faster then, and messages of 64 bytes a
sixth (docs/explanation/what-stays.md).
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport *
from fastbuf._native.sockets cimport epoll_event, epoll_wait, eventfd_write
from fastbuf._native.threads cimport pthread_mutex_lock, pthread_mutex_trylock, pthread_mutex_unlock
from fastbuf.exchange.driver cimport Driver, DriveState
from fastbuf.transports.tcp_connection cimport connection_read
from fastbuf.transports.tcp_loop cimport *
from fastbuf.transports.tcp_state cimport PHASE_OPEN, READS_A_LOOK, Connection, Stream

cdef enum:
    EVENTS = 16
    SHORT_NS = 60000            # waits shorter than this on average are spun through ...
    SPIN_NS = 150000            # ... for this long: time for a sleeping peer to wake up and then spin as well
    LEAST_SPIN_NS = 3000        # for longer waits: less than the cost of a sleep and a wake-up
    # Except for 2 ms in 33, at the same time in all processes of a host.  If both ends sleep, the wake-ups alone make
    # the waits long, and both would sleep for ever; in these 2 ms both spin and notice that waits are short.
    PROBE_MASK = 0x1e00000
    MUCH = 16384                # bytes of one wait
    SEAT_NS = 200000            # how long to wait for the seat from the I/O thread
    BLOCK_NS = 5000000          # longest sleep of a guest in epoll: notices from other threads may have to wait for it
    IN_VAIN = 4                 # after so many fruitless waits in a row, only some waits try again
    MOST_SKIPS = 16


# ---- threads that mark a stream without holding a gate's lock


cdef inline void _combine(IoLoop *loop) noexcept nogil:
    # T2 and T4 of the .pxd: repeat while there is work and no other thread does it.
    cdef bint ending
    while True:
        fb_fence_seq_cst()
        if not fb_u64_load_acquire(&loop.dirty) or pthread_mutex_trylock(&loop.turn) != 0:
            return
        loop_run_dirty(loop)
        ending = loop_run(loop, False, True)
        pthread_mutex_unlock(&loop.turn)
        if ending:                  # a stream must continue later, or a connection has ended
            fb_u32_store_release(&loop.left, 1)
            loop_wake(loop)


cdef void loop_mark_now(void *stream) noexcept nogil:
    """As loop_mark, for a thread without a gate's lock: it takes the turn if it is free, and does the work.

    A record is then sent by one system call of the thread that wrote it, not after two thread switches.
    """
    cdef Stream *s = <Stream *> stream
    cdef IoLoop *loop = <IoLoop *> s.loop
    fb_u32_add_acq_rel(&loop.guests, 1)
    if loop_push(loop, s):
        _combine(loop)
    fb_u32_sub_acq_rel(&loop.guests, 1)


cdef void _serve(Driver *d) noexcept nogil:
    cdef IoLoop *loop = <IoLoop *> d.loop
    fb_u32_add_acq_rel(&loop.guests, 1)
    _combine(loop)
    fb_u32_sub_acq_rel(&loop.guests, 1)


# ---- threads that wait


cdef void _enter(Driver *d) noexcept nogil:
    fb_u32_add_acq_rel(&(<IoLoop *> d.loop).guests, 1)


cdef void _sleeps(Driver *d) noexcept nogil:
    cdef IoLoop *loop = <IoLoop *> d.loop
    fb_u32_add_acq_rel(&loop.asleep, 1)
    fb_event_notify(&loop.parked)       # P3


cdef void _leave(Driver *d, bint slept) noexcept nogil:
    cdef IoLoop *loop = <IoLoop *> d.loop
    if slept:
        fb_u32_sub_acq_rel(&loop.asleep, 1)
    fb_u32_sub_acq_rel(&loop.guests, 1)


cdef bint _sit(IoLoop *loop, fb_event *e, uint32_t key) noexcept nogil:
    """Takes the seat, asking the I/O thread for it if necessary; another guest is not asked."""
    cdef uint32_t seat
    cdef int64_t until = -1
    while True:
        seat = SEAT_FREE
        if fb_u32_cas_strong(&loop.seat, &seat, SEAT_GUEST):
            return True
        if seat == SEAT_GUEST or fb_event_epoch(e) != key or fb_u32_load_acquire(&loop.asleep):
            return False
        if fb_u32_exchange_acq_rel(&loop.sleeping, 0):
            eventfd_write(loop.event_fd, 1)
        if until < 0:
            until = fb_now_ns() + SEAT_NS
        elif fb_now_ns() >= until:
            return False
        for _ in range(32):
            fb_cpu_relax()


cdef bint _look(IoLoop *loop, int timeout_ms) noexcept nogil:
    """Handles what has arrived, once, with the seat."""
    cdef epoll_event events[EVENTS]
    cdef int n = epoll_wait(loop.epoll_fd, events, EVENTS, timeout_ms)
    if timeout_ms:
        fb_u32_exchange_acq_rel(&loop.sleeping, 0)
    if n <= 0 and not fb_u64_load_acquire(&loop.dirty):
        return False
    pthread_mutex_lock(&loop.turn)
    loop_events(loop, events, n, READS_A_LOOK)
    loop_run_dirty(loop)
    loop_run(loop, True, False)        # it may free connections: no other thread holds epoll events
    pthread_mutex_unlock(&loop.turn)
    return True


cdef bint _glance(IoLoop *loop) noexcept nogil:
    """The same with the seat, without epoll, if there is only one connection; False: epoll is needed.

    A read that finds nothing costs more than an epoll call that finds nothing, but when there is data it saves the
    second call: two microseconds less per round trip.
    """
    cdef Connection *c
    cdef bint looked
    if pthread_mutex_trylock(&loop.turn) != 0:
        return False
    c = loop.all.connections
    looked = c != NULL and c.next == NULL and c.phase == PHASE_OPEN and not c.blocked
    if looked:
        connection_read(c, READS_A_LOOK)
    if loop.all.running != NULL or fb_u64_load_acquire(&loop.dirty):
        loop_run_dirty(loop)
        loop_run(loop, True, False)
    pthread_mutex_unlock(&loop.turn)    # T3: T4 is the next look, or the one before sleeping or leaving
    return looked


cdef bint _drive(Driver *d, DriveState *t, fb_event *e, uint32_t key, int64_t until_ns) noexcept nogil:
    """Moves bytes until the event's epoch differs from `key`; False: the caller should sleep on the event.

    First spins, as long as that pays, then sleeps in epoll; each only for a short time, since notices of other threads
    change the epoch but do not wake this thread.
    """
    cdef IoLoop *loop = <IoLoop *> d.loop
    cdef int64_t started, now, waited, spin_until, block_until
    cdef uint64_t moved
    cdef int timeout = 0
    cdef bint came = False
    if loop.cpus < 2 or fb_u32_load_acquire(&loop.asleep):
        return fb_event_epoch(e) != key
    if t.skip:
        t.skip -= 1
        return fb_event_epoch(e) != key
    fb_u32_store_release(&loop.driven, 1)
    if not _sit(loop, e, key):
        return fb_event_epoch(e) != key
    moved = fb_u64_load_relaxed(&loop.all.moved)        # approximate: written by the thread with the turn
    started = fb_now_ns()
    now = started
    spin_until = started + (SPIN_NS if t.wait_ns < SHORT_NS or not started & PROBE_MASK else LEAST_SPIN_NS)
    spin_until = min(spin_until, until_ns)
    block_until = min(spin_until + BLOCK_NS, until_ns)
    while True:
        came = fb_event_epoch(e) != key
        if came:
            break
        timeout = 0
        if now >= spin_until:
            # The wake-up may be for another thread: then go on waiting.
            if now + 1000000 > block_until:
                break
            timeout = <int> ((block_until - now) // 1000000)
            # L1 and L2 of the .pxd.  They cover the epoch too, since threads change it before they mark streams.
            fb_u32_exchange_acq_rel(&loop.sleeping, 1)
            fb_fence_seq_cst()
            if fb_u64_load_acquire(&loop.dirty) or fb_event_epoch(e) != key:
                fb_u32_exchange_acq_rel(&loop.sleeping, 0)
                timeout = 0
        if now >= spin_until or not _glance(loop):
            _look(loop, timeout)
        now = fb_now_ns()
    fb_u32_store_release(&loop.seat, SEAT_FREE)
    # G3: its fence is between freeing the seat and the loads of `dirty` and `asleep`
    _combine(loop)
    if fb_u32_load_acquire(&loop.asleep):
        fb_event_notify(&loop.parked)
    # An occasional long wait, because the peer had no core, does not make the waits of this event long.  When much data
    # moved, a sleep is cheap in comparison, and the core may be needed to produce that data.
    waited = now - started
    if fb_u64_load_relaxed(&loop.all.moved) - moved >= MUCH:
        waited *= 3
    t.wait_ns += (min(waited, <int64_t> 2 * SHORT_NS) - t.wait_ns) // 8
    if came:
        t.vain = 0
    else:
        t.vain += 1
        if t.vain >= IN_VAIN:
            t.skip = min(t.vain - IN_VAIN + 1, MOST_SKIPS)
    return came


cdef void guest_init(IoLoop *loop) noexcept nogil:
    loop.driver.loop = loop
    loop.driver.enter = _enter
    loop.driver.drive = _drive
    loop.driver.sleeps = _sleeps
    loop.driver.leave = _leave
    loop.driver.serve = _serve

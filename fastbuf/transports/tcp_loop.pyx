"""The native I/O thread: epoll over every connection of an environment (C level; waking is in the ``.pxd``)."""

import os

from libc.errno cimport errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from fastbuf._native.atomics cimport (
    fb_event_cancel,
    fb_event_init,
    fb_event_notify,
    fb_event_prepare,
    fb_event_wait,
    fb_now_ns,
    fb_u32_exchange_acq_rel,
    fb_u32_load_acquire,
    fb_u32_store_release,
    fb_u64_cas_acq_rel,
    fb_u64_load_acquire,
    fb_u64_load_relaxed,
)
from fastbuf._native.sockets cimport (
    EFD_CLOEXEC,
    EFD_NONBLOCK,
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_MOD,
    EPOLLIN,
    EPOLLOUT,
    close,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    eventfd,
    eventfd_read,
    eventfd_write,
)
from fastbuf._native.threads cimport (
    pthread_attr_destroy,
    pthread_attr_init,
    pthread_attr_setstacksize,
    pthread_attr_t,
    pthread_create,
    pthread_join,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from fastbuf.exchange.gate_core cimport gate_connect
from fastbuf.transports.tcp_connection cimport (
    connection_let_go_of_gate,
    connection_let_go_of_writer,
    connection_run,
)
from fastbuf.transports.tcp_state cimport (
    PHASE_DEAD,
    PHASE_OPEN,
    ROLE_RECEIVER,
    ROLE_SENDER,
    connection_free,
    connection_kill,
    connection_lost,
)

from fastbuf.errors import ExchangeClosed, ResourceError

cdef extern from *:
    """
    /* 64-bit exchange of a pointer-sized atomic: takes the whole stack of dirty connections. */
    #include "fb_atomic.h"
    static inline uint64_t fb_take_all(fb_au64 *a) { return fb_u64_exchange_acq_rel(a, 0); }
    """
    uint64_t fb_take_all(fb_au64 *a) nogil

cdef enum:
    STACK_BYTES = 256 * 1024    # small: RLIMIT_AS counts it
    EVENTS = 64
    SWEEP_NS = 200000000        # how often lingering connections are looked at


# ---- other threads


cdef inline void _wake(IoLoop *loop) noexcept nogil:
    if fb_u32_exchange_acq_rel(&loop.sleeping, 0):
        eventfd_write(loop.event_fd, 1)


cdef void loop_mark(void *connection) noexcept nogil:
    """The connection has something to do; any thread."""
    cdef Connection *c = <Connection *> connection
    cdef IoLoop *loop = <IoLoop *> c.loop
    cdef uint64_t head
    if fb_u32_exchange_acq_rel(&c.dirty, 1):
        return
    head = fb_u64_load_relaxed(&loop.dirty)
    while True:
        c.next_dirty = <Connection *> <size_t> head
        if fb_u64_cas_acq_rel(&loop.dirty, &head, <uint64_t> <size_t> c):
            break
    _wake(loop)


cdef void _cancel(void *connection) noexcept nogil:
    fb_u32_store_release(&(<Connection *> connection).cancel_asked, 1)
    loop_mark(connection)


# ---- the I/O thread


cdef void _watch(IoLoop *loop, Connection *c) noexcept nogil:
    # Asks epoll for what the connection waits for; nothing when that has not changed.
    cdef epoll_event e
    cdef uint32_t mask = EPOLLIN | (EPOLLOUT if c.blocked else 0)
    if c.fd < 0 or mask == c.epoll_mask:
        return
    e.events = mask
    e.data.ptr = c
    if epoll_ctl(loop.epoll_fd, EPOLL_CTL_MOD if c.epoll_mask else EPOLL_CTL_ADD, c.fd, &e) != 0:
        connection_lost(c, b"epoll refuses it (see fs.epoll.max_user_watches)")
        return
    c.epoll_fd = loop.epoll_fd
    c.epoll_mask = mask


cdef void _run(IoLoop *loop, Connection *c, bint readable) noexcept nogil:
    connection_run(c, readable)
    _watch(loop, c)


cdef void _run_dirty(IoLoop *loop) noexcept nogil:
    cdef Connection *c = <Connection *> <size_t> fb_take_all(&loop.dirty)
    cdef Connection *following
    while c != NULL:
        following = c.next_dirty
        # Cleared before looking: what is asked from now on marks it again.
        fb_u32_exchange_acq_rel(&c.dirty, 0)
        _run(loop, c, False)
        c = following


cdef void _flush(IoLoop *loop, int64_t now) noexcept nogil:
    # Flink's OutputFlusher: every buffer timeout, what is committed may leave though its buffer is not full.
    cdef Connection *c = loop.connections
    cdef int64_t due = -1
    while c != NULL:
        if c.role == ROLE_SENDER and c.phase == PHASE_OPEN and c.flush_interval_ns > 0:
            if now >= loop.next_flush_ns:
                c.flush_pending = True
                _run(loop, c, False)
            if due < 0 or c.flush_interval_ns < due:
                due = c.flush_interval_ns
        c = c.next
    if due < 0:
        loop.next_flush_ns = -1
    elif loop.next_flush_ns < 0 or now >= loop.next_flush_ns:
        loop.next_flush_ns = now + due
    else:
        # A connection with a shorter timeout has come.
        loop.next_flush_ns = min(loop.next_flush_ns, now + due)


cdef void _sweep(IoLoop *loop, int64_t now) noexcept nogil:
    """Ends what has lingered long enough and frees what is dead and referred to by nobody."""
    cdef Connection *c = loop.connections
    cdef Connection *following
    cdef bint lingering = False
    while c != NULL:
        following = c.next
        if c.phase != PHASE_DEAD and c.linger_until_ns:
            if now >= c.linger_until_ns:
                connection_kill(c)
            else:
                lingering = True
        if c.phase == PHASE_DEAD:
            # A sender's memory stays until its writer has let go: the writer's notify points here.
            if c.abort_asked == NULL and c.gate == NULL and not fb_u32_load_acquire(&c.dirty):
                if c.previous != NULL:
                    c.previous.next = c.next
                else:
                    loop.connections = c.next
                if c.next != NULL:
                    c.next.previous = c.previous
                connection_free(c)
        c = following
    loop.next_sweep_ns = now + SWEEP_NS if lingering else -1


cdef void _carry_out(IoLoop *loop, Command *k) noexcept nogil:
    cdef Connection *c
    if k.kind == COMMAND_ADD:
        c = <Connection *> k.argument
        c.previous = NULL
        c.next = loop.connections
        if c.next != NULL:
            c.next.previous = c
        loop.connections = c
        if c.role == ROLE_RECEIVER:
            gate_connect(c.gate, c.channel, c, loop_mark, _cancel)
        _run(loop, c, True)
    elif k.kind == COMMAND_LET_GO:
        c = loop.connections
        while c != NULL:
            if c.role == ROLE_RECEIVER and <void *> c.gate == k.argument:
                connection_let_go_of_gate(c)
                _watch(loop, c)
            elif c.role == ROLE_SENDER and <void *> c.abort_asked == k.argument:
                connection_let_go_of_writer(c)
                _watch(loop, c)
            c = c.next
    elif k.kind == COMMAND_STOP:
        loop.stopping = True


cdef bint _has_commands(IoLoop *loop) noexcept nogil:
    cdef bint there
    pthread_mutex_lock(&loop.lock)
    there = loop.commands != NULL
    pthread_mutex_unlock(&loop.lock)
    return there


cdef void _run_commands(IoLoop *loop) noexcept nogil:
    cdef Command *k
    cdef Command *following
    cdef Command *first = NULL
    pthread_mutex_lock(&loop.lock)
    k = loop.commands
    loop.commands = NULL
    pthread_mutex_unlock(&loop.lock)
    while k != NULL:            # they were pushed in front: turn them round
        following = k.next
        k.next = first
        first = k
        k = following
    k = first
    while k != NULL:
        following = k.next
        _carry_out(loop, k)
        fb_u32_store_release(&k.done, 1)        # the caller may free it from here on
        fb_event_notify(&loop.answered)
        k = following


cdef int _timeout_ms(IoLoop *loop, int64_t now) noexcept nogil:
    cdef int64_t until = -1
    if loop.next_flush_ns >= 0:
        until = loop.next_flush_ns
    if loop.next_sweep_ns >= 0 and (until < 0 or loop.next_sweep_ns < until):
        until = loop.next_sweep_ns
    if until < 0:
        return -1
    if until <= now:
        return 0
    return <int> min((until - now + 999999) // 1000000, <int64_t> 3600000)      # no int holds a month in ms


cdef void *_main(void *argument) noexcept nogil:
    cdef IoLoop *loop = <IoLoop *> argument
    cdef epoll_event events[EVENTS]
    cdef uint64_t ignored
    cdef int n, i, timeout
    cdef int64_t now
    cdef Connection *c
    while not loop.stopping:
        now = fb_now_ns()
        timeout = _timeout_ms(loop, now)
        fb_u32_exchange_acq_rel(&loop.sleeping, 1)
        if fb_u64_load_acquire(&loop.dirty) or _has_commands(loop):
            timeout = 0
        n = epoll_wait(loop.epoll_fd, events, EVENTS, timeout)
        fb_u32_exchange_acq_rel(&loop.sleeping, 0)
        for i in range(n):
            c = <Connection *> events[i].data.ptr
            if c == NULL:
                eventfd_read(loop.event_fd, &ignored)
            elif c.phase != PHASE_DEAD:
                _run(loop, c, True)
        _run_commands(loop)
        _run_dirty(loop)
        now = fb_now_ns()
        _flush(loop, now)
        _sweep(loop, now)
    c = loop.connections
    while c != NULL:
        connection_kill(c)
        c = c.next
    _run_commands(loop)
    return NULL


# ---- Python


cdef class IoThread:
    """One native thread that moves every byte of an environment; started on creation, ended by :meth:`stop`."""

    def __cinit__(self):
        cdef epoll_event e
        cdef pthread_attr_t attributes
        cdef int rc
        self.pid = os.getpid()
        self.loop = <IoLoop *> calloc(1, sizeof(IoLoop))
        if self.loop == NULL:
            raise MemoryError
        self.loop.next_flush_ns = -1
        self.loop.next_sweep_ns = -1
        fb_event_init(&self.loop.answered)
        pthread_mutex_init(&self.loop.lock, NULL)
        self.loop.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        self.loop.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        e.events = EPOLLIN
        e.data.ptr = NULL
        if self.loop.epoll_fd < 0 or self.loop.event_fd < 0 or \
                epoll_ctl(self.loop.epoll_fd, EPOLL_CTL_ADD, self.loop.event_fd, &e) != 0:
            error = errno
            self._free()
            raise ResourceError(f"the I/O thread's epoll cannot be made: {os.strerror(error)} (see ulimit -n)")
        pthread_attr_init(&attributes)
        pthread_attr_setstacksize(&attributes, STACK_BYTES)
        rc = pthread_create(&self.loop.thread, &attributes, _main, self.loop)
        pthread_attr_destroy(&attributes)
        if rc != 0:
            self._free()
            raise ResourceError(f"the I/O thread cannot be started: {os.strerror(rc)}")

    cdef int command(self, int kind, void *argument) except -1:
        """Has the I/O thread do something and waits until it has."""
        cdef Command k
        cdef uint32_t key
        if self.loop == NULL or self.pid != os.getpid():
            raise ExchangeClosed("the environment's I/O thread has ended, or this is a forked child")
        k.kind = kind
        k.argument = argument
        k.result = 0
        fb_u32_store_release(&k.done, 0)
        with nogil:
            pthread_mutex_lock(&self.loop.lock)
            k.next = self.loop.commands
            self.loop.commands = &k
            pthread_mutex_unlock(&self.loop.lock)
            _wake(self.loop)
            while True:
                key = fb_event_prepare(&self.loop.answered)
                if fb_u32_load_acquire(&k.done):
                    fb_event_cancel(&self.loop.answered)
                    break
                fb_event_wait(&self.loop.answered, key, -1)
        return 0

    cpdef stop(self):
        """End the thread: open connections are dropped.  A second call does nothing."""
        if self.loop == NULL:
            return
        if self.pid == os.getpid():
            self.command(COMMAND_STOP, NULL)
            with nogil:
                pthread_join(self.loop.thread, NULL)
        self._free()

    def _free(self):
        cdef Connection *c = self.loop.connections
        cdef Connection *following
        while c != NULL:
            following = c.next
            connection_free(c)
            c = following
        if self.loop.epoll_fd >= 0:
            close(self.loop.epoll_fd)
        if self.loop.event_fd >= 0:
            close(self.loop.event_fd)
        pthread_mutex_destroy(&self.loop.lock)
        free(self.loop)
        self.loop = NULL

    def __dealloc__(self):
        if self.loop != NULL:
            self.stop()

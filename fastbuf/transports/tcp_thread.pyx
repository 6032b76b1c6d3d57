"""One native I/O thread, and how Python's threads talk to it: commands with results, and handshake messages."""

import os
import time

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from fastbuf._native.atomics cimport *
from fastbuf._native.sockets cimport *
from fastbuf._native.threads cimport *
from fastbuf.transports.tcp_guest cimport guest_init
from fastbuf.transports.tcp_loop cimport COMMAND_STOP, Command, IoLoop, command_init, loop_main, loop_wake
from fastbuf.transports.tcp_state cimport Connection, Message, Stream, connection_free, message_text, stream_free

from fastbuf.errors import ExchangeClosed, ResourceError, strerror
from fastbuf.fork_safe import rests_for_fork

cdef enum:
    MOST_LOOKED_AT = 64         # most connections whose figures are returned
    TCP_INFO_BYTES = 256        # more than any kernel's struct tcp_info has
    STACK_BYTES = 256 * 1024    # small: RLIMIT_AS counts it
    SLICE_NS = 200000000        # signals are looked at this often while waiting


cdef class IoThread:
    """A native thread that moves every byte of an environment; starts when created, ends by :meth:`stop`."""

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
        self.loop.next_ping_ns = -1
        self.loop.stop_at_ns = -1
        self.loop.all.inbox_fd = -1
        self.loop.all.next_send_ns = -1
        guest_init(self.loop)
        self.loop.cpus = os.cpu_count() or 1
        pthread_mutex_init(&self.loop.turn, NULL)
        pthread_mutex_init(&self.loop.all.lock, NULL)
        self.loop.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        self.loop.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        e.events = EPOLLIN
        e.data.ptr = NULL
        if self.loop.epoll_fd < 0 or self.loop.event_fd < 0 or \
                epoll_ctl(self.loop.epoll_fd, EPOLL_CTL_ADD, self.loop.event_fd, &e) != 0:
            error = errno
            self._free()
            raise ResourceError(f"the I/O thread needs epoll_create1, epoll_ctl and eventfd2: {strerror(error)}")
        pthread_attr_init(&attributes)
        pthread_attr_setstacksize(&attributes, STACK_BYTES)
        rc = pthread_create(&self.loop.thread, &attributes, loop_main, self.loop)
        pthread_attr_destroy(&attributes)
        if rc != 0:
            self._free()
            raise ResourceError(
                f"the I/O thread cannot be started: {os.strerror(rc)}; raise ulimit -u, or the most processes that its "
                "container may have (pids.max)")
        rests_for_fork(self)

    cdef int check(self) except -1:
        if self.loop == NULL or self.pid != os.getpid():
            raise ExchangeClosed("the environment's I/O thread has ended, or this is a forked child")
        return 0

    cdef int command(self, Command *k) except -1:
        """Sends a command to the I/O thread and waits until it is done; the command then has the result."""
        cdef uint32_t key
        self.check()
        k.result = 0
        fb_u32_store_release(&k.done, 0)
        with nogil:
            pthread_mutex_lock(&self.loop.all.lock)
            k.next = self.loop.commands
            self.loop.commands = k
            pthread_mutex_unlock(&self.loop.all.lock)
            loop_wake(self.loop)
            while True:
                key = fb_event_prepare(&self.loop.all.answered)
                if fb_u32_load_acquire(&k.done):
                    break
                fb_event_wait(&self.loop.all.answered, key, -1)
        return 0

    def before_fork(self):
        """Take the turn: the child then finds the list of connections whole.  Who has the turn never needs the GIL."""
        if self.loop != NULL and self.pid == os.getpid():
            fb_u32_add_acq_rel(&self.loop.guests, 1)        # the loop's memory stays
            pthread_mutex_lock(&self.loop.turn)
            self.forking = True

    def after_fork(self, bint child):
        """Give back the turn; in the child: close all descriptors."""
        cdef Connection *c
        if not self.forking:
            return
        self.forking = False
        if child:
            c = self.loop.all.connections
            while c != NULL:                # no shutdown: the connection is the parent's
                if c.fd >= 0:
                    close(c.fd)
                c.fd = -1
                c = c.next
            self.close_own()
        with nogil:
            pthread_mutex_unlock(&self.loop.turn)
            if not child:
                self.loop.driver.serve(&self.loop.driver)       # streams marked meanwhile were left to this thread
        fb_u32_sub_acq_rel(&self.loop.guests, 1)

    cdef int connections(self):
        """Number of connections."""
        return fb_u32_load_acquire(&self.loop.all.open) if self.loop != NULL else 0

    cdef list links(self):
        cdef Connection *c
        cdef int left, n = 0
        cdef socklen_t[MOST_LOOKED_AT] lengths
        cdef int[MOST_LOOKED_AT] bytes_left
        cdef char[MOST_LOOKED_AT][80] peers
        cdef char[MOST_LOOKED_AT][TCP_INFO_BYTES] infos
        if self.loop == NULL or self.pid != os.getpid():
            return []
        fb_u32_add_acq_rel(&self.loop.guests, 1)
        with nogil:
            if pthread_mutex_trylock(&self.loop.turn) == 0:
                c = self.loop.all.connections
                while c != NULL and n < MOST_LOOKED_AT:
                    left = 0
                    if c.dialled and c.fd >= 0 and ioctl(c.fd, SIOCOUTQNSD, &left) == 0:
                        bytes_left[n] = left
                        memcpy(peers[n], c.peer, 80)
                        lengths[n] = TCP_INFO_BYTES
                        if getsockopt(c.fd, IPPROTO_TCP, TCP_INFO, infos[n], &lengths[n]) != 0:
                            lengths[n] = 0
                        n += 1
                    c = c.next
                pthread_mutex_unlock(&self.loop.turn)
                self.loop.driver.serve(&self.loop.driver)      # streams marked meanwhile were left to this thread
        fb_u32_sub_acq_rel(&self.loop.guests, 1)
        return [((<bytes> <char *> peers[k]).decode(), bytes_left[k], <bytes> (<char *> infos[k])[:lengths[k]])
                for k in range(n)]

    cdef unsigned int stops(self):
        """How often a connection was stopped for want of a segment."""
        return fb_u32_load_relaxed(&self.loop.all.stops) if self.loop != NULL else 0

    cdef int open_inbox(self) except -1:
        """Returns a descriptor that becomes readable when a joining stream has sent a message."""
        self.check()
        if self.loop.all.inbox_fd < 0:
            self.loop.all.inbox_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
            if self.loop.all.inbox_fd < 0:
                raise ResourceError(f"no eventfd for the listener: {strerror(errno)}")
        return self.loop.all.inbox_fd

    cdef list take_inbox(self):
        cdef uint64_t ignored
        cdef Message *message
        cdef Message *following
        if self.loop == NULL:           # it has ended before the listener's thread
            return []
        eventfd_read(self.loop.all.inbox_fd, &ignored)
        pthread_mutex_lock(&self.loop.all.lock)
        message = self.loop.all.inbox
        self.loop.all.inbox = NULL
        pthread_mutex_unlock(&self.loop.all.lock)
        taken = []
        while message != NULL:
            following = message.next
            taken.append((message.connection, message.stream, <bytes> message_text(message)[:message.length],
                          (<bytes> message.peer).decode()))
            free(message)
            message = following
        return taken

    cdef bytes wait_message(self, Stream *s, int64_t deadline_ns):
        cdef Message *message = NULL
        cdef uint32_t key
        cdef bint over = False
        cdef int64_t now
        self.check()
        self.waiting += 1
        try:
            while message == NULL and not over:
                now = fb_now_ns()
                if now >= deadline_ns:
                    return None
                with nogil:
                    key = fb_event_prepare(&self.loop.all.answered)
                    # before the message, since the last message may arrive before the end
                    over = fb_u32_load_acquire(&s.gone)
                    pthread_mutex_lock(&self.loop.all.lock)
                    message = s.message_in
                    s.message_in = NULL
                    pthread_mutex_unlock(&self.loop.all.lock)
                    if message == NULL and not over:
                        fb_event_wait(&self.loop.all.answered, key, min(deadline_ns, now + SLICE_NS))
                if message == NULL:
                    PyErr_CheckSignals()
        finally:
            self.waiting -= 1
        if message == NULL:
            return b""
        text = <bytes> message_text(message)[:message.length]
        free(message)
        return text

    cpdef stop(self):
        """End the thread and drop open connections.  A second call does nothing."""
        cdef Command k
        if self.loop == NULL:
            return
        if self.pid == os.getpid():
            command_init(&k, COMMAND_STOP)
            self.command(&k)
            with nogil:
                pthread_join(self.loop.thread, NULL)
            # Waiting threads: their streams are over and they were notified.  Guests leave within one turn.
            while self.waiting or fb_u32_load_acquire(&self.loop.guests):
                time.sleep(0.0005)
        self._free()

    def _free(self):
        cdef Connection *c
        cdef Stream *s
        cdef Message *message
        while self.loop.all.connections != NULL:
            c = self.loop.all.connections
            self.loop.all.connections = c.next
            connection_free(c)
        while self.loop.all.streams != NULL:
            s = self.loop.all.streams
            self.loop.all.streams = s.next
            stream_free(s)
        while self.loop.all.inbox != NULL:
            message = self.loop.all.inbox
            self.loop.all.inbox = message.next
            free(message)
        self.close_own()
        pthread_mutex_destroy(&self.loop.all.lock)
        pthread_mutex_destroy(&self.loop.turn)
        free(self.loop)
        self.loop = NULL

    cdef void close_own(self) noexcept:
        for fd in (self.loop.epoll_fd, self.loop.event_fd, self.loop.all.inbox_fd):
            if fd >= 0:
                close(fd)
        self.loop.epoll_fd = self.loop.event_fd = self.loop.all.inbox_fd = -1

    def __dealloc__(self):
        if self.loop != NULL:
            self.stop()

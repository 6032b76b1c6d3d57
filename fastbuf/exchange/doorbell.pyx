"""Doorbells: what a reader or a writer sleeps on, in its own memory or in a page that other processes map."""

from libc.errno cimport errno
from libc.stdlib cimport calloc, free

import os

from fastbuf._native.atomics cimport (
    fb_au32,
    fb_event_init,
    fb_event_init_shared,
    fb_event_notify,
    fb_event_prepare,
    fb_u32_exchange_acq_rel,
    fb_u32_init,
    fb_u32_load_acquire,
    fb_u32_store_relaxed,
)
from fastbuf._native.sockets cimport close, eventfd_write

from fastbuf.errors import ConfigError, ResourceError
from fastbuf.memory.layout import PAGE, require_sealed


cdef extern from "fb_map.h" nogil:
    int fb_memfd(const char *name, size_t length)
    void *fb_map_shared(size_t length, int fd, int writable)
    int fb_unmap(void *p, size_t length)


cdef void bell_ring(Bell *bell, fb_au32 *wake_fd) noexcept nogil:
    """Whoever sleeps on it looks again; wake_fd: its eventfd as an int, which is there before it arms."""
    cdef int fd
    fb_event_notify(&bell.event)
    # Pairs with bell_arm, by the event's word, which both have just moved: the later one reads what the other wrote. If
    # that is this one, it sees `armed`, and the descriptor (read last: it may have come while this rang); else the one
    # who arms sees what has come.
    if fb_u32_load_acquire(&bell.armed) and fb_u32_exchange_acq_rel(&bell.armed, 0):
        fd = <int> fb_u32_load_acquire(wake_fd)
        if fd >= 0:
            eventfd_write(fd, 1)


cdef void bell_arm(Bell *bell) noexcept nogil:
    """From now on the next ring writes to the eventfd as well; the caller looks once more before it waits for that."""
    fb_u32_store_relaxed(&bell.armed, 1)
    fb_event_prepare(&bell.event)           # the pairing: see bell_ring


cdef class Doorbell:
    """One doorbell.

    Parameters
    ----------
    shared : bool
        Other processes are to ring it: it is a page of a memfd, `fd`.

    Raises
    ------
    ResourceError
        No memory or no descriptor for it.
    """

    def __cinit__(self, bint shared):
        self.fd = -1
        if not shared:
            self.bell = <Bell *> calloc(1, sizeof(Bell))
            if self.bell == NULL:
                raise MemoryError
            fb_event_init(&self.bell.event)
        else:
            self.fd = fb_memfd("fastbuf-bell", PAGE)
            self.bell = <Bell *> fb_map_shared(PAGE, self.fd, True) if self.fd >= 0 else NULL
            if self.bell == NULL:
                raise ResourceError(f"no memory for a doorbell: {os.strerror(errno)}")
            self.length = PAGE
            fb_event_init_shared(&self.bell.event)
        fb_u32_init(&self.bell.armed, 0)

    @classmethod
    def attach(cls, int fd):
        """Map the doorbell of another process; the descriptor stays the caller's.

        Raises
        ------
        ConfigError
            It is no sealed memfd of one page.
        ResourceError
            It cannot be mapped.
        """
        cdef Doorbell d = cls.__new__(cls, False)
        cdef Bell *bell
        require_sealed(fd, "a gate or partition")
        if os.fstat(fd).st_size != PAGE:
            raise ConfigError(f"descriptor {fd} is no doorbell")
        bell = <Bell *> fb_map_shared(PAGE, fd, True)
        if bell == NULL:
            raise ResourceError(f"mapping a doorbell: {os.strerror(errno)}")
        free(d.bell)
        d.bell = bell
        d.length = PAGE
        return d

    def keep_to_ourselves(self):
        """Nobody else is given it from now on; who has mapped it may ring it still."""
        if self.fd >= 0:
            close(self.fd)
            self.fd = -1

    def __dealloc__(self):
        if self.length:
            fb_unmap(self.bell, self.length)
        else:
            free(self.bell)
        if self.fd >= 0:
            close(self.fd)

"""Doorbells: events on which a reader or a writer sleeps, in private memory or in a page that other processes map."""

from libc.errno cimport errno
from libc.stdlib cimport calloc, free

import os

from fastbuf._native.atomics cimport *
from fastbuf._native.files cimport fb_map_shared, fb_memfd, fb_unmap
from fastbuf._native.sockets cimport close, eventfd_write

from fastbuf.errors import ConfigError, ResourceError, strerror
from fastbuf.memory.layout import PAGE, require_sealed


cdef void bell_ring(Bell *bell, fb_au32 *wake_fd) noexcept nogil:
    """Wakes the sleeper, which checks its condition again; wake_fd: its eventfd as an int, set before it arms."""
    cdef int fd
    fb_event_notify(&bell.event)
    # Pairs with bell_arm.  Both have just changed the event's word, so the later one sees what the other wrote: if this
    # is the later, it sees `armed` and the descriptor (read last, as it may have been set meanwhile); else the thread
    # that arms sees the new data.
    if fb_u32_load_acquire(&bell.armed) and fb_u32_exchange_acq_rel(&bell.armed, 0):
        fd = <int> fb_u32_load_acquire(wake_fd)
        if fd >= 0:
            eventfd_write(fd, 1)


cdef void bell_arm(Bell *bell) noexcept nogil:
    """The next ring also writes to the eventfd; the caller checks for data once more before it waits for that."""
    fb_u32_store_relaxed(&bell.armed, 1)
    fb_event_prepare(&bell.event)           # the pairing: see bell_ring


cdef class Doorbell:
    """One doorbell.

    Parameters
    ----------
    shared : bool
        Other processes shall ring it: it is a page of the memfd `fd`.

    Raises
    ------
    ResourceError
        There is no memory or no descriptor for it.
    """

    def __cinit__(self, bint shared):
        self.fd = -1
        if not shared:
            self.bell = <Bell *> calloc(1, sizeof(Bell))
            if self.bell == NULL:
                raise MemoryError
        else:
            self.fd = fb_memfd("fastbuf-bell", PAGE)
            self.bell = <Bell *> fb_map_shared(PAGE, self.fd, True) if self.fd >= 0 else NULL
            if self.bell == NULL:
                raise ResourceError(f"no doorbell in shared memory: {strerror(errno)}")
            self.length = PAGE
            fb_event_init_shared(&self.bell.event)

    @classmethod
    def attach(cls, int fd):
        """Map the doorbell of another process; the caller keeps the descriptor.

        Raises
        ------
        ConfigError
            It is not a sealed memfd of one page.
        ResourceError
            It cannot be mapped.
        """
        cdef Doorbell d = cls.__new__(cls, False)
        cdef Bell *bell
        require_sealed(fd, "a gate or partition")
        if os.fstat(fd).st_size != PAGE:
            raise ConfigError(
                f"descriptor {fd} is not a doorbell: it has {os.fstat(fd).st_size} bytes instead of {PAGE}")
        bell = <Bell *> fb_map_shared(PAGE, fd, True)
        if bell == NULL:
            raise ResourceError(f"cannot map a doorbell: {os.strerror(errno)}")
        free(d.bell)
        d.bell = bell
        d.length = PAGE
        return d

    def keep_to_ourselves(self):
        """Close the descriptor, so that no other process gets it; those that have mapped it can still ring."""
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

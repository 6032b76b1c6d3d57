"""The arena: one block of memory, mapped once, that all segments are slices of."""

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES
from libc.errno cimport errno
from libc.stdint cimport uint8_t
from posix.unistd cimport close as posix_close

import os

from fastbuf.errors import ConfigError, FastbufError, ResourceError, SegmentExported
from fastbuf.memory.limits import require_memory


cdef extern from "fb_map.h" nogil:
    int fb_memfd(const char *name, size_t length)
    void *fb_map(size_t length, int fd)
    int fb_unmap(void *p, size_t length)
    int fb_advise_huge(void *p, size_t length)
    int fb_populate(void *p, size_t length)


cdef size_t PAGE = os.sysconf("SC_PAGESIZE")
cdef char *FORMAT = "B"


cdef class Arena:
    """A block of memory, cut into segments of one size.

    Parameters
    ----------
    segments : int
        How many segments; at least 1.
    segment_size : int
        Bytes of each; a multiple of 64, so that no two segments share a cache line.
    memfd : bool
        Back it by a memfd, so that another process can map it; else by anonymous private memory.
    prefault : bool
        Take every page now, so that none is missing later and the first use of a segment costs no page fault.
    huge_pages : bool
        Advise the kernel to use huge pages.  Advice only: where the kernel has none, nothing happens.

    Raises
    ------
    ConfigError
        A number is out of range.
    ResourceError
        Address space (``RLIMIT_AS``), the control group or free memory do not leave that much; the message has the
        figures.

    Notes
    -----
    After ``fork`` the child can read what was in the arena: private memory as it was at that moment, a memfd as it is
    now. A child may not allocate from its parent's pool (see `NetworkBufferPool`).
    """

    def __cinit__(self, segments, segment_size, *, memfd=False, prefault=False, huge_pages=False):
        cdef int fd = -1
        cdef int rc
        cdef size_t length
        cdef void *base
        self.fd = -1
        if not isinstance(segments, int) or not 1 <= segments < 1 << 31:
            raise ConfigError(f"segments is {segments!r}: it must be an integer from 1 to {(1 << 31) - 1}")
        if not isinstance(segment_size, int) or not 64 <= segment_size < 1 << 31 or segment_size % 64:
            raise ConfigError(
                f"segment_size is {segment_size!r}: it must be a multiple of 64 from 64 to {(1 << 31) - 64} bytes"
            )
        length = <size_t>segments * <size_t>segment_size
        length = (length + PAGE - 1) // PAGE * PAGE
        require_memory(length, segments, segment_size)
        if memfd:
            fd = fb_memfd("fastbuf", length)
            if fd < 0:
                raise ResourceError(f"memfd of {length} bytes: {os.strerror(errno)}; use memfd=False to do without")
        base = fb_map(length, fd)
        if base == NULL:
            rc = errno
            if fd >= 0:
                posix_close(fd)
            raise ResourceError(
                f"mapping {segments} segments of {segment_size} bytes ({length} bytes): {os.strerror(rc)}; "
                f"set segments= lower or raise the limit"
            )
        if huge_pages:
            fb_advise_huge(base, length)                # advice: a kernel without them says EINVAL
        if prefault:
            with nogil:
                rc = fb_populate(base, length)
            if rc != 0:
                fb_unmap(base, length)
                if fd >= 0:
                    posix_close(fd)
                raise ResourceError(
                    f"prefault of {length} bytes: {os.strerror(rc)}; set segments= below {segments}, or prefault=False"
                )
        self.base = <uint8_t *>base
        self.length = length
        self.fd = fd
        self.segments = segments
        self.segment_size = segment_size
        self.shape[0] = segments
        self.shape[1] = segment_size
        self.strides[0] = segment_size
        self.strides[1] = 1

    def __dealloc__(self):
        # No buffer can be exported here: each holds a reference to this object.
        self.unmap()

    cdef void unmap(self) noexcept:
        if self.base != NULL:
            fb_unmap(self.base, self.length)
            self.base = NULL
        if self.fd >= 0:
            posix_close(self.fd)
            self.fd = -1

    @property
    def array(self):
        """numpy.ndarray of uint8, shape (segments, segment_size): the memory itself, writable; it holds the arena."""
        import numpy
        return numpy.asarray(memoryview(self))

    @property
    def nbytes(self):
        """Bytes of all segments together."""
        return self.segments * self.segment_size

    @property
    def closed(self):
        """Whether the memory has been given back."""
        return self.base == NULL

    def fileno(self):
        """The memfd, which stays the arena's own: duplicate it to keep it.

        Raises
        ------
        FastbufError
            The arena is closed, or has no memfd.
        """
        if self.fd < 0:
            raise FastbufError(
                "the arena is closed" if self.base == NULL else "the arena has no memfd: make it with memfd=True"
            )
        return self.fd

    def close(self):
        """Give the memory back.  Closing twice does nothing.

        Raises
        ------
        SegmentExported
            A view of the memory is still held.
        """
        if self.exports:
            raise SegmentExported(f"{self.exports} views of the arena are still held: release them before close()")
        self.unmap()

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.base == NULL:
            raise FastbufError("the arena is closed")
        view.obj = self
        view.buf = self.base
        view.len = self.segments * self.segment_size
        view.itemsize = 1
        view.readonly = 0
        view.ndim = 2 if flags & PyBUF_ND else 1
        view.format = FORMAT if flags & PyBUF_FORMAT else NULL
        view.shape = self.shape if flags & PyBUF_ND else NULL
        view.strides = self.strides if (flags & PyBUF_STRIDES) == PyBUF_STRIDES else NULL
        view.suboffsets = NULL
        view.internal = NULL
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1

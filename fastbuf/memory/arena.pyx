"""The arena: one block of memory, mapped once, from which all segments are cut."""

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE
from libc.errno cimport errno
from libc.stdint cimport uint8_t
from posix.unistd cimport close as posix_close

import os

from fastbuf._native.files cimport *
from fastbuf.checks import flag, segment_bytes, whole
from fastbuf.errors import FastbufError, ResourceError, SegmentExported, strerror
from fastbuf.fork_safe import rests_for_fork
from fastbuf.memory.debug_checks cimport GUARD
from fastbuf.memory.layout import ArenaLayout
from fastbuf.memory.limits import memory_limits, require_memory
from fastbuf.memory.pool_setup cimport fork_count


cdef char *FORMAT = "B"
FORKED = (
    "this is a fork of the process that made this memory, and it has no copy: read it before fork(), or make the pool "
    "with memfd=True, which a child reads as it is"
)


cdef class Arena:
    """Arena(segments, segment_size, *, memfd=False, prefault=False, huge_pages=True)\n--\n
    A block of memory, cut into segments of one size.

    Parameters
    ----------
    segments : int
        How many segments; at least 1.
    segment_size : int
        Bytes of each; a multiple of 64, so that no two segments share a cache line.
    memfd : bool
        Back it by a memfd, so that another process can map it (`attach`); False: by anonymous private memory.
    prefault : bool
        Allocate all pages now.  The first use of a segment then causes no page fault, and memory cannot run out later.
    huge_pages : bool
        Advise the kernel to use huge pages: threads that write to hundreds of segments in turn have fewer TLB misses.
        Memory then becomes resident 2 MiB at a time.  Nothing happens where the kernel has no huge pages, or none for a
        memfd (``/sys/kernel/mm/transparent_hugepage``).

    Raises
    ------
    ConfigError
        A number is out of range.
    ResourceError
        Address space (``RLIMIT_AS``), the control group or free memory do not allow that size; the message has the
        figures.

    Notes
    -----
    After ``fork`` the child can read a memfd as it is now.  Private memory is the parent's alone: the child finds a
    copy only if views of it were held at the fork, which stay as they were.  Otherwise an idle child would make the
    kernel copy each page that the parent goes on to use.  `array`, and views of segments, raise an error in the child.
    It may not allocate from its parent's pool either (see `NetworkBufferPool`).
    """

    def __cinit__(self, *args, **kwargs):
        self.fd = -1

    def __init__(self, segments, segment_size, *, memfd=False, prefault=False, huge_pages=True):
        cdef int fd = -1
        cdef int rc
        cdef size_t length
        cdef void *base
        if self.segments:
            raise FastbufError("an Arena is made once")
        segments = whole("segments", segments, 1)
        segment_size = segment_bytes(segment_size)
        memfd, prefault = flag("memfd", memfd), flag("prefault", prefault)
        huge_pages = flag("huge_pages", huge_pages)
        layout = ArenaLayout.of(segments, segment_size, GUARD)
        length = layout.length
        require_memory(length, segments, segment_size)
        if memfd:
            fd = fb_memfd("fastbuf", layout.file_length)
            if fd < 0:
                raise ResourceError(
                    f"memfd_create of {length} bytes: {strerror(errno)}; NetworkBufferPool(memfd=False) does without"
                )
        base = fb_map(length, fd)
        if base == NULL:
            rc = errno
            if fd >= 0:
                posix_close(fd)
            raise ResourceError(
                f"mapping {segments} segments of {segment_size} bytes ({length} bytes): {os.strerror(rc)}; "
                f"set segments= lower or raise the limit"
            )
        self.take(base, fd, layout, True)
        if fd >= 0:
            layout.write(fd)
        if huge_pages:
            fb_advise_huge(base, length)                # advice: a kernel without them says EINVAL
        if fd < 0:
            fb_wipe_on_fork(base, length, True)         # advice too
            rests_for_fork(self)
        if prefault:
            with nogil:
                rc = fb_populate(base, length)
            if rc != 0:
                self.unmap()
                raise ResourceError(
                    f"prefault of {length} bytes: {os.strerror(rc)}; set segments= below {segments}, or prefault=False"
                )

    @classmethod
    def attach(cls, source, *, writable=False):
        """Map the memfd arena of another process.

        Parameters
        ----------
        source : int or path
            The descriptor that `fileno` returns in that process, received through a Unix socket; it is duplicated.  Or
            its path, ``/proc/<pid>/fd/<number>``.
        writable : bool
            Map it for writing too; False: writing to `array` raises an error.

        Returns
        -------
        Arena
            The same memory: each process sees what the other writes.  The memory lives until both have closed it.

        Raises
        ------
        ConfigError
            The file is no arena, its description was altered, or it is not sealed against shrinking.
        ResourceError
            Address space (``RLIMIT_AS``) does not allow that size, or mapping failed.
        OSError
            The file cannot be opened or duplicated.
        """
        cdef Arena arena = cls.__new__(cls)
        cdef void *base
        cdef int fd
        if isinstance(source, int):
            fd = os.dup(source)
        else:
            fd = os.open(source, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            layout = ArenaLayout.read(fd)
            # Its memory is charged to the process that made it.
            require_memory(layout.length, layout.segments, layout.segment_size, memory_limits(address_only=True))
            base = fb_map_shared(layout.length, fd, writable)
            if base == NULL:
                raise ResourceError(f"mapping {layout.length} bytes of another process's arena: {os.strerror(errno)}")
        except BaseException:
            os.close(fd)
            raise
        arena.take(base, fd, layout, writable)
        return arena

    cdef void take(self, void *base, int fd, object layout, bint writable) noexcept:
        self.base = <uint8_t *>base
        self.length = layout.length
        self.fd = fd
        self.segments = layout.segments
        self.segment_size = layout.segment_size
        self.stride = layout.stride
        self.writable = writable
        self.shape[0] = self.segments
        self.shape[1] = self.segment_size
        self.strides[0] = self.stride
        self.strides[1] = 1
        self.forks = fork_count()

    def before_fork(self):
        """Views that are held read the same in the child."""
        if self.exports and self.base != NULL:
            fb_wipe_on_fork(self.base, self.length, False)

    def after_fork(self, child):
        """From here on nothing is copied again."""
        if not child and self.base != NULL:
            fb_wipe_on_fork(self.base, self.length, True)

    def __dealloc__(self):
        # No buffer is exported now: each would hold a reference to this object.
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
        """numpy.ndarray of uint8, shape (segments, segment_size): the memory itself; it keeps the arena alive.

        Writable, unless it was attached without ``writable=True``.
        """
        import numpy
        return numpy.asarray(memoryview(self))

    @property
    def nbytes(self):
        """Bytes of all segments together."""
        return self.segments * self.segment_size

    @property
    def closed(self):
        """Whether the memory was unmapped."""
        return self.base == NULL

    def fileno(self):
        """The memfd.  The arena owns it: duplicate it to keep it.

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

    def __repr__(self):
        where = "closed" if self.base == NULL else f"memfd {self.fd}" if self.fd >= 0 else "private memory"
        return f"<Arena: {self.segments} segments of {self.segment_size} bytes, {where}>"

    def __reduce__(self):
        raise TypeError("an Arena belongs to its process and cannot be copied: make one in each process")

    def close(self):
        """Unmap the memory.  A second call does nothing.

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
        if self.fd < 0 and self.forks != fork_count():
            raise FastbufError(FORKED)
        if flags & PyBUF_WRITABLE and not self.writable:
            raise BufferError("the arena was attached without writable=True")
        if self.stride != self.segment_size and (flags & PyBUF_STRIDES) != PyBUF_STRIDES:
            raise BufferError("the segments of a debug build lie apart: ask for strides, or use `array`")
        view.obj = self
        view.buf = self.base
        view.len = self.segments * self.segment_size
        view.itemsize = 1
        view.readonly = not self.writable
        view.ndim = 2 if flags & PyBUF_ND else 1
        view.format = FORMAT if flags & PyBUF_FORMAT else NULL
        view.shape = self.shape if flags & PyBUF_ND else NULL
        view.strides = self.strides if (flags & PyBUF_STRIDES) == PyBUF_STRIDES else NULL
        view.suboffsets = NULL
        view.internal = NULL
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1

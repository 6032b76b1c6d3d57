"""A segment in Python's hands: a handle that owns references, and the views that hold the handle."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int32_t

import warnings

import numpy

from fastbuf.errors import SegmentExported, SegmentStateError
from fastbuf.memory.pool_core cimport (
    PoolCore,
    segment_data,
    segment_generation,
    segment_recycle,
    segment_refs,
    segment_retain,
)


# no_gc: a handle refers to its pool alone, and no pool refers to a handle, so there is no cycle to find.
@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class MemorySegment:
    """A fixed-size slice of the arena, reference-counted.

    A handle owns the references it was given (one) or has retained, and each is given back by one `recycle`.  With the
    last reference of all handles and queues the segment goes home to its pool.  Segments come from
    `LocalBufferPool.request`.

    Notes
    -----
    A handle that is garbage-collected with references left gives them back and warns (ResourceWarning).
    """

    def __init__(self):
        raise TypeError("a MemorySegment comes from LocalBufferPool.request")

    def __dealloc__(self):
        # No view can be alive here: each holds this object.
        if self.held == 0:
            return
        while self.held:
            self.held -= 1
            segment_recycle(self.core, self.number)
        try:
            warnings.warn(f"segment {self.number} was dropped, not recycled", ResourceWarning, stacklevel=1)
        except Warning:                                 # warnings are errors here, and a destructor cannot raise
            pass

    cdef int check(self) except -1:
        if self.held == 0:
            raise SegmentStateError(f"segment {self.number} was recycled through this handle already: request another")
        if self.generation != segment_generation(self.core, self.number):
            raise SegmentStateError(
                f"segment {self.number} went home although this handle holds {self.held} references: "
                f"somebody recycled a reference that was not his"
            )
        return 0

    def view(self):
        """The segment's bytes, in place.

        Returns
        -------
        memoryview
            Writable, one-dimensional, of `size` bytes.  While it or a slice of it is held, the last `recycle` is
            refused.

        Raises
        ------
        SegmentStateError
            The segment was recycled.
        """
        return memoryview(self)

    def array(self, dtype="uint8"):
        """The segment as a NumPy array, in place.

        Parameters
        ----------
        dtype : numpy dtype
            Of the items; a rest at the end that is smaller than an item is left out.

        Returns
        -------
        numpy.ndarray
            Writable, shape (size // itemsize,).  While it or a view of it is held, the last `recycle` is refused.

        Raises
        ------
        SegmentStateError
            The segment was recycled.
        """
        kind = numpy.dtype(dtype)
        return numpy.frombuffer(self, kind, self.core.segment_size // kind.itemsize)

    def retain(self):
        """Take one more reference, to be given back by one more `recycle`.

        Returns
        -------
        MemorySegment
            This handle.

        Raises
        ------
        SegmentStateError
            The segment was recycled.
        """
        self.check()
        segment_retain(self.core, self.number)
        self.held += 1
        return self

    def recycle(self):
        """Give one reference back; the segment goes home with the last.

        Raises
        ------
        SegmentExported
            This is the handle's last reference, and views of it are still held.  Nothing was given back.
        SegmentStateError
            It was recycled already.
        """
        self.check()
        if self.held == 1 and self.exports != 0:
            raise SegmentExported(
                f"segment {self.number} has {self.exports} views still held: release them (memoryview.release, del) "
                f"before recycle()"
            )
        self.held -= 1
        segment_recycle(self.core, self.number)

    @property
    def refcount(self):
        """References of all holders together; 0 once this handle is recycled."""
        return segment_refs(self.core, self.number) if self.held else 0

    @property
    def index(self):
        """Number of the segment in the arena."""
        return self.number

    @property
    def size(self):
        """Bytes."""
        return self.core.segment_size

    def __len__(self):
        return self.core.segment_size

    def __repr__(self):
        state = f"{self.refcount} references" if self.held else "recycled"
        return f"<MemorySegment {self.number}: {self.core.segment_size} bytes, {state}>"

    def __getbuffer__(self, Py_buffer *view, int flags):
        self.check()
        PyBuffer_FillInfo(view, self, segment_data(self.core, self.number), self.core.segment_size, 0, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1


cdef MemorySegment segment_adopt(PoolCore *core, object home, int32_t number):
    cdef MemorySegment segment = MemorySegment.__new__(MemorySegment)
    segment.core = core
    segment.home = home
    segment.number = number
    segment.generation = segment_generation(core, number)
    segment.held = 1
    segment.exports = 0
    return segment

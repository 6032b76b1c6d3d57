"""The Python side of a segment: a handle that owns references, and views that keep the handle alive."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject, PyTypeObject, destructor
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, uint32_t

import sys
import warnings

import numpy

from fastbuf._native.atomics cimport fb_u32_load_relaxed
from fastbuf.errors import ConfigError, FastbufError, SegmentExported, SegmentStateError
from fastbuf.memory.arena import FORKED
from fastbuf.memory.debug_checks cimport POOL_DEBUG, debug_guard_intact, debug_poison_intact, debug_set_guard
from fastbuf.memory.pool_core cimport *
from fastbuf.memory.pool_setup cimport fork_count
from fastbuf.memory.pool_types cimport PoolCore, SegmentMeta


# References are counted by hand here for speed, with Python's C functions instead of cpython.ref.
cdef extern from *:
    Py_ssize_t Py_REFCNT(PyObject *o)
    void Py_SET_REFCNT(PyObject *o, Py_ssize_t n)
    void Py_XINCREF(PyObject *o)
    void Py_XDECREF(PyObject *o)
    PyTypeObject *type_of "Py_TYPE"(PyObject *o)
    PyObject *item "PyList_GET_ITEM"(object, Py_ssize_t k)                  # borrowed
    PyObject *PyList_New(Py_ssize_t n)
    ctypedef struct PyListObject:
        PyObject **ob_item
    object steal "(PyObject *)"(PyObject *)                              # takes the reference over


# Relaxed: the generation changes only when there is no reference, and the caller has one.
cdef inline uint32_t generation_of(PoolCore *core, int32_t number) noexcept:
    return fb_u32_load_relaxed(&core.meta[number].generation)


_LAST_RECYCLED = {}                 # debug build: (address of the core, segment) -> source line that recycled it last


# no_gc: a handle refers only to its pool, and pools do not refer to handles, so there is no cycle to find.
@cython.final
@cython.no_gc
cdef class MemorySegment:
    """MemorySegment()\n--\n
    A fixed-size slice of the arena, reference-counted.

    A handle owns the reference it was made with and those added by `retain`; each is returned by one `recycle`.  The
    segment is free again when all handles and queues have returned their references.  Segments come from
    `LocalBufferPool.request`.

    Notes
    -----
    A handle that is garbage-collected while it has references returns them and warns (ResourceWarning).
    """

    def __init__(self):
        raise TypeError("a MemorySegment comes from LocalBufferPool.request")

    def __dealloc__(self):
        # No view can exist now: each would hold this object.
        if self.held != 0:
            while self.held:
                self.held -= 1
                segment_recycle(self.core, self.number)
            try:
                warnings.warn(f"segment {self.number} was dropped, not recycled", ResourceWarning, stacklevel=1)
            # the user turned warnings into errors, and a destructor cannot raise
            except Warning:
                pass
        Py_XDECREF(self.ended)
        Py_XDECREF(self.home)

    cdef int check(self) except -1:
        if self.held == 0:
            raise SegmentStateError(
                f"segment {self.number} was recycled through this handle already{self.debug_ended()}: request another"
            )
        if self.generation != generation_of(self.core, self.number):
            raise SegmentStateError(
                f"segment {self.number} went home although this handle holds {self.held} references: "
                f"somebody recycled a reference that was not his{self.debug_ended()}"
            )
        return 0

    cdef int debug_end(self) except -1:
        # Before the handle's last reference is returned: note the source line, and check the guard after the segment.
        cdef object where
        if self.held != 1:
            return 0
        frame = sys._getframe()                         # the caller's frame: compiled functions have none
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if not debug_guard_intact(self.core, self.number):
            debug_set_guard(self.core, self.number)     # reported once; the next recycle succeeds
            raise SegmentStateError(
                f"segment {self.number} was written to beyond its end while it was out; found by its recycle at {where}"
            )
        Py_XDECREF(self.ended)
        Py_XINCREF(<PyObject *>where)
        self.ended = <PyObject *>where
        _LAST_RECYCLED[<size_t>self.core, self.number] = where
        return 0

    cdef str debug_ended(self):
        if not POOL_DEBUG:
            return ""
        if self.held == 0:
            return f" at {<object>self.ended}" if self.ended != NULL else ""
        where = _LAST_RECYCLED.get((<size_t>self.core, self.number))
        return f"; it was last recycled from Python at {where}" if where else "; never from Python"

    cdef int refuse_exported(self) except -1:
        raise SegmentExported(
            f"segment {self.number} has {self.exports} views still held: release them (memoryview.release, del) "
            f"before recycle()"
        )

    def view(self):
        """The segment's bytes, in place.

        Returns
        -------
        memoryview
            Writable, one-dimensional, of `size` bytes.  The last `recycle` is refused while this view or a slice of it
            is held.

        Raises
        ------
        SegmentStateError
            The segment was recycled.
        FastbufError
            This process is a fork of the one that made the pool, whose memory is its own (no memfd).
        """
        return memoryview(self)

    def array(self, dtype="uint8"):
        """The segment as a NumPy array, in place.

        Parameters
        ----------
        dtype : numpy dtype
            Type of the items; bytes at the end that do not fill an item are left out.

        Returns
        -------
        numpy.ndarray
            Writable, shape (size // itemsize,).  The last `recycle` is refused while this array or a view of it is
            held.

        Raises
        ------
        SegmentStateError
            The segment was recycled.
        ConfigError
            The items have no bytes, or are Python objects.
        """
        kind = numpy.dtype(dtype)
        if not kind.itemsize or kind.hasobject:
            raise ConfigError(f"dtype is {dtype!r:.80}: its items have no bytes, or are Python objects")
        return numpy.frombuffer(self, kind, self.core.segment_size // kind.itemsize)

    def retain(self):
        """Add a reference, which one more `recycle` returns.

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
        """Return one reference; with the last one the segment goes back to its pool.

        Raises
        ------
        SegmentExported
            This is the handle's last reference, and views of the segment are still held.  Nothing was returned.
        SegmentStateError
            It was recycled already.
        """
        if not is_fine(<PyObject *>self):
            self.check()
        if self.held == 1 and self.exports != 0:
            self.refuse_exported()
        if POOL_DEBUG:
            self.debug_end()
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

    def __enter__(self):
        self.check()
        return self

    def __exit__(self, kind, value, traceback):
        # Return one reference, unless the block did so.  After an error, views held by its traceback must not hide it
        # behind another error: the handle returns its references, and warns, when it is collected.
        if self.held and not (kind is not None and self.exports):
            self.recycle()

    def __reduce__(self):
        raise TypeError("a MemorySegment belongs to its process and cannot be copied: "
                        "copy its bytes, as in bytes(segment.view())")

    def __repr__(self):
        state = f"{self.refcount} references" if self.held else "recycled"
        return f"<MemorySegment {self.number}: {self.core.segment_size} bytes, {state}>"

    def __getbuffer__(self, Py_buffer *view, int flags):
        self.check()
        if self.core.is_private and self.core.forks != fork_count():
            raise FastbufError(FORKED)
        PyBuffer_FillInfo(view, self, segment_data(self.core, self.number), self.core.segment_size, 0, flags)
        self.exports += 1
        self.core.exports[0] += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1
        self.core.exports[0] -= 1


# --- making and recycling handles -------------------------------------------------------------------------------------
# Every request makes a handle, so handles are kept here and used again.  Cython's own free list clears the object,
# looks up its type and saves the thread's exception state each time, which costs more than the pool does.

cdef enum:
    MOST_KEPT = 256

# recycled handles without references; they keep their type and method table. Guarded by the GIL
cdef PyObject *free_handles[MOST_KEPT]
cdef int kept_count = 0
cdef destructor dealloc             # Cython's deallocator: runs __dealloc__ and frees


cdef void keep_or_dealloc(PyObject *o) noexcept:
    # Use no variable of a Python type here: taking and dropping a reference to `o` would destroy it twice.
    global kept_count
    cdef PyObject *home
    if (<MemorySegment>o).held != 0 or kept_count == MOST_KEPT or POOL_DEBUG:
        dealloc(o)
        return
    home = (<MemorySegment>o).home
    free_handles[kept_count] = o
    kept_count += 1
    Py_XDECREF(home)                                    # last: it may run any code


dealloc = (<PyTypeObject *>MemorySegment).tp_dealloc
(<PyTypeObject *>MemorySegment).tp_dealloc = <destructor>keep_or_dealloc
# The conditions for which `check` raises, without the call.
cdef inline bint is_fine(PyObject *o) noexcept:
    return (
        (<MemorySegment>o).held != 0
        and (<MemorySegment>o).generation == generation_of((<MemorySegment>o).core, (<MemorySegment>o).number)
    )


# Turns a handle without segment references into a handle of `number`; takes over a reference to `home`.  The handle
# exports nothing: any export would have held the handle itself.
cdef inline PyObject *fill_handle(
    PyObject *o, PoolCore *core, SegmentMeta *meta, PyObject *home, int32_t number
) noexcept:
    (<MemorySegment>o).core = core
    (<MemorySegment>o).home = home
    (<MemorySegment>o).number = number
    (<MemorySegment>o).generation = fb_u32_load_relaxed(&meta[number].generation)
    (<MemorySegment>o).held = 1
    return o


cdef inline PyObject *new_handle(PoolCore *core, PyObject *home, int32_t number) except NULL:
    # Takes over a reference that the caller owns.
    global kept_count
    cdef PyObject *o
    if POOL_DEBUG and not debug_poison_intact(core, number):
        segment_recycle(core, number)
        where = _LAST_RECYCLED.get((<size_t>core, number), "an unknown line, in native code")
        raise SegmentStateError(f"segment {number} was written to after it was recycled at {where}")
    if kept_count != 0:
        kept_count -= 1
        o = free_handles[kept_count]
        Py_SET_REFCNT(o, 1)
    else:
        try:
            segment = MemorySegment.__new__(MemorySegment)
        except MemoryError:
            segment_recycle(core, number)
            raise
        Py_INCREF(segment)
        o = <PyObject *>segment
    Py_XINCREF(home)
    return fill_handle(o, core, core.meta, home, number)


cdef MemorySegment segment_adopt(PoolCore *core, object home, int32_t number):
    return steal(new_handle(core, <PyObject *>home, number))


cdef list segments_adopt(PoolCore *core, object home, const int32_t *numbers, uint32_t n):
    global kept_count
    if n <= <uint32_t>kept_count:                       # a debug build keeps no handles
        handles = PyList_New(n)
        if handles == NULL:
            segment_recycle_many(core, numbers, n)
            raise MemoryError
        kept_count -= <int>n
        Py_SET_REFCNT(<PyObject *>home, Py_REFCNT(<PyObject *>home) + n)
        fill_handles((<PyListObject *>handles).ob_item, free_handles + kept_count, core, <PyObject *>home, numbers, n)
        return steal(handles)
    return adopt_slowly(core, home, numbers, n)


cdef void fill_handles(
    PyObject **to, PyObject **handles, PoolCore *core, PyObject *home, const int32_t *numbers, uint32_t n
) noexcept:
    cdef SegmentMeta *meta = core.meta
    cdef PyObject *o
    cdef uint32_t k
    for k in range(n):
        o = handles[k]
        Py_SET_REFCNT(o, 1)
        to[k] = fill_handle(o, core, meta, home, numbers[k])


cdef list adopt_slowly(PoolCore *core, object home, const int32_t *numbers, uint32_t n):
    cdef uint32_t k = 0
    cdef list handles = []
    try:
        while k < n:
            handles.append(steal(new_handle(core, <PyObject *>home, numbers[k])))
            k += 1
    except BaseException:                               # the handles made so far return their references themselves
        segment_recycle_many(core, &numbers[k + 1], n - k - 1)
        raise
    return handles


cdef segments_recycle(list segments):
    cdef int32_t numbers[MOST_AT_ONCE]
    cdef PyObject **handles = (<PyListObject *>segments).ob_item
    cdef Py_ssize_t count = PyList_GET_SIZE(segments)
    cdef Py_ssize_t k
    if 0 < count <= MOST_AT_ONCE and not POOL_DEBUG and type_of(handles[0]) == <PyTypeObject *>MemorySegment:
        k = end_handles(handles, count, <PyTypeObject *>MemorySegment, numbers)
        if k == count:
            segment_recycle_many((<MemorySegment>handles[0]).core, numbers, <uint32_t>count)
            return
        while k > 0:
            k -= 1
            (<MemorySegment>handles[k]).held = 1
    recycle_slowly(segments)


# Takes the only reference out of each handle, up to the first unsuitable item: no handle, another pool than the first,
# not exactly one reference, or not recyclable now.  Returns how many were taken.
cdef Py_ssize_t end_handles(PyObject **handles, Py_ssize_t count, PyTypeObject *type_, int32_t *numbers) noexcept:
    cdef PoolCore *core = (<MemorySegment>handles[0]).core
    cdef SegmentMeta *meta = core.meta
    cdef PyObject *o
    cdef Py_ssize_t k
    cdef int32_t number
    for k in range(count):
        o = handles[k]
        if type_of(o) != type_ or (<MemorySegment>o).core != core:
            return k
        number = (<MemorySegment>o).number
        if (
            (<MemorySegment>o).held != 1
            or (<MemorySegment>o).exports != 0
            or (<MemorySegment>o).generation != fb_u32_load_relaxed(&meta[number].generation)
        ):
            return k
        (<MemorySegment>o).held = 0
        numbers[k] = number
    return count


cdef recycle_slowly(list segments):
    cdef PyObject *o
    cdef PoolCore *core = NULL
    cdef int32_t numbers[MOST_AT_ONCE]
    cdef uint32_t n = 0
    cdef Py_ssize_t count = PyList_GET_SIZE(segments)
    cdef Py_ssize_t k = 0
    # 1. Take every reference out of its handle, which also finds a handle listed too often.  No Python code runs from
    # here to the end, so no thread sees this state, and the list cannot change.
    try:
        while k < count:
            o = item(segments, k)
            if type_of(o) != <PyTypeObject *>MemorySegment:
                raise TypeError(f"item {k} is a {type(<object>o).__name__}: it must be a MemorySegment")
            if not is_fine(o):
                (<MemorySegment>o).check()
            if (<MemorySegment>o).held == 1 and (<MemorySegment>o).exports != 0:
                (<MemorySegment>o).refuse_exported()
            if POOL_DEBUG:
                (<MemorySegment>o).debug_end()
            (<MemorySegment>o).held -= 1
            k += 1
    except BaseException:
        while k > 0:
            k -= 1
            (<MemorySegment>item(segments, k)).held += 1
        raise
    # 2. Recycle the segments.
    for k in range(count):
        o = item(segments, k)
        if n != 0 and (n == MOST_AT_ONCE or (<MemorySegment>o).core != core):
            segment_recycle_many(core, numbers, n)
            n = 0
        core = (<MemorySegment>o).core
        numbers[n] = (<MemorySegment>o).number
        n += 1
    if n != 0:
        segment_recycle_many(core, numbers, n)

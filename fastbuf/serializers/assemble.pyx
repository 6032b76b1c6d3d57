"""Assembles Arrow batches from columnar elements."""

from cpython.buffer cimport PyBuffer_Release
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from fastbuf.serializers.arrow_abi cimport ArrowArray
from fastbuf.serializers.column_plan cimport ColumnPlan
from fastbuf.serializers.columns cimport *

from fastbuf.errors import BlockCorrupt, BlockTruncated, RecordTooLong
from fastbuf.serializers.column_wire import from_wire

# A smaller append is done before another thread could take the GIL and return it.
cdef Py_ssize_t GIL_BYTES = 256 * 1024

cdef extern from "Python.h":
    int Py_IsInitialized() nogil


# The columns of a batch with as many rows are handed over one by one, so that each is free when it is dropped; of a
# shorter batch all together, which costs less.
ROWS_APART = 4096
cdef Py_ssize_t rows_apart = ROWS_APART

# pyarrow's functions, once they were needed
cdef object _import_from_c = None
cdef object _import_column = None
cdef object _from_columns = None


cdef void drop_copy(fb_place *place) noexcept nogil:
    free(place.owner)


cdef void drop_export(fb_place *place) noexcept nogil:
    # A batch may outlive the interpreter; its memory is then never freed.
    if Py_IsInitialized():
        with gil:
            Py_DECREF(<object> place.owner)


cdef void drop_buffer(fb_place *place) noexcept nogil:
    if Py_IsInitialized():
        with gil:
            PyBuffer_Release(<Py_buffer *> place.owner)
            free(place.owner)


cdef class BatchAssembler:
    """Appends chunks to columns and returns them as one ``pyarrow.RecordBatch``.

    Every length in a chunk is compared with the bytes left before anything is read; a refused chunk leaves the
    assembler unchanged.

    Parameters
    ----------
    schema : Schema, pyarrow.Schema, ColumnPlan, or anything with ``__arrow_c_schema__``
        The batches have this schema, with its metadata.

    Attributes
    ----------
    rows : int
        Rows appended since the last batch was taken.
    nbytes : int
        Bytes of their payloads.
    """

    def __cinit__(self, schema):
        self.plan = schema if isinstance(schema, ColumnPlan) else ColumnPlan(schema)
        self.c.nodes = self.plan.nodes
        self.c.n_nodes = self.plan.n_nodes
        self.c.outs = <fb_out *> calloc(self.plan.n_nodes, sizeof(fb_out))
        self.c.pieces = <fb_piece *> calloc(self.plan.n_nodes, sizeof(fb_piece))
        if self.c.outs == NULL or self.c.pieces == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.c.outs != NULL:
            fb_free_outs(self.c.outs, self.c.n_nodes)
        free(self.c.outs)
        free(self.c.pieces)

    cdef void believe(self, bint writer) noexcept:
        # Batches that are cast here are read by their offsets first, so their offsets must be checked.
        self.c.believed = writer and self.plan.wire is None

    cdef void trust(self, bint own) noexcept:
        self.c.own = own

    cdef int append(self, const uint8_t *payload, Py_ssize_t length) except -1:
        cdef int error
        if length < GIL_BYTES:
            error = fb_append(&self.c, payload, length)
        else:
            with nogil:
                error = fb_append(&self.c, payload, length)
        if error:
            self._refuse(error, length)
        self.rows = self.c.outs[0].rows
        self.nbytes += length
        return 0

    cdef int _refuse(self, int error, Py_ssize_t length) except -1:
        where = f"column {self.plan.paths[self.c.bad_node]!r}" if self.c.bad_node else "the chunk"
        what = f"a columnar chunk of {length:,} bytes: {where}"
        if error == FB_APPEND_SHORT:
            raise BlockTruncated(f"{what} needs {self.c.need:,} bytes and {self.c.left:,} are left")
        if error == FB_APPEND_FALL:
            raise BlockCorrupt(f"{what} has offsets that decrease, or do not begin at 0")
        if error == FB_APPEND_NULLS:
            raise BlockCorrupt(f"{what} has nulls and the schema allows none")
        if error == FB_APPEND_FLAGS:
            raise BlockCorrupt(f"{what} has a flag that is unknown for its type")
        if error == FB_APPEND_EXTRA:
            raise BlockCorrupt(f"{what} is followed by {self.c.left:,} bytes that belong to no column")
        if error == FB_APPEND_PADDING:
            raise BlockCorrupt(f"{what} has padding that is not 0")
        if error == FB_APPEND_TEXT:
            raise BlockCorrupt(f"{what} has text that is not UTF-8, in its value {self.c.need:,}: send bytes as binary")
        if error == FB_APPEND_ROWS:
            raise BlockCorrupt(f"{what} claims {self.c.need:,} rows of no bytes")
        if error == FB_APPEND_OFFSETS:
            raise RecordTooLong(
                f"{where} would pass the 2 GiB that its 32-bit offsets reach ({self.c.need:,}): take batches sooner, "
                f"or use the large type ({self.rows:,} rows so far)"
            )
        if error == FB_APPEND_MEMORY:
            raise MemoryError(f"no memory for {where} after {self.rows:,} rows and {self.nbytes:,} bytes")
        raise BlockCorrupt(f"{what} was refused ({error})")

    cdef object take(self):
        cdef ArrowArray array
        if fb_take(&self.c, &array):
            raise MemoryError(f"no memory to hand over a batch of {self.rows:,} rows")
        self.rows = 0
        self.nbytes = 0
        if array.length < rows_apart or array.n_children == 0 or self.plan.wire is not None:
            return self._batch_of(&array)
        return self._columns_of(&array)

    cdef object _columns_of(self, ArrowArray *array):
        # As _batch_of.
        global _import_column, _from_columns
        cdef int64_t i
        try:
            schema = self.plan.arrow_schema()
            if self._types is None:
                import pyarrow

                _import_column, _from_columns = pyarrow.Array._import_from_c, pyarrow.RecordBatch.from_arrays
                self._types = schema.types
            columns = [
                _import_column(<uintptr_t> array.children[i], self._types[i]) for i in range(array.n_children)
            ]
        finally:
            array.release(array)
        return _from_columns(columns, schema=schema)

    cdef object _batch_of(self, ArrowArray *array):
        # Gives the array away in any case.
        global _import_from_c
        try:
            if _import_from_c is None:
                import pyarrow

                _import_from_c = pyarrow.RecordBatch._import_from_c
            schema = self.plan.arrow_schema() if self.plan.wire is None else self.plan.wire
            batch = _import_from_c(<uintptr_t> array, schema)
        finally:
            # A successful import moves the struct out and sets release to NULL.
            if array.release != NULL:
                array.release(array)
        return batch if self.plan.wire is None else from_wire(batch, self.plan.arrow_schema())

    cdef object copied(self, const uint8_t *payload, Py_ssize_t length):
        # All columns in one copied block of memory; checked after the copy, so that no thread can change it in between.
        cdef ArrowArray array
        cdef int error
        cdef uint8_t *copy = <uint8_t *> malloc(length + 4)
        if copy == NULL:
            raise MemoryError(f"no memory to copy a chunk of {length:,} bytes")
        if length < GIL_BYTES:
            fb_copy(copy + 4, payload, length)
            error = fb_parse(&self.c, copy + 4, length)
        else:
            with nogil:
                fb_copy(copy + 4, payload, length)
                error = fb_parse(&self.c, copy + 4, length)
        if error or fb_take_place(&self.c, drop_copy, copy, &array):
            free(copy)
            self._refuse(error or FB_APPEND_MEMORY, length)
        return self._batch_of(&array)

    cdef object in_place(self, const uint8_t *payload, Py_ssize_t length, object owner):
        cdef ArrowArray array
        cdef int error = fb_parse(&self.c, payload, length)
        if error or fb_take_place(&self.c, drop_export, <PyObject *> owner, &array):
            self._refuse(error or FB_APPEND_MEMORY, length)
        Py_INCREF(owner)
        return self._batch_of(&array)

    cdef object placed_in(self, const uint8_t *payload, Py_ssize_t length, Py_buffer **export):
        cdef ArrowArray array
        cdef int error = fb_parse(&self.c, payload, length)
        if error or fb_take_place(&self.c, drop_buffer, export[0], &array):
            self._refuse(error or FB_APPEND_MEMORY, length)
        export[0] = NULL
        return self._batch_of(&array)

    cdef Py_ssize_t piece_rows(self) noexcept:
        return self.c.pieces[0].rows

    def add(self, payload):
        """Append one element's payload (without its length prefix).

        Parameters
        ----------
        payload : bytes-like
            It is copied.

        Raises
        ------
        BlockTruncated
            A column needs more bytes than are left.
        BlockCorrupt
            Lengths contradict each other, or the schema does not allow a flag.
        RecordTooLong
            32-bit offsets would exceed 2 GiB: take the batch first.
        """
        cdef const uint8_t[::1] view = memoryview(payload).cast("B")
        cdef Py_ssize_t length = view.shape[0]
        self.append(&view[0] if length else NULL, length)

    cdef int append_elements(self, const uint8_t *data, Py_ssize_t length) except -1:
        cdef Py_ssize_t at = 0
        cdef uint32_t size
        while at < length:
            if length - at < 4:
                raise BlockTruncated(f"{length - at} bytes at byte {at:,} are too few for an element")
            memcpy(&size, data + at, 4)
            at += 4
            if size > length - at:
                raise BlockTruncated(
                    f"an element at byte {at - 4:,} announces {size:,} bytes and {length - at:,} are left"
                )
            self.append(data + at, size)
            at += size
        return 0

    def add_elements(self, data):
        """Append whole elements, each with its length prefix.

        Parameters
        ----------
        data : bytes-like
            They are copied.

        Raises
        ------
        BlockError, RecordTooLong
            As for :meth:`add`; the elements before the bad one stay.
        """
        cdef const uint8_t[::1] view = memoryview(data).cast("B")
        if view.shape[0]:
            self.append_elements(&view[0], view.shape[0])

    def batch(self):
        """All rows so far as a ``pyarrow.RecordBatch``; the assembler starts anew.

        Returns
        -------
        pyarrow.RecordBatch
            It owns its buffers: nothing is copied.
        """
        return self.take()


def _best_way(int way):
    """For tests: select the kernels: without AVX2 (0), with AVX2 (1), or the best that this processor has (2)."""
    global fb_best_way
    fb_best_way = way

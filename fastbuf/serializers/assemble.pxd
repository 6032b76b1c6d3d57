# Decodes elements: chunks of any size are appended to growing columns, which are handed over as one batch.
from libc.stdint cimport uint8_t

from fastbuf.serializers.arrow_abi cimport ArrowArray
from fastbuf.serializers.column_plan cimport ColumnPlan
from fastbuf.serializers.columns cimport fb_assembly


# One per gate; not thread-safe.
cdef class BatchAssembler:
    cdef readonly Py_ssize_t rows      # rows appended since the last take
    cdef readonly Py_ssize_t nbytes    # bytes of their payloads
    cdef ColumnPlan plan
    cdef list _types                   # of the columns, once they were needed
    cdef fb_assembly c                 # owns the column buffers until take hands them to a batch

    cdef void believe(self, bint writer) noexcept              # whether offsets and padding are accepted unchecked
    # whether this process wrote the text, so that it need not be checked
    cdef void trust(self, bint own) noexcept
    cdef int append(self, const uint8_t *payload, Py_ssize_t length) except -1
    # Appends whole elements, which start with their length prefixes.
    cdef int append_elements(self, const uint8_t *data, Py_ssize_t length) except -1
    cdef object take(self)
    # One payload as a batch of its own, besides the appended ones; either of a copy, or of the bytes themselves, which
    # then must start 4 bytes after a multiple of 8.  A reference on `owner` keeps the bytes until the batch's last
    # buffer is released.
    cdef object copied(self, const uint8_t *payload, Py_ssize_t length)
    cdef object in_place(self, const uint8_t *payload, Py_ssize_t length, object owner)
    # As placed; *export was malloc'ed, and is released and freed at the end.  It is set to NULL when this function
    # takes it over.
    cdef object placed_in(self, const uint8_t *payload, Py_ssize_t length, Py_buffer **export)
    cdef Py_ssize_t piece_rows(self) noexcept                  # rows of the payload returned last
    cdef object _batch_of(self, ArrowArray *array)
    cdef object _columns_of(self, ArrowArray *array)
    cdef int _refuse(self, int error, Py_ssize_t length) except -1

# Elements in: chunks of any size appended to growing columns, handed over as one batch.
from libc.stdint cimport uint8_t

from fastbuf.serializers.arrow_abi cimport ArrowArray
from fastbuf.serializers.column_plan cimport ColumnPlan
from fastbuf.serializers.columns cimport fb_assembly


# One per gate; not for two threads at once.
cdef class BatchAssembler:
    cdef readonly Py_ssize_t rows      # appended since the last take
    cdef readonly Py_ssize_t nbytes    # of their payloads
    cdef ColumnPlan plan
    cdef fb_assembly c                 # owns the column buffers until take hands them to a batch

    cdef void believe(self, bint writer) noexcept              # whether offsets and padding are taken as they are
    cdef void trust(self, bint own) noexcept                   # whether text is this process's own, and not looked at
    cdef int append(self, const uint8_t *payload, Py_ssize_t length) except -1
    # Whole elements, prefixes included.
    cdef int append_elements(self, const uint8_t *data, Py_ssize_t length) except -1
    cdef object take(self)
    # One payload as a batch of its own, besides what was appended: of a copy, or of the bytes themselves, which are
    # then 4 bytes behind a multiple of 8; they are kept by a reference on `owner` until the batch's last buffer goes.
    cdef object copied(self, const uint8_t *payload, Py_ssize_t length)
    cdef object placed(self, const uint8_t *payload, Py_ssize_t length, object owner)
    # As placed; *export, which is malloc'ed, is released and freed in the end. It is NULL once it is not the caller's.
    cdef object placed_in(self, const uint8_t *payload, Py_ssize_t length, Py_buffer **export)
    cdef Py_ssize_t piece_rows(self) noexcept                  # of the payload given out last
    cdef object _batch_of(self, ArrowArray *array)
    cdef int _refuse(self, int error, Py_ssize_t length) except -1

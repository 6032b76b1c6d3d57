# Batches out: rows grouped by partition, then encoded straight into whatever buffer has room.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from fastbuf.serializers.column_plan cimport BoundBatch, ColumnPlan
from fastbuf.serializers.columns cimport fb_soon, fb_sorted
from fastbuf.serializers.partition cimport HashPartitioner


# One per writer, reused for every batch; not for two threads at once.
cdef class BatchScatter:
    cdef readonly int partitions
    cdef ColumnPlan plan
    cdef BoundBatch batch
    cdef uint32_t *order           # row numbers grouped by partition; order_rows of them
    cdef uint32_t *places          # where in `order` each row is; order_rows of them
    cdef Py_ssize_t order_rows     # allocated
    cdef bint spelt                # `order` is filled; else it is made when it is read:
    cdef bint placed               # of `places`, or, where they were not written down, of `pids`
    cdef fb_sorted *sorted         # of each node of the plan
    cdef uint8_t *slots            # what `sorted` points into; slot_bytes of them
    cdef Py_ssize_t slot_bytes     # allocated
    cdef int64_t *at               # next row of partition p: a place in `order`, or a row where `straight`
    cdef int64_t *stop             # end of partition p
    cdef fb_soon *soon             # where partition p goes on in the next batch, as far as can be told
    cdef uint32_t *counts          # scratch of the counting sort
    cdef int32_t *pids             # scratch of begin_hashed; order_rows of them
    cdef bint straight             # all rows go to one partition: `order` is not used

    cdef int begin(self, object batch, object pids) except -1
    # As begin, with pids from the hash of key columns; imports the batch once instead of twice.
    cdef int begin_hashed(self, object batch, HashPartitioner keys) except -1
    # As begin_hashed, with partition p of `keys` renamed to[p].
    cdef int begin_renamed(self, object batch, HashPartitioner keys, const int32_t *to) except -1
    cdef Py_ssize_t rows_left(self, int part) noexcept nogil
    cdef Py_ssize_t encode(self, int part, uint8_t *dst, Py_ssize_t room) noexcept nogil
    cdef Py_ssize_t next_row_bytes(self, int part) noexcept nogil
    cdef bint next_row_fits(self, int part, Py_ssize_t room) noexcept nogil
    cdef Py_ssize_t rest_bytes(self, int part) noexcept nogil   # one element with all rows that are left
    cdef void end(self)

    cdef int _reserve(self, Py_ssize_t rows, bint with_pids) except -1
    cdef int _reserve_slots(self, int64_t needed) noexcept
    # `kept`: pids stay as they are until the end of the batch.
    cdef int _group(self, const int32_t *pids, bint kept) except -1
    cdef const uint32_t *_numbers(self, int part) noexcept nogil       # of the rows left of a partition
    cdef void _expect(self, int part, const uint8_t *dst, Py_ssize_t room) noexcept nogil
    cdef int _all_to(self, int part) noexcept

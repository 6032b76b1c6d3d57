# Encodes batches: rows are grouped by partition, then written directly into a buffer with room.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from fastbuf.serializers.column_plan cimport BoundBatch, ColumnPlan
from fastbuf.serializers.columns cimport fb_soon, fb_sorted
from fastbuf.serializers.partition cimport HashPartitioner


# One per writer, reused for every batch; not thread-safe.
cdef class BatchScatter:
    cdef readonly int partitions
    cdef ColumnPlan plan
    cdef BoundBatch batch
    cdef uint32_t *order           # row numbers grouped by partition; order_rows entries
    cdef uint32_t *places          # position of each row in `order`; order_rows entries
    cdef Py_ssize_t order_rows     # allocated entries
    cdef bint has_order            # `order` is filled; else it is filled when needed:
    cdef bint has_places           # from `places`, or, if they were not stored, from `pids`
    cdef fb_sorted *sorted         # one per node of the plan
    cdef uint8_t *slots            # memory that `sorted` points into; slot_bytes bytes
    cdef Py_ssize_t slot_bytes     # allocated bytes
    cdef int64_t *at               # next row of partition p: a position in `order`, or a row if `straight`
    cdef int64_t *stop             # end of partition p
    cdef fb_soon *soon             # expected position of partition p's data in the next batch
    cdef uint32_t *counts          # scratch of the counting sort
    cdef int32_t *pids             # scratch of begin_hashed; order_rows entries
    cdef bint straight             # all rows go to one partition, so `order` is not used

    cdef int begin(self, object batch, object pids) except -1
    # begin with pids computed from the hash of key columns; imports the batch once instead of twice.  With `to`,
    # partition p of `keys` becomes to[p].
    cdef int begin_hashed(self, object batch, HashPartitioner keys, const int32_t *to) except -1
    cdef Py_ssize_t rows_left(self, int part) noexcept nogil
    cdef Py_ssize_t encode(self, int part, uint8_t *dst, Py_ssize_t room) noexcept nogil
    cdef Py_ssize_t next_row_bytes(self, int part) noexcept nogil
    cdef bint next_row_fits(self, int part, Py_ssize_t room) noexcept nogil
    cdef Py_ssize_t rest_bytes(self, int part) noexcept nogil   # size of one element with all remaining rows
    cdef void end(self)

    cdef int _reserve(self, Py_ssize_t rows, bint with_pids) except -1
    cdef int _reserve_slots(self, int64_t needed) noexcept
    # `pids_stay`: the caller does not change pids until the end of the batch.
    cdef int _group(self, const int32_t *pids, bint pids_stay) except -1
    cdef const uint32_t *_numbers(self, int part) noexcept nogil       # of the remaining rows of a partition
    cdef void _expect(self, int part, const uint8_t *dst, Py_ssize_t room) noexcept nogil
    cdef int _all_to(self, int part) noexcept

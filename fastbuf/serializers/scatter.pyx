"""Distributes the rows of Arrow batches over partitions, in columnar elements."""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from fastbuf.serializers.column_plan cimport BoundBatch, ColumnPlan
from fastbuf.serializers.columns cimport *
from fastbuf.serializers.partition cimport HashPartitioner

# How many partitions ahead of the current one the output memory is prefetched.
cdef int AHEAD = 4


cdef class BatchScatter:
    """Groups the rows of a batch by partition and encodes them, as many as fit, into buffers.

    Parameters
    ----------
    schema : Schema, pyarrow.Schema, ColumnPlan, or anything with ``__arrow_c_schema__``
    partitions : int
        At least 1.

    Raises
    ------
    SchemaError
        A type is not supported.
    """

    def __cinit__(self, schema, int partitions):
        if partitions < 1:
            raise ValueError(f"partitions is {partitions}: it must be at least 1")
        self.partitions = partitions
        self.plan = schema if isinstance(schema, ColumnPlan) else ColumnPlan(schema)
        self.batch = BoundBatch(self.plan)
        self.at = <int64_t *> calloc(partitions + 1, sizeof(int64_t))
        self.stop = <int64_t *> calloc(partitions + 1, sizeof(int64_t))
        self.counts = <uint32_t *> calloc(FB_LANES * <size_t> partitions, sizeof(uint32_t))
        self.sorted = <fb_sorted *> calloc(self.plan.n_nodes, sizeof(fb_sorted))
        self.soon = <fb_soon *> calloc(partitions, sizeof(fb_soon))
        if not (self.at and self.stop and self.counts and self.sorted and self.soon):
            raise MemoryError

    def __dealloc__(self):
        free(self.order)
        free(self.places)
        free(self.pids)
        free(self.soon)
        free(self.sorted)
        free(self.slots)
        free(self.at)
        free(self.stop)
        free(self.counts)

    cdef int _reserve(self, Py_ssize_t rows, bint with_pids) except -1:
        if rows > self.order_rows:
            free(self.order)
            free(self.places)
            free(self.pids)
            self.pids = self.places = NULL
            self.order_rows = 0
            self.order = <uint32_t *> malloc((rows + FB_ORDER_SLACK) * sizeof(uint32_t))
            if self.partitions > FB_PASSES:
                self.places = <uint32_t *> malloc(rows * sizeof(uint32_t))
            if self.order == NULL or (self.places == NULL and self.partitions > FB_PASSES):
                raise MemoryError(f"{rows * 8:,} bytes to order {rows:,} rows")
            self.order_rows = rows
        if with_pids and self.pids == NULL:
            self.pids = <int32_t *> malloc(self.order_rows * sizeof(int32_t))
            if self.pids == NULL:
                raise MemoryError(f"{rows * 4:,} bytes for the partitions of {rows:,} rows")
        return 0

    cdef int _all_to(self, int part) noexcept:
        memset(self.at, 0, self.partitions * sizeof(int64_t))
        memset(self.stop, 0, self.partitions * sizeof(int64_t))
        self.stop[part] = self.batch.c.rows
        self.straight = True
        return 0

    cdef int _reserve_slots(self, int64_t needed) noexcept:
        # Without this memory a batch is gathered, so a failed allocation is no error.
        if needed > self.slot_bytes:
            free(self.slots)
            self.slots = <uint8_t *> malloc(needed)
            self.slot_bytes = needed if self.slots != NULL else 0
        return self.slots != NULL

    cdef int _group(self, const int32_t *pids, bint pids_stay) except -1:
        cdef int64_t rows = self.batch.c.rows, needed = 0
        cdef int64_t only_target            # of all rows; negative: there are several
        self._reserve(rows, False)
        self.straight = False
        self.has_order = True
        if self.partitions > FB_PASSES:
            needed = fb_sort_bytes(&self.batch.c)
        if needed and needed <= FB_SORT_BYTES and self._reserve_slots(needed):
            with nogil:
                only_target = fb_count_rows(pids, rows, self.partitions, self.counts, self.at, self.stop)
                if only_target < 0:
                    self.has_places = not (pids_stay and fb_one_band(&self.batch.c))
                    self.batch.c.all_sorted = fb_sort(&self.batch.c, pids, self.counts,
                                                      self.places if self.has_places else NULL, self.slots, self.sorted,
                                                      self.soon, self.partitions)
                    self.batch.c.sorted = self.sorted
                    self.has_order = self.batch.c.all_sorted == 0
                    if self.has_order:
                        fb_spell_order(self.places, rows, self.order)
        else:
            with nogil:
                only_target = fb_group(pids, rows, self.partitions, self.counts, self.order, self.at, self.stop)
        if only_target >= 0:
            self._all_to(<int> only_target)
        return 0

    cdef const uint32_t *_numbers(self, int part) noexcept nogil:
        if not self.has_order:
            if self.has_places:
                fb_spell_order(self.places, self.batch.c.rows, self.order)
            else:
                fb_order_again(self.pids, self.batch.c.rows, self.partitions, self.stop, self.counts, self.order)
            self.has_order = True
        return self.order + self.at[part]

    cdef void _expect(self, int part, const uint8_t *dst, Py_ssize_t room) noexcept nogil:
        fb_expect(dst, min(room, (self.stop[part] - self.at[part]) * self.batch.c.mean_row_bits >> 3))

    cdef int begin(self, object batch, object pids) except -1:
        cdef const int32_t[::1] view
        cdef int64_t bad
        self.end()
        if pids is not None:
            view = np.ascontiguousarray(pids, dtype=np.int32) if not _is_int32(pids) else pids
        self.batch.bind(batch)
        try:
            self.batch.make_scratch()
            if pids is None:
                self._all_to(0)
                return 0
            if view.shape[0] != self.batch.c.rows:
                raise ValueError(f"{view.shape[0]:,} partition ids for {self.batch.c.rows:,} rows")
            if not view.shape[0]:
                return 0
            bad = fb_bad_partition(&view[0], view.shape[0], <uint32_t> self.partitions)
            if bad >= 0:
                raise ValueError(
                    f"row {bad} has the partition {view[bad]}; there are {self.partitions}, numbered from 0"
                )
            self._group(&view[0], False)
        except BaseException:
            self.end()
            raise
        return 0

    cdef int begin_hashed(self, object batch, HashPartitioner keys, const int32_t *to) except -1:
        cdef int64_t i
        self.end()
        if to == NULL and keys.partitions != self.partitions:
            raise ValueError(f"the partitioner makes {keys.partitions} partitions, the scatter has {self.partitions}")
        self.batch.bind(batch)
        try:
            self.batch.make_scratch()
            if to == NULL and self.partitions == 1:
                keys.check(self.plan)
                self._all_to(0)
                return 0
            self._reserve(self.batch.c.rows, True)
            keys.fill(self.batch, self.pids)
            if to != NULL:
                for i in range(self.batch.c.rows):
                    self.pids[i] = to[self.pids[i]]
            self._group(self.pids, True)
        except BaseException:
            self.end()
            raise
        return 0

    cdef Py_ssize_t rows_left(self, int part) noexcept nogil:
        return self.stop[part] - self.at[part]

    cdef Py_ssize_t encode(self, int part, uint8_t *dst, Py_ssize_t room) noexcept nogil:
        cdef int64_t n = self.stop[part] - self.at[part], rows = 0, bytes
        if n <= 0:
            return 0
        if self.straight:
            bytes = fb_encode(&self.batch.c, NULL, self.at[part], n, dst, room, &rows)
        else:
            bytes = fb_encode(&self.batch.c, self.order + self.at[part], self.at[part], n, dst, room, &rows)
        self.at[part] += rows
        if self.at[part] == self.stop[part]:
            fb_go_on(&self.soon[part], dst, bytes, room)
        return bytes

    cdef Py_ssize_t next_row_bytes(self, int part) noexcept nogil:
        if self.at[part] >= self.stop[part]:
            return 0
        if self.straight:
            return fb_element_bytes(&self.batch.c, NULL, self.at[part], 1)
        return fb_element_bytes(&self.batch.c, self._numbers(part), 0, 1)

    cdef bint next_row_fits(self, int part, Py_ssize_t room) noexcept nogil:
        # The first test usually avoids the second, which may need the row numbers computed.
        return fb_any_fits(&self.batch.c, room) or self.next_row_bytes(part) <= room

    cdef Py_ssize_t rest_bytes(self, int part) noexcept nogil:
        cdef int64_t n = self.stop[part] - self.at[part]
        if n <= 0:
            return 0
        if self.straight:
            return fb_element_bytes(&self.batch.c, NULL, self.at[part], n)
        return fb_element_bytes(&self.batch.c, self._numbers(part), 0, n)

    cdef void end(self):
        memset(self.at, 0, self.partitions * sizeof(int64_t))
        memset(self.stop, 0, self.partitions * sizeof(int64_t))
        self.batch.unbind()

    def start(self, batch, pids=None):
        """Start with a batch; the previous one is released, even if rows of it are left.

        Parameters
        ----------
        batch : pyarrow.RecordBatch, or anything with ``__arrow_c_array__``
            With the scatter's schema.
        pids : int32 ndarray of shape (rows,), optional
            Partition of each row; None: all rows to partition 0.

        Raises
        ------
        SchemaMismatch
            The columns differ, or there are nulls where the schema allows none.
        ValueError
            There is not exactly one id for each row, or ids are out of range.
        """
        self.begin(batch, pids)

    def start_hashed(self, batch, HashPartitioner keys not None):
        """As :meth:`start`, with partitions computed by `keys`."""
        self.begin_hashed(batch, keys, NULL)

    def left(self, int part):
        """Rows of a partition that are not encoded yet."""
        self._check_part(part)
        return self.rows_left(part)

    def lefts(self):
        """The same of every partition: int64 ndarray of shape (partitions,)."""
        cdef int p
        rows_left = np.empty(self.partitions, np.int64)
        cdef int64_t[::1] view = rows_left
        for p in range(self.partitions):
            view[p] = self.stop[p] - self.at[p]
        return rows_left

    def encode_into(self, int part, buffer, Py_ssize_t at=0):
        """Encode one element at offset `at` of a writable buffer, with as many of the partition's rows as fit.

        Returns
        -------
        int
            Bytes written, a multiple of 8; 0 if no row fits (see :meth:`next_bytes`) or none is left.
        """
        cdef uint8_t[::1] view = buffer
        cdef Py_ssize_t room = view.shape[0] - at, written
        self._check_part(part)
        if at < 0 or room < 0:
            raise ValueError(f"at is {at}: the buffer has {view.shape[0]} bytes")
        if room == 0:
            return 0
        with nogil:
            written = self.encode(part, &view[at], room)
        return written

    def encode_all(self, uint8_t[:, ::1] buffers, int64_t[::1] filled):
        """Encode every partition into a buffer of its own, until it is full or no row is left.

        Parameters
        ----------
        buffers : ndarray
            uint8, of shape (partitions, bytes).
        filled : ndarray
            int64, of shape (partitions,): bytes used in each buffer; increased by the bytes written.

        Returns
        -------
        int
            Rows that did not fit.
        """
        cdef int p
        cdef Py_ssize_t written, left = 0, size = buffers.shape[1]
        if buffers.shape[0] != self.partitions or filled.shape[0] != self.partitions:
            raise ValueError(f"{buffers.shape[0]} buffers and {filled.shape[0]} fills for {self.partitions} partitions")
        for p in range(self.partitions):
            if not 0 <= filled[p] <= size:
                raise ValueError(f"buffer {p} of {size} bytes is filled with {filled[p]}")
        with nogil:
            for p in range(self.partitions):
                if p + AHEAD < self.partitions and filled[p + AHEAD] < size:
                    self._expect(p + AHEAD, &buffers[p + AHEAD, filled[p + AHEAD]], size - filled[p + AHEAD])
                while filled[p] < size and self.at[p] < self.stop[p]:
                    written = self.encode(p, &buffers[p, filled[p]], size - filled[p])
                    if not written:
                        break
                    filled[p] += written
                left += self.stop[p] - self.at[p]
        return left

    def next_bytes(self, int part):
        """Bytes of an element with only the next row of a partition."""
        self._check_part(part)
        return self.next_row_bytes(part)

    def stop_batch(self):
        """Release the batch; remaining rows are not encoded."""
        self.end()

    def _check_part(self, int part):
        if not 0 <= part < self.partitions:
            raise IndexError(f"partition {part} of {self.partitions}")


cdef bint _is_int32(object pids):
    return isinstance(pids, np.ndarray) and pids.dtype == np.int32 and pids.flags.c_contiguous and pids.ndim == 1


def _best_way(int way):
    """For tests: select the kernels: without AVX2 (0), with AVX2 (1), or the best that this processor has (2)."""
    global fb_best_way
    fb_best_way = way

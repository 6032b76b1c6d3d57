"""The part of a record writer that writes batches, and waits for room."""

import numpy as np

from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport *
from fastbuf.exchange.driver cimport Driver
from fastbuf.exchange.long_records cimport PREFIX, LongRecordWriter
from fastbuf.exchange.result_partition cimport WRITE_BLOCKED, WRITE_OK, OpenBuffer, ResultPartition, WriteState
from fastbuf.exchange.result_subpartition cimport sub_queued
from fastbuf.serializers.columnar cimport ColumnarSerializer
from fastbuf.serializers.columns cimport fb_element_bytes
from fastbuf.serializers.scatter cimport BatchScatter

from fastbuf.errors import ExchangeClosed, RecordTooLong, shorter_or_raise
from fastbuf.serializers.columnar import from_numpy
from fastbuf.serializers.frames import batch_of, is_stream


cdef class BatchWriter(LongRecordWriter):
    """What a record writer does with record batches, and how it waits."""

    # ---- pumps; they return 1: done, 0: blocked

    cdef int pump_batch(self) except -1:
        cdef ResultPartition p = self.partition
        cdef BatchScatter scatter = self.scatter
        cdef OpenBuffer *b
        cdef WriteState state
        cdef Py_ssize_t n
        cdef int part, i, to, giant = -1
        cdef int targets = 1 if self.to_all else p.subpartitions
        cdef bint blocked = False, owed
        if self.spill_left and not self.pump_spill():
            return 0
        while True:
            giant = -1
            blocked = False
            p.begin_writing()
            with nogil:
                for i in range(targets):
                    part = self.first + i
                    if part >= targets:
                        part -= targets
                    to = p.subpartitions if self.to_all else part
                    owed = False
                    while scatter.rows_left(part) > 0:
                        state = p.open_buffer(to, False)
                        if state != WRITE_OK:
                            blocked |= state == WRITE_BLOCKED   # a channel without credit blocks no other channel
                            break
                        b = &p.buffers[to]
                        n = scatter.encode(part, b.data + b.fill, p.segment_size - b.fill)
                        if n > 0:
                            owed |= p.commit_early(to, <uint32_t> n)
                        elif b.fill > 0 and scatter.next_row_fits(part, p.segment_size):
                            p.finish_buffer(to)
                        else:
                            giant = part
                            break
                    if owed:
                        p.tell(to)
                    if giant >= 0:
                        break
            p.unlocked = False
            p.writing = 0
            if giant < 0:
                break
            n = scatter.next_row_bytes(giant)       # as long as check_longest allows
            self.reserve(n)
            n = scatter.encode(giant, self.scratch, n)
            if not self.spill(p.subpartitions if self.to_all else giant, n, NULL):
                return 0
        if blocked:
            return 0
        scatter.end()
        self.in_batch = False
        self.first = (self.first + 1) % targets
        if self.flush_always:
            self.flush_now()
        return 1

    cdef int finish_pending(self, int64_t deadline_ns=-1) except -1:
        """Blocks until the partly written record or batch is written; -> 1: the deadline (negative: none) is over."""
        try:
            return self.finish_blocked(deadline_ns)
        finally:
            self.partition.runs()

    cdef int blocked_part(self) noexcept:
        """The subpartition with the longest queue among those that are still to be written to; -1: all, or none."""
        cdef ResultPartition p = self.partition
        cdef int part, worst = -1
        if self.spill_left:
            return self.spill_part
        if self.to_all or not self.in_batch:
            return -1
        for part in range(p.subpartitions):
            if self.scatter.rows_left(part) > 0 and \
                    (worst < 0 or sub_queued(&p.stage[part]) > sub_queued(&p.stage[worst])):
                worst = part
        return worst

    cdef int finish_blocked(self, int64_t deadline_ns) except -1:
        cdef int64_t since = 0
        cdef uint64_t seen = 0
        cdef uint32_t key
        cdef bint news
        cdef Driver *driver
        while True:
            self.partition.check()
            key = fb_event_epoch(self.partition.core.event)
            if (self.pump_batch() if self.in_batch else self.pump_spill()):
                return 0
            self.partition.waits(self.blocked_part())
            driver = self.partition.core.driver if not self.partition.closed else NULL
            if driver != NULL:          # the GIL was held since the check of `closed`, so the transport still exists
                driver.enter(driver)
            with nogil:
                news = self.partition.spin(key, driver)
            if news:
                continue
            key = fb_event_prepare(self.partition.core.event)
            self.partition.check()      # if it was closed meanwhile, its stream may be gone
            if (self.pump_batch() if self.in_batch else self.pump_spill()):
                return 0
            if self.partition.wait(key, deadline_ns, &since, &seen):
                return 1

    cdef int wait_for_room(self) except -1:
        """Blocks until some consumer's queue has room."""
        cdef ResultPartition p = self.partition
        cdef int64_t since = 0
        cdef uint64_t seen = 0
        cdef uint32_t key
        while not p.any_room():
            p.check()
            key = fb_event_prepare(p.core.event)
            if p.any_room():
                break
            p.wait(key, -1, &since, &seen)
        return 0

    cdef int flush_now(self) except -1:
        # With by_room each write is a task and gets its own buffer, so that a queue's length counts the waiting tasks.
        cdef ResultPartition p = self.partition
        cdef int part
        if not self.selector.by_room:
            p.flush()
            return 0
        for part in range(p.subpartitions):
            if p.buffers[part].segment >= 0 and p.buffers[part].fill:
                p.finish_buffer(part)
        return 0

    # ---- batches

    cdef int check_longest(self) except -1:
        """Raises if a row of the batch is too long.  Checked first, so that a batch is written whole or not at all;
        cheap if all rows together are short enough."""
        cdef BatchScatter scatter = self.scatter
        cdef int64_t rows = scatter.batch.c.rows, row = 0, n
        cdef int64_t most = min(self.longest + PREFIX, scatter.batch.c.max_element)
        if fb_element_bytes(&scatter.batch.c, NULL, 0, rows) <= most:
            return 0
        with nogil:
            while row < rows:
                n = fb_element_bytes(&scatter.batch.c, NULL, row, 1)
                if n > most:
                    break
                row += 1
        if row < rows:
            raise RecordTooLong(
                f"row {row} of the batch takes {n - PREFIX:,} bytes, more than max_record_bytes={most - PREFIX:,}; "
                f"nothing of the batch was written: {shorter_or_raise(n - PREFIX)}")
        return 0

    cdef int begin_batch(self, object batch) except -1:
        if self.scatter is None:
            raise TypeError(f"a {self.serializer.kind} writer takes records: use emit")
        if self.beginning:                      # code of its partitioner, or another thread while the GIL is released
            self.partition.refuse_second()
        if self.in_batch or self.spill_left:
            raise ExchangeClosed("the batch before is not written yet: call resume() until it returns True")
        self.partition.check()
        if isinstance(batch, np.ndarray):
            batch = from_numpy(batch)
        elif is_stream(batch):
            batch = batch_of(batch, (<ColumnarSerializer> self.serializer).arrow_schema)
        elif not hasattr(batch, "__arrow_c_array__"):
            raise TypeError(f"batch is {batch!r:.80}, of type {type(batch).__name__}: it must be a record batch, a "
                            "table, a data frame or a NumPy structured array")
        if self.beginning or self.in_batch:     # what made a batch of it was Python code
            self.partition.refuse_second()
        self.beginning = True
        try:
            if self.to_all:
                self.scatter.begin(batch, None)     # encoded once, for all consumers
            else:
                self.selector.begin(self.scatter, batch)
            self.check_longest()
            self.partition.check()              # it may have been closed meanwhile
        except BaseException:
            self.scatter.end()
            raise
        finally:
            self.beginning = False
        self.in_batch = True
        self.records += self.scatter.batch.c.rows
        return 0

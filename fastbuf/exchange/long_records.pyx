"""Writes records that are longer than the room in the open buffer, over several buffers."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from fastbuf.exchange.result_partition cimport WRITE_BLOCKED, WRITE_DROPPED, OpenBuffer, WriteState

from fastbuf.errors import RecordTooLong, shorter_or_raise

cdef enum:
    # The kernel zeroes what malloc gave back to it, page by page, when it is had again: a record of 1 MiB with a
    # memoryview took 1.6 ms of CPU where its scratch was given back, and takes 0.9
    MOST_KEPT = 8 << 20


cdef class LongRecordWriter:
    """The part of a record writer that continues a partly written record."""

    def __dealloc__(self):
        free(self.scratch)

    cdef int reserve(self, Py_ssize_t room) except -1:
        cdef uint8_t *grown
        if room > self.scratch_room:
            grown = <uint8_t *> realloc(self.scratch, room)
            if grown == NULL:
                self.serializer.forget()
                raise MemoryError(f"a record of {room} bytes")
            self.scratch = grown
            self.scratch_room = room
        return 0

    cdef int spill(self, int part, Py_ssize_t length, PyObject *tail) except -1:
        """Writes the first `length` bytes of scratch to `part`, then the tail, over as many buffers as needed.

        tail: a reference that the writer takes over, or NULL.
        """
        self.spill_part = part
        self.spill_begun = False
        self.spill_next = self.scratch
        self.spill_left = length
        self.take_tail(tail)
        return self.pump_spill()

    cdef void take_tail(self, PyObject *tail) noexcept:
        self.spilling_tail = False
        self.spill_tail = None
        if tail != NULL:
            self.spill_tail = <bytes> tail
            Py_DECREF(self.spill_tail)

    cdef int spill_from_tail(self) noexcept:
        self.spilling_tail = True
        self.spill_next = <const uint8_t *> PyBytes_AS_STRING(self.spill_tail)
        self.spill_left = PyBytes_GET_SIZE(self.spill_tail)
        return 0

    cdef int pump_spill(self) except -1:
        cdef OpenBuffer *b
        cdef WriteState state
        cdef uint32_t n
        while self.spill_left:
            self.partition.left = self.spill_left
            if self.spill_tail is not None and not self.spilling_tail:
                self.partition.left += PyBytes_GET_SIZE(self.spill_tail)
            state = self.partition.open_buffer(self.spill_part, self.spill_begun)
            if state == WRITE_BLOCKED:
                return 0
            if state == WRITE_DROPPED:
                self.spill_left = 0
                break
            b = &self.partition.buffers[self.spill_part]
            n = <uint32_t> min(self.spill_left, <Py_ssize_t> (self.partition.segment_size - b.fill))
            memcpy(b.data + b.fill, self.spill_next, n)
            self.spill_begun = True
            self.spill_next += n
            self.spill_left -= n
            self.partition.commit(self.spill_part, n)
            if self.spill_left == 0 and self.spill_tail is not None and not self.spilling_tail:
                self.spill_from_tail()
        self.spill_tail = None
        if self.scratch_room > MOST_KEPT:   # do not keep the memory of a very long record
            free(self.scratch)
            self.scratch = NULL
            self.scratch_room = 0
        return 1

    cdef Py_ssize_t whole(self, Py_ssize_t n, PyObject *tail) except -1:
        """Length of a payload with `n` bytes before its tail; raises, and releases the tail, if it is too long."""
        cdef object owner
        if tail != NULL:
            n += PyBytes_GET_SIZE(<object> tail)
            if n > self.longest:
                owner = <object> tail
                Py_DECREF(owner)
                self.refuse(n)
        return n

    cdef Py_ssize_t forget_tail(self, Py_ssize_t n, PyObject *tail) noexcept:
        """Releases the tail of a record that is encoded once more; returns n."""
        cdef object owner = <object> tail
        Py_DECREF(owner)
        return n

    cdef int put_tail(self, int part, Py_ssize_t n, PyObject *tail) except -1:
        """Writes the length before the `n` payload bytes in the open buffer, commits both, and goes on with the tail.
        """
        cdef OpenBuffer *b = &self.partition.buffers[part]
        cdef uint32_t length = <uint32_t> self.whole(n, tail)
        memcpy(b.data + b.fill, &length, PREFIX)
        self.spill_part = part
        self.spill_begun = True
        self.take_tail(tail)
        self.spill_from_tail()
        self.partition.commit(part, <uint32_t> n + PREFIX)
        return self.pump_spill()

    cdef int refuse(self, Py_ssize_t n) except -1:
        self.serializer.forget()
        raise RecordTooLong(
            f"it takes {n} bytes, more than max_record_bytes ({self.longest}): {shorter_or_raise(n)}")

"""Extracts length-prefixed records from a stream of buffers, including records that span several buffers."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from fastbuf.serializers.columns cimport fb_ask_for
from fastbuf.serializers.row_encode cimport Writer, writer_reserve
from fastbuf.serializers.serializer cimport Serializer

from fastbuf.errors import RecordTooLong, shorter_or_raise

cdef enum:
    PREFIX = 4                # bytes of the length before each payload
    SMALLEST = 256            # first size of the carry
    KEPT = 1 << 20            # a carry larger than this is freed when records have become small again
    MOST_TAIL = 16 << 20      # most bytes reserved for a tail by its claimed length; a longer one is carried


cdef int _raise_too_long(Py_ssize_t size, Py_ssize_t most) except -1 with gil:
    raise RecordTooLong(
        f"a record of {size:,} bytes was announced, more than max_record_bytes={most:,}: if such records are meant to "
        f"be sent, {shorter_or_raise(size)}"
    )


cdef int _raise_not_used_up(Py_ssize_t left) except -1 with gil:
    raise RuntimeError(f"fed while {left:,} bytes of the buffer before are unread: call next until it is False")


cdef int _raise_memory(Py_ssize_t size) except -1 with gil:
    raise MemoryError(f"no memory for {size:,} bytes of a record across buffers")


cdef class SpanningReader:
    """Cuts a byte stream, given buffer by buffer, into its payloads.

    Parameters
    ----------
    max_record_bytes : int
        Longest payload, in bytes.  A longer one is refused as soon as its length prefix is read.

    Notes
    -----
    A payload that is whole within a buffer is returned in place.  Only one that spans buffers is copied, into a carry
    that grows with the bytes received, not with the claimed length: a forged length makes the reader wait, not
    allocate. The exception are long bytes at a record's end (:meth:`Serializer.tail_at`), up to 16 MiB: a bytes object
    of their length is allocated when the bytes before them have arrived; the system commits only those of its pages
    that are written.
    """

    def __cinit__(self, Py_ssize_t max_record_bytes):
        if max_record_bytes <= 0 or max_record_bytes > 0xFFFFFFFF:
            raise ValueError(f"max_record_bytes={max_record_bytes} must lie within 1 and {0xFFFFFFFF}")
        self.max_record_bytes = max_record_bytes

    def __dealloc__(self):
        free(self._carry)

    cdef int feed(self, const uint8_t *data, Py_ssize_t length) except -1 nogil:
        if self._left:
            return _raise_not_used_up(self._left)
        self._data = data
        self._left = length
        return 0

    cdef bint next(self, const uint8_t **payload, Py_ssize_t *length) except -1 nogil:
        cdef uint32_t size
        if self._have == 0 and self._left >= PREFIX:
            memcpy(&size, self._data, PREFIX)
            if size > <size_t> self.max_record_bytes:
                _raise_too_long(size, self.max_record_bytes)
            if self._left - PREFIX >= <Py_ssize_t> size:
                payload[0] = self._data + PREFIX
                length[0] = size
                self._data += PREFIX + <Py_ssize_t> size
                self._left -= PREFIX + <Py_ssize_t> size
                return True
        return self._from_carry(payload, length)

    cdef void ask_for_next(self, Py_ssize_t length) noexcept nogil:
        fb_ask_for(self._data, min(length, self._left))

    cdef bint _from_carry(self, const uint8_t **payload, Py_ssize_t *length) except -1 nogil:
        cdef uint32_t size
        if self._handed:
            self._drop()
            return self.next(payload, length)
        if self._left == 0 and self._have == 0:
            return False
        if not self._carry_to(PREFIX):
            return False
        memcpy(&size, self._carry, PREFIX)
        if size > <size_t> self.max_record_bytes:
            _raise_too_long(size, self.max_record_bytes)
        if not self._carry_to(PREFIX + <Py_ssize_t> size):
            return False
        payload[0] = self._carry + PREFIX
        length[0] = size
        self._handed = True
        return True

    cdef int collect(self, Serializer serializer, list records) except -1:
        cdef const uint8_t *payload
        cdef Py_ssize_t n, before
        cdef bytes tail
        self.decoding = False
        while True:
            if self._tail is not None:
                if not self._fill_tail():
                    return 0
                tail = self._tail
                self._tail = None
                n = self._have - PREFIX
                self._have = 0
                self.decoding = True
                records.append(serializer.decode_with_tail(self._carry + PREFIX, n, tail))
                self.decoding = False
                continue
            if self._handed:
                self._drop()
            if self._have == 0:
                before = len(records)
                self.decoding = True
                try:
                    n = serializer.decode_elements(self._data, self._left, self.max_record_bytes, records)
                except BaseException:
                    self._pass(len(records) - before)
                    raise
                self.decoding = False
                self._data += n
                self._left -= n
            if self._left == 0:
                return 0
            # The rest, or the carried bytes, are an element that continues in the next buffer, or one to be refused.
            if serializer.tail_head and self._begin_tail(serializer):
                continue
            if not self._from_carry(&payload, &n):
                return 0
            self.decoding = True
            records.append(serializer.decode_record(payload, n))
            self.decoding = False

    cdef void _pass(self, Py_ssize_t good) noexcept nogil:
        # Leaves behind `good` elements of the buffer, and the one after them, which was refused.
        cdef uint32_t size
        while good >= 0 and self._left >= PREFIX:
            memcpy(&size, self._data, PREFIX)
            self._data += min(PREFIX + <Py_ssize_t> size, self._left)
            self._left -= min(PREFIX + <Py_ssize_t> size, self._left)
            good -= 1

    cdef Py_ssize_t collect_elements(self, Writer *out) except -1:
        cdef const uint8_t *payload
        cdef Py_ssize_t n, records = 0
        cdef uint32_t size
        while True:
            if self._handed:
                self._drop()
            n = 0
            while self._have == 0 and self._left - n >= PREFIX:
                memcpy(&size, self._data + n, PREFIX)
                if size > <size_t> self.max_record_bytes or self._left - n - PREFIX < <Py_ssize_t> size:
                    break
                n += PREFIX + <Py_ssize_t> size
                records += 1
            writer_reserve(out, n)
            memcpy(out.buf + out.at, self._data, n)
            out.at += n
            self._data += n
            self._left -= n
            if self._left == 0 or not self._from_carry(&payload, &n):
                return records
            writer_reserve(out, PREFIX + n)
            memcpy(out.buf + out.at, payload - PREFIX, PREFIX + n)      # the carry has the prefix too
            out.at += PREFIX + n
            records += 1

    cdef bint _begin_tail(self, Serializer serializer) except -1:
        # Carries the bytes before the tail as they arrive, and allocates the tail when all of them are there.
        cdef uint32_t size
        cdef Py_ssize_t at
        if not self._carry_to(PREFIX):
            return False
        memcpy(&size, self._carry, PREFIX)
        if size > <size_t> min(self.max_record_bytes, <Py_ssize_t> MOST_TAIL) or \
                <Py_ssize_t> size < serializer.tail_head:
            return False
        if not self._carry_to(PREFIX + serializer.tail_head):
            return False
        at = serializer.tail_at(self._carry + PREFIX, size)
        if at < 0 or self._have > PREFIX + at:
            return False
        if not self._carry_to(PREFIX + at):
            return False
        self._tail = PyBytes_FromStringAndSize(NULL, <Py_ssize_t> size - at)
        self._tail_have = 0
        return True

    cdef bint _fill_tail(self) noexcept:
        cdef Py_ssize_t n = min(PyBytes_GET_SIZE(self._tail) - self._tail_have, self._left)
        memcpy(PyBytes_AS_STRING(self._tail) + self._tail_have, self._data, n)
        self._tail_have += n
        self._data += n
        self._left -= n
        return self._tail_have == PyBytes_GET_SIZE(self._tail)

    cdef void _drop(self) noexcept nogil:
        # The carried element was used.  A carry that a huge record made large is freed once records are small.
        if self._room > KEPT and self._have < self._room // 4:
            free(self._carry)
            self._carry = NULL
            self._room = 0
        self._have = 0
        self._handed = False

    cdef bint _carry_to(self, Py_ssize_t wanted) except -1 nogil:
        # Moves bytes from the buffer into the carry until it has so many; False: the rest is in the next buffer.
        cdef Py_ssize_t size = min(wanted - self._have, self._left), room
        cdef void *grown
        if size > 0:
            if self._have + size > self._room:
                room = max(<Py_ssize_t> SMALLEST, 2 * self._have + size)
                grown = realloc(self._carry, room)
                if grown == NULL:
                    return _raise_memory(room)
                self._carry = <uint8_t *> grown
                self._room = room
            memcpy(self._carry + self._have, self._data, size)
            self._have += size
            self._data += size
            self._left -= size
        return self._have >= wanted

    cdef bint clean(self) noexcept nogil:
        return self._left == 0 and (self._have == 0 or self._handed)

    # For tests: Python access to the C methods.  The last fed buffer is kept alive here.

    def feed_bytes(self, data):
        """Feed the next buffer (bytes-like); it is kept until the next one is fed."""
        cdef const uint8_t[::1] view = memoryview(data).cast("B")
        cdef Py_ssize_t size = view.shape[0]
        self.feed(&view[0] if size else NULL, size)
        self._owner = data

    def collect_records(self, Serializer serializer, data):
        """The records that are complete after the next buffer (bytes-like)."""
        cdef list records = []
        self.feed_bytes(data)
        self.collect(serializer, records)
        return records

    def next_payload(self):
        """The next payload as ``(bytes, in_place)``; None when the next buffer is needed."""
        cdef const uint8_t *payload
        cdef Py_ssize_t length
        if not self.next(&payload, &length):
            return None
        return PyBytes_FromStringAndSize(<const char *> payload, length), not self._handed

    def is_clean(self):
        """Whether nothing is carried or unread."""
        return self.clean()

    @property
    def carry_bytes(self):
        """Bytes allocated for records that span buffers."""
        return self._room

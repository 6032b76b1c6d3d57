# Restores records from a byte stream that was cut into buffers at any byte.  One per channel, one thread at a time.
#
#     element = u32 length | payload
#
# The carry holds a whole element, prefix first, so that the payload has the same alignment as in the stream (columnar
# chunks are 8-byte aligned at payload + 4).
#
# collect() has a serializer, and copies the tail of a long element that spans buffers directly into the bytes object of
# its record (serializer.pxd): the carry then holds only the bytes before the tail.
from libc.stdint cimport uint8_t

from fastbuf.serializers.row_encode cimport Writer
from fastbuf.serializers.serializer cimport Serializer


cdef class SpanningReader:
    cdef readonly Py_ssize_t max_record_bytes
    cdef const uint8_t *_data      # the buffer fed last; borrowed until it is used up
    cdef Py_ssize_t _left          # unread bytes of it
    cdef uint8_t *_carry           # malloc'ed; holds the element that began in an earlier buffer
    cdef Py_ssize_t _room          # bytes allocated for _carry; at most twice the bytes received
    cdef Py_ssize_t _have          # bytes used in _carry
    cdef bint _handed              # the carried element was returned: the next call drops it
    cdef bytes _tail               # the tail being filled; None: none
    cdef Py_ssize_t _tail_have     # bytes filled in _tail
    cdef object _owner             # the argument of feed_bytes (tests)
    cdef bint decoding             # `collect` raised for one record, and goes on behind it when called again
    cdef Py_ssize_t records        # records so far, for whoever calls collect

    # Sets the next buffer; the previous one must be used up.
    cdef int feed(self, const uint8_t *data, Py_ssize_t length) except -1 nogil
    # Finds the next payload: in place if it is whole in the buffer, else in the carry.  False: feed the next buffer.
    # The pointer is valid until the next call of next or feed.
    cdef bint next(self, const uint8_t **payload, Py_ssize_t *length) except -1 nogil
    # Prefetches the bytes after that payload, which usually are a payload of the same length.  Reads nothing.
    cdef void ask_for_next(self, Py_ssize_t length) noexcept nogil
    # Appends every record that is complete; the buffer is used up afterwards.  Do not mix with next.  If a record is
    # refused, those before it were appended.
    cdef int collect(self, Serializer serializer, list records) except -1
    # The same without decoding: appends the elements to `out`; returns how many.
    cdef Py_ssize_t collect_elements(self, Writer *out) except -1
    # Nothing is carried and nothing unread: required at the end of a partition.
    cdef bint clean(self) noexcept nogil

    cdef bint _from_carry(self, const uint8_t **payload, Py_ssize_t *length) except -1 nogil
    cdef bint _begin_tail(self, Serializer serializer) except -1
    cdef bint _fill_tail(self) noexcept
    cdef void _pass(self, Py_ssize_t good) noexcept nogil
    cdef bint _carry_to(self, Py_ssize_t wanted) except -1 nogil
    cdef void _drop(self) noexcept nogil

# Records out of a byte stream that was cut into buffers anywhere.  One per channel, one thread at a time.
#
#     element = u32 length | payload
#
# The carry holds a whole element, prefix first, so that the payload stands in it as it stood in the stream
# (columnar chunks are 8-byte aligned at payload + 4).
#
# collect() knows a serializer, and copies the tail of a long element that crosses a boundary straight into the bytes
# object that its record is to have (serializer.pxd): the carry then holds what is before it.
from libc.stdint cimport uint8_t

from fastbuf.serializers.row_encode cimport Writer
from fastbuf.serializers.serializer cimport Serializer


cdef class SpanningReader:
    cdef readonly Py_ssize_t max_record_bytes
    cdef const uint8_t *_data      # the buffer that was fed; borrowed until it is used up
    cdef Py_ssize_t _left          # bytes of it that are unread
    cdef uint8_t *_carry           # malloc'ed: the element that began in an earlier buffer
    cdef Py_ssize_t _room          # bytes allocated there; never more than twice what has come
    cdef Py_ssize_t _have          # bytes filled there
    cdef bint _handed              # the carried element was handed out: the next call drops it
    cdef bytes _tail               # the tail that is being filled; None: there is none
    cdef Py_ssize_t _tail_have     # bytes filled there
    cdef object _held              # what feed_bytes was given (tests)

    # The next buffer; the one before must be used up.
    cdef int feed(self, const uint8_t *data, Py_ssize_t length) except -1 nogil
    # The next payload, in place if it is whole in the buffer, else from the carry.  False: feed the next buffer.
    # The pointer holds until the next call of next or feed.
    cdef bint next(self, const uint8_t **payload, Py_ssize_t *length) except -1 nogil
    # Asks for what stands behind that payload, which most often is one of the same length.  Reads nothing.
    cdef void ask_for_next(self, Py_ssize_t length) noexcept nogil
    # Appends every record that is whole by now; the buffer is used up then.  Instead of next, not beside it.
    cdef int collect(self, Serializer serializer, list records) except -1
    # The same without decoding: the elements go to `out` as they are; -> how many.
    cdef Py_ssize_t collect_elements(self, Writer *out) except -1
    # Nothing carried and nothing unread: must be so at the end of a partition.
    cdef bint clean(self) noexcept nogil

    cdef bint _from_carry(self, const uint8_t **payload, Py_ssize_t *length) except -1 nogil
    cdef bint _begin_tail(self, Serializer serializer) except -1
    cdef bint _fill_tail(self) noexcept
    cdef int _take(self, Py_ssize_t size) except -1 nogil
    cdef void _drop(self) noexcept nogil

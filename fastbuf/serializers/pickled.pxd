# Any Python object as a pickle, protocol 5.  docs/format.md draws the payloads.
from cpython.buffer cimport Py_buffer
from libc.stdint cimport uint8_t

from fastbuf.serializers.serializer cimport Serializer


# What a pickler gives: the pickle in pieces (bytes), and the buffers that stay outside of it (flat memoryviews, which
# hold their exports: nobody can resize or free them before they are written).
cdef class Pickle:
    cdef bytes first             # the first piece, usually the only one
    cdef list pieces             # the others
    cdef list buffers
    cdef Py_ssize_t inner        # bytes of the pieces
    cdef Py_ssize_t outer        # bytes of the buffers

    cdef Py_ssize_t size(self) noexcept
    cdef int put(self, uint8_t *dst) except -1      # writes size() bytes
    cdef int clear(self) except -1


cdef class PickledSerializer(Serializer):
    cdef readonly int group                # records a pickle in blocks, at most
    # The pickler, with the Pickle it writes to; taken out while in use, since pickling may run code that comes back.
    cdef object _pickler
    cdef Pickle _sink
    # The record that did not fit the room of the last encode_record, and its pickle: the call with more room, for
    # the very same object, takes it from here.  Dropped by the next call, whatever it is for.
    cdef object _kept_record
    cdef Pickle _kept_pickle

    cdef Pickle _pickle(self, object record)
    cdef list _one_by_one(self, object records)     # of bytes and of Pickle
    cdef list _in_groups(self, object records)


cdef class PickleIterator:
    cdef const uint8_t[::1] _body          # keeps the block alive
    cdef Py_ssize_t _at
    cdef Py_ssize_t _number                # records given out or in _group
    cdef Py_ssize_t _records               # as the header says
    cdef bint _grouped
    cdef object _group                     # iterator of the group that was read last

    cdef object _next_payload(self)
    cdef int _check_end(self) except -1

# Any Python object as a pickle, protocol 5.  docs/format.md draws the payloads.
from cpython.buffer cimport Py_buffer
from libc.stdint cimport uint8_t

from fastbuf.serializers.serializer cimport Serializer


# Output of a pickler: the pickle in pieces (bytes), and the out-of-band buffers (flat memoryviews, which hold their
# exports: the buffers cannot be resized or freed before they are written).
cdef class Pickle:
    cdef bytes first             # the first piece, usually the only one
    cdef list pieces             # the further pieces
    cdef list buffers
    cdef Py_ssize_t inner        # bytes of the pieces
    cdef Py_ssize_t outer        # bytes of the buffers

    cdef Py_ssize_t size(self) noexcept
    cdef int put(self, uint8_t *dst) except -1      # writes size() bytes
    cdef int clear(self) except -1


cdef class PickledSerializer(Serializer):
    cdef readonly int group                # most records of one pickle in a block
    cdef readonly str cloudpickle          # module for what pickle cannot; None: as the process has it
    # The pickler, with the Pickle it writes to.  It is taken out while in use, since pickling may run code that calls
    # this object again.
    cdef object _pickler
    cdef Pickle _sink
    # The record that did not fit into the room of the last encode_record, and its pickle: the next call with more room
    # for the same object uses it.  Any next call drops it, and so does an error in between: the object may change.
    cdef object _kept_record
    cdef Pickle _kept_pickle

    cdef Pickle _pickle(self, object record)
    cdef list _one_by_one(self, object records)     # each item: bytes or a Pickle
    cdef list _in_groups(self, object records)


cdef class PickleIterator:
    cdef const uint8_t[::1] _body          # keeps the block alive
    cdef Py_ssize_t _at
    cdef Py_ssize_t _number                # records returned, refused or in _group
    cdef Py_ssize_t _records               # record count in the header
    cdef bint _grouped
    cdef bint _lost                        # a group did not load, so that the records in it are not known
    cdef object _group                     # iterator of the group read last

    cdef object _next_payload(self)
    cdef int _check_end(self) except -1

# Any Python object as a pickle, protocol 5.
from libc.stdint cimport uint8_t

from fastbuf.serializers.serializer cimport Serializer


cdef class PickledSerializer(Serializer):
    # The record that did not fit the room of the last encode_record, and its pickle: the call with more room, for
    # the very same object, takes it from here.  Dropped by the next call, whatever it is for.
    cdef object _kept_record
    cdef bytes _kept_pickle


cdef class PickleIterator:
    cdef const uint8_t[::1] _body          # keeps the block alive
    cdef Py_ssize_t _at
    cdef Py_ssize_t _number                # records given out
    cdef Py_ssize_t _records               # as the header says

"""Collects encoded records, for a view of many of them at once."""

from libc.stdint cimport uint8_t

from fastbuf.serializers.lazy cimport view_elements
from fastbuf.serializers.objects cimport *
from fastbuf.serializers.row cimport RowSerializer
from fastbuf.serializers.spanning cimport SpanningReader


cdef class ElementView:
    """Records of a row schema, copied once from the buffers in which they arrived.

    Parameters
    ----------
    room : int
        Expected bytes of one view; beyond that the bytes are copied again.
    """

    def __cinit__(self, Py_ssize_t room):
        self._room = room
        self._begin()

    def __dealloc__(self):
        Py_XDECREF(self._out.owner)

    cdef int _begin(self) except -1:
        self._out.owner = NULL
        self._out.at = self._out.room = self.records = 0
        self._out.owner = PyBytes_FromStringAndSize(NULL, self._room)
        self._out.buf = <uint8_t *> PyBytes_AS_STRING(self._out.owner)
        self._out.room = self._room
        return 0

    cdef int take(self, SpanningReader reader) except -1:
        self.records += reader.collect_elements(&self._out)
        return 0

    cdef object view(self, RowSerializer serializer):
        cdef Py_ssize_t n = self.records
        cdef object body
        _PyBytes_Resize(&self._out.owner, self._out.at)
        body = <object> self._out.owner
        Py_DECREF(self._out.owner)
        self._begin()
        return view_elements(serializer._lazy_plan(), body, n)

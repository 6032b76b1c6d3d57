# Elements (u32 length | payload) that are gathered from buffers to be looked at together.
from fastbuf.serializers.row cimport RowSerializer
from fastbuf.serializers.row_encode cimport Writer
from fastbuf.serializers.spanning cimport SpanningReader


cdef class ElementView:
    cdef Writer _out                # they lie in a bytes object
    cdef Py_ssize_t _room           # bytes of the next one
    cdef readonly Py_ssize_t records

    # All that are whole with what the reader was fed.
    cdef int take(self, SpanningReader reader) except -1
    # Their LazyRows; begins anew.
    cdef object view(self, RowSerializer serializer)
    cdef int _begin(self) except -1

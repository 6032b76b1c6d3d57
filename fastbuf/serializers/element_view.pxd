# Elements (u32 length | payload) collected from several buffers, to be viewed together.
from fastbuf.serializers.row cimport RowSerializer
from fastbuf.serializers.row_encode cimport Writer
from fastbuf.serializers.spanning cimport SpanningReader


cdef class ElementView:
    cdef Writer _out                # the elements, in a bytes object
    cdef Py_ssize_t _room           # initial size of the next bytes object
    cdef readonly Py_ssize_t records

    # Takes all elements that are complete with the bytes fed to the reader.
    cdef int take(self, SpanningReader reader) except -1
    # LazyRows of the elements taken so far; then starts anew.
    cdef object view(self, RowSerializer serializer)
    cdef int _begin(self) except -1

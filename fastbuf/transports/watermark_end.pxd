# Map of one end of a wire under watermarks, as Python has it; `end` and its owners: watermark_wire.pxd.
from libc.stdint cimport uint32_t

from fastbuf.transports.watermark_wire cimport WireEnd, WireStream


cdef class WatermarkEnd:
    cdef WireEnd *end
    cdef object transport
    cdef object thread
    cdef object secret          # that the connection was proved with
    cdef readonly str peer
    cdef uint32_t streams       # numbers given out so far; sending end
    cdef object __weakref__

    cdef WireStream *_stream(self, uint32_t number) except NULL
    cdef int _add(self, WireStream *s) except -1

# What a channel's writer and reader need of any serializer: one record to bytes, and back.
from libc.stdint cimport uint8_t


cdef class Serializer:
    cdef readonly str kind                        # "row" | "columnar" | "pickled"
    cdef readonly unsigned long long fingerprint  # the schema's; 0 when there is none
    cdef readonly object schema                   # Schema or None
    cdef readonly bint checksum                   # blocks of dumps carry a CRC32C

    # Writes the payload of one record at dst and returns the bytes it takes.  A result > room: nothing useful was
    # written; call again with that room.  The GIL is held; user code may run (a property, a __reduce__).
    cdef Py_ssize_t encode_record(self, object record, uint8_t *dst, Py_ssize_t room) except -1
    # The record of one payload.  Copies out: src may be recycled as soon as this returns.
    cdef object decode_record(self, const uint8_t *src, Py_ssize_t length)

# Spark's hash of single records, for who shuffles rows: the same as murmur3.pyx has for columns.
from libc.stdint cimport int32_t, uint32_t


# A field of a record in any of its forms, as the encoder of rows finds it.
cdef object field_of(object record, Py_ssize_t place, str name)


cdef class RecordHasher:
    cdef readonly tuple keys
    cdef list fields                # a _Field of each key
    cdef Py_ssize_t long_place      # where the key is one int of 64 bits: its place, else -1

    # pmod(hash of the key fields, n); what a value of another type raises is the caller's to word.
    cdef int32_t partition(self, object record, int32_t n) except -1
    cdef tuple values(self, object record)      # of the key fields


cdef class _Field:
    cdef int kind
    cdef Py_ssize_t place           # in its record or struct
    cdef str name
    cdef int scale                  # decimals: digits after the point
    cdef list children              # of a list its item, of a struct its fields

    cdef uint32_t hashed(self, object value, uint32_t h) except? 0
    cdef uint32_t other(self, object value, uint32_t h) except? 0

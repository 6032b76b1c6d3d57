# Spark's hash of single records, for shuffles of rows: the same result as murmur3.pyx computes for columns.
from libc.stdint cimport int32_t, uint32_t


# A field of a record of any supported type, looked up as the row encoder does.
cdef object field_of(object record, Py_ssize_t place, str name)


cdef class RecordHasher:
    cdef readonly tuple keys
    cdef list fields                # a _Field of each key
    cdef Py_ssize_t long_place      # position of the key if it is one int of 64 bits, else -1

    # pmod(hash of the key fields, n); for a value of another type the caller words the error.
    cdef int32_t partition(self, object record, int32_t n) except -1
    cdef tuple values(self, object record)      # values of the key fields


cdef class _Field:
    cdef int kind
    cdef Py_ssize_t place           # position in its record or struct
    cdef str name
    cdef int scale                  # decimals: digits after the point
    cdef list children              # list: its item; struct: its fields

    cdef uint32_t hashed(self, object value, uint32_t h) except? 0
    cdef uint32_t other(self, object value, uint32_t h) except? 0

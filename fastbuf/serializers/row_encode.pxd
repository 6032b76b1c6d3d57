# Records to bytes, by a plan.
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t

from fastbuf.serializers.row_plan cimport Node

# Where bytes go.  It begins in memory of the caller's or in a bytes object of its own; when that is full, it moves on
# to a (larger) bytes object.  Positions, not pointers, outlive a reserve().
cdef struct Writer:
    uint8_t *buf
    Py_ssize_t at
    Py_ssize_t room
    PyObject *owner       # the bytes object that buf lies in; NULL while it is the caller's memory

cdef int writer_reserve(Writer *w, Py_ssize_t n) except -1
# Appends one record.  RecordError names field and value; what was appended before stays.
cdef int write_record(Node *root, PyObject *record, Writer *w) except -1
# Appends each record of a list as an element, its length before it; done counts them, also up to one that fails.
cdef int write_elements(Node *root, PyObject *records, Writer *w, Py_ssize_t *done) except -1

# Records to bytes, by a plan.
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t

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
# Writes records of a list, from number `at` on and `most` of them, as elements from dst[fill] on, as long as each is
# whole before dst[room] and of at most `longest` bytes; at and fill are moved past each, also up to one that fails.
# What is no tuple is a run by itself: its own code may have ended what it is written for.
# -> 0, or the bytes of the one that is too long for its place, which is not written.
cdef Py_ssize_t write_run(Node *root, list records, Py_ssize_t *at, Py_ssize_t most, uint8_t *dst, uint32_t *fill,
                          uint32_t room, Py_ssize_t longest) except -1

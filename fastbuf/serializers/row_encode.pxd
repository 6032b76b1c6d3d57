# Encodes records by a plan.
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t

from fastbuf.serializers.row_plan cimport Node

# The output.  It starts in the caller's memory or in a bytes object; when full, it moves to a (larger) bytes object.
# So after reserve() positions stay valid, but pointers do not.
cdef struct Writer:
    uint8_t *buf
    Py_ssize_t at
    Py_ssize_t room
    PyObject *owner       # the bytes object of buf; NULL while the caller owns the memory

cdef int writer_reserve(Writer *w, Py_ssize_t n) except -1
# Appends one record.  RecordError names the field and the value; earlier records stay.
cdef int write_record(Node *root, PyObject *record, Writer *w) except -1
# Appends each record of a list as an element, with its length; done counts the records, also up to a failed one.
cdef int write_elements(Node *root, PyObject *records, Writer *w, Py_ssize_t *done) except -1
# Writes at most `most` records of a list, from index `at` on, as elements to dst[fill] and on, as long as each ends
# before dst[room] and has at most `longest` bytes; at and fill move past each, also up to a failed one.  A record that
# is not a tuple ends the run: its own code may have closed the writer.  Returns 0, or the bytes of the first record
# that is too long for its place and was not written.
cdef Py_ssize_t write_run(Node *root, list records, Py_ssize_t *at, Py_ssize_t most, uint8_t *dst, uint32_t *fill,
                          uint32_t room, Py_ssize_t longest) except -1

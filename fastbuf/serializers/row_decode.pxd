# Bytes to records, by a plan.  No byte outside p[0:n] is read, whatever is in it.
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t

from fastbuf.serializers.objects cimport PyTypeObject
from fastbuf.serializers.row_plan cimport Node

# What fill_record fills: a tuple of root.count NULLs, of a named tuple's class if one is given.
cdef PyObject *new_record(Node *root, PyTypeObject *named) except NULL
# One of a class of its own may have attributes, and with them be in a cycle, whatever its items are.
cdef void track_record(PyObject *record) noexcept
# Fills out, a new tuple of root.count NULLs, with the record that p[0:n] is; BlockTruncated or BlockCorrupt naming the
# field, and then out is partly filled and fit for nothing but Py_DECREF.
cdef int fill_record(Node *root, PyObject *out, const uint8_t *p, Py_ssize_t n) except -1
# Fills out, a new list of NULLs, with the records (see new_record) whose elements are p[0:left]; done says which one an
# error is of.
cdef int fill_records(Node *root, PyTypeObject *named, PyObject *out, const uint8_t *p, Py_ssize_t left,
                      Py_ssize_t *done) except -1
# Appends the plain tuples of the elements that are whole, as decode_elements of serializer.pxd has it.
cdef Py_ssize_t append_records(Node *root, const uint8_t *src, Py_ssize_t length, Py_ssize_t longest,
                               list records) except -1
# One value of p[0:n], which are f.slot bytes where its width is fixed; a new reference.
cdef PyObject *read_value(Node *f, const uint8_t *p, Py_ssize_t n) except NULL
# The errors of a var-length end that falls or lies outside, and of a null where none is allowed.
cdef int bad_end(Node *f, Py_ssize_t end, Py_ssize_t before, Py_ssize_t n) except -1
cdef int bad_null(Node *f) except -1

# Decodes records by a plan.  Never reads outside p[0:n], whatever the bytes are.
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t

from fastbuf.serializers.objects cimport PyTypeObject
from fastbuf.serializers.row_plan cimport Node

# Makes the object that fill_record fills: a tuple of root.count NULLs, of a named tuple's class if one is given.
cdef PyObject *new_record(Node *root, PyTypeObject *named) except NULL
# For a class of its own: such an object may have attributes, and so be in a reference cycle, whatever its items are.
cdef void track_record(PyObject *record) noexcept
# Fills out, a new tuple of root.count NULLs, with the record in p[0:n].  Raises BlockTruncated or BlockCorrupt naming
# the field; out is then partly filled, and may only be passed to Py_DECREF.
cdef int fill_record(Node *root, PyObject *out, const uint8_t *p, Py_ssize_t n) except -1
# Fills out, a new list of NULLs, with the records (see new_record) of the elements in p[0:left]; after an error, done
# is the index of the bad record.
cdef int fill_records(Node *root, PyTypeObject *named, PyObject *out, const uint8_t *p, Py_ssize_t left,
                      Py_ssize_t *done) except -1
# Appends the complete elements as plain tuples, like decode_elements of serializer.pxd.
cdef Py_ssize_t append_records(Node *root, const uint8_t *src, Py_ssize_t length, Py_ssize_t longest,
                               list records) except -1
# Decodes one value in p[0:n]; n is f.slot if its width is fixed.  Returns a new reference.
cdef PyObject *read_value(Node *f, const uint8_t *p, Py_ssize_t n) except NULL
# Raise the errors of a var-length end that decreases or is out of bounds, and of a null that is not allowed.
cdef int bad_end(Node *f, Py_ssize_t end, Py_ssize_t before, Py_ssize_t n) except -1
cdef int bad_null(Node *f) except -1

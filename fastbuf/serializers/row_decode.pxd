# Bytes to records, by a plan.  No byte outside p[0:n] is read, whatever is in it.
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t

from fastbuf.serializers.row_plan cimport Node

# A new tuple of the record that p[0:n] is; BlockTruncated or BlockCorrupt naming the field.
cdef PyObject *read_record(Node *root, const uint8_t *p, Py_ssize_t n) except NULL

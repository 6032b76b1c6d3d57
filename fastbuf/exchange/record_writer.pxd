# Map of the record writer: it encodes records and batches into the open buffers of a result partition.
from fastbuf.exchange.batch_writer cimport BatchWriter
from fastbuf.serializers.row_plan cimport Node


cdef class RecordWriter(BatchWriter):
    cdef object __weakref__
    cdef public object turns            # an event loop, and the lock for which its tasks queue (asynchronous_writer)
    cdef Node *plan                     # row serializers without tails: many rows are encoded in one call; else NULL

    cdef bint _written(self, int done) except -1
    cdef int emit_one(self, object record) except -1
    cdef int begin_record(self, object record) except -1
    cdef int write_record(self, int part, object record) except -1
    cdef inline int encode_into(self, int part, object record, Py_ssize_t n) except -1
    cdef int explain(self, object record, object error) except -1
    cdef int emit_list(self, list records) except -1
    cdef int emit_run(self, list records, Py_ssize_t *i) except -1
    cdef int write_some(self, list records, Py_ssize_t *i, int *touched, int *n) except -1

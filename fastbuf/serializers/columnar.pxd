# Blocks of Arrow batches, and the functions that the exchange needs to transfer them.
from libc.stdint cimport int64_t, uint8_t

from fastbuf.serializers.assemble cimport BatchAssembler
from fastbuf.serializers.column_plan cimport ColumnPlan
from fastbuf.serializers.scatter cimport BatchScatter
from fastbuf.serializers.serializer cimport Serializer


cdef class ColumnarSerializer(Serializer):
    cdef readonly ColumnPlan plan      # None until the schema is known
    cdef object _given                 # the schema as it was given, for pickle
    cdef BatchScatter _scatter         # reused by dumps
    cdef BatchAssembler _assembler     # reused by loads
    cdef bytes _plain                  # start of a block of this schema without a checksum

    cdef int learn(self, object schema) except -1      # the exchange calls it too, with the first batch's schema
    cdef BatchScatter scatter(self, int partitions)
    cdef BatchAssembler assembler(self)
    cdef object _load_plain(self, object buf, bint copy, bint check)    # None: not a block of the usual kind
    cdef object _load(self, object buf, bint copy, bint check)
    cdef int _dump_to(self, list batches, uint8_t *block, Py_ssize_t room, Py_ssize_t *length) except -1
    cdef ColumnPlan _need_plan(self)
    cdef list _begin(self, object data)
    cdef int _write_header(self, uint8_t *block, Py_ssize_t length, int64_t rows) except -1


cdef class BatchIterator:
    cdef BatchAssembler _assembler
    cdef const uint8_t[::1] _body      # keeps the block alive
    cdef int64_t _at
    cdef int64_t _number               # rows returned, or in _ready
    cdef int64_t _records              # record count in the header
    cdef int64_t _max_rows
    cdef int64_t _max_bytes
    cdef bint _in_place                 # batches point into the body
    cdef list _ready                   # pieces of the chunk taken last; the next one is at the end

    cdef list _cut(self, object batch)

# Blocks of Arrow batches, and what the exchange needs to carry them.
from libc.stdint cimport int64_t, uint8_t

from fastbuf.serializers.assemble cimport BatchAssembler
from fastbuf.serializers.column_plan cimport ColumnPlan
from fastbuf.serializers.scatter cimport BatchScatter
from fastbuf.serializers.serializer cimport Serializer


cdef class ColumnarSerializer(Serializer):
    cdef readonly ColumnPlan plan      # None until the schema is known
    cdef object _given                 # the schema as it was given: what is pickled
    cdef BatchScatter _scatter         # kept between dumps
    cdef BatchAssembler _assembler     # and between loads
    cdef bytes _plain                  # how a block of this schema without a checksum begins

    cdef int learn(self, object schema) except -1      # also called by the exchange, with the first batch's schema
    cdef BatchScatter scatter(self, int partitions)
    cdef BatchAssembler assembler(self)
    cdef object _load_plain(self, object buf, bint copy, bint check)    # None: another block than nearly all are
    cdef object _load(self, object buf, bint copy, bint check)
    cdef int _dump_to(self, list batches, uint8_t *block, Py_ssize_t room, Py_ssize_t *length) except -1
    cdef ColumnPlan _known(self)
    cdef list _begin(self, object data)
    cdef int _write_header(self, uint8_t *block, Py_ssize_t length, int64_t rows) except -1


cdef class BatchIterator:
    cdef BatchAssembler _assembler
    cdef const uint8_t[::1] _body      # keeps the block alive
    cdef int64_t _at
    cdef int64_t _number               # rows given out or ready
    cdef int64_t _records              # as the header says
    cdef int64_t _max_rows
    cdef int64_t _max_bytes
    cdef bint _in_place                 # batches lie in the body
    cdef list _ready                   # pieces of what was taken last, the next one at the end

    cdef list _cut(self, object batch)

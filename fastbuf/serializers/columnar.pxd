# Blocks of Arrow batches, and what the exchange needs to carry them.
from libc.stdint cimport int64_t

from fastbuf.serializers.assemble cimport BatchAssembler
from fastbuf.serializers.column_plan cimport ColumnPlan
from fastbuf.serializers.scatter cimport BatchScatter
from fastbuf.serializers.serializer cimport Serializer


cdef class ColumnarSerializer(Serializer):
    cdef readonly ColumnPlan plan      # None until the schema is known
    cdef object _given                 # the schema as it was given: what is pickled
    cdef BatchScatter _scatter         # kept between dumps

    cdef int learn(self, object schema) except -1      # also called by the exchange, with the first batch's schema
    cdef BatchScatter scatter(self, int partitions)
    cdef BatchAssembler assembler(self)
    cdef ColumnPlan _known(self)
    cdef bytes _finish(self, list pieces, int64_t rows)

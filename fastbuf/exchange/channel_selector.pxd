# Which subpartition a record goes to.  A selector is made by the user, pickled freely, and bound to a
# number of subpartitions and a schema by the writer.
from fastbuf.serializers.scatter cimport BatchScatter

cdef enum:
    SELECT_ALL = -2             # broadcast


cdef class ChannelSelector:
    cdef int n
    cdef object schema
    cdef int bind(self, int n, object schema) except -1
    # The subpartition of one record, or SELECT_ALL.
    cdef int select(self, object record) except -1
    # Groups the rows of a batch by subpartition.
    cdef int begin(self, BatchScatter scatter, object batch) except -1

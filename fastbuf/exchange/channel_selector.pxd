# Which subpartition a record goes to.  A selector is made by the user, pickled freely, and bound to a
# number of subpartitions and a schema by the writer.
from libc.stdint cimport int32_t

from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.serializers.scatter cimport BatchScatter

cdef class ChannelSelector:
    cdef int n
    cdef bint to_all            # broadcast: the writer does not ask, every record is for all
    cdef int always             # the one subpartition that every record goes to, and nobody needs to ask; -1: ask
    cdef bint by_fields         # it looks at a record's fields by the schema: the serializer can say what is wrong
    cdef object schema
    cdef bint by_room           # it looks at the writer's queues: the writer waits until one of them has room
    cdef int dropped            # 1: rows grouped as subpartition n, which there is not, are for nobody; else 0
    cdef int bind(self, int n, object schema) except -1
    # What it selects for, once the writer is made.
    cdef int attach(self, ResultPartition partition) except -1
    # The subpartition of one record.
    cdef int select(self, object record) except -1
    # Groups the rows of a batch by subpartition.
    cdef int begin(self, BatchScatter scatter, object batch) except -1
    # Counts which keys come most often, and keeps their values where these are asked for; they are told as
    # HashPartitioner does.
    cdef int watch_keys(self, bint values) except -1
    cdef dict hot_keys(self)
    cdef dict key_values(self)
    # Of the keys so far; None where keys are not hashed.
    cdef object digest(self)

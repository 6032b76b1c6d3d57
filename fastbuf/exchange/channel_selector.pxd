# Map of channel selectors, which choose the subpartition of each record.  The user makes a selector and may pickle it;
# the writer binds it to a number of subpartitions and a schema.
from libc.stdint cimport int32_t

from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.serializers.scatter cimport BatchScatter

cdef class ChannelSelector:
    cdef int n
    cdef readonly bint to_all   # broadcast: every record goes to all, `select` is not called
    cdef int always             # the subpartition that every record goes to, `select` is not called; -1: call it
    cdef bint by_fields         # it reads fields of records: if one is wrong, the serializer has the better message
    cdef object schema
    cdef bint by_room           # it reads the lengths of the writer's queues: the writer waits until one has room
    cdef int dropped            # 1: rows grouped as subpartition n, which does not exist, are dropped; else 0
    cdef int bind(self, int n, object schema) except -1
    # Called once the partition's writer is made.
    cdef int attach(self, ResultPartition partition) except -1
    # The subpartition of one record.
    cdef int select(self, object record) except -1
    # Groups the rows of a batch by subpartition.
    cdef int begin(self, BatchScatter scatter, object batch) except -1
    # Counts the most frequent keys from now on; values: keeps their text too.  See HashPartitioner.
    cdef int watch_keys(self, bint values) except -1
    cdef dict hot_keys(self)
    cdef dict key_values(self)
    # Sum of the hashes of all keys so far; None: keys are not hashed.
    cdef object digest(self)

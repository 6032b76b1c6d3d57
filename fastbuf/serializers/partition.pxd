# Spark's hash partitioning of batches.
from libc.stdint cimport int32_t, uint64_t

from fastbuf.serializers.column_plan cimport BoundBatch, ColumnPlan


# Key columns resolved against a schema once; then a kernel call a batch.  Not for two threads at once.
cdef class HashPartitioner:
    cdef readonly tuple keys
    cdef readonly int partitions
    cdef ColumnPlan plan           # the schema that key_nodes belong to; None before the first batch
    cdef BoundBatch batch          # for batches that nobody else has bound
    cdef int32_t *key_nodes
    cdef readonly uint64_t digest  # of all hashes so far, whatever their order; of none: 0

    cdef int resolve(self, ColumnPlan plan) except -1
    cdef int fill(self, BoundBatch batch, int32_t *pids) except -1
    cdef int check(self, ColumnPlan plan) except -1     # resolve, unless it is for this plan already


cdef int check_hashable(ColumnPlan plan, int node) except -1   # SchemaError unless Spark hashes all below node

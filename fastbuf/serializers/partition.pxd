# Spark's hash partitioning of batches.
from libc.stdint cimport int32_t, uint64_t

from fastbuf.serializers.column_plan cimport BoundBatch, ColumnPlan


cdef enum:
    HOT_KEYS = 64               # that are counted at a time
    HOT_EVERY = 1024            # one row in so many is looked at


# The keys that come most often, by 30 bits of their hash.  Algorithm: Metwally, Agrawal, El Abbadi, "Efficient
# computation of frequent and top-k elements in data streams" (Space-Saving, ICDT 2005): a key that is not among those
# that are counted takes the place, and the count, of the one that was found least often.
cdef struct HotKeys:
    uint64_t rows
    uint64_t taken              # rows that were looked at
    int n
    int32_t hash[HOT_KEYS]
    int32_t partition[HOT_KEYS]
    uint64_t count[HOT_KEYS]
    uint64_t error[HOT_KEYS]    # of count, at most
    int fresh                   # rows of the last batch that were looked at, its first ones ...
    int32_t fresh_hash[HOT_KEYS]    # ... and their hashes


cdef void hot_count(HotKeys *h, int32_t hash, int32_t partition) noexcept nogil


# Key columns resolved against a schema once; then a kernel call a batch.  Not for two threads at once.
cdef class HashPartitioner:
    cdef readonly tuple keys
    cdef readonly int partitions
    cdef ColumnPlan plan           # the schema that key_nodes belong to; None before the first batch
    cdef BoundBatch batch          # for batches that nobody else has bound
    cdef int32_t *key_nodes
    cdef int n_keys
    cdef readonly uint64_t digest  # of all hashes so far, whatever their order; of none: 0
    cdef HotKeys *hot              # which keys come most often; NULL: nobody asked
    cdef dict texts                # what the keys are, by hash; None: nobody asked for that

    cdef int resolve(self, ColumnPlan plan) except -1
    cdef void look(self, BoundBatch batch, const int32_t *pids) noexcept nogil
    cdef int name_batch(self, object batch) except -1           # the keys that were looked at in the last batch
    cdef int name_key(self, int32_t hash, tuple values) except -1
    cdef int fill(self, BoundBatch batch, int32_t *pids) except -1
    cdef int check(self, ColumnPlan plan) except -1     # resolve, unless it is for this plan already


cdef int check_hashable(ColumnPlan plan, int node) except -1   # SchemaError unless Spark hashes all below node

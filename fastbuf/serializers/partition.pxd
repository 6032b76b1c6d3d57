# Spark's hash partitioning of batches.
from libc.stdint cimport int32_t, int64_t, uint64_t

from fastbuf.serializers.column_plan cimport BoundBatch, ColumnPlan


cdef enum:
    HOT_KEYS = 64               # keys that are counted at a time
    HOT_EVERY = 1024            # one row in this many is sampled


# The most frequent keys, by 30 bits of their hash.  Algorithm: Metwally, Agrawal, El Abbadi, "Efficient computation of
# frequent and top-k elements in data streams" (Space-Saving, ICDT 2005): a key that is not yet counted replaces the one
# with the smallest count, and takes over that count.
cdef struct HotKeys:
    uint64_t rows
    uint64_t taken              # rows sampled
    int n
    int32_t hash[HOT_KEYS]
    int32_t partition[HOT_KEYS]
    uint64_t count[HOT_KEYS]
    uint64_t error[HOT_KEYS]    # largest possible error of each count
    int fresh                   # rows sampled in the last batch, at most HOT_KEYS ...
    int32_t fresh_hash[HOT_KEYS]    # ... their hashes ...
    int64_t fresh_row[HOT_KEYS]     # ... and where they are in it


cdef void hot_count(HotKeys *h, int32_t hash, int32_t partition) noexcept nogil


# Key columns are resolved against a schema once; then each batch is one kernel call.  Not thread-safe.
cdef class HashPartitioner:
    cdef readonly tuple keys
    cdef readonly int partitions
    cdef ColumnPlan plan           # the schema that key_nodes belong to; None before the first batch
    cdef BoundBatch batch          # used for batches that the caller has not bound
    cdef int32_t *key_nodes
    cdef int n_keys
    cdef readonly uint64_t digest  # a sum over all hashes so far, independent of their order; 0: none
    cdef HotKeys *hot              # the most frequent keys; NULL: not requested
    cdef dict texts                # text of keys by hash; None: not requested

    cdef int resolve(self, ColumnPlan plan) except -1
    cdef void look(self, BoundBatch batch, const int32_t *pids) noexcept nogil
    cdef int name_batch(self, object batch) except -1           # stores the text of the last batch's sampled keys
    cdef int name_key(self, int32_t hash, tuple values) except -1
    cdef int fill(self, BoundBatch batch, int32_t *pids) except -1
    cdef int check(self, ColumnPlan plan) except -1     # resolves the keys, unless done for this plan already


cdef int check_hashable(ColumnPlan plan, int node) except -1   # SchemaError unless Spark hashes all types below node

from fastbuf.memory.pool_types cimport PoolCore


# One sentence per fault; empty when each segment is in exactly one place and the counters agree.  Call it only while no
# thread uses the pool.
cdef list pool_faults(PoolCore *g, bint mapped)

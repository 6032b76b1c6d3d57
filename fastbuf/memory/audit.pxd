from fastbuf.memory.pool_core cimport PoolCore


# What is wrong, one sentence each; empty when every segment is in one place and the accounts agree.  At rest only.
cdef list pool_faults(PoolCore *g, bint mapped)

from libc.stdint cimport uint32_t


# Computes the limits of n pools.  Each is from its required to its maximum; their sum is at most total.  The sum of all
# `required` must be at most total.
cdef void share_out(
    uint32_t total, size_t n, const uint32_t *required, const uint32_t *maximum, uint32_t *limits
) noexcept nogil

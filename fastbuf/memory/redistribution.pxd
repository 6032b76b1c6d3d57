from libc.stdint cimport uint32_t


# Limits of n pools, each at least its required and at most its maximum; their sum is at most total.  The sum of all
# `required` is at most total.
cdef void share_out(
    uint32_t total, size_t n, const uint32_t *required, const uint32_t *maximum, uint32_t *limits
) noexcept nogil

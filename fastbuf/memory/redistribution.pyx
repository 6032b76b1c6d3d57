"""How many segments each pool may hold: a pure function of the pools' parameters."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc


cdef extern from *:
    """
    typedef unsigned __int128 fb_u128;              /* holds segments times the sum of all maxima */
    """
    ctypedef unsigned long long fb_u128


cdef inline uint64_t room_of(uint32_t required, uint32_t maximum, uint64_t spare) noexcept nogil:
    return spare if maximum - required > spare else maximum - required


cdef void share_out(
    uint32_t total, size_t n, const uint32_t *required, const uint32_t *maximum, uint32_t *limits
) noexcept nogil:
    cdef uint64_t spare = total
    cdef uint64_t capacity = 0
    cdef uint64_t share, parts = 0, given = 0, end
    cdef size_t k
    cdef bint narrow
    for k in range(n):
        spare -= required[k]
    for k in range(n):
        capacity += room_of(required[k], maximum[k], spare)
    share = spare if spare < capacity else capacity
    narrow = share == 0 or capacity <= <uint64_t>-1 // share   # nearly always true; a wide division costs much more
    for k in range(n):
        parts += room_of(required[k], maximum[k], spare)
        if capacity == 0:
            end = 0
        elif narrow:
            end = share * parts // capacity
        else:
            end = <uint64_t>(<fb_u128>share * parts // capacity)
        limits[k] = required[k] + <uint32_t>(end - given)
        given = end


def redistribute(total, pools):
    """Share the segments beyond the sum of `required` among all pools.

    A pool's share is in proportion to what it may still take (maximum - required), and never exceeds that.  What it may
    still take is capped at the number of segments to share, so that a pool without a maximum does not reduce the other
    shares to nothing.

    Parameters
    ----------
    total : int
        Number of segments.
    pools : sequence of tuple of int
        ``(required, maximum)`` of each pool; the sum of `required` is at most `total`.

    Returns
    -------
    list of int
        The limit of each pool, in the same order: at least its required, at most its maximum; their sum is at most
        `total`, and equal to it unless every pool is at its maximum.

    Notes
    -----
    Rounds like Flink's ``NetworkBufferPool.redistributeBuffers``: the shares are differences of a running total that is
    rounded down, so rounding loses nothing.
    """
    cdef size_t n = len(pools)
    cdef size_t k = 0
    cdef uint32_t *numbers
    needed = sum([required for required, _ in pools])
    if needed > total:
        raise ValueError(f"the pools require {needed} of {total} segments")
    numbers = <uint32_t *>malloc((3 * n + 1) * sizeof(uint32_t))
    if numbers == NULL:
        raise MemoryError
    try:
        for required, maximum in pools:
            if maximum < required:
                raise ValueError(f"maximum {maximum} is below required {required}")
            numbers[k] = required
            numbers[n + k] = maximum
            k += 1
        share_out(total, n, numbers, numbers + n, numbers + 2 * n)
        return [numbers[2 * n + k] for k in range(n)]
    finally:
        free(numbers)

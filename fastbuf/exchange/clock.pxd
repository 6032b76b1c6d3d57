# The clock of deadlines (`monotonic`, in the .pyx), and seconds as nanoseconds for them.
from libc.stdint cimport int64_t


cdef inline int64_t seconds_ns(double s) noexcept nogil:
    # Clamped: infinity (no limit) and very long times become 127 years, which can be added to any time.
    if s >= 4e9:
        return 4000000000000000000
    return <int64_t> (s * 1e9) if s > 0 else 0

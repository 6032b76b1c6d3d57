# Dates, times and decimals as the integers stored in rows.
from libc.stdint cimport int64_t, uint8_t

cdef enum Scalar:
    SCALAR_DATE         # days since 1970-01-01, or milliseconds with unit 1,000 (date64)
    SCALAR_TIME         # units since midnight
    SCALAR_TIMESTAMP    # units since 1970-01-01T00:00, in UTC if there is a zone
    SCALAR_DURATION     # units

# unit: units per second (0: days).  Errors are ValueError, TypeError or OverflowError; their text is only the reason.
cdef int64_t scalar_to_int(int scalar, int64_t unit, object zone, object value) except? -1
cdef object scalar_from_int(int scalar, int64_t unit, object zone, int64_t x)
cdef int decimal_to_bytes(int precision, int scale, int width, object value, uint8_t *dst) except -1
cdef object decimal_from_bytes(int precision, int scale, int width, const uint8_t *src)

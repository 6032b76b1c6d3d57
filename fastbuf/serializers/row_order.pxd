# Order and hash of encoded values, for lazy rows: by value, not by bytes.  None has no bytes; the caller handles it.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from fastbuf.serializers.objects cimport PyFloat_Unpack2
from fastbuf.serializers.row_plan cimport (
    OP_BINARY, OP_DECIMAL, OP_FIXED_BINARY, OP_FLOAT16, OP_FLOAT32, OP_FLOAT64, OP_STRING, OP_UINT8, OP_UINT64, Node,
)


cdef inline int64_t integer_at(Node *f, const uint8_t *p) noexcept nogil:
    # Signed fields are sign-extended; unsigned ones below 64 bits are not.
    cdef int64_t x = 0
    cdef int32_t x32
    if f.slot == 8:
        memcpy(&x, p, 8)
    elif f.op >= OP_UINT8 and f.op <= OP_UINT64:
        memcpy(&x, p, f.slot)
    elif f.slot == 4:
        memcpy(&x32, p, 4)
        x = x32
    elif f.slot == 2:
        x = <int64_t> (<signed char> p[1]) * 256 + p[0]
    else:
        x = <signed char> p[0]
    return x


cdef inline double double_at(Node *f, const uint8_t *p) noexcept:
    cdef double d = 0
    cdef float single
    if f.op == OP_FLOAT64:
        memcpy(&d, p, 8)
    elif f.op == OP_FLOAT32:
        memcpy(&single, p, 4)
        d = single
    else:
        d = PyFloat_Unpack2(<const char *> p, 1)      # cannot fail on these bytes
    return d


cdef inline int order_of(Node *f, const uint8_t *a, Py_ssize_t n, const uint8_t *b, Py_ssize_t m) noexcept:
    # Compares two values of a plain type: -1, 0 or 1.
    cdef int64_t x, y
    cdef double d, e
    cdef int k
    if f.op == OP_STRING or f.op == OP_BINARY or f.op == OP_FIXED_BINARY:
        # UTF-8 sorts in the order of code points.
        k = memcmp(a, b, min(n, m))
        return (k > 0) - (k < 0) if k else (n > m) - (n < m)
    if f.op >= OP_FLOAT16 and f.op <= OP_FLOAT64:
        d, e = double_at(f, a), double_at(f, b)
        if d != d or e != e:
            return (d != d) - (e != e)
        return (d > e) - (d < e)
    if f.op == OP_DECIMAL:
        k = f.slot - 1
        if a[k] != b[k]:
            return 1 if <signed char> a[k] > <signed char> b[k] else -1
        while k and a[k] == b[k]:
            k -= 1
        return (a[k] > b[k]) - (a[k] < b[k])
    x, y = integer_at(f, a), integer_at(f, b)
    if f.op == OP_UINT64:
        return (<uint64_t> x > <uint64_t> y) - (<uint64_t> x < <uint64_t> y)
    return (x > y) - (x < y)


cdef inline uint64_t mixed(uint64_t h, uint64_t word) noexcept nogil:
    h = (h ^ word) * <uint64_t> 0x9E3779B97F4A7C15
    return h ^ (h >> 32)


cdef inline uint64_t hash_of(Node *f, const uint8_t *p, Py_ssize_t n, uint64_t h) noexcept:
    cdef uint64_t word = 0
    cdef double d
    if f.op >= OP_FLOAT16 and f.op <= OP_FLOAT64:
        d = double_at(f, p)
        if d != d:
            return mixed(h, 0x7FF8000000000000)
        if d != 0:                                    # 0.0 and -0.0 are equal
            memcpy(&word, &d, 8)
        return mixed(h, word)
    h = mixed(h, <uint64_t> n)
    while n >= 8:
        memcpy(&word, p, 8)
        h = mixed(h, word)
        p += 8
        n -= 8
    if n:
        word = 0
        memcpy(&word, p, n)
        h = mixed(h, word)
    return h

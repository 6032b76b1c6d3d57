/* Reads and makes CPython's int, float, str and bytes without calls: rows consist mostly of these.
 *
 * Where the interpreter's structs are known (CPython 3.11 to 3.13, release builds), an object is built here as its
 * constructor would do: memory from PyObject_Malloc, which the type's tp_free frees, and each field set. Everywhere
 * else the constructor is called. */
#ifndef FB_OBJECTS_H
#define FB_OBJECTS_H

#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if PY_VERSION_HEX < 0x030E0000 && PYLONG_BITS_IN_DIGIT == 30 && !defined(Py_DEBUG) && !defined(Py_TRACE_REFS) && \
    !defined(Py_GIL_DISABLED) && !defined(PYPY_VERSION) && !defined(FASTBUF_DEBUG)
#define FB_BY_HAND 1
#else
#define FB_BY_HAND 0
#endif

#define FB_HIGH_BITS 0x8080808080808080ull      /* bits of eight bytes that are not set in ASCII */

/* ------------------------------------------------------------------------------------------------ read */

/* Reads an exact int as int64.  0: done, 1: does not fit, -1: error set.  Ints of one digit (30 bits) need no call. */
static inline int fb_exact_int64(PyObject *o, int64_t *x) {
    int overflow;
#if PY_VERSION_HEX >= 0x030C0000
    if (PyUnstable_Long_IsCompact((PyLongObject *)o)) {
        *x = PyUnstable_Long_CompactValue((PyLongObject *)o);
        return 0;
    }
#else
    Py_ssize_t digits = Py_SIZE(o);
    if (digits >= -1 && digits <= 1) {
        *x = digits * (int64_t)((PyLongObject *)o)->ob_digit[0];
        return 0;
    }
#endif
    *x = PyLong_AsLongLongAndOverflow(o, &overflow);
    return overflow ? 1 : (*x == -1 && PyErr_Occurred()) ? -1 : 0;
}

/* The UTF-8 of an exact str: borrowed from it; NULL with an error set for a lone surrogate. */
static inline const char *fb_utf8(PyObject *o, Py_ssize_t *size) {
    if (PyUnicode_IS_COMPACT_ASCII(o)) {
        *size = PyUnicode_GET_LENGTH(o);
        return (const char *)PyUnicode_DATA(o);
    }
    return PyUnicode_AsUTF8AndSize(o, size);
}

/* Short strings: two overlapping moves instead of a call. */
static inline void fb_copy_short(void *dst, const void *src, Py_ssize_t n) {
    uint64_t a, b;
    uint32_t c, d;
    uint8_t *to = (uint8_t *)dst;
    const uint8_t *from = (const uint8_t *)src;
    if (n > 32) {
        memcpy(to, from, (size_t)n);
    } else if (n > 16) {
        uint64_t x[2], y[2];
        memcpy(x, from, 16);
        memcpy(y, from + n - 16, 16);
        memcpy(to, x, 16);
        memcpy(to + n - 16, y, 16);
    } else if (n >= 8) {
        memcpy(&a, from, 8);
        memcpy(&b, from + n - 8, 8);
        memcpy(to, &a, 8);
        memcpy(to + n - 8, &b, 8);
    } else if (n >= 4) {
        memcpy(&c, from, 4);
        memcpy(&d, from + n - 4, 4);
        memcpy(to, &c, 4);
        memcpy(to + n - 4, &d, 4);
    } else if (n > 0) {
        to[0] = from[0];
        to[n >> 1] = from[n >> 1];
        to[n - 1] = from[n - 1];
    }
}

/* Whether n bytes are ASCII: eight at a time; the last eight may overlap. */
static inline int fb_ascii(const uint8_t *p, Py_ssize_t n) {
    uint64_t seen = 0, w;
    uint32_t a, b;
    if (n >= 8) {
        for (Py_ssize_t i = 0; i + 8 < n; i += 8) {
            memcpy(&w, p + i, 8);
            seen |= w;
        }
        memcpy(&w, p + n - 8, 8);
        seen |= w;
    } else if (n >= 4) {
        memcpy(&a, p, 4);
        memcpy(&b, p + n - 4, 4);
        seen = a | b;
    } else if (n > 0) {
        seen = p[0] | p[n >> 1] | p[n - 1];
    }
    return (seen & FB_HIGH_BITS) == 0;
}

/* Writes the doubles of the exact floats at the start of a list to `to`; returns how many. */
static inline Py_ssize_t fb_list_doubles(PyObject *list, uint8_t *to) {
    PyObject *const *items = ((PyListObject *)list)->ob_item;
    Py_ssize_t n = PyList_GET_SIZE(list), i = 0;
    for (; i < n && PyFloat_CheckExact(items[i]); i++) memcpy(to + 8 * i, &((PyFloatObject *)items[i])->ob_fval, 8);
    return i;
}

/* If the objects of records are scattered in memory (after sorting, shuffling or grouping), the loop would wait for
 * each object; so the objects of the next records are prefetched.  If they are in the order of creation, as most
 * are, the hardware prefetches them, and doing it twice costs a tenth: so every FB_LOOK records two of them are
 * checked. All of this reads references borrowed from a list at that moment, and runs no Python code. */
#define FB_AHEAD 4
#define FB_LOOK 32
#define FB_NEAR ((ptrdiff_t)1 << 16)
#define FB_MOST 16              /* values prefetched per record: processors allow few prefetches at a time */

static inline int fb_scattered(PyObject *list, Py_ssize_t at) {
    PyObject *a, *b;
    Py_ssize_t far = 0, n;
    if (at + 1 >= PyList_GET_SIZE(list)) return 0;
    a = PyList_GET_ITEM(list, at);
    b = PyList_GET_ITEM(list, at + 1);
    if (!PyTuple_Check(a) || !PyTuple_Check(b) || PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return 0;
    n = PyTuple_GET_SIZE(a) < FB_MOST ? PyTuple_GET_SIZE(a) : FB_MOST;
    for (Py_ssize_t i = 0; i < n; i++) {
        ptrdiff_t gap = (char *)PyTuple_GET_ITEM(b, i) - (char *)PyTuple_GET_ITEM(a, i);
        far += gap > FB_NEAR || gap < -FB_NEAR;
    }
    return 2 * far > n;             /* None and small ints are shared, and are far from the others */
}

static inline void fb_send_for(PyObject *list, Py_ssize_t at) {
    PyObject *o;
    Py_ssize_t n;
    if (at + FB_AHEAD >= PyList_GET_SIZE(list)) return;
    o = PyList_GET_ITEM(list, at + FB_AHEAD);
    __builtin_prefetch(o);
    __builtin_prefetch((char *)o + 64);
    o = PyList_GET_ITEM(list, at + FB_AHEAD / 2);
    if (!PyTuple_Check(o)) return;
    n = PyTuple_GET_SIZE(o) < FB_MOST ? PyTuple_GET_SIZE(o) : FB_MOST;
    for (Py_ssize_t i = 0; i < n; i++) __builtin_prefetch(PyTuple_GET_ITEM(o, i));
}

/* ------------------------------------------------------------------------------------------------ made */

/* The interpreter's allocator, looked up once instead of a call through its wrapper for each object. Hooks (debug
 * builds, tracemalloc) replace that allocator, so they still work. It must not change meanwhile, so no Python code
 * may run from fb_maker_open to fb_maker_close: the GIL is kept, and the garbage collector, which CPython 3.11
 * starts while a tuple or a list is being made, is disabled. It would find no garbage in unfinished objects anyway. */
#if FB_BY_HAND

typedef struct {
    void *(*make)(void *, size_t);
    void *ctx;
} fb_maker; /* passed in registers */

static void *fb_one_by_one(void *ctx, size_t size) {
    (void)ctx;
    return PyObject_Malloc(size);
}

static const fb_maker fb_single = {fb_one_by_one, NULL};

static inline fb_maker fb_maker_found(void) {
    PyMemAllocatorEx found;
    PyMem_GetAllocator(PYMEM_DOMAIN_OBJ, &found);
    return (fb_maker){found.malloc, found.ctx};
}

/* None of the types made here is a heap type, so no instance count is needed. */
static inline PyObject *fb_new(fb_maker maker, PyTypeObject *type, size_t size) {
    PyObject *o = (PyObject *)maker.make(maker.ctx, size);
    if (o == NULL) return PyErr_NoMemory();
    o->ob_refcnt = 1;
    o->ob_type = type;
    return o;
}

static inline PyObject *fb_float_by(fb_maker maker, double x) {
    PyObject *o = fb_new(maker, &PyFloat_Type, sizeof(PyFloatObject));
    if (o != NULL) ((PyFloatObject *)o)->ob_fval = x;
    return o;
}

/* Makes ints of one or two of CPython's 30-bit digits; the other ints, small ones too, CPython makes. */
static inline PyObject *fb_int64_by(fb_maker maker, int64_t x) {
    const uint64_t sign = (uint64_t)(x >> 63), size = ((uint64_t)x ^ sign) - sign;
    const uint64_t digits = 1 + (size >> PyLong_SHIFT != 0);
    digit *to;
    PyObject *o;
    if (size - 257 >= ((uint64_t)1 << 2 * PyLong_SHIFT) - 257) return PyLong_FromLongLong(x);
    o = fb_new(maker, &PyLong_Type, sizeof(PyLongObject));
    if (o == NULL) return NULL;
#if PY_VERSION_HEX >= 0x030C0000
    ((PyLongObject *)o)->long_value.lv_tag = (uintptr_t)(digits << 3 | (sign & 2));
    to = ((PyLongObject *)o)->long_value.ob_digit;
#else
    ((PyVarObject *)o)->ob_size = (Py_ssize_t)((digits ^ sign) - sign);
    to = ((PyLongObject *)o)->ob_digit;
#endif
    to[0] = (digit)(size & PyLong_MASK);
    to[1] = (digit)(size >> PyLong_SHIFT);
    return o;
}

static inline PyObject *fb_bytes_by(fb_maker maker, const uint8_t *p, Py_ssize_t n) {
    PyObject *o;
    if (n < 2 || n > 1 << 20) return PyBytes_FromStringAndSize((const char *)p, n);
    o = fb_new(maker, &PyBytes_Type, offsetof(PyBytesObject, ob_sval) + (size_t)n + 1);
    if (o == NULL) return NULL;
    ((PyVarObject *)o)->ob_size = n;
    memset((PyVarObject *)o + 1, 0xFF, sizeof(Py_hash_t));      /* ob_shash = -1; compilers warn about the name */
    fb_copy_short(PyBytes_AS_STRING(o), p, n);
    PyBytes_AS_STRING(o)[n] = 0;
    return o;
}

/* A str of n ASCII characters, 2 to 2**20 of them, which the caller must write. */
static inline PyObject *fb_ascii_room(fb_maker maker, Py_ssize_t n) {
    PyASCIIObject *s = (PyASCIIObject *)fb_new(maker, &PyUnicode_Type, sizeof(PyASCIIObject) + (size_t)n + 1);
    if (s == NULL) return NULL;
    s->length = n;
    s->hash = -1;
    memset(&s->state, 0, sizeof s->state);
    s->state.kind = PyUnicode_1BYTE_KIND;
    s->state.compact = 1;
    s->state.ascii = 1;
#if PY_VERSION_HEX < 0x030C0000
    s->state.ready = 1;
    s->wstr = NULL;
#endif
    ((char *)(s + 1))[n] = 0;
    return (PyObject *)s;
}

/* A str from UTF-8. The most common case, 8 to 16 bytes of ASCII, is read once: the checked bytes are also the ones
 * written. */
static inline PyObject *fb_str_by(fb_maker maker, const uint8_t *p, Py_ssize_t n) {
    PyObject *o;
    if ((size_t)n - 8 <= 8) {
        uint64_t a, b;
        memcpy(&a, p, 8);
        memcpy(&b, p + n - 8, 8);
        if ((a | b) & FB_HIGH_BITS) return PyUnicode_DecodeUTF8((const char *)p, n, NULL);
        o = fb_ascii_room(maker, n);
        if (o == NULL) return NULL;
        memcpy((PyASCIIObject *)o + 1, &a, 8);
        memcpy((char *)((PyASCIIObject *)o + 1) + n - 8, &b, 8);
        return o;
    }
    if (n < 2 || n > 1 << 20 || !fb_ascii(p, n)) return PyUnicode_DecodeUTF8((const char *)p, n, NULL);
    o = fb_ascii_room(maker, n);
    if (o != NULL) fb_copy_short((PyASCIIObject *)o + 1, p, n);
    return o;
}

/* A list of n doubles. Its items are not set to NULL first: until they are filled, the list has size 0. */
static inline PyObject *fb_doubles_by(fb_maker maker, const uint8_t *p, Py_ssize_t n) {
    PyObject *out = PyList_New(0), **items;
    if (out == NULL || n == 0) return out;
    items = (PyObject **)PyMem_Malloc((size_t)n * sizeof(PyObject *));
    if (items == NULL) {
        Py_DECREF(out);
        return PyErr_NoMemory();
    }
    ((PyListObject *)out)->ob_item = items;
    ((PyListObject *)out)->allocated = n;
    for (Py_ssize_t i = 0; i < n; i++) {
        double x;
        memcpy(&x, p + 8 * i, 8);
        items[i] = fb_float_by(maker, x);
        if (items[i] == NULL) {
            ((PyVarObject *)out)->ob_size = i;
            Py_DECREF(out);
            return NULL;
        }
    }
    ((PyVarObject *)out)->ob_size = n;
    return out;
}

#else

typedef struct {
    char none;
} fb_maker;

static const fb_maker fb_single = {0};

static inline fb_maker fb_maker_found(void) { return fb_single; }

static inline PyObject *fb_float_by(fb_maker maker, double x) {
    (void)maker;
    return PyFloat_FromDouble(x);
}

static inline PyObject *fb_int64_by(fb_maker maker, int64_t x) {
    (void)maker;
    return PyLong_FromLongLong(x);
}

static inline PyObject *fb_bytes_by(fb_maker maker, const uint8_t *p, Py_ssize_t n) {
    (void)maker;
    return PyBytes_FromStringAndSize((const char *)p, n);
}

static inline PyObject *fb_str_by(fb_maker maker, const uint8_t *p, Py_ssize_t n) {
    (void)maker;
    return PyUnicode_DecodeUTF8((const char *)p, n, NULL);
}

static inline PyObject *fb_doubles_by(fb_maker maker, const uint8_t *p, Py_ssize_t n) {
    PyObject *out = PyList_New(n);
    if (out == NULL) return NULL;
    for (Py_ssize_t i = 0; i < n; i++) {
        double x;
        memcpy(&x, p + 8 * i, 8);
        PyObject *item = fb_float_by(maker, x);
        if (item == NULL) {
            Py_DECREF(out);
            return NULL;
        }
        PyList_SET_ITEM(out, i, item);
    }
    return out;
}

#endif

static inline fb_maker fb_maker_open(int *collecting) {
#if PY_VERSION_HEX < 0x030C0000
    *collecting = PyGC_Disable();
#else
    *collecting = 0;
#endif
    return fb_maker_found();
}

static inline void fb_maker_close(int collecting) {
    if (collecting) PyGC_Enable();
}

static inline PyObject *fb_float(double x) { return fb_float_by(fb_single, x); }

static inline PyObject *fb_int64(int64_t x) { return fb_int64_by(fb_single, x); }

static inline PyObject *fb_bytes(const uint8_t *p, Py_ssize_t n) { return fb_bytes_by(fb_single, p, n); }

static inline PyObject *fb_str(const uint8_t *p, Py_ssize_t n) { return fb_str_by(fb_single, p, n); }

#endif

/* CPython's int, float, str and bytes, read and made in place of calls: rows are little else.
 *
 * Where the interpreter's own structs are known (CPython 3.11 to 3.13, release builds) an object is laid out here, as
 * its constructor would: memory of PyObject_Malloc, which the type's own tp_free gives back, and each field set.
 * Everywhere else the constructor itself is called. */
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

#define FB_HIGH_BITS 0x8080808080808080ull      /* of eight bytes: none is set in ASCII */

/* ------------------------------------------------------------------------------------------------ read */

/* An exact int as int64.  0: done, 1: does not fit, -1: error set.  Ints of one digit (30 bits) skip the call. */
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

/* UTF-8 of an exact str: borrowed from it, NULL with an error set for a lone surrogate. */
static inline const char *fb_utf8(PyObject *o, Py_ssize_t *size) {
    if (PyUnicode_IS_COMPACT_ASCII(o)) {
        *size = PyUnicode_GET_LENGTH(o);
        return (const char *)PyUnicode_DATA(o);
    }
    return PyUnicode_AsUTF8AndSize(o, size);
}

/* Short strings: two moves that overlap instead of a call. */
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

/* Whether n bytes are ASCII: eight at a time, the last eight once more. */
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

/* The doubles of a list's exact floats from its start, written to `to`; how many they are. */
static inline Py_ssize_t fb_list_doubles(PyObject *list, uint8_t *to) {
    PyObject *const *items = ((PyListObject *)list)->ob_item;
    Py_ssize_t n = PyList_GET_SIZE(list), i = 0;
    for (; i < n && PyFloat_CheckExact(items[i]); i++) memcpy(to + 8 * i, &((PyFloatObject *)items[i])->ob_fval, 8);
    return i;
}

/* Records whose objects lie about in memory (sorted, shuffled, grouped ones) would wait for each object in turn; so
 * those of the next records are sent for meanwhile.  Where they lie in the order of their making, as most do, the
 * processor does that by itself, and doing it twice costs a tenth: every FB_LOOK records two of them are looked at.
 * All of this reads what is borrowed from a list at that moment, and runs no Python code. */
#define FB_AHEAD 4
#define FB_LOOK 32
#define FB_NEAR ((ptrdiff_t)1 << 16)
#define FB_MOST 16              /* of a record's values: the processor has few places for what was sent for */

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
    return 2 * far > n;             /* None and small ints are shared, and lie far from the rest */
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

#if FB_BY_HAND

static inline PyObject *fb_new(PyTypeObject *type, size_t size) {
    PyObject *o = (PyObject *)PyObject_Malloc(size);
    if (o == NULL) return PyErr_NoMemory();
    o->ob_refcnt = 1;               /* none of the four types is of the heap: nothing counts its instances */
    o->ob_type = type;
    return o;
}

static inline PyObject *fb_float(double x) {
    PyObject *o = fb_new(&PyFloat_Type, sizeof(PyFloatObject));
    if (o != NULL) ((PyFloatObject *)o)->ob_fval = x;
    return o;
}

/* Small ints are the interpreter's own; ints of one and two digits (60 bits) are made. */
static inline PyObject *fb_int64(int64_t x) {
    uint64_t size = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
    PyObject *o;
    digit *digits;
    int more = size >> PyLong_SHIFT != 0;
    if ((uint64_t)x + 5 < 5 + 257 || size >> (2 * PyLong_SHIFT)) return PyLong_FromLongLong(x);
    o = fb_new(&PyLong_Type, sizeof(PyLongObject));
    if (o == NULL) return NULL;
#if PY_VERSION_HEX >= 0x030C0000
    ((PyLongObject *)o)->long_value.lv_tag = ((size_t)(1 + more) << 3) | (x < 0 ? 2 : 0);
    digits = ((PyLongObject *)o)->long_value.ob_digit;
#else
    ((PyVarObject *)o)->ob_size = x < 0 ? -1 - more : 1 + more;
    digits = ((PyLongObject *)o)->ob_digit;
#endif
    digits[0] = (digit)(size & PyLong_MASK);
    digits[1] = (digit)(size >> PyLong_SHIFT);
    return o;
}

static inline PyObject *fb_bytes(const uint8_t *p, Py_ssize_t n) {
    PyObject *o;
    if (n < 2 || n > 1 << 20) return PyBytes_FromStringAndSize((const char *)p, n);
    o = fb_new(&PyBytes_Type, offsetof(PyBytesObject, ob_sval) + (size_t)n + 1);
    if (o == NULL) return NULL;
    ((PyVarObject *)o)->ob_size = n;
    memset((PyVarObject *)o + 1, 0xFF, sizeof(Py_hash_t));      /* ob_shash = -1: a name that compilers warn of */
    fb_copy_short(PyBytes_AS_STRING(o), p, n);
    PyBytes_AS_STRING(o)[n] = 0;
    return o;
}

/* A str of ASCII only. */
static inline PyObject *fb_ascii_str(const uint8_t *p, Py_ssize_t n) {
    PyASCIIObject *s;
    if (n < 2 || n > 1 << 20) return PyUnicode_DecodeASCII((const char *)p, n, NULL);
    s = (PyASCIIObject *)fb_new(&PyUnicode_Type, sizeof(PyASCIIObject) + (size_t)n + 1);
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
    fb_copy_short(s + 1, p, n);
    ((char *)(s + 1))[n] = 0;
    return (PyObject *)s;
}

#else

static inline PyObject *fb_float(double x) { return PyFloat_FromDouble(x); }

static inline PyObject *fb_int64(int64_t x) { return PyLong_FromLongLong(x); }

static inline PyObject *fb_bytes(const uint8_t *p, Py_ssize_t n) {
    return PyBytes_FromStringAndSize((const char *)p, n);
}

static inline PyObject *fb_ascii_str(const uint8_t *p, Py_ssize_t n) {
    return PyUnicode_DecodeASCII((const char *)p, n, NULL);
}

#endif

/* A str of UTF-8. */
static inline PyObject *fb_str(const uint8_t *p, Py_ssize_t n) {
    return fb_ascii(p, n) ? fb_ascii_str(p, n) : PyUnicode_DecodeUTF8((const char *)p, n, NULL);
}

#endif

# CPython's objects as the row code touches them: borrowed pointers, no reference counting by Cython.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t


cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

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
    static inline void fb_copy(void *dst, const void *src, Py_ssize_t n) {
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

    /* A str of UTF-8; plain ASCII is found by eight bytes at a time and copied. */
    static inline PyObject *fb_str(const uint8_t *p, Py_ssize_t n) {
        uint64_t seen = 0, w;
        Py_ssize_t i = 0;
        if (n >= 8) {
            for (; i + 8 <= n; i += 8) {
                memcpy(&w, p + i, 8);
                seen |= w;
            }
            memcpy(&w, p + n - 8, 8);
            seen |= w;
        } else {
            for (; i < n; i++) seen |= p[i];
        }
        if (seen & 0x8080808080808080ull) return PyUnicode_DecodeUTF8((const char *)p, n, NULL);
        PyObject *s = PyUnicode_New(n, 127);
        if (s != NULL) fb_copy(PyUnicode_DATA(s), p, n);
        return s;
    }
    """
    int fb_exact_int64(PyObject *o, int64_t *x) except -1
    # These two are asked without "except": their callers turn the error into one that names the field.
    const char *fb_utf8(PyObject *o, Py_ssize_t *size) noexcept
    PyObject *fb_str(const uint8_t *p, Py_ssize_t n) noexcept
    void fb_copy(void *dst, const void *src, Py_ssize_t n) noexcept nogil


cdef extern from "Python.h":
    PyObject *Py_None
    PyObject *Py_True
    PyObject *Py_False
    void Py_INCREF(PyObject *o)
    void Py_DECREF(PyObject *o)
    void Py_XDECREF(PyObject *o)

    bint PyLong_Check(PyObject *o)
    bint PyLong_CheckExact(PyObject *o)
    bint PyBool_Check(PyObject *o)
    bint PyFloat_Check(PyObject *o)
    bint PyFloat_CheckExact(PyObject *o)
    bint PyUnicode_Check(PyObject *o)
    bint PyBytes_Check(PyObject *o)
    bint PyBytes_CheckExact(PyObject *o)
    bint PyTuple_Check(PyObject *o)
    bint PyList_Check(PyObject *o)
    bint PyList_CheckExact(PyObject *o)
    bint PyDict_Check(PyObject *o)
    bint PyObject_CheckBuffer(PyObject *o)

    void PyErr_Clear()
    PyObject *PyNumber_Index(PyObject *o) except NULL
    double PyFloat_AS_DOUBLE(PyObject *o)
    double PyFloat_AsDouble(PyObject *o) except? -1.0
    int PyFloat_Pack2(double x, char *p, int little) except -1
    double PyFloat_Unpack2(const char *p, int little) except? -1.0
    PyObject *PyFloat_FromDouble(double x) except NULL
    PyObject *PyLong_FromLongLong(long long x) except NULL
    PyObject *PyLong_FromUnsignedLongLong(unsigned long long x) except NULL
    unsigned long long PyLong_AsUnsignedLongLong(PyObject *o) except? 0xFFFFFFFFFFFFFFFF

    Py_ssize_t PyTuple_GET_SIZE(PyObject *o)
    PyObject *PyTuple_GET_ITEM(PyObject *o, Py_ssize_t i)
    void PyTuple_SET_ITEM(PyObject *o, Py_ssize_t i, PyObject *item)
    int PyGC_Disable()
    int PyGC_Enable()
    PyObject *PyTuple_New(Py_ssize_t n) except NULL
    void PyObject_GC_Track(PyObject *o)
    void PyObject_GC_UnTrack(void *o)
    Py_ssize_t PyList_GET_SIZE(PyObject *o)
    PyObject *PyList_GET_ITEM(PyObject *o, Py_ssize_t i)
    void PyList_SET_ITEM(PyObject *o, Py_ssize_t i, PyObject *item)
    PyObject *PyList_New(Py_ssize_t n) except NULL

    Py_ssize_t PyBytes_GET_SIZE(PyObject *o)
    char *PyBytes_AS_STRING(PyObject *o)
    PyObject *PyBytes_FromStringAndSize(const char *p, Py_ssize_t n) except NULL
    int _PyBytes_Resize(PyObject **o, Py_ssize_t n) except -1

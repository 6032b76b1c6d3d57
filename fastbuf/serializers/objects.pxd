# CPython's objects for the row code: borrowed pointers, without Cython's reference counting.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t


cdef extern from "fb_objects.h":
    int fb_exact_int64(PyObject *o, int64_t *x) except -1
    Py_ssize_t fb_list_doubles(PyObject *list, uint8_t *to) noexcept
    enum:
        FB_LOOK
    bint fb_scattered(PyObject *list, Py_ssize_t at) noexcept
    void fb_send_for(PyObject *list, Py_ssize_t at) noexcept
    # These two are declared without "except": their callers replace the error by one that names the field.
    const char *fb_utf8(PyObject *o, Py_ssize_t *size) noexcept
    PyObject *fb_str(const uint8_t *p, Py_ssize_t n) noexcept
    PyObject *fb_bytes(const uint8_t *p, Py_ssize_t n) except NULL
    PyObject *fb_int64(int64_t x) except NULL
    PyObject *fb_float(double x) except NULL
    void fb_copy_short(void *dst, const void *src, Py_ssize_t n) noexcept nogil
    bint fb_ascii(const uint8_t *p, Py_ssize_t n) noexcept nogil


cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        PyObject *(*tp_alloc)(PyTypeObject *cls, Py_ssize_t n) except NULL
    PyObject *Py_None
    PyObject *Py_True
    PyObject *Py_False
    void Py_INCREF(PyObject *o)
    void Py_DECREF(PyObject *o)
    void Py_XDECREF(PyObject *o)

    bint PyLong_CheckExact(PyObject *o)
    bint PyBool_Check(PyObject *o)
    bint PyFloat_CheckExact(PyObject *o)
    bint PyUnicode_Check(PyObject *o)
    bint PyUnicode_CheckExact(PyObject *o)
    bint PyBytes_Check(PyObject *o)
    bint PyBytes_CheckExact(PyObject *o)
    bint PyTuple_Check(PyObject *o)
    bint PyTuple_CheckExact(PyObject *o)
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
    PyObject *PyLong_FromUnsignedLongLong(unsigned long long x) except NULL
    unsigned long long PyLong_AsUnsignedLongLong(PyObject *o) except? 0xFFFFFFFFFFFFFFFF

    Py_ssize_t PyTuple_GET_SIZE(PyObject *o)
    PyObject *PyTuple_GET_ITEM(PyObject *o, Py_ssize_t i)
    void PyTuple_SET_ITEM(PyObject *o, Py_ssize_t i, PyObject *item)
    int PyGC_Disable()
    int PyGC_Enable()
    PyObject *PyTuple_New(Py_ssize_t n) except NULL
    void PyObject_GC_Track(PyObject *o)
    bint PyObject_GC_IsTracked(PyObject *o)
    void PyObject_GC_UnTrack(void *o)
    Py_ssize_t PyUnicode_GET_LENGTH(PyObject *o)
    int PyUnicode_KIND(PyObject *o)
    Py_ssize_t PyList_GET_SIZE(PyObject *o)
    int PyList_Append(object list, object item) except -1
    PyObject *PyList_GET_ITEM(PyObject *o, Py_ssize_t i)
    void PyList_SET_ITEM(PyObject *o, Py_ssize_t i, PyObject *item)
    PyObject *PyList_New(Py_ssize_t n) except NULL

    Py_ssize_t PyBytes_GET_SIZE(PyObject *o)
    char *PyBytes_AS_STRING(PyObject *o)
    PyObject *PyBytes_FromStringAndSize(const char *p, Py_ssize_t n) except NULL
    int _PyBytes_Resize(PyObject **o, Py_ssize_t n) except -1

# A schema compiled for the row format: a tree of C structs, built once, used by encoder and decoder.
#
#     record := null bitmap (only if a field is nullable; bit i set: field i is None) | slots | var-length region
#
# docs/format.md draws it.  A plan is immutable: any thread may read it.
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t

cdef extern from "fb_put_rows.h":
    enum:
        FB_PUT_INT64
        FB_PUT_INT
        FB_PUT_DOUBLE
        FB_PUT_BOOL
        FB_PUT_TEXT
        FB_PUT_BYTES
        FB_PUT_DOUBLES
    ctypedef struct fb_put_field:
        uint8_t kind
        uint8_t nullable
        uint8_t slot
        int32_t offset
        int64_t low
        int64_t high
    ctypedef struct fb_put_plan:
        int32_t count
        int32_t bitmap
        int32_t head
        fb_put_field *fields
    bint fb_put_record(const fb_put_plan *plan, PyObject *record, uint8_t *buf, Py_ssize_t *at,
                       Py_ssize_t room) noexcept
    Py_ssize_t fb_put_rows(const fb_put_plan *plan, PyObject *records, Py_ssize_t first, uint8_t *buf, Py_ssize_t *at,
                           Py_ssize_t room) noexcept

cdef enum Op:
    OP_NULL
    OP_BOOL
    OP_INT8
    OP_INT16
    OP_INT32
    OP_INT64
    OP_UINT8
    OP_UINT16
    OP_UINT32
    OP_UINT64
    OP_FLOAT16
    OP_FLOAT32
    OP_FLOAT64
    OP_SCALAR        # date, time, timestamp, duration: an integer, converted by row_scalars
    OP_DECIMAL       # two's complement of the unscaled value, 16 or 32 bytes
    OP_FIXED_BINARY
    OP_STRING        # from here on var-length: the slot is the u32 end in the var-length region
    OP_BINARY
    OP_PACKED        # list of slots of one width, without nulls: only the slots
    OP_LIST          # u32 count | null bitmap if items may be null | slots | var-length region
    OP_STRUCT
    OP_MAP           # OP_LIST of structs of key and value

cdef struct Node:
    uint8_t op
    uint8_t scalar      # OP_SCALAR: which one (row_scalars.pxd)
    bint nullable
    bint varlen
    bint atoms          # OP_STRUCT: its tuple cannot be in a reference cycle
    int32_t slot        # bytes of its slot: the value's width, or 4 for the end
    int32_t offset      # of its slot from the record's start, including the bitmap
    int32_t count       # children of a struct; items of a fixed_size_list, -1: any number
    int32_t bitmap      # OP_STRUCT: bytes of the null bitmap
    int32_t head        # OP_STRUCT: bytes of bitmap and slots
    int32_t precision
    int32_t scale
    int64_t low         # integers: smallest and largest value
    int64_t high
    int64_t unit        # OP_SCALAR: units per second
    Node *children      # struct: its fields; list: its item; map: a struct
    PyObject *path      # str, for error messages
    PyObject *type      # text of the type, for error messages
    PyObject *names     # OP_STRUCT: tuple of str
    PyObject *extra     # OP_SCALAR: the tzinfo, or None
    fb_put_plan *plain  # the record's plan for fb_put_rows.h; NULL: it cannot encode some field


cdef class RowPlan:
    cdef readonly object schema
    cdef Node *root           # an OP_STRUCT; freed with the plan
    cdef list _nodes          # addresses of the arrays to free
    cdef list _objects        # owns the Python objects of the nodes

    cdef Node *_allocate(self, Py_ssize_t n) except NULL
    cdef int _struct(self, Node *node, tuple fields, str path, int depth) except -1
    cdef int _fill(self, Node *node, object field, str path, int depth) except -1
    cdef int _items(self, Node *node, object field, str path, int depth) except -1
    cdef int _find_plain(self) except -1
    cdef PyObject *_keep(self, object o) except NULL

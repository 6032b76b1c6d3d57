"""The row decoder: makes tuples from untrusted bytes.

Every length is compared with the remaining bytes before it is used, and before memory is allocated for it: a list of n
items takes at least n bytes, so the memory of a record is bounded by its size.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastbuf.serializers.objects cimport *
from fastbuf.serializers.row_plan cimport (
    OP_BINARY, OP_BOOL, OP_DECIMAL, OP_FIXED_BINARY, OP_FLOAT16, OP_FLOAT32, OP_FLOAT64, OP_INT8, OP_INT16, OP_INT32,
    OP_INT64, OP_LIST, OP_PACKED, OP_SCALAR, OP_STRING, OP_STRUCT, OP_UINT8, OP_UINT16, OP_UINT32,
    OP_UINT64, Node, fb_put_plan,
)
from fastbuf.serializers.row_scalars cimport decimal_from_bytes, scalar_from_int

from fastbuf.errors import BlockCorrupt, BlockTruncated
from fastbuf.serializers.block import count_mismatch

cdef extern from "fb_get_rows.h":
    void fb_send_for_bytes(const uint8_t *p) noexcept nogil
    # These stop before a record that they cannot decode, without an error: the general decoder reports it.
    Py_ssize_t fb_get_rows(const fb_put_plan *plan, bint atoms, PyObject *records, Py_ssize_t first, const uint8_t **p,
                           Py_ssize_t *left) noexcept
    int fb_append_rows(const fb_put_plan *plan, bint atoms, PyObject *records, const uint8_t **p, Py_ssize_t *left,
                       size_t longest) except -1

cdef enum:
    FEW = 2                                # records: below this, reading several together costs more than it saves
    PREFIX = 4                             # u32 length before each payload


cdef PyObject *_corrupt(Node *f, object what) except NULL:
    where = f"field {<object> f.path!r} ({<object> f.type})" if <object> f.path else "the record"
    raise BlockCorrupt(f"{where}: {what}")


cdef int bad_end(Node *f, Py_ssize_t end, Py_ssize_t before, Py_ssize_t n) except -1:
    _corrupt(f, f"ends at byte {end:,} of a var-length region of {n:,} bytes, of which {before:,} are taken")
    return -1


cdef int bad_null(Node *f) except -1:
    _corrupt(f, "it is null and not nullable")
    return -1


cdef int _truncated(Node *f, Py_ssize_t need, Py_ssize_t have) except -1:
    where = f"field {<object> f.path!r} ({<object> f.type})" if <object> f.path else "the record"
    raise BlockTruncated(f"{where} needs {need:,} bytes and has {have:,}")


cdef PyObject *_own(object o) noexcept:
    Py_INCREF(<PyObject *> o)
    return <PyObject *> o


cdef PyObject *_read_other(Node *f, const uint8_t *p) except NULL:
    # p has f.slot bytes.
    cdef int64_t x = 0
    cdef int32_t x32
    if f.op == OP_BOOL:
        if p[0] > 1:
            return _corrupt(f, f"a bool is {p[0]}")
        Py_INCREF(Py_True if p[0] else Py_False)
        return Py_True if p[0] else Py_False
    if f.op == OP_FLOAT16:
        return fb_float(PyFloat_Unpack2(<const char *> p, 1))
    if f.op == OP_FIXED_BINARY:
        return fb_bytes(p, f.slot)
    try:
        if f.op == OP_DECIMAL:
            return _own(decimal_from_bytes(f.precision, f.scale, f.slot, p))
        if f.op == OP_SCALAR:
            if f.slot == 4:
                memcpy(&x32, p, 4)
                x = x32
            else:
                memcpy(&x, p, 8)
            return _own(scalar_from_int(f.scalar, f.unit, <object> f.extra, x))
    except (ValueError, OverflowError) as error:
        return _corrupt(f, error)
    return _corrupt(f, "null only, and its bit says otherwise")


cdef inline PyObject *_read_fixed(Node *f, const uint8_t *p) except NULL:
    cdef int64_t x
    cdef uint64_t u
    cdef int32_t x32
    cdef uint32_t u32
    cdef double d
    cdef float single
    if f.op == OP_INT64:
        memcpy(&x, p, 8)
        return fb_int64(x)
    if f.op == OP_FLOAT64:
        memcpy(&d, p, 8)
        return fb_float(d)
    if f.op == OP_INT32:
        memcpy(&x32, p, 4)
        return fb_int64(x32)
    if f.op == OP_FLOAT32:
        memcpy(&single, p, 4)
        return fb_float(single)
    if f.op == OP_INT16:
        return fb_int64((<int> (<signed char> p[1]) * 256) | p[0])
    if f.op == OP_INT8:
        return fb_int64(<signed char> p[0])
    if f.op == OP_UINT8:
        return fb_int64(p[0])
    if f.op == OP_UINT16:
        return fb_int64(p[0] | <int> p[1] << 8)
    if f.op == OP_UINT32:
        memcpy(&u32, p, 4)
        return fb_int64(u32)
    if f.op == OP_UINT64:
        memcpy(&u, p, 8)
        return PyLong_FromUnsignedLongLong(u) if u >> 63 else fb_int64(<int64_t> u)
    return _read_other(f, p)


cdef PyObject *_bad_text(Node *f, const uint8_t *p, Py_ssize_t n) except NULL:
    # fb_str failed: decode again in Python to get the reason.
    PyErr_Clear()
    try:
        p[:n].decode("utf-8")
    except UnicodeDecodeError as error:
        return _corrupt(f, error)
    raise MemoryError("no memory for a str")


# ---------------------------------------------------------------------------------------------- var-length
#
# A container is made empty, put into its parent, and filled there: when a value in it is refused, freeing the outermost
# container frees all, so no level has to catch errors.


cdef inline PyObject *_begin(Node *f, const uint8_t *p, Py_ssize_t n) except NULL:
    # Returns a complete string or bytes; or an empty container, which _fill continues with.
    cdef PyObject *out
    if f.op == OP_STRING:
        out = fb_str(p, n)
        return out if out != NULL else _bad_text(f, p, n)
    if f.op == OP_BINARY:
        return fb_bytes(p, n)
    if f.op == OP_PACKED:
        return PyList_New(_packed_count(f, n))
    if f.op == OP_LIST:
        return PyList_New(_list_count(f, p, n))
    if f.op == OP_STRUCT:
        return PyTuple_New(f.count)
    return _own({})


cdef int _fill(Node *f, PyObject *out, const uint8_t *p, Py_ssize_t n) except -1:
    cdef PyObject *entries
    if f.op == OP_PACKED:
        return _fill_packed(f, out, p)
    if f.op == OP_LIST:
        return _fill_list(f, out, p, n)
    if f.op == OP_STRUCT:
        return fill_record(f, out, p, n)
    entries = PyList_New(_list_count(f, p, n))
    try:
        _fill_list(f, entries, p, n)
        (<dict> out).update(<object> entries)
    finally:
        Py_DECREF(entries)
    return 0


cdef PyObject *read_value(Node *f, const uint8_t *p, Py_ssize_t n) except NULL:
    cdef PyObject *value
    if not f.varlen:
        return _read_fixed(f, p)
    value = _begin(f, p, n)
    if f.op < OP_PACKED:
        return value
    try:
        _fill(f, value, p, n)
    except BaseException:
        Py_DECREF(value)
        raise
    return value


cdef Py_ssize_t _packed_count(Node *f, Py_ssize_t n) except -1:
    cdef Py_ssize_t count = n // f.children.slot
    if count * f.children.slot != n:
        _corrupt(f, f"{n:,} bytes are no whole number of items of {f.children.slot}")
    if f.count >= 0 and count != f.count:
        _corrupt(f, f"it has {count} items, not {f.count}")
    return count


cdef int _fill_packed(Node *f, PyObject *out, const uint8_t *p) except -1:
    cdef Node *item = f.children
    cdef Py_ssize_t i
    cdef double d
    if item.op == OP_FLOAT64:
        for i in range(PyList_GET_SIZE(out)):
            memcpy(&d, p + 8 * i, 8)
            PyList_SET_ITEM(out, i, fb_float(d))
    else:
        for i in range(PyList_GET_SIZE(out)):
            PyList_SET_ITEM(out, i, _read_fixed(item, p + i * item.slot))
    return 0


cdef Py_ssize_t _list_count(Node *f, const uint8_t *p, Py_ssize_t n) except -1:
    cdef Py_ssize_t count, fixed
    cdef uint32_t x
    if n < 4:
        _truncated(f, 4, n)
    memcpy(&x, p, 4)
    count = x
    fixed = 4 + ((count + 7) // 8 if f.children.nullable else 0) + count * f.children.slot   # < 2**60
    if fixed > n:
        _corrupt(f, f"{count:,} items need {fixed:,} bytes at least, and there are {n:,}")
    if f.count >= 0 and count != f.count:
        _corrupt(f, f"it has {count} items, not {f.count}")
    return count


cdef int _fill_list(Node *f, PyObject *out, const uint8_t *p, Py_ssize_t n) except -1:
    # _list_count has checked bitmap and slots.
    cdef Node *item = f.children
    cdef Py_ssize_t count = PyList_GET_SIZE(out), i, before = 0, end
    cdef Py_ssize_t bits = (count + 7) // 8 if item.nullable else 0
    cdef const uint8_t *slots = p + 4 + bits
    cdef const uint8_t *start = slots + count * item.slot
    cdef PyObject *value
    cdef uint32_t x
    n -= start - p
    for i in range(count):
        end = before
        if item.varlen:
            memcpy(&x, slots + 4 * i, 4)
            end = x
            if end < before or end > n:
                bad_end(item, end, before, n)
        if bits and p[4 + (i >> 3)] >> (i & 7) & 1:
            Py_INCREF(Py_None)
            PyList_SET_ITEM(out, i, Py_None)
        elif item.varlen:
            value = _begin(item, start + before, end - before)
            PyList_SET_ITEM(out, i, value)
            if item.op >= OP_PACKED:
                _fill(item, value, start + before, end - before)
        else:
            PyList_SET_ITEM(out, i, _read_fixed(item, slots + i * item.slot))
        before = end
    if before != n:
        _corrupt(f, f"{n - before:,} bytes are left over")
    return 0


cdef inline int _fill_record(Node *root, PyObject *out, const uint8_t *p, Py_ssize_t n) except -1:
    cdef Py_ssize_t i, before = 0, end
    cdef Node *f = root.children
    cdef const uint8_t *start = p + root.head
    cdef PyObject *value
    cdef bint nulls = root.bitmap != 0
    cdef int64_t x
    cdef double d
    cdef uint32_t u
    if n < root.head:
        _truncated(root, root.head, n)
    n -= root.head
    for i in range(root.count):
        if nulls and p[i >> 3] >> (i & 7) & 1:
            if f.varlen:
                memcpy(&u, p + f.offset, 4)
                end = u
                if end < before or end > n:
                    bad_end(f, end, before, n)
                before = end
            if not f.nullable:
                bad_null(f)
            Py_INCREF(Py_None)
            PyTuple_SET_ITEM(out, i, Py_None)
        elif f.op == OP_INT64:
            memcpy(&x, p + f.offset, 8)
            PyTuple_SET_ITEM(out, i, fb_int64(x))
        elif f.op == OP_FLOAT64:
            memcpy(&d, p + f.offset, 8)
            PyTuple_SET_ITEM(out, i, fb_float(d))
        elif f.varlen:
            memcpy(&u, p + f.offset, 4)
            end = u
            if end < before or end > n:
                bad_end(f, end, before, n)
            value = _begin(f, start + before, end - before)
            PyTuple_SET_ITEM(out, i, value)
            if f.op >= OP_PACKED:
                _fill(f, value, start + before, end - before)
            before = end
        else:
            PyTuple_SET_ITEM(out, i, _read_fixed(f, p + f.offset))
        f += 1
    if before != n:
        _corrupt(root, f"{n - before:,} bytes are left over")
    if root.atoms:
        PyObject_GC_UnTrack(out)                  # the garbage collector would do this itself later
    return 0


cdef int fill_record(Node *root, PyObject *out, const uint8_t *p, Py_ssize_t n) except -1:
    return _fill_record(root, out, p, n)


cdef inline PyObject *_new_record(Node *root, PyTypeObject *named) except NULL:
    return PyTuple_New(root.count) if named == NULL else named.tp_alloc(named, root.count)


cdef PyObject *new_record(Node *root, PyTypeObject *named) except NULL:
    return _new_record(root, named)


cdef void track_record(PyObject *record) noexcept:
    if not PyObject_GC_IsTracked(record):
        PyObject_GC_Track(record)


cdef int fill_records(Node *root, PyTypeObject *named, PyObject *out, const uint8_t *p, Py_ssize_t left,
                      Py_ssize_t *done) except -1:
    cdef Py_ssize_t records = PyList_GET_SIZE(out), i = -1
    cdef PyObject *record
    cdef uint32_t size
    while True:
        i += 1
        if root.plain != NULL and named == NULL and records - i > FEW:
            i = fb_get_rows(root.plain, root.atoms, out, i, &p, &left)
        done[0] = max(min(i, records - 1), 0)
        if i >= records:
            break
        if left < PREFIX:
            raise count_mismatch(records, i)
        memcpy(&size, p, PREFIX)
        if size > left - PREFIX:
            raise BlockCorrupt(f"its length is {size:,} bytes, and {left - PREFIX:,} are left")
        record = _new_record(root, named)
        PyList_SET_ITEM(out, i, record)
        _fill_record(root, record, p + PREFIX, size)
        if named != NULL:
            track_record(record)
        p += PREFIX + <Py_ssize_t> size
        left -= PREFIX + <Py_ssize_t> size
    if left:
        raise BlockCorrupt(f"{left:,} bytes are left over after {records:,} records")
    return 0


cdef Py_ssize_t append_records(Node *root, const uint8_t *src, Py_ssize_t length, Py_ssize_t longest,
                               list records) except -1:
    cdef const uint8_t *p = src
    cdef PyObject *record
    cdef uint32_t size
    while True:
        if root.plain != NULL:
            fb_append_rows(root.plain, root.atoms, <PyObject *> records, &p, &length, longest)
        if length < PREFIX:
            break
        memcpy(&size, p, PREFIX)
        if size > <size_t> longest or length - PREFIX < <Py_ssize_t> size:
            break
        fb_send_for_bytes(p)
        record = PyTuple_New(root.count)
        try:
            _fill_record(root, record, p + PREFIX, size)
            records.append(<object> record)
        finally:
            Py_DECREF(record)
        p += PREFIX + <Py_ssize_t> size
        length -= PREFIX + <Py_ssize_t> size
    return p - src

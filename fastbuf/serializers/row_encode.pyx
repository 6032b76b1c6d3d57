"""The row encoder: walks a plan and a record in parallel.

Python code may run in here (``__index__`` of a number, a property of a record).  So nothing that it could change is
kept across such a call: the size of a list is checked at each item, and positions are kept instead of pointers.

Tuples of plain values, which run no Python code, are written by fb_put_rows.h; only those that it refuses come here.
"""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBuffer_Release, PyObject_GetBuffer
from cpython.object cimport PyObject
from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from fastbuf.serializers.lazy cimport LazyRow
from fastbuf.serializers.objects cimport *
from fastbuf.serializers.row_plan cimport (
    OP_BINARY, OP_BOOL, OP_DECIMAL, OP_FIXED_BINARY, OP_FLOAT16, OP_FLOAT32, OP_FLOAT64, OP_INT8, OP_INT64, OP_MAP,
    OP_PACKED, OP_SCALAR, OP_STRING, OP_STRUCT, OP_UINT8, OP_UINT32, OP_UINT64, Node, fb_put_record, fb_put_rows,
)
from fastbuf.serializers.row_scalars cimport decimal_to_bytes, scalar_to_int

from fastbuf.errors import RecordError, RecordTooLong, SchemaError

cdef enum:
    PREFIX = 4                             # u32 length before each payload

cdef Py_ssize_t LONGEST = 0xFFFFFFFF      # lengths and ends are u32
cdef float FLT_MAX = 3.4028234663852886e38


cdef int writer_reserve(Writer *w, Py_ssize_t n) except -1:
    cdef Py_ssize_t room
    cdef PyObject *fresh
    if w.at + n <= w.room:
        return 0
    room = w.at + n + (w.at >> 1) + 64
    if w.owner == NULL:
        fresh = PyBytes_FromStringAndSize(NULL, room)
        memcpy(PyBytes_AS_STRING(fresh), w.buf, w.at)
        w.owner = fresh
    else:
        w.room = 0
        _PyBytes_Resize(&w.owner, room)
    w.buf = <uint8_t *> PyBytes_AS_STRING(w.owner)
    w.room = room
    return 0


cdef str _shown(object value):
    try:
        text = repr(value)
    except Exception as error:
        return f"a {type(value).__name__} whose repr fails ({error})"
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


cdef bint _is_missing(object value):
    # NaT of pandas is a datetime too
    return type(value).__name__ == "NAType" or (
        type(value).__name__ in ("NaTType", "datetime64", "timedelta64") and str(value) == "NaT")


cdef int _refuse(Node *f, PyObject *value, object reason) except -1:
    shown = _shown(<object> value)
    if _is_missing(<object> value):
        reason = "it is no value: give None, and a field that may be null, as 'int64?'"
    if not <object> f.path:
        raise RecordError(f"{shown}: {reason}")
    raise RecordError(f"field {<object> f.path!r} ({<object> f.type}) cannot hold {shown}: {reason}")


cdef int _refuse_none(Node *f) except -1:
    raise RecordError(f"field {<object> f.path!r} ({<object> f.type}) is None and not nullable")


cdef int _too_long(Node *f, Py_ssize_t n) except -1:
    raise RecordTooLong(
        f"field {<object> f.path!r} makes a record of {n:,} bytes: the format allows at most {LONGEST:,}")


# ---------------------------------------------------------------------------------------------- fixed width


cdef int _write_int(Node *f, PyObject *value, uint8_t *slot) except -1:
    # The general case for integers: any __index__, any width.
    cdef int64_t x = 0
    cdef uint64_t u
    cdef PyObject *index
    cdef int over
    if PyBool_Check(value):
        return _refuse(f, value, "an int is needed, not a bool")
    try:
        index = PyNumber_Index(value)
    except TypeError:
        return _refuse(f, value, "an int is needed")
    try:
        if f.op == OP_UINT64:
            try:
                u = PyLong_AsUnsignedLongLong(index)
            except OverflowError:
                return _refuse(f, value, f"it must lie within 0 and {0xFFFFFFFFFFFFFFFF}")
            memcpy(slot, &u, 8)
            return 0
        over = fb_exact_int64(index, &x)
        if over or x < f.low or x > f.high:
            return _refuse(f, value, f"it must lie within {f.low} and {f.high}")
        memcpy(slot, &x, f.slot)
        return 0
    finally:
        Py_DECREF(index)


cdef int _write_float(Node *f, PyObject *value, uint8_t *slot) except -1:
    cdef double x
    cdef float single
    if PyBool_Check(value) or PyUnicode_Check(value):
        return _refuse(f, value, "a float is needed")
    try:
        x = PyFloat_AsDouble(value)
    except (TypeError, OverflowError) as error:
        return _refuse(f, value, error)
    if f.op == OP_FLOAT64:
        memcpy(slot, &x, 8)
    elif f.op == OP_FLOAT32:
        single = <float> x
        if (single == INFINITY or single == -INFINITY) and x != INFINITY and x != -INFINITY:
            return _refuse(f, value, f"it must lie within {-FLT_MAX!r} and {FLT_MAX!r}")
        memcpy(slot, &single, 4)
    else:
        try:
            PyFloat_Pack2(x, <char *> slot, 1)
        except OverflowError:
            return _refuse(f, value, "it must lie within -65504.0 and 65504.0")
    return 0


cdef int _write_other(Node *f, PyObject *value, uint8_t *slot) except -1:
    cdef int64_t x
    if f.op == OP_BOOL:
        if value != Py_True and value != Py_False:
            if type(<object> value).__module__ != "numpy" or type(<object> value).__name__ not in ("bool", "bool_"):
                return _refuse(f, value, "a bool is needed")
            slot[0] = 1 if <object> value else 0
            return 0
        slot[0] = value == Py_True
    elif f.op == OP_FIXED_BINARY:
        if not PyBytes_Check(value):
            return _refuse(f, value, "bytes are needed")
        if PyBytes_GET_SIZE(value) != f.slot:
            return _refuse(f, value, f"it has {PyBytes_GET_SIZE(value)} bytes, not {f.slot}")
        memcpy(slot, PyBytes_AS_STRING(value), f.slot)
    elif f.op == OP_SCALAR:
        try:
            x = scalar_to_int(f.scalar, f.unit, <object> f.extra, <object> value)
        except (TypeError, ValueError, OverflowError) as error:
            return _refuse(f, value, error)
        memcpy(slot, &x, f.slot)
    elif f.op == OP_DECIMAL:
        try:
            decimal_to_bytes(f.precision, f.scale, f.slot, <object> value, slot)
        except (TypeError, ValueError, OverflowError) as error:
            return _refuse(f, value, error)
    else:
        return _refuse(f, value, "only None is possible")
    return 0


cdef inline int _write_fixed(Node *f, PyObject *value, uint8_t *slot) except -1:
    cdef int64_t x
    cdef double d
    if f.op == OP_INT64:
        if PyLong_CheckExact(value) and fb_exact_int64(value, &x) == 0:
            memcpy(slot, &x, 8)
            return 0
        return _write_int(f, value, slot)
    if f.op == OP_FLOAT64:
        if PyFloat_CheckExact(value):
            d = PyFloat_AS_DOUBLE(value)
            memcpy(slot, &d, 8)
            return 0
        return _write_float(f, value, slot)
    if f.op >= OP_INT8 and f.op <= OP_UINT32:
        if PyLong_CheckExact(value) and fb_exact_int64(value, &x) == 0 and f.low <= x <= f.high:
            if f.slot == 4:
                memcpy(slot, &x, 4)
            elif f.slot == 2:
                memcpy(slot, &x, 2)
            else:
                memcpy(slot, &x, 1)
            return 0
        return _write_int(f, value, slot)
    if f.op == OP_UINT64:
        return _write_int(f, value, slot)
    if f.op == OP_FLOAT32 or f.op == OP_FLOAT16:
        return _write_float(f, value, slot)
    return _write_other(f, value, slot)


# ---------------------------------------------------------------------------------------------- var-length


cdef inline int _append(Writer *w, const void *p, Py_ssize_t n) except -1:
    if w.at + n > w.room:
        writer_reserve(w, n)
    fb_copy_short(w.buf + w.at, p, n)
    w.at += n
    return 0


cdef int _refuse_text(Node *f, PyObject *value) except -1:
    # fb_utf8 failed: encode again in Python to get the reason.
    PyErr_Clear()
    try:
        (<object> value).encode("utf-8")
    except UnicodeEncodeError as error:
        return _refuse(f, value, error)
    raise MemoryError("no memory for the UTF-8 of a str")


cdef inline int _write_string(Node *f, PyObject *value, Writer *w) except -1:
    cdef const char *p
    cdef Py_ssize_t n
    if not PyUnicode_Check(value):
        return _refuse(f, value, "a str is needed")
    p = fb_utf8(value, &n)
    if p == NULL:
        return _refuse_text(f, value)
    return _append(w, p, n)


cdef int _write_binary(Node *f, PyObject *value, Writer *w) except -1:
    if PyBytes_Check(value):
        return _append(w, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    if not isinstance(<object> value, (bytearray, memoryview)):
        return _refuse(f, value, "bytes are needed")
    copied = bytes(<object> value)
    return _append(w, PyBytes_AS_STRING(<PyObject *> copied), len(copied))


cdef bint _same_items(Node *item, char code, Py_ssize_t size) noexcept nogil:
    # Whether the items of an array have the same bytes as the slots of this list.
    if size != item.slot:
        return False
    if item.op >= OP_FLOAT16 and item.op <= OP_FLOAT64:
        return code == c"e" or code == c"f" or code == c"d"
    if item.op >= OP_INT8 and item.op <= OP_INT64:
        return code == c"b" or code == c"h" or code == c"i" or code == c"l" or code == c"q"
    if item.op >= OP_UINT8 and item.op <= OP_UINT64:
        return code == c"B" or code == c"H" or code == c"I" or code == c"L" or code == c"Q"
    return item.op == OP_BOOL and code == c"?"


cdef int _write_array(Node *f, PyObject *value, Writer *w) except -1:
    # Arrays (NumPy, array.array) of exactly the item's type are copied whole: 1: done, 0: not such an array.
    cdef Py_buffer view
    cdef const char *code
    if not PyObject_CheckBuffer(value) or PyBytes_Check(value) or isinstance(<object> value, bytearray):
        return 0
    try:
        PyObject_GetBuffer(<object> value, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS)
    except (BufferError, ValueError):
        return 0
    try:
        code = view.format
        if code != NULL and (code[0] == c"<" or code[0] == c"=" or code[0] == c"@"):
            code += 1
        if view.ndim != 1 or code == NULL or code[1] != 0 or not _same_items(f.children, code[0], view.itemsize):
            return 0
        if f.count >= 0 and view.shape[0] != f.count:
            _refuse(f, value, f"it has {view.shape[0]} items, not {f.count}")
        _append(w, view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return 1


cdef int _write_list(Node *f, PyObject *value, Writer *w) except -1:
    cdef PyObject *items
    if PyList_CheckExact(value):
        return _write_items(f, value, w)
    if PyList_Check(value) or PyTuple_Check(value):
        copied = list(<object> value)
    elif f.op == OP_MAP:
        if not PyDict_Check(value):
            return _refuse(f, value, "a dict is needed")
        copied = list((<object> value).items())
    else:
        if f.op == OP_PACKED and _write_array(f, value, w):
            return 0
        tolist = getattr(<object> value, "tolist", None)
        if tolist is None or not PyObject_CheckBuffer(value):
            return _refuse(f, value, "a list, tuple or array is needed")
        copied = tolist()
    items = <PyObject *> copied
    if not PyList_Check(items):
        return _refuse(f, value, "an array of one dimension is needed")
    return _write_items(f, items, w)


cdef inline PyObject *_item(Node *f, PyObject *items, Py_ssize_t i, Py_ssize_t n) except NULL:
    # A borrowed reference.  Code that ran for an earlier item may have changed the list.
    if PyList_GET_SIZE(items) != n:
        raise RecordError(f"field {<object> f.path!r} changed its length while it was encoded")
    return PyList_GET_ITEM(items, i)


cdef int _write_items(Node *f, PyObject *items, Writer *w) except -1:
    cdef Py_ssize_t n = PyList_GET_SIZE(items), i = 0, slots, start, bits
    cdef Node *item = f.children
    cdef PyObject *value
    cdef uint8_t *at
    cdef uint32_t x
    if f.count >= 0 and n != f.count:
        return _refuse(f, items, f"it has {n} items, not {f.count}")
    if n > LONGEST or n * item.slot > LONGEST:
        return _too_long(f, n * item.slot)
    if f.op == OP_PACKED:
        if w.at + n * item.slot > w.room:
            writer_reserve(w, n * item.slot)
        at = w.buf + w.at
        if item.op == OP_FLOAT64:
            i = fb_list_doubles(items, at)                # runs no Python code
        while i < n:
            value = _item(f, items, i, n)
            if value == Py_None:
                return _refuse_none(item)
            Py_INCREF(value)
            try:
                _write_fixed(item, value, at + i * item.slot)
            finally:
                Py_DECREF(value)
            i += 1
        w.at += n * item.slot
        return 0
    bits = (n + 7) // 8 if item.nullable else 0
    writer_reserve(w, 4 + bits + n * item.slot)
    x = <uint32_t> n
    memcpy(w.buf + w.at, &x, 4)
    bits = w.at + 4 + bits                       # now: where the slots begin
    memset(w.buf + w.at + 4, 0, bits - w.at - 4)
    slots = bits
    bits = w.at + 4                              # now: where the bitmap begins
    w.at = start = slots + n * item.slot
    while i < n:
        value = _item(f, items, i, n)
        if value == Py_None:
            if not item.nullable:
                return _refuse_none(item)
            w.buf[bits + (i >> 3)] |= <uint8_t> (1 << (i & 7))
            if item.varlen:
                x = <uint32_t> (w.at - start)
                memcpy(w.buf + slots + 4 * i, &x, 4)
            else:
                memset(w.buf + slots + i * item.slot, 0, item.slot)
        else:
            Py_INCREF(value)
            try:
                if item.varlen:
                    _write_var(item, value, w)
                    if w.at - start > LONGEST:
                        return _too_long(f, w.at - start)
                    x = <uint32_t> (w.at - start)
                    memcpy(w.buf + slots + 4 * i, &x, 4)
                else:
                    _write_fixed(item, value, w.buf + slots + i * item.slot)
            finally:
                Py_DECREF(value)
        i += 1
    return 0


cdef int _write_var(Node *f, PyObject *value, Writer *w) except -1:
    if f.op == OP_STRING:
        return _write_string(f, value, w)
    if f.op == OP_BINARY:
        return _write_binary(f, value, w)
    if f.op == OP_STRUCT:
        return write_record(f, value, w)
    return _write_list(f, value, w)


# ---------------------------------------------------------------------------------------------- records


cdef object _as_tuple(Node *node, object record):
    # For lists, dicts, and objects with the fields as attributes; tuples (also named ones, Rows) never come here.
    cdef tuple names = <tuple> node.names
    if isinstance(record, list):
        return tuple(record)
    if isinstance(record, dict):
        if len(record) != len(names):
            unknown = [key for key in record if key not in names]
            if unknown:
                _refuse(node, <PyObject *> record, f"it has unknown fields: {unknown[:5]}")
        missing = [name for name in names if name not in record]
        if missing:
            _refuse(node, <PyObject *> record, f"it has no field {missing[0]!r}")
        return tuple([record[name] for name in names])
    if record is None or isinstance(record, (str, bytes, int, float)):
        _refuse(node, <PyObject *> record, "a record is a tuple, list, dict or object with the fields as attributes")
    try:
        if isinstance(record, LazyRow):         # has attributes of its own
            return tuple([record[name] for name in names])
        return tuple([getattr(record, name) for name in names])
    except (AttributeError, SchemaError) as error:
        _refuse(node, <PyObject *> record, f"no such record: {error}")


cdef int _refuse_arity(Node *node, PyObject *record, Py_ssize_t have) except -1:
    names = ", ".join(<object> node.names)
    return _refuse(node, record, f"it has {have} fields, not {node.count} ({names})")


cdef inline int _write_tuple(Node *root, PyObject *record, Writer *w) except -1:
    # The caller holds the tuple, and so its items.
    cdef Py_ssize_t base = w.at, start = w.at + root.head, i, n = root.count
    cdef Node *f = root.children
    cdef PyObject *value
    cdef uint8_t *slots
    cdef int64_t x
    cdef double d
    cdef uint32_t end
    if PyTuple_GET_SIZE(record) != n:
        return _refuse_arity(root, record, PyTuple_GET_SIZE(record))
    if start > w.room:
        writer_reserve(w, root.head)
    slots = w.buf + base
    if root.bitmap == 1:
        slots[0] = 0
    elif root.bitmap:
        memset(slots, 0, root.bitmap)
    w.at = start
    for i in range(n):
        value = PyTuple_GET_ITEM(record, i)
        if f.op == OP_INT64 and PyLong_CheckExact(value) and fb_exact_int64(value, &x) == 0:
            memcpy(slots + f.offset, &x, 8)
        elif f.op == OP_FLOAT64 and PyFloat_CheckExact(value):
            d = PyFloat_AS_DOUBLE(value)
            memcpy(slots + f.offset, &d, 8)
        elif value == Py_None:
            if not f.nullable:
                return _refuse_none(f)
            slots[i >> 3] |= <uint8_t> (1 << (i & 7))
            if f.varlen:
                end = <uint32_t> (w.at - start)
                memcpy(slots + f.offset, &end, 4)
            else:
                memset(slots + f.offset, 0, f.slot)
        elif f.varlen:
            if f.op == OP_STRING:
                _write_string(f, value, w)
            elif f.op == OP_BINARY and PyBytes_Check(value):
                _append(w, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
            elif f.op == OP_PACKED and PyList_CheckExact(value):
                _write_items(f, value, w)
            else:
                _write_var(f, value, w)
            if w.at - start > LONGEST:
                return _too_long(f, w.at - start)
            slots = w.buf + base                  # the buffer may have moved
            end = <uint32_t> (w.at - start)
            memcpy(slots + f.offset, &end, 4)
        else:
            _write_fixed(f, value, slots + f.offset)
        f += 1
    return 0


cdef int _write_any(Node *root, PyObject *record, Writer *w) except -1:
    if PyTuple_Check(record):
        return _write_tuple(root, record, w)
    fields = _as_tuple(root, <object> record)
    return _write_tuple(root, <PyObject *> fields, w)


cdef int write_record(Node *root, PyObject *record, Writer *w) except -1:
    if root.plain != NULL and fb_put_record(root.plain, record, w.buf, &w.at, w.room):
        return 0
    return _write_any(root, record, w)


cdef int write_elements(Node *root, PyObject *records, Writer *w, Py_ssize_t *done) except -1:
    cdef PyObject *record
    cdef Py_ssize_t base, size, plain = 0          # `plain`: index from which on records may be plain again
    cdef uint32_t prefix
    cdef bint scattered = False
    done[0] = 0
    while done[0] < PyList_GET_SIZE(records):          # Python code of a record may change the list
        if root.plain != NULL and done[0] >= plain:
            plain = done[0]
            done[0] = fb_put_rows(root.plain, records, plain, w.buf, &w.at, w.room)
            if done[0] >= PyList_GET_SIZE(records):
                break
            # If none was plain, expect few of the next ones to be.
            plain = done[0] + (1 if done[0] > plain else FB_LOOK)
        record = PyList_GET_ITEM(records, done[0])
        if done[0] % FB_LOOK == 0:
            scattered = fb_scattered(records, done[0])
        if scattered:
            fb_send_for(records, done[0])
        base = w.at
        if base + PREFIX > w.room:
            writer_reserve(w, PREFIX)
        w.at = base + PREFIX
        Py_INCREF(record)
        try:
            _write_any(root, record, w)
        finally:
            Py_DECREF(record)
        size = w.at - base - PREFIX
        if size > LONGEST:
            return _too_long(root, size)
        prefix = <uint32_t> size
        memcpy(w.buf + base, &prefix, PREFIX)
        done[0] += 1
    return 0


cdef Py_ssize_t write_run(Node *root, list records, Py_ssize_t *at, Py_ssize_t most, uint8_t *dst, uint32_t *fill,
                          uint32_t room, Py_ssize_t longest) except -1:
    cdef PyObject *record
    cdef Writer w
    cdef uint32_t size
    cdef Py_ssize_t first = at[0]
    cdef Py_ssize_t plain = first           # index from which on records may be plain again
    cdef bint scattered = False
    w.owner = NULL
    # Code of a record may change the list.
    while most > 0 and at[0] < PyList_GET_SIZE(<PyObject *> records) and room - fill[0] > PREFIX:
        record = PyList_GET_ITEM(<PyObject *> records, at[0])
        if not PyTuple_Check(record):
            if at[0] > first:
                break
            most = 1
        if at[0] % FB_LOOK == 0:
            scattered = fb_scattered(<PyObject *> records, at[0])
        if scattered:
            fb_send_for(<PyObject *> records, at[0])
        w.buf, w.at, w.room = dst + fill[0] + PREFIX, 0, room - fill[0] - PREFIX
        if root.plain == NULL or at[0] < plain or not fb_put_record(root.plain, record, w.buf, &w.at, w.room):
            if at[0] >= plain:
                plain = at[0] + FB_LOOK         # few of the next ones will be plain
            Py_INCREF(record)
            try:
                _write_any(root, record, &w)
            finally:
                Py_DECREF(record)
                # the record was too long for its place, so the writer has moved to its own memory
                Py_XDECREF(w.owner)
        if w.owner != NULL or w.at > longest:
            return w.at
        size = <uint32_t> w.at
        memcpy(dst + fill[0], &size, PREFIX)
        fill[0] += PREFIX + size
        at[0] += 1
        most -= 1
    return 0

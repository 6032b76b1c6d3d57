"""Encodes lists of plain values of one kind, such as pairs of a str and an int, in half of pickle's time.

    "P" | u8 version 1 | u8 nodes | u8 0 | u32 values | u8 kind, u8 items of each node | the nodes' values, in turn

A node is one position of a value, in preorder: a tuple, then its items.  A tuple has no bytes of its own.  None, False
and True take one byte.  Ints take four bytes if all ints of the node fit, else eight; floats take eight.  Strings (str
in UTF-8, bytes) have the u32 total of their bytes, a u8 length for each, and then all bytes.
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING as bytes_data
from cpython.bytes cimport PyBytes_FromStringAndSize as new_bytes
from cpython.list cimport PyList_New as new_list
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from fastbuf.serializers.objects cimport *

from fastbuf.errors import BlockCorrupt, BlockTruncated

cdef enum:
    HEAD = 8


# ------------------------------------------------------------------------------------------------------------ pack


cdef int _plan(PyObject *o, PlainNode *nodes, int n) noexcept:
    """Appends the nodes of a value; returns the new number of nodes, or -1 if the value is not plain."""
    cdef Py_ssize_t i
    cdef PlainNode *node = &nodes[n]
    if n >= MOST_NODES:
        return -1
    node.items = 0
    node.text = 0
    if o is Py_None or PyBool_Check(o):
        node.kind = KIND_FLAG
    elif PyLong_CheckExact(o):
        node.kind = KIND_INT32
    elif PyFloat_CheckExact(o):
        node.kind = KIND_FLOAT
    elif PyUnicode_CheckExact(o):
        node.kind = KIND_STR
    elif PyBytes_CheckExact(o):
        node.kind = KIND_BYTES
    elif PyTuple_CheckExact(o) and 0 < PyTuple_GET_SIZE(o) < MOST_NODES:
        node.kind = KIND_TUPLE
        node.items = <uint8_t> PyTuple_GET_SIZE(o)
        n += 1
        for i in range(node.items):
            n = _plan(PyTuple_GET_ITEM(o, i), nodes, n)
            if n < 0:
                return -1
        return n
    else:
        return -1
    return n + 1


cdef inline bint _fits_leaf(PyObject *o, PlainNode *node) except -1:
    cdef int64_t x
    cdef Py_ssize_t n
    if node.kind == KIND_INT32 or node.kind == KIND_INT64:
        if not PyLong_CheckExact(o) or fb_exact_int64(o, &x):
            return False
        if not -0x80000000 <= x <= 0x7FFFFFFF:
            node.kind = KIND_INT64
        return True
    if node.kind == KIND_STR:
        if not PyUnicode_CheckExact(o):
            return False
        if fb_utf8(o, &n) == NULL:
            PyErr_Clear()                              # a lone surrogate: pickle can encode it
            return False
        node.text += n
        return n <= LONGEST
    if node.kind == KIND_FLOAT:
        return PyFloat_CheckExact(o)
    if node.kind == KIND_FLAG:
        return o is Py_None or PyBool_Check(o)
    if not PyBytes_CheckExact(o):
        return False
    node.text += PyBytes_GET_SIZE(o)
    return PyBytes_GET_SIZE(o) <= LONGEST


cdef int _fits(PyObject *o, PlainNode *nodes, int n) except -2:
    """The node after those of a value that matches them; -1 if it does not match."""
    cdef Py_ssize_t i
    if nodes[n].kind != KIND_TUPLE:
        return n + 1 if _fits_leaf(o, &nodes[n]) else -1
    if not PyTuple_CheckExact(o) or PyTuple_GET_SIZE(o) != nodes[n].items:
        return -1
    i = 0
    n += 1
    while i < PyTuple_GET_SIZE(o):
        if nodes[n].kind == KIND_TUPLE:
            n = _fits(PyTuple_GET_ITEM(o, i), nodes, n)
            if n < 0:
                return -1
        elif _fits_leaf(PyTuple_GET_ITEM(o, i), &nodes[n]):
            n += 1
        else:
            return -1
        i += 1
    return n


cdef inline int _put_leaf(PyObject *o, PlainNode *node) except -1:
    cdef int64_t x = 0
    cdef int32_t x32
    cdef double d
    cdef Py_ssize_t n = 0
    cdef const char *text
    if node.kind == KIND_INT32:
        fb_exact_int64(o, &x)
        x32 = <int32_t> x
        memcpy(node.at, &x32, 4)
        node.at += 4
    elif node.kind == KIND_STR or node.kind == KIND_BYTES:
        if node.kind == KIND_STR:
            text = fb_utf8(o, &n)
        else:
            text = PyBytes_AS_STRING(o)
            n = PyBytes_GET_SIZE(o)
        node.at[0] = <uint8_t> n
        node.at += 1
        fb_copy_short(node.text_at, text, n)
        node.text_at += n
    elif node.kind == KIND_INT64:
        fb_exact_int64(o, &x)
        memcpy(node.at, &x, 8)
        node.at += 8
    elif node.kind == KIND_FLOAT:
        d = PyFloat_AS_DOUBLE(o)
        memcpy(node.at, &d, 8)
        node.at += 8
    else:
        node.at[0] = 0 if o is Py_None else 1 if o is Py_False else 2
        node.at += 1
    return 0


cdef int _put(PyObject *o, PlainNode *nodes, int n) except -1:
    cdef Py_ssize_t i
    if nodes[n].kind != KIND_TUPLE:
        _put_leaf(o, &nodes[n])
        return n + 1
    n += 1
    for i in range(PyTuple_GET_SIZE(o)):
        if nodes[n].kind == KIND_TUPLE:
            n = _put(PyTuple_GET_ITEM(o, i), nodes, n)
        else:
            _put_leaf(PyTuple_GET_ITEM(o, i), &nodes[n])
            n += 1
    return n


cdef inline int64_t _width(uint8_t kind) noexcept nogil:
    """Bytes of a value; for a string, of its length."""
    if kind == KIND_TUPLE:
        return 0
    if kind == KIND_INT32:
        return 4
    return 8 if kind == KIND_INT64 or kind == KIND_FLOAT else 1


cdef bytes new_packed(PlainNode *nodes, int n, int64_t count):
    cdef int64_t size = HEAD + 2 * n
    cdef int k
    cdef uint32_t u = <uint32_t> count
    cdef uint8_t *at
    for k in range(n):
        if nodes[k].text > 0xFFFFFFFF:
            return None
        size += count * _width(nodes[k].kind) + nodes[k].text
        if nodes[k].kind == KIND_STR or nodes[k].kind == KIND_BYTES:
            size += 4
    packed = new_bytes(NULL, size)
    at = <uint8_t *> bytes_data(packed)
    at[0] = c"P"
    at[1] = 1
    at[2] = <uint8_t> n
    at[3] = 0
    memcpy(at + 4, &u, 4)
    at += HEAD
    for k in range(n):
        at[0] = nodes[k].kind
        at[1] = nodes[k].items
        at += 2
    for k in range(n):
        if nodes[k].kind == KIND_STR or nodes[k].kind == KIND_BYTES:
            u = <uint32_t> nodes[k].text
            memcpy(at, &u, 4)
            at += 4
        nodes[k].at = at
        at += count * _width(nodes[k].kind)
        nodes[k].text_at = at
        at += nodes[k].text
    return packed


cpdef bytes pack_plain(list values):
    """Encode a list if all its values are plain and of the same kind.

    Parameters
    ----------
    values : list
        Plain values are None, bool, int of 64 bits, float, str and bytes of up to 64 bytes, and tuples of these with at
        most 31 nodes; no subclasses. All values must have the same kind at each node.

    Returns
    -------
    bytes or None
        None: the list cannot be encoded this way; use pickle.
    """
    cdef PlainNode nodes[MOST_NODES]
    cdef Py_ssize_t i, count = len(values)
    cdef int n
    cdef bytes packed
    if count == 0 or count > 0xFFFFFFFF:
        return None
    n = _plan(PyList_GET_ITEM(<PyObject *> values, 0), nodes, 0)
    if n < 0:
        return None
    # No Python code runs here that could change the list.
    for i in range(count):
        if _fits(PyList_GET_ITEM(<PyObject *> values, i), nodes, 0) < 0:
            return None
    packed = new_packed(nodes, n, count)
    for i in range(count if packed is not None else 0):
        _put(PyList_GET_ITEM(<PyObject *> values, i), nodes, 0)
    return packed


# ---------------------------------------------------------------------------------------------------------- unpack


cdef int read_nodes(const uint8_t *p, int64_t left, PlainNode *nodes, Py_ssize_t *count) except -1:
    """Sets each node's places, all of them inside the bytes; how many nodes there are."""
    cdef uint32_t u
    cdef int n, k, open = 1
    cdef Py_ssize_t i
    cdef int64_t width, text
    _check_head(p, left)
    memcpy(&u, p + 4, 4)
    count[0] = u
    n = p[2]
    if n == 0 or n >= MOST_NODES + 1:
        raise BlockCorrupt(f"a list of plain values has {n} places: it must be within 1 and {MOST_NODES}")
    if left < HEAD + 2 * n:
        raise BlockTruncated(f"{left:,} bytes: the head of a list of plain values with {n} places takes {HEAD + 2 * n}")
    p += HEAD
    left -= HEAD + 2 * n
    for k in range(n):
        nodes[k].kind = p[2 * k]
        nodes[k].items = p[2 * k + 1]
        if not KIND_FLAG <= nodes[k].kind <= KIND_TUPLE or (nodes[k].kind == KIND_TUPLE) != (nodes[k].items > 0):
            raise BlockCorrupt(f"place {k} is of kind {nodes[k].kind} with {nodes[k].items} items: no such kind")
        open += nodes[k].items - 1
        if open <= 0 and k < n - 1:
            break
    if open != 0 or k != n - 1:
        raise BlockCorrupt(f"the {n} places of a value do not add up to one")
    p += 2 * n
    for k in range(n):
        width = _width(nodes[k].kind)
        text = 0
        if nodes[k].kind == KIND_STR or nodes[k].kind == KIND_BYTES:
            if left < 4:
                raise BlockTruncated(f"place {k} has {left} bytes, its length alone takes 4")
            memcpy(&u, p, 4)
            text = u
            p += 4
            left -= 4
        if width * count[0] + text > left:
            raise BlockTruncated(
                f"{count[0]:,} values take {width * count[0] + text:,} bytes at place {k}, and {left:,} are left"
            )
        nodes[k].at = <uint8_t *> p
        p += width * count[0]
        nodes[k].text_at = <uint8_t *> p
        p += text
        left -= width * count[0] + text
        if nodes[k].kind == KIND_STR or nodes[k].kind == KIND_BYTES:
            for i in range(count[0]):
                text -= nodes[k].at[i]
            if text != 0:
                raise BlockCorrupt(f"the strings at place {k} have {u - text:,} bytes, and it says {u:,}")
    if left:
        raise BlockCorrupt(f"{left:,} bytes are left over after {count[0]:,} plain values")
    return n


cdef int _check_head(const uint8_t *p, int64_t left) except -1:
    if left < HEAD:
        raise BlockTruncated(f"{left} bytes: the head of a list of plain values takes {HEAD}")
    if p[0] != c"P" or p[1] != 1 or p[3] != 0:
        raise BlockCorrupt(
            f"data that begins with {p[0]:#x} {p[1]:#x} is not a list of plain values, or has another version")
    return 0


cdef PyObject *text_object(const uint8_t *p, Py_ssize_t n) except NULL:
    cdef PyObject *text = fb_str(p, n)
    if text != NULL:
        return text
    PyErr_Clear()                                      # once more in Python, for the reason
    try:
        p[:n].decode("utf-8")
    except UnicodeDecodeError as error:
        raise BlockCorrupt(f"a str of {n} bytes: {error}") from error
    raise MemoryError("no memory for a str")


cdef inline PyObject *_make_leaf(PlainNode *node) except NULL:
    cdef int64_t x
    cdef int32_t x32
    cdef double d
    cdef Py_ssize_t n
    cdef PyObject *leaf
    cdef uint8_t *p = node.at
    if node.kind == KIND_INT32:
        memcpy(&x32, p, 4)
        node.at += 4
        return fb_int64(x32)
    if node.kind == KIND_STR or node.kind == KIND_BYTES:
        n = p[0]
        node.at += 1
        p = node.text_at
        node.text_at += n
        if node.kind == KIND_BYTES:
            return fb_bytes(p, n)
        return text_object(p, n)
    if node.kind == KIND_INT64:
        memcpy(&x, p, 8)
        node.at += 8
        return fb_int64(x)
    if node.kind == KIND_FLOAT:
        memcpy(&d, p, 8)
        node.at += 8
        return fb_float(d)
    if p[0] > 2:
        raise BlockCorrupt(f"a value that is {p[0]} is neither None nor a bool")
    node.at += 1
    leaf = Py_None if p[0] == 0 else Py_False if p[0] == 1 else Py_True
    Py_INCREF(leaf)
    return leaf


cdef inline PyObject *_begin(PlainNode *node) except NULL:
    # A tuple is made empty, put into its container, and filled there: after an error, freeing the outermost frees all.
    cdef PyObject *value
    if node.kind != KIND_TUPLE:
        return _make_leaf(node)
    value = PyTuple_New(node.items)
    # it cannot be in a cycle; the garbage collector would find that out later
    PyObject_GC_UnTrack(value)
    return value


cdef int _fill(PyObject *container, PlainNode *nodes, int n) except -1:
    """Fills a tuple whose items' nodes begin at n; returns the node after them."""
    cdef Py_ssize_t i, items = nodes[n - 1].items
    for i in range(items):
        PyTuple_SET_ITEM(container, i, _begin(&nodes[n]))
        n += 1
        if nodes[n - 1].kind == KIND_TUPLE:
            n = _fill(PyTuple_GET_ITEM(container, i), nodes, n)
    return n


cpdef list unpack_plain(object packed):
    """Decode the result of :func:`pack_plain`.

    Parameters
    ----------
    packed : bytes-like

    Returns
    -------
    list

    Raises
    ------
    BlockTruncated, BlockCorrupt
        The bytes are truncated, or were visibly altered.
    """
    cdef PlainNode nodes[MOST_NODES]
    cdef Py_buffer view
    cdef Py_ssize_t i, count = 0
    cdef PyObject *value
    cdef int collects
    cdef list values
    PyObject_GetBuffer(packed, &view, PyBUF_SIMPLE)
    try:
        read_nodes(<const uint8_t *> view.buf, view.len, nodes, &count)
        # Each value takes a byte at least, so the list is no longer than the bytes are.
        values = new_list(count)
        collects = PyGC_Disable()                      # no garbage is made here, and collections would visit it often
        try:
            for i in range(count):
                value = _begin(nodes)
                PyList_SET_ITEM(<PyObject *> values, i, value)
                if nodes[0].kind == KIND_TUPLE:
                    _fill(value, nodes, 1)
        finally:
            if collects:
                PyGC_Enable()
    finally:
        PyBuffer_Release(&view)
    return values


def plain_count(packed):
    """Number of values in the result of :func:`pack_plain`."""
    cdef const uint8_t[::1] body = packed
    cdef uint32_t count
    _check_head(&body[0] if body.shape[0] else NULL, body.shape[0])
    memcpy(&count, &body[4], 4)
    return count

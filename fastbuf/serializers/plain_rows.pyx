"""Rows of plain values of the same type: sorted by group, packed, or converted to objects."""

from cpython.bytes cimport PyBytes_AS_STRING as bytes_data
from cpython.bytes cimport PyBytes_FromStringAndSize as new_bytes
from cpython.list cimport PyList_New as new_list
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from fastbuf.serializers.objects cimport (
    Py_DECREF, Py_False, Py_INCREF, Py_None, Py_True, PyGC_Disable, PyGC_Enable, PyList_SET_ITEM, PyObject_GC_UnTrack,
    PyTuple_New, PyTuple_SET_ITEM, fb_bytes, fb_copy_short, fb_float, fb_int64,
)
from fastbuf.serializers.plain_lists cimport (
    KIND_BYTES, KIND_FLAG, KIND_FLOAT, KIND_INT32, KIND_INT64, KIND_STR, KIND_TUPLE, MOST_NODES, PlainNode, text_object,
)

from fastbuf.errors import BlockCorrupt

cdef enum:
    PLACE = 10                  # approximate bytes of a value's pointer in a Python list
    HEAD = 8                    # bytes of the head of a packed list


cdef void *resized(void *p, int64_t size) except NULL:
    cdef void *made = PyMem_Realloc(p, size)
    if made == NULL:
        raise MemoryError(f"no memory for {size:,} bytes of pairs")
    return made


cdef int texts_room(Texts *texts, int64_t more) except -1:
    cdef int64_t room = texts.used + more
    if room > texts.room:
        room = max(room, texts.room + (texts.room >> 1))
        texts.bytes = <uint8_t *> resized(texts.bytes, room)
        texts.room = room
    return 0


cdef int64_t texts_put(Texts *texts, const uint8_t *p, int64_t n) noexcept nogil:
    cdef int64_t place = texts.used << 8 | n
    fb_copy_short(texts.bytes + texts.used, p, n)
    texts.used += n
    return place


cdef class PlainRows:
    """See plain_rows.pxd."""

    def __dealloc__(self):
        PyMem_Free(self._groups)
        PyMem_Free(self._cells)
        PyMem_Free(self._starts)
        PyMem_Free(self._texts.bytes)

    cdef bint _take_kinds(self, PlainNode *nodes, int n):
        """Whether values have the same type as the rows before; the first values set it."""
        cdef int i, kind, width = 0
        for i in range(n):
            kind = KIND_INT64 if nodes[i].kind == KIND_INT32 else nodes[i].kind
            width += kind != KIND_TUPLE
            if self._nodes and (kind != self._kinds[i] or nodes[i].items != self._items[i]):
                return False
        if self._nodes:
            return n == self._nodes
        if width > MOST_CELLS:
            return False
        for i in range(n):
            self._kinds[i] = KIND_INT64 if nodes[i].kind == KIND_INT32 else nodes[i].kind
            self._items[i] = nodes[i].items
        self._nodes = n
        self._width = width
        return True

    cdef int _reserve(self, int64_t more) except -1:
        cdef int64_t room = self.rows + more
        if room > self._room:
            room = max(room, self._room + (self._room >> 1))
            self._groups = <uint32_t *> resized(self._groups, 4 * room)
            self._cells = <int64_t *> resized(self._cells, 8 * room * self._width)
            self._room = room
        return 0

    cdef int _take(self, PlainNode *nodes, int count, int n) except -1:
        cdef int k, cell = 0
        for k in range(count):
            if nodes[k].kind != KIND_TUPLE:
                self._take_cells(&nodes[k], cell, n)
                cell += 1
        self.rows += n
        return 0

    cdef int _take_cells(self, PlainNode *node, int cell, int n) except -1:
        """Appends the next n values of a column."""
        cdef int64_t *to = self._cells + self.rows * self._width + cell
        cdef int64_t x
        cdef int32_t x32
        cdef int i
        if node.kind == KIND_INT32:
            for i in range(n):
                memcpy(&x32, node.at + 4 * i, 4)
                to[i * self._width] = x32
            node.at += 4 * n
        elif node.kind == KIND_INT64 or node.kind == KIND_FLOAT:
            for i in range(n):
                memcpy(&x, node.at + 8 * i, 8)
                to[i * self._width] = x
            node.at += 8 * n
        elif node.kind == KIND_FLAG:
            for i in range(n):
                if node.at[i] > 2:
                    raise BlockCorrupt(f"a value that is {node.at[i]} is neither None nor a bool")
                to[i * self._width] = node.at[i]
            node.at += n
        else:
            texts_room(&self._texts, 256 * n)
            for i in range(n):
                to[i * self._width] = texts_put(&self._texts, node.text_at, node.at[i])
                node.text_at += node.at[i]
            node.at += n
        return 0

    cdef int _sort(self, int64_t groups) except -1:
        """Sorts the rows by group."""
        cdef int64_t i, to = 0, count
        cdef int64_t *cells
        cdef int width = self._width, k
        cdef int64_t *at = <int64_t *> PyMem_Calloc(groups + 1, 8)
        cells = <int64_t *> PyMem_Malloc(8 * self.rows * width + 1)
        if at == NULL or cells == NULL:
            PyMem_Free(at)
            PyMem_Free(cells)
            raise MemoryError(f"no memory to put {self.rows:,} values by key")
        for i in range(self.rows):
            at[self._groups[i]] += 1
        for i in range(groups + 1):
            count = at[i]
            at[i] = to
            to += count
        for i in range(self.rows):
            to = at[self._groups[i]]
            at[self._groups[i]] = to + 1
            for k in range(width):
                cells[to * width + k] = self._cells[i * width + k]
        for i in range(groups, 0, -1):                 # each entry is now the start of the next group
            at[i] = at[i - 1]
        at[0] = 0
        PyMem_Free(self._cells)
        PyMem_Free(self._groups)
        self._groups = NULL
        self._cells = cells
        self._starts = at
        return 0

    cdef void _empty(self) noexcept:
        """Removes all rows; their type stays."""
        PyMem_Free(self._starts)
        PyMem_Free(self._cells)
        PyMem_Free(self._groups)
        self._starts = NULL
        self._cells = NULL
        self._groups = NULL
        self._room = self.rows = self._texts.used = 0

    cdef int64_t _value_bytes(self) noexcept:
        """Approximate memory of a value as an object in a list."""
        cdef int64_t size = PLACE
        cdef int i
        for i in range(self._nodes):
            if self._kinds[i] == KIND_TUPLE:
                size += 56 + 8 * self._items[i]
            elif self._kinds[i] == KIND_STR or self._kinds[i] == KIND_BYTES:
                size += 64
            elif self._kinds[i] != KIND_FLAG:
                size += 32
        return size + self._texts.used // max(<int64_t> 1, self.rows)

    cdef list _list(self, int64_t start, int64_t stop):
        cdef list made = new_list(stop - start)
        cdef int64_t i
        cdef int collects, node, cell
        collects = PyGC_Disable()                      # no garbage is made here, and collections would cost time
        try:
            for i in range(start, stop):
                node = cell = 0
                PyList_SET_ITEM(<PyObject *> made, i - start, self._make(self._cells + i * self._width, &node, &cell))
        finally:
            if collects:
                PyGC_Enable()
        return made

    cdef PyObject *_make(self, const int64_t *cells, int *node, int *cell) except NULL:
        cdef PyObject *made
        cdef int64_t x
        cdef double d
        cdef int kind = self._kinds[node[0]], items = self._items[node[0]], i
        node[0] += 1
        if kind == KIND_TUPLE:
            made = PyTuple_New(items)
            PyObject_GC_UnTrack(made)                  # it cannot be part of a reference cycle
            try:
                for i in range(items):
                    PyTuple_SET_ITEM(made, i, self._make(cells, node, cell))
            except BaseException:
                Py_DECREF(made)
                raise
            return made
        x = cells[cell[0]]
        cell[0] += 1
        if kind == KIND_INT64:
            return fb_int64(x)
        if kind == KIND_FLOAT:
            memcpy(&d, &x, 8)
            return fb_float(d)
        if kind == KIND_STR:
            return text_object(self._texts.bytes + (x >> 8), x & 0xFF)
        if kind == KIND_BYTES:
            return fb_bytes(self._texts.bytes + (x >> 8), x & 0xFF)
        made = Py_None if x == 0 else Py_False if x == 1 else Py_True
        Py_INCREF(made)
        return made

    cdef bytes _pack(self, int64_t start, int64_t stop, int side):
        cdef uint8_t kinds[MOST_NODES + 2]
        cdef uint8_t items[MOST_NODES + 2]
        cdef int cells[MOST_NODES + 2]                 # -1: the side, or none
        cdef int64_t texts[MOST_NODES + 2]
        cdef int64_t i, x, size, count = stop - start
        cdef int k, n = 0, cell = 0
        cdef int32_t x32
        cdef uint32_t u
        cdef uint8_t *at
        cdef uint8_t *text_at
        for k in range(self._nodes):
            if k == 2 and side >= 0:                   # after the key, which is a single node
                kinds[n], items[n], cells[n] = KIND_TUPLE, 2, -1
                kinds[n + 1], items[n + 1], cells[n + 1] = KIND_INT32, 0, -1
                n += 2
            kinds[n], items[n], cells[n] = self._kinds[k], self._items[k], -1
            if kinds[n] != KIND_TUPLE:
                cells[n] = cell
                cell += 1
            n += 1
        size = HEAD + 2 * n
        for k in range(n):
            texts[k] = 0
            if kinds[k] == KIND_INT64:
                kinds[k] = KIND_INT32
                for i in range(start, stop):
                    x = self._cells[i * self._width + cells[k]]
                    if not -0x80000000 <= x <= 0x7FFFFFFF:
                        kinds[k] = KIND_INT64
                        break
            elif kinds[k] == KIND_STR or kinds[k] == KIND_BYTES:
                for i in range(start, stop):
                    texts[k] += self._cells[i * self._width + cells[k]] & 0xFF
                size += 4 + texts[k]
            if kinds[k] != KIND_TUPLE:
                size += count * (
                    4 if kinds[k] == KIND_INT32 else 8 if kinds[k] == KIND_INT64 or kinds[k] == KIND_FLOAT else 1
                )
        made = new_bytes(NULL, size)
        at = <uint8_t *> bytes_data(made)
        at[0] = c"P"
        at[1] = 1
        at[2] = <uint8_t> n
        at[3] = 0
        u = <uint32_t> count
        memcpy(at + 4, &u, 4)
        at += HEAD
        for k in range(n):
            at[0] = kinds[k]
            at[1] = items[k]
            at += 2
        for k in range(n):
            if kinds[k] == KIND_TUPLE:
                continue
            if kinds[k] == KIND_STR or kinds[k] == KIND_BYTES:
                u = <uint32_t> texts[k]
                memcpy(at, &u, 4)
                at += 4
                text_at = at + count
                for i in range(start, stop):
                    x = self._cells[i * self._width + cells[k]]
                    at[0] = <uint8_t> (x & 0xFF)
                    at += 1
                    fb_copy_short(text_at, self._texts.bytes + (x >> 8), x & 0xFF)
                    text_at += x & 0xFF
                at = text_at
                continue
            for i in range(start, stop):
                x = side if cells[k] < 0 else self._cells[i * self._width + cells[k]]
                if kinds[k] == KIND_INT32:
                    x32 = <int32_t> x
                    memcpy(at, &x32, 4)
                    at += 4
                elif kinds[k] == KIND_FLAG:
                    at[0] = <uint8_t> x
                    at += 1
                else:
                    memcpy(at, &x, 8)
                    at += 8
        return made

"""Rows of plain values of the same type: sorted by group, packed, or converted to objects."""

from cpython.list cimport PyList_New as new_list
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from fastbuf.serializers.objects cimport *
from fastbuf.serializers.plain_lists cimport *

from fastbuf.errors import BlockCorrupt

cdef enum:
    PLACE = 10                  # approximate bytes of a value's pointer in a Python list


cdef void *resized(void *p, int64_t size) except NULL:
    cdef void *block = PyMem_Realloc(p, size)
    if block == NULL:
        raise MemoryError(f"no memory for {size:,} bytes of pairs")
    return block


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


cdef inline int64_t _cell(const Column *column, const uint32_t *which, int64_t i) noexcept nogil:
    return column.cells[column.step * (i if which == NULL else <int64_t> which[i])]


cdef bytes pack_columns(PlainNode *nodes, const Column *columns, int n, const uint32_t *which, const uint8_t *texts,
                        int64_t count):
    cdef int64_t i
    cdef int k
    for k in range(n):
        nodes[k].text = 0
        if nodes[k].kind == KIND_INT64:
            nodes[k].kind = KIND_INT32
            for i in range(count):
                if not -0x80000000 <= _cell(&columns[k], which, i) <= 0x7FFFFFFF:
                    nodes[k].kind = KIND_INT64
                    break
        elif nodes[k].kind == KIND_STR or nodes[k].kind == KIND_BYTES:
            for i in range(count):
                nodes[k].text += _cell(&columns[k], which, i) & 0xFF
    packed = new_packed(nodes, n, count)
    for k in range(n if packed is not None else 0):
        _put_column(&nodes[k], &columns[k], which, texts, count)
    return packed


cdef void _put_column(const PlainNode *node, const Column *column, const uint32_t *which, const uint8_t *texts,
                      int64_t count) noexcept nogil:
    cdef uint8_t *at = node.at
    cdef uint8_t *text_at = node.text_at
    cdef int kind = node.kind
    cdef int64_t i, x
    cdef int32_t x32
    for i in range(count if kind != KIND_TUPLE else 0):
        x = _cell(column, which, i)
        if kind == KIND_INT32:
            x32 = <int32_t> x
            memcpy(at, &x32, 4)
            at += 4
        elif kind == KIND_INT64 or kind == KIND_FLOAT:
            memcpy(at, &x, 8)
            at += 8
        else:
            at[0] = <uint8_t> x                        # of a text: its length
            at += 1
            if kind != KIND_FLAG:
                fb_copy_short(text_at, texts + (x >> 8), x & 0xFF)
                text_at += x & 0xFF


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
            kind = wide_kind(&nodes[i])
            width += kind != KIND_TUPLE
            if self._nodes and (kind != self._kinds[i] or nodes[i].items != self._items[i]):
                return False
        if self._nodes:
            return n == self._nodes
        if width > MOST_CELLS:
            return False
        for i in range(n):
            self._kinds[i] = wide_kind(&nodes[i])
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
        cdef int i
        if KIND_INT32 <= node.kind <= KIND_FLOAT:
            take_numbers(node, n, to, self._width)
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
        cdef list values = new_list(stop - start)
        cdef int64_t i
        cdef int collects, node, cell
        collects = PyGC_Disable()                      # no garbage is made here, and collections would cost time
        try:
            for i in range(start, stop):
                node = cell = 0
                PyList_SET_ITEM(<PyObject *> values, i - start, self._make(self._cells + i * self._width, &node, &cell))
        finally:
            if collects:
                PyGC_Enable()
        return values

    cdef PyObject *_make(self, const int64_t *cells, int *node, int *cell) except NULL:
        cdef PyObject *value
        cdef int64_t x
        cdef double d
        cdef int kind = self._kinds[node[0]], items = self._items[node[0]], i
        node[0] += 1
        if kind == KIND_TUPLE:
            value = PyTuple_New(items)
            PyObject_GC_UnTrack(value)                  # it cannot be part of a reference cycle
            try:
                for i in range(items):
                    PyTuple_SET_ITEM(value, i, self._make(cells, node, cell))
            except BaseException:
                Py_DECREF(value)
                raise
            return value
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
        value = Py_None if x == 0 else Py_False if x == 1 else Py_True
        Py_INCREF(value)
        return value

    cdef bytes _pack(self, int64_t start, int64_t stop, int side):
        cdef PlainNode nodes[MOST_NODES + 2]
        cdef Column columns[MOST_NODES + 2]
        cdef int64_t of_side = side
        cdef const int64_t *cells = self._cells + start * self._width
        cdef int k, n = 0
        for k in range(self._nodes):
            if k == 2 and side >= 0:                   # after the key, which is a single node
                nodes[n].kind, nodes[n].items = KIND_TUPLE, 2
                nodes[n + 1].kind, nodes[n + 1].items = KIND_INT64, 0
                columns[n + 1].cells, columns[n + 1].step = &of_side, 0
                n += 2
            nodes[n].kind, nodes[n].items = self._kinds[k], self._items[k]
            columns[n].cells, columns[n].step = cells, self._width
            cells += nodes[n].kind != KIND_TUPLE
            n += 1
        return pack_columns(nodes, columns, n, NULL, self._texts.bytes, stop - start)

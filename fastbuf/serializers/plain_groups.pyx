"""Plain pairs grouped by key without objects: these are made of the values of a key when somebody reads them.

Rows come in the order of their arrival, with the number of their key; when all are there they are put by key, by one
counting sort.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.list cimport PyList_New as new_list
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from fastbuf.serializers.objects cimport (
    Py_DECREF, Py_False, Py_INCREF, Py_None, Py_True, PyGC_Disable, PyGC_Enable, PyList_SET_ITEM, PyObject_GC_UnTrack,
    PyTuple_New, PyTuple_SET_ITEM, fb_bytes, fb_float, fb_int64,
)
from fastbuf.serializers.pair_table import Values
from fastbuf.serializers.plain_keys cimport KEY_BLOCK, PlainKeys, resized, texts_put, texts_room
from fastbuf.serializers.plain_lists cimport (
    KIND_BYTES, KIND_FLAG, KIND_FLOAT, KIND_INT32, KIND_INT64, KIND_STR, KIND_TUPLE, MOST_NODES, PlainNode, read_nodes,
    text_object,
)

from itertools import chain

from fastbuf.errors import BlockCorrupt, RecordError

cdef enum:
    SOME = 4096                 # pairs, or values, that are made together
    PLACE = 10                  # of a value in a list of Python's


cdef class PlainGroups:
    """PlainGroups(sides=0)\n--\n
    Puts pairs of plain keys and values together by key.

    Parameters
    ----------
    sides : int, optional
        Values are pairs of a number below this, and the value: a key has a tuple of so many groups. Default: one group.

    Attributes
    ----------
    rows : int
        Pairs.
    """

    def __init__(self, int sides=0):
        self._sides = sides
        self._keys = PlainKeys()

    def __dealloc__(self):
        PyMem_Free(self._groups)
        PyMem_Free(self._cells)
        PyMem_Free(self._starts)
        PyMem_Free(self._texts.bytes)

    @property
    def nbytes(self):
        """About how much memory it takes, and needs when it is asked for its groups."""
        return self._keys.nbytes() + self._texts.used + self.rows * (4 + 16 * self._width) \
            + 8 * (self._keys.count * max(1, self._sides) + 1)

    def add(self, packed):
        """Take a list of pairs, as ``pack_plain`` gives it.

        Returns
        -------
        int
            How many of them it has not taken: all, if they are of another kind than those that are there, or of none
            that it knows.
        """
        cdef PlainNode nodes[MOST_NODES]
        cdef uint32_t found[KEY_BLOCK]
        cdef Py_ssize_t count = 0, at = 0
        cdef int64_t room, side
        cdef int32_t x32
        cdef int kind, n, k, i, first, cell, of
        cdef Py_buffer view
        if self._starts != NULL:
            raise RuntimeError("PlainGroups takes no more pairs after it has been asked for its groups")
        PyObject_GetBuffer(packed, &view, PyBUF_SIMPLE)
        try:
            of = read_nodes(<const uint8_t *> view.buf, view.len, nodes, &count)
            first = 4 if self._sides else 2            # the first node of a value
            if of <= first or nodes[0].kind != KIND_TUPLE or nodes[0].items != 2:
                return count
            kind = KIND_INT64 if nodes[1].kind == KIND_INT32 else nodes[1].kind
            if (kind != KIND_INT64 and kind != KIND_STR) or (self._keys.kind and kind != self._keys.kind):
                return count
            if self._sides and (nodes[2].kind != KIND_TUPLE or nodes[2].items != 2 or nodes[3].kind != KIND_INT32):
                return count
            if not self._take_kinds(&nodes[first], of - first):
                return count
            self._keys.kind = kind
            if self.rows + count > self._room:
                room = max(self.rows + count, self._room + (self._room >> 1))
                self._groups = <uint32_t *> resized(self._groups, 4 * room)
                self._cells = <int64_t *> resized(self._cells, 8 * room * self._width)
                self._room = room
            while at < count:
                n = <int> min(count - at, <Py_ssize_t> KEY_BLOCK)
                self._keys.find_column(&nodes[1], n, found)
                if self._keys.count * max(1, self._sides) > 0xFFFFFFFF:
                    raise MemoryError(f"{self._keys.count:,} keys are more than there are numbers for")
                for i in range(n):
                    self._groups[self.rows + i] = found[i]
                if self._sides:
                    for i in range(n):
                        memcpy(&x32, nodes[3].at + 4 * i, 4)
                        side = x32
                        if not 0 <= side < self._sides:
                            raise RecordError(f"a value is of side {side}, and there are {self._sides}")
                        self._groups[self.rows + i] = <uint32_t> (found[i] * self._sides + side)
                    nodes[3].at += 4 * n
                cell = 0
                for k in range(first, of):
                    if nodes[k].kind != KIND_TUPLE:
                        self._take_cells(&nodes[k], cell, n)
                        cell += 1
                self.rows += n
                at += n
        finally:
            PyBuffer_Release(&view)
        return 0

    def lists(self):
        """The keys with their values, and no more pairs come.

        Returns
        -------
        iterator of list of (object, PlainValues), or of (object, tuple of PlainValues)
        """
        cdef int64_t i, start = 0, stop
        cdef int side, collects
        cdef PyObject *pair
        cdef list made
        if self._starts == NULL:
            self._sort()
        while start < self._keys.count:
            stop = min(self._keys.count, start + SOME)
            made = new_list(stop - start)
            collects = PyGC_Disable()                  # nothing made here is garbage
            try:
                for i in range(start, stop):
                    pair = PyTuple_New(2)
                    PyObject_GC_UnTrack(pair)
                    PyList_SET_ITEM(<PyObject *> made, i - start, pair)
                    PyTuple_SET_ITEM(pair, 0, self._keys.make(i))
                    if self._sides:
                        values = tuple([self._values(i * self._sides + side) for side in range(self._sides)])
                    else:
                        values = self._values(i)
                    Py_INCREF(<PyObject *> values)
                    PyTuple_SET_ITEM(pair, 1, <PyObject *> values)
            finally:
                if collects:
                    PyGC_Enable()
            yield made
            made = None
            start = stop

    def _values(self, int64_t group):
        cdef PlainValues made = PlainValues.__new__(PlainValues)
        made._groups = self
        made._start = self._starts[group]
        made._stop = self._starts[group + 1]
        return made

    cdef int _take_kinds(self, PlainNode *nodes, int n):
        """Whether values are of the kind that is known; if none is, this is it."""
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

    cdef int _take_cells(self, PlainNode *node, int cell, int n) except -1:
        """The next n values of a column."""
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

    cdef int _sort(self) except -1:
        cdef int64_t groups = self._keys.count * max(1, self._sides), i, to = 0, count
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
        for i in range(groups, 0, -1):                 # each is where the next begins now
            at[i] = at[i - 1]
        at[0] = 0
        PyMem_Free(self._cells)
        PyMem_Free(self._groups)
        self._groups = NULL
        self._cells = cells
        self._starts = at
        return 0

    cdef int64_t _value_bytes(self) noexcept:
        """About how much a value takes as an object in a list."""
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
        collects = PyGC_Disable()                      # nothing made here is garbage
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
            PyObject_GC_UnTrack(made)                  # what the collector would find out: it can be in no cycle
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


@cython.no_gc                                          # it holds what holds no objects but its keys' table
@cython.freelist(64)
cdef class PlainValues:
    """The values of a key; as :class:`~fastbuf.serializers.pair_table.Values`."""

    def __iter__(self):
        if self._stop - self._start <= SOME:
            return iter(self._groups._list(self._start, self._stop))
        steps = range(0, self._stop - self._start, SOME)
        return chain.from_iterable(self[at:at + SOME] for at in steps)

    def __len__(self):
        return self._stop - self._start

    @property
    def nbytes(self):
        """About how much memory they take as objects."""
        return len(self) * self._groups._value_bytes()

    def __getitem__(self, part):
        cdef Py_ssize_t start, stop, step
        start, stop, step = part.indices(self._stop - self._start)
        return self._groups._list(self._start + start, self._start + max(start, stop))[::step]

    def __reduce__(self):
        return Values, (list(self),)

    def __repr__(self):
        return f"<{self._stop - self._start} values>"

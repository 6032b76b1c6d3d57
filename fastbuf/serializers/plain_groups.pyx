"""Groups plain pairs by key, without Python objects; the values of a key become objects when they are read.

Rows are stored in order of arrival, with the number of their key.  When all have arrived, one counting sort puts them
in the order of their keys.  What they gain: without plain values a job with group_by_key takes 3.6 to 4.9 times as long
(docs/explanation/what-stays.md).
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from fastbuf.serializers.objects cimport Py_INCREF
from fastbuf.serializers.pair_table import Values
from fastbuf.serializers.plain_keys cimport KEY_BLOCK, PlainKeys
from fastbuf.serializers.plain_lists cimport *
from fastbuf.serializers.plain_rows cimport PlainRows

from itertools import chain

from fastbuf.errors import RecordError

cdef enum:
    SOME = 4096                 # pairs, or values, of which objects are made together


cdef class PlainGroups(PlainRows):
    """PlainGroups(sides=0)\n--\n
    Groups pairs of plain keys and values by key.

    Parameters
    ----------
    sides : int, optional
        Values are pairs (side, value) with a side below this number: a key has a tuple of that many groups. Default:
        one group.

    Attributes
    ----------
    rows : int
        Number of pairs.
    """

    def __init__(self, int sides=0):
        self._sides = sides
        self._keys = PlainKeys()

    @property
    def nbytes(self):
        """Approximate memory that it uses, including what :meth:`lists` will need."""
        return self._keys.nbytes() + self._texts.used + self.rows * (4 + 16 * self._width) \
            + 8 * (self._keys.count * max(1, self._sides) + 1)

    def add(self, packed):
        """Add a list of pairs that ``pack_plain`` has made.

        Returns
        -------
        int
            How many pairs were not added: all, if their types are not supported, or differ from those before.
        """
        cdef PlainNode nodes[MOST_NODES]
        cdef uint32_t numbers[KEY_BLOCK]
        cdef Py_ssize_t count = 0, at = 0
        cdef int64_t side
        cdef int32_t x32
        cdef int n, i, first, of
        cdef Py_buffer view
        if self._starts != NULL:
            raise RuntimeError("PlainGroups takes no more pairs after it has been asked for its groups")
        PyObject_GetBuffer(packed, &view, PyBUF_SIMPLE)
        try:
            of = read_nodes(<const uint8_t *> view.buf, view.len, nodes, &count)
            first = 4 if self._sides else 2            # the first node of a value
            if of <= first or nodes[0].kind != KIND_TUPLE or nodes[0].items != 2:
                return count
            if not self._keys.takes(wide_kind(&nodes[1])):
                return count
            if self._sides and (nodes[2].kind != KIND_TUPLE or nodes[2].items != 2 or nodes[3].kind != KIND_INT32):
                return count
            if not self._take_kinds(&nodes[first], of - first):
                return count
            self._keys.kind = wide_kind(&nodes[1])
            self._reserve(count)
            while at < count:
                n = <int> min(count - at, <Py_ssize_t> KEY_BLOCK)
                self._keys.find_column(&nodes[1], n, numbers)
                if self._keys.count * max(1, self._sides) > 0xFFFFFFFF:
                    raise MemoryError(f"{self._keys.count:,} keys are more than there are numbers for")
                for i in range(n):
                    self._groups[self.rows + i] = numbers[i]
                if self._sides:
                    for i in range(n):
                        memcpy(&x32, nodes[3].at + 4 * i, 4)
                        side = x32
                        if not 0 <= side < self._sides:
                            raise RecordError(f"a value is of side {side}, and there are {self._sides}")
                        self._groups[self.rows + i] = <uint32_t> (numbers[i] * self._sides + side)
                    nodes[3].at += 4 * n
                self._take(&nodes[first], of - first, n)
                at += n
        finally:
            PyBuffer_Release(&view)
        return 0

    def lists(self):
        """The keys with their values; no more pairs can be added afterwards.

        Returns
        -------
        iterator of list of (object, PlainValues), or of (object, tuple of PlainValues)
        """
        cdef int64_t start = 0
        if self._starts == NULL:
            self._sort(self._keys.count * max(1, self._sides))
        while start < self._keys.count:
            yield self._keys.pairs(start, min(self._keys.count, start + SOME), _values_of, self)
            start += SOME


cdef PyObject *_values_of(object table, int64_t key) except NULL:
    cdef PlainGroups groups = <PlainGroups> table
    cdef int sides = groups._sides
    if sides:
        values = tuple([_values(groups, key * sides + side) for side in range(sides)])
    else:
        values = _values(groups, key)
    Py_INCREF(<PyObject *> values)
    return <PyObject *> values


cdef PlainValues _values(PlainGroups groups, int64_t group):
    cdef PlainValues values = PlainValues.__new__(PlainValues)
    values._groups = groups
    values._start = groups._starts[group]
    values._stop = groups._starts[group + 1]
    return values


@cython.no_gc                                          # it cannot be part of a reference cycle
@cython.freelist(64)
cdef class PlainValues:
    """The values of a key; it has the interface of :class:`~fastbuf.serializers.pair_table.Values`."""

    def __iter__(self):
        if self._stop - self._start <= SOME:
            return iter(self._groups._list(self._start, self._stop))
        steps = range(0, self._stop - self._start, SOME)
        return chain.from_iterable(self[at:at + SOME] for at in steps)

    def __len__(self):
        return self._stop - self._start

    @property
    def nbytes(self):
        """Approximate memory that they would need as objects."""
        return len(self) * self._groups._value_bytes()

    def __getitem__(self, part):
        cdef Py_ssize_t start, stop, step
        start, stop, step = part.indices(self._stop - self._start)
        return self._groups._list(self._start + start, self._start + max(start, stop))[::step]

    def __reduce__(self):
        return Values, (list(self),)

    def __repr__(self):
        return f"<{self._stop - self._start} values>"

"""Merges plain pairs by ``+``, ``max`` or ``min``, without Python objects: keys are ints or strs, values numbers.

The results are the same as Python's: floats are added in order of arrival, and ``max`` and ``min`` of a NaN and a
number keep the first.  Pairs of other types, and sums beyond 64 bits, are refused: the caller then takes the merged
pairs out and goes on with Python objects.

What they gain: without plain values a job with reduce_by_key takes 2.2 to 2.7 times as long
(docs/explanation/what-stays.md).  So a lambda that adds, which is what people write, is worth being recognised.
"""

import builtins
import operator
from types import FunctionType

from cpython.bytes cimport PyBytes_AS_STRING as bytes_data
from cpython.bytes cimport PyBytes_FromStringAndSize as new_bytes
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject, PyObject_Hash
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastbuf.serializers.objects cimport *
from fastbuf.serializers.plain_keys cimport KEY_BLOCK, PlainKeys, hash_of_int, portable_hashes
from fastbuf.serializers.plain_lists cimport *
from fastbuf.serializers.plain_rows cimport Column, pack_columns, resized
from fastbuf.serializers.portable cimport portable_by_value
from fastbuf.serializers.record_groups cimport mixed

cdef extern from "fb_text_hash.h":
    Py_hash_t fb_text_hash(const uint8_t *p, Py_ssize_t n) except? -1

cdef enum:
    MERGE_ADD = 1
    MERGE_MAX = 2
    MERGE_MIN = 3
    SOME = 4096                # pairs of which objects are made together

_SUM = eval("lambda a, b: a + b").__code__             # by eval, since functions compiled by Cython have no bytecode
_NAMED = {builtins.max: "max", builtins.min: "min", operator.add: "add"}


def own_merge(merge):
    """``operator.add`` if the function does the same, as it takes half the time; else the function."""
    if type(merge) is FunctionType and merge.__code__.co_code == _SUM.co_code:
        code = merge.__code__
        # The same bytecode over the same two arguments: nothing else can change the result
        return operator.add if (code.co_argcount, code.co_kwonlyargcount) == (2, 0) else merge
    return merge


def merge_name(merge):
    """The name of a merge function for :class:`PlainSums`.

    Returns
    -------
    str or None
        None: the function is not supported.
    """
    try:
        return _NAMED.get(own_merge(merge))
    except TypeError:                                  # it cannot be hashed
        return None


cdef PyObject *_value_of(object table, int64_t number) except NULL:
    cdef PlainSums sums = <PlainSums> table
    if sums._value == KIND_FLOAT:
        return fb_float((<double *> sums._values)[number])
    return fb_int64(sums._values[number])


cdef class PlainSums:
    """PlainSums(merge)\n--\n
    Merges pairs of plain keys and values by key.

    Parameters
    ----------
    merge : str
        ``"add"``, ``"max"`` or ``"min"``.

    Attributes
    ----------
    rows, proof : int
        As in :class:`~fastbuf.serializers.pair_table.PairTable`.
    left : list
        Records that :meth:`fill` has read but not merged, because of their types.
    """

    def __init__(self, merge):
        self._how = {"add": MERGE_ADD, "max": MERGE_MAX, "min": MERGE_MIN}[merge]
        self.left = []
        self.clear()

    def __dealloc__(self):
        PyMem_Free(self._values)

    def __len__(self):
        return self._had

    @property
    def nbytes(self):
        """Approximate memory that it uses."""
        return self._keys.nbytes() + 8 * self._had

    def clear(self):
        """Remove all pairs; the next ones may have other types."""
        self._keys = PlainKeys()
        self._value = 0
        self._had = 0
        self._room = 0
        PyMem_Free(self._values)
        self._values = NULL

    def add(self, packed, bint counted=False):
        """Merge a list of pairs that ``pack_plain`` has made.

        Parameters
        ----------
        packed : bytes-like
        counted : bool, optional
            Add them to `rows` and `proof`.

        Returns
        -------
        int
            How many pairs at the end were not merged, because of their types, or because a sum would need more than 64
            bits; then the table takes no more.
        """
        cdef PlainNode nodes[MOST_NODES]
        cdef uint32_t numbers[KEY_BLOCK]
        cdef int64_t values[KEY_BLOCK]
        cdef uint64_t hashes[KEY_BLOCK]
        cdef Py_ssize_t count = 0, at = 0
        cdef int n, taken, i
        cdef uint8_t value
        cdef Py_buffer view
        PyObject_GetBuffer(packed, &view, PyBUF_SIMPLE)
        try:
            n = read_nodes(<const uint8_t *> view.buf, view.len, nodes, &count)
            if n != 3 or nodes[0].kind != KIND_TUPLE or not self._keys.takes(wide_kind(&nodes[1])):
                return count
            value = wide_kind(&nodes[2])
            if (value != KIND_INT64 and value != KIND_FLOAT) or (self._value and value != self._value):
                return count
            self._keys.kind = wide_kind(&nodes[1])
            self._value = value
            while at < count:
                n = <int> min(count - at, <Py_ssize_t> KEY_BLOCK)
                if counted:
                    portable_hashes(&nodes[1], n, hashes)
                self._keys.find_column(&nodes[1], n, numbers)
                take_numbers(&nodes[2], n, values, 1)
                taken = self._merge(numbers, values, n)
                at += taken
                if counted:
                    for i in range(taken):
                        self.proof += mixed(hashes[i])
                    self.rows += taken
                if taken < n:
                    break
        finally:
            PyBuffer_Release(&view)
        return count - at

    def fill(self, source, int64_t limit):
        """Merge records until the table has ``limit`` bytes, or a record has another type.

        Parameters
        ----------
        source : iterator
            Yields records; it is read a few records ahead.

        Returns
        -------
        bool
            Whether the source has ended.
        """
        cdef bint ended = False
        if self.rows == 0:
            portable_by_value(0)                       # raises if hashes of text differ between processes
        while not ended and not self.left and self._keys.nbytes() + 8 * self._had < limit:
            self._fill_block(source, &ended)
        return ended

    def lists(self):
        """The keys and their values.

        Returns
        -------
        iterator of list of tuple
        """
        cdef int64_t start = 0
        while start < self._had:
            yield self._keys.pairs(start, min(self._had, start + SOME), _value_of, self)
            start += SOME

    def packed(self, int64_t partitions, wanted, int64_t group_bytes):
        """The pairs by partition of their key (``portable_hash``), packed for sending.

        Parameters
        ----------
        partitions : int
        wanted : sequence of int or None
            The partitions to return. Default: all.
        group_bytes : int
            Approximate length of a list.

        Returns
        -------
        iterator of (int, bytes)
            Partition, and a list of pairs as ``pack_plain`` packs it. The partitions take turns.
        """
        cdef int64_t i, p, to, count = self._had, stop, size
        cdef bint texts = self._keys.kind == KIND_STR
        places = new_bytes(NULL, 4 * count)            # numbers of keys, sorted by partition
        starts = new_bytes(NULL, 8 * (partitions + 1))
        cdef uint32_t *which = <uint32_t *> bytes_data(places)
        cdef int64_t *ends = <int64_t *> bytes_data(starts)
        cdef int64_t *at
        cdef uint32_t *part
        part = <uint32_t *> PyMem_Malloc(4 * count + 1)
        at = <int64_t *> PyMem_Calloc(partitions + 1, 8)
        try:
            if part == NULL or at == NULL:
                raise MemoryError(f"no memory to put {count:,} keys into {partitions:,} partitions")
            for i in range(count):
                if texts:
                    to = fb_text_hash(self._keys.text(i), self._keys.keys[i] & 0xFF)
                else:
                    to = hash_of_int(self._keys.keys[i])
                to %= partitions
                if to < 0:
                    to += partitions
                part[i] = <uint32_t> to
                at[to] += 1
            to = 0
            for p in range(partitions):
                to += at[p]
                at[p] = to - at[p]
                ends[p] = to
            for i in range(count):
                which[at[part[i]]] = <uint32_t> i
                at[part[i]] += 1
        finally:
            PyMem_Free(part)
            PyMem_Free(at)
        begins = [0, *[ends[p] for p in range(partitions - 1)]]
        open_ones = [p for p in (range(partitions) if wanted is None else wanted) if begins[p] < ends[p]]
        while open_ones:
            still = []
            for p in open_ones:
                i = stop = begins[p]
                size = 0
                while stop < ends[p] and size < group_bytes:
                    size += 9 + (self._keys.keys[which[stop]] & 0xFF) if texts else 16
                    stop += 1
                yield p, self._packed(which + i, stop - i)
                begins[p] = stop
                if stop < ends[p]:
                    still.append(p)
            open_ones = still

    cdef bytes _packed(self, const uint32_t *which, int64_t count):
        cdef PlainNode nodes[3]
        cdef Column columns[3]
        nodes[0].kind, nodes[0].items = KIND_TUPLE, 2
        nodes[1].kind, nodes[2].kind = self._keys.kind, self._value
        nodes[1].items = nodes[2].items = 0
        columns[1].cells, columns[2].cells = self._keys.keys, self._values
        columns[1].step = columns[2].step = 1
        return pack_columns(nodes, columns, 3, which, self._keys._texts.bytes, count)

    cdef int _merge(self, const uint32_t *numbers, const int64_t *values, int n) except -1:
        """Merges values; -> how many, fewer than n if the next sum would need more than 64 bits."""
        cdef int64_t room, x, had
        cdef double d, e
        cdef int i
        if self._keys.count > self._room:
            room = max(self._keys.count, self._room + (self._room >> 1))
            self._values = <int64_t *> resized(self._values, 8 * room)
            self._room = room
        for i in range(n):
            if numbers[i] == self._had:                  # a new key has the next number
                self._values[self._had] = values[i]
                self._had += 1
                continue
            had = self._values[numbers[i]]
            x = values[i]
            if self._value == KIND_FLOAT:
                memcpy(&d, &had, 8)
                memcpy(&e, &x, 8)
                d = d + e if self._how == MERGE_ADD else \
                    (e if e > d else d) if self._how == MERGE_MAX else (e if e < d else d)
                memcpy(&x, &d, 8)
            elif self._how == MERGE_ADD:
                x = <int64_t> (<uint64_t> had + <uint64_t> x)
                if (had ^ x) & (values[i] ^ x) < 0:
                    return i
            elif self._how == MERGE_MAX:
                x = max(had, x)
            else:
                x = min(had, x)
            self._values[numbers[i]] = x
        return n

    cdef int _fill_block(self, source, bint *ended) except -1:
        cdef int64_t ints[KEY_BLOCK]
        cdef int64_t values[KEY_BLOCK]
        cdef uint64_t hashes[KEY_BLOCK]
        cdef uint32_t numbers[KEY_BLOCK]
        cdef const uint8_t *at[KEY_BLOCK]
        cdef uint8_t lengths[KEY_BLOCK]
        cdef uint8_t texts[KEY_BLOCK * LONGEST]
        cdef PyObject *key
        cdef PyObject *value
        cdef const char *text
        cdef Py_ssize_t length
        cdef int n = 0, taken, i
        cdef uint8_t kind
        cdef double d
        ended[0] = True
        for record in source:
            ended[0] = False
            if not (PyTuple_CheckExact(<PyObject *> record) and PyTuple_GET_SIZE(<PyObject *> record) == 2):
                self.left.append(record)
                break
            key = PyTuple_GET_ITEM(<PyObject *> record, 0)
            value = PyTuple_GET_ITEM(<PyObject *> record, 1)
            kind = KIND_INT64 if PyLong_CheckExact(value) else KIND_FLOAT if PyFloat_CheckExact(value) else 0
            if kind == 0 or (self._value and kind != self._value):
                self.left.append(record)
                break
            if kind == KIND_FLOAT:
                d = PyFloat_AS_DOUBLE(value)
                memcpy(&values[n], &d, 8)
            elif fb_exact_int64(value, &values[n]):
                self.left.append(record)
                break
            self._value = kind
            kind = KIND_INT64 if PyLong_CheckExact(key) else KIND_STR if PyUnicode_CheckExact(key) else 0
            if not self._keys.takes(kind):
                self.left.append(record)
                break
            if kind == KIND_INT64:
                if fb_exact_int64(key, &ints[n]):
                    self.left.append(record)
                    break
                hashes[n] = <uint64_t> hash_of_int(ints[n])
            else:
                text = fb_utf8(key, &length)
                if text == NULL:
                    PyErr_Clear()                      # a lone surrogate
                if text == NULL or length > LONGEST:
                    self.left.append(record)
                    break
                at[n] = texts + n * LONGEST
                lengths[n] = <uint8_t> length
                fb_copy_short(<void *> at[n], text, length)
                hashes[n] = <uint64_t> PyObject_Hash(<object> key)
            self._keys.kind = kind
            n += 1
            if n == KEY_BLOCK:
                break
            ended[0] = True
        if n == 0:
            return 0
        if self._keys.kind == KIND_STR:
            self._keys.find_texts(at, lengths, n, numbers)
        else:
            self._keys.find_ints(ints, n, numbers)
        taken = self._merge(numbers, values, n)
        for i in range(taken):
            self.proof += mixed(hashes[i])
        self.rows += taken
        for i in range(taken, n):                      # they were read from the source, so keep them in `left`
            if self._keys.kind == KIND_STR:
                name = at[i][:lengths[i]].decode("utf-8")
            else:
                name = ints[i]
            memcpy(&d, &values[i], 8)
            self.left.append((name, d if self._value == KIND_FLOAT else values[i]))
        return 0

"""Partitions plain pairs without Python objects: from Spark's pickles to packed lists for sending.

Each step reports data that it does not support; such data are then unpickled to objects as usual.

What that gains: without plain values a job with partition_by takes 1.7 to 2.2 times as long.  Pairs that are only
loaded from their pickles take 2.5 to 3 times as long through its two ends, and 1.5 to 2.1 times through those of
reduce_by_key and group_by_key (docs/explanation/what-stays.md).
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Free
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastbuf.serializers.objects cimport fb_ascii
from fastbuf.serializers.plain_keys cimport KEY_BLOCK, portable_hashes
from fastbuf.serializers.plain_lists cimport *
from fastbuf.serializers.plain_rows cimport PlainRows, resized, texts_put, texts_room
from fastbuf.serializers.portable cimport portable_by_value
from fastbuf.serializers.record_groups cimport mixed

cdef enum:
    MOST_HELD = 4 << 20         # most bytes of pairs that are held before they are partitioned


cdef class PlainParts(PlainRows):
    """PlainParts(partitions, wanted=None, group_bytes=32768, side=None)\n--\n
    Partitions plain pairs by PySpark's ``portable_hash`` of their keys.

    Parameters
    ----------
    partitions, wanted, group_bytes, side
        As for :class:`~fastbuf.serializers.record_groups.RecordGroups`.

    Attributes
    ----------
    read, proof : int
        Number of pairs read, and the sum of their keys' hashes as in RecordGroups.
    """

    def __init__(self, int64_t partitions, wanted=None, int64_t group_bytes=32768, side=None):
        self._partitions = partitions
        self._wanted = None if wanted is None else sorted(wanted)
        self._group_bytes = group_bytes
        self._side = -1 if side is None else side

    def add(self, packed):
        """Add a list of pairs that ``pack_plain`` has made.

        Returns
        -------
        bool
            False: they were not added, as their types are not supported, or differ from those before.
        """
        cdef PlainNode nodes[MOST_NODES]
        cdef uint64_t hashes[KEY_BLOCK]
        cdef Py_ssize_t count = 0, at = 0
        cdef int64_t to
        cdef int n, of, i
        cdef Py_buffer view
        if self.read == 0:
            portable_by_value(0)                       # raises if hashes of text differ between processes
        PyObject_GetBuffer(packed, &view, PyBUF_SIMPLE)
        try:
            of = read_nodes(<const uint8_t *> view.buf, view.len, nodes, &count)
            if of < 3 or nodes[0].kind != KIND_TUPLE or nodes[0].items != 2 or of > MOST_NODES - 2:
                return False
            if wide_kind(&nodes[1]) != KIND_INT64 and nodes[1].kind != KIND_STR:
                return False
            if not self._take_kinds(nodes, of):
                return False
            self._reserve(count)
            while at < count:
                n = <int> min(count - at, <Py_ssize_t> KEY_BLOCK)
                portable_hashes(&nodes[1], n, hashes)
                for i in range(n):
                    self.proof += mixed(hashes[i])
                    to = <int64_t> hashes[i] % self._partitions
                    self._groups[self.rows + i] = <uint32_t> (to + self._partitions if to < 0 else to)
                self._take(nodes, of, n)
                at += n
        finally:
            PyBuffer_Release(&view)
        self.read += count
        return True

    @property
    def full(self):
        """Whether it has enough pairs for lists of about ``group_bytes``."""
        cdef int64_t used = self.rows * 8 * self._width + self._texts.used
        return used >= self._group_bytes * self._partitions or used >= MOST_HELD

    def lists(self):
        """Remove and return the pairs.

        Returns
        -------
        iterator of (int, bytes)
            Partition, and a list of its pairs as ``pack_plain`` packs it.
        """
        cdef int64_t p, start, stop, step
        if self.rows == 0:
            return
        step = max(<int64_t> 1, self._group_bytes * self.rows // (self.rows * 8 * self._width + self._texts.used))
        self._sort(self._partitions)
        for p in range(self._partitions) if self._wanted is None else self._wanted:
            start = self._starts[p]
            while start < self._starts[p + 1]:
                stop = min(self._starts[p + 1], start + step)
                if self._starts[p + 1] - stop < step // 2:
                    stop = self._starts[p + 1]         # avoid a short list at the end
                yield p, self._pack(start, stop, self._side)
                start = stop
        self._empty()


cdef class PlainPickles(PlainRows):
    """PlainPickles()\n--\n
    Converts pickled lists of pairs to packed ones, without making objects.
    """

    def __dealloc__(self):
        PyMem_Free(self._memo_texts)
        PyMem_Free(self._lengths)

    def packed(self, bytes pickle not None):
        """The result of ``pack_plain`` for a pickled list.

        Returns
        -------
        bytes or None
            None: the pairs are not plain, or CPython did not write the pickle; use ``pickle.loads``.
        """
        cdef const uint8_t *p = pickle
        self.rows = self._nodes = self._width = 0
        self._texts.used = self._memo = 0
        if not self._parse(p, p + len(pickle)) or self.rows == 0:
            return None
        return self._pack(0, self.rows, -1)

    cdef int _remember(self, const uint8_t *p, uint8_t n) except -1:
        if self._memo == self._memo_room:
            self._memo_room = max(<int64_t> 1024, 2 * self._memo_room)
            self._memo_texts = <const uint8_t **> resized(self._memo_texts, 8 * self._memo_room)
            self._lengths = <uint8_t *> resized(self._lengths, self._memo_room)
        self._memo_texts[self._memo] = p
        self._lengths[self._memo] = n
        self._memo += 1
        return 0

    cdef bint _parse(self, const uint8_t *p, const uint8_t *end) except -1:
        """Parses pairs without nested tuples. Opcodes are named as in pickletools; others are not supported."""
        cdef int64_t x = 0
        cdef uint32_t u
        cdef int32_t x32
        cdef uint16_t x16
        cdef int cell = 0, kind, i
        cdef uint8_t op, n
        cdef bint marked = False
        cdef const uint8_t *text
        self._nodes = 3
        self._width = 2
        self._kinds[0] = KIND_TUPLE
        self._items[0] = 2
        self._items[1] = self._items[2] = 0
        self._kinds[1] = self._kinds[2] = 0
        if end - p < 4 or p[0] != 0x80 or not 4 <= p[1] <= 5:              # PROTO
            return False
        p += 2
        if p[0] == 0x95:                                                    # FRAME
            if end - p < 9:
                return False
            p += 9
        if end - p < 3 or p[0] != c"]" or p[1] != 0x94:                     # EMPTY_LIST, MEMOIZE
            return False
        self._remember(NULL, 0)
        p += 2
        texts_room(&self._texts, end - p)
        while p < end:
            if self.rows + 1 > self._room:
                self._reserve(max(<int64_t> 1024, self.rows))
            op = p[0]
            p += 1
            kind = 0
            if op == c"K":                                                  # BININT1
                if end - p < 1:
                    return False
                kind, x = KIND_INT64, p[0]
                p += 1
            elif op == c"M":                                                # BININT2
                if end - p < 2:
                    return False
                memcpy(&x16, p, 2)
                kind, x = KIND_INT64, x16
                p += 2
            elif op == c"J":                                                # BININT
                if end - p < 4:
                    return False
                memcpy(&x32, p, 4)
                kind, x = KIND_INT64, x32
                p += 4
            elif op == 0x8A:                                                # LONG1
                if end - p < 1 or p[0] > 8 or end - p < 1 + p[0]:
                    return False
                n = p[0]
                x = -1 if n and p[n] & 0x80 else 0
                memcpy(&x, p + 1, n)
                kind = KIND_INT64
                p += 1 + n
            elif op == c"G":                                                # BINFLOAT
                if end - p < 8:
                    return False
                x = 0
                for i in range(8):
                    x = x << 8 | p[i]
                kind = KIND_FLOAT
                p += 8
            elif op == c"N" or op == 0x88 or op == 0x89:                    # NONE, NEWTRUE, NEWFALSE
                kind, x = KIND_FLAG, 0 if op == c"N" else 2 if op == 0x88 else 1
            elif op == 0x8C:                                                # SHORT_BINUNICODE
                if end - p < 1 or p[0] > LONGEST or end - p < 2 + p[0] or p[1 + p[0]] != 0x94:
                    return False
                n = p[0]
                text = p + 1
                p += 2 + n
                if not fb_ascii(text, n):
                    for i in range(n - 1):
                        if text[i] == 0xED and text[i + 1] >= 0xA0:
                            return False                                    # a lone surrogate is not valid UTF-8
                self._remember(text, n)
                texts_room(&self._texts, n)
                kind, x = KIND_STR, texts_put(&self._texts, text, n)
            elif op == c"h" or op == c"j":                                  # BINGET, LONG_BINGET
                if end - p < (1 if op == c"h" else 4):
                    return False
                u = p[0]
                if op == c"j":
                    memcpy(&u, p, 4)
                p += 1 if op == c"h" else 4
                if u >= self._memo or self._memo_texts[u] == NULL:
                    return False                                            # a reference to a pair, not to a text
                texts_room(&self._texts, self._lengths[u])
                kind, x = KIND_STR, texts_put(&self._texts, self._memo_texts[u], self._lengths[u])
            if kind:
                if cell == 2 or (self._kinds[1 + cell] and self._kinds[1 + cell] != kind):
                    return False
                self._kinds[1 + cell] = <uint8_t> kind
                self._cells[2 * self.rows + cell] = x
                cell += 1
            elif op == 0x86:                                                # TUPLE2
                if cell != 2 or end - p < 1 or p[0] != 0x94:                # MEMOIZE
                    return False
                self._remember(NULL, 0)
                p += 1
                cell = 0
                self.rows += 1
                if not marked and (end - p < 1 or p[0] != c"a"):            # a single pair is followed by APPEND
                    return False
            elif op == c"(":                                                # MARK
                if marked or cell:
                    return False
                marked = True
            elif op == c"e":                                                # APPENDS
                if not marked or cell:
                    return False
                marked = False
            elif op == c"a":                                                # APPEND
                if marked or cell or self.rows == 0:
                    return False
            elif op == 0x95:                                                # FRAME
                if end - p < 8:
                    return False
                p += 8
            elif op == c".":                                                # STOP
                return p == end and not marked and not cell
            else:
                return False
        return False

"""Rows that stay encoded until a field is read; they are compared and hashed by the encoded key.

What they gain: a gate that gives tuples takes three times as long to add up one field as a lazy gate by its column, and
one and a half times as long as that row by row.  Of 1,000 rows of four fields, to decode them all takes 2.3 times as
long as to read one field row by row, 11 times as long as to read it as a column, 23 times as long as to read one row.
To put them into the order of three fields takes a quarter longer when they are decoded, half as long again by their
columns.  By one field columns are the better keys: sums take a third of the time (docs/explanation/what-stays.md).
"""

import numpy as np

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.object cimport Py_EQ, Py_GT, Py_LE, Py_LT, Py_NE, PyObject, PyObject_GenericGetAttr
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from fastbuf.serializers.block_head cimport HEAD_BYTES, records_of
from fastbuf.serializers.lazy_plan cimport LazyPlan
from fastbuf.serializers.objects cimport *
from fastbuf.serializers.row_decode cimport bad_end, bad_null, fill_record, read_value
from fastbuf.serializers.row_order cimport hash_of, mixed, order_of
from fastbuf.serializers.row_plan cimport OP_BINARY, OP_BOOL, OP_FLOAT64, OP_INT64, OP_STRING, Node

from fastbuf.errors import BlockCorrupt, BlockError, BlockTruncated, RecordError, SegmentStateError
from fastbuf.serializers.block import KIND_ROW, check_block, count_mismatch

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *)

cdef extern from "fb_get_column.h":
    enum:
        FB_COLUMN_OTHER
        FB_COLUMN_INT64
        FB_COLUMN_DOUBLE
        FB_COLUMN_TEXT
        FB_COLUMN_BYTES
    ctypedef struct fb_column:
        int kind
        int nulls
        int nullable
        int32_t place
        int32_t offset
        int32_t head
        int32_t before
    # Stops before a value that it cannot decode, without an error.
    Py_ssize_t fb_get_column(fb_column column, PyObject *values, const uint8_t *data, const int64_t *starts) noexcept

cdef enum:
    PREFIX = 4
    OURS = 2                  # references to a row that only its iterator has: the attribute, and the local name
    ROWS = 1                  # KIND_ROW

assert KIND_ROW == ROWS

# Random per process, like Python's own hashes of text: nobody can choose keys that collide.
cdef uint64_t SEED = <uint64_t> <int64_t> hash("fastbuf rows")
cdef object EMPTY = np.empty


@cython.final
cdef class LazyRows:
    """LazyRows()\n--\n
    The records of a block, still encoded; made by :meth:`RowSerializer.view`.

    A sequence of :class:`LazyRow`.  To read one field of every record, use :meth:`values` or :meth:`array`: they make
    no row objects.

    Attributes
    ----------
    key : tuple of str or None
        Names of the fields by which rows are compared and hashed; None: rows cannot be.

    Notes
    -----
    It reads the given bytes and copies none.  It exports their buffer until :meth:`release`, or until it and all its
    rows are freed: meanwhile a bytearray cannot be resized and a segment cannot be recycled (``SegmentExported``). Do
    not change the bytes meanwhile: a field may then be refused as corrupt, but nothing outside is read. After
    :meth:`release` its rows raise ``SegmentStateError``.
    """

    def __init__(self):
        raise TypeError("LazyRows is made by RowSerializer.view")

    def __dealloc__(self):
        if self._open:
            PyBuffer_Release(&self._buffer)
        free(self._starts)

    cdef int _hold(self, object buf, Py_ssize_t head) except -1:
        PyObject_GetBuffer(buf, &self._buffer, PyBUF_SIMPLE)
        self._open = True
        self._bytes = <const uint8_t *> self._buffer.buf + head
        self._size = self._buffer.len - head
        return 0

    cdef int _set_key(self, object wanted) except -1:
        self._key = self._plan.key(wanted)
        self.key = None if self._key is None else self._key.names
        return 0

    cdef int _index(self, Py_ssize_t records) except -1:
        # _find relies on this check: each record is inside the bytes, and no shorter than its fixed part.
        cdef const uint8_t *p = self._bytes
        cdef Py_ssize_t i, at = 0, n = self._size, head = self._plan.root.head
        cdef int64_t *starts
        cdef uint32_t size
        if records > n // PREFIX:
            raise BlockCorrupt(f"a block counts {records:,} records, its body has {n:,} bytes")
        self._reserve(records)
        starts = self._starts
        for i in range(records):
            if n - at < PREFIX:
                raise count_mismatch(records, i)
            memcpy(&size, p + at, PREFIX)
            at += PREFIX
            if size > n - at:
                raise BlockCorrupt(f"record {i}: its length is {size:,} bytes, and {n - at:,} are left")
            if size < head:
                raise BlockTruncated(f"record {i}: the record needs {head:,} bytes and has {size:,}")
            starts[i] = at
            at += size
        starts[records] = at + PREFIX
        if at != n:
            raise BlockCorrupt(f"{n - at:,} bytes are left over after {records:,} records")
        return 0

    cdef int _reserve(self, Py_ssize_t records) except -1:
        self._starts = <int64_t *> malloc((records + 1) * sizeof(int64_t))
        if self._starts == NULL:
            raise MemoryError(f"no memory to index {records:,} records")
        self._records = records
        return 0

    cdef int _check(self) except -1:
        if not self._open:
            raise SegmentStateError("these rows were released: their memory may have been reused")
        return 0

    cdef inline LazyRow _row(self, Py_ssize_t i):
        cdef LazyRow row = LazyRow.__new__(LazyRow)
        row._rows = self
        row._p = self._bytes + self._starts[i]
        row._n = self._starts[i + 1] - PREFIX - self._starts[i]
        return row

    cdef inline int _find(self, Py_ssize_t i, const uint8_t *p, Py_ssize_t n, const uint8_t **value,
                          Py_ssize_t *length) except -1:
        cdef Node *root = self._plan.root
        cdef Node *f = &root.children[i]
        cdef uint32_t before = 0, end
        if root.bitmap and p[i >> 3] >> (i & 7) & 1:
            if not f.nullable:
                bad_null(f)
            return 0
        if not f.varlen:
            value[0] = p + f.offset
            length[0] = f.slot
            return 1
        n -= root.head
        memcpy(&end, p + f.offset, 4)
        if self._plan.before[i] >= 0:
            memcpy(&before, p + self._plan.before[i], 4)
        if end < before or end > <size_t> n:
            bad_end(f, end, before, n)
        value[0] = p + root.head + before
        length[0] = end - before
        return 1

    cdef inline object _read(self, Py_ssize_t i, const uint8_t *p, Py_ssize_t n):
        cdef const uint8_t *value
        cdef Py_ssize_t length
        cdef PyObject *value_object
        cdef Node *f = &self._plan.root.children[i]
        cdef int64_t x
        cdef double d
        if not self._find(i, p, n, &value, &length):
            return None
        if f.op == OP_INT64:
            memcpy(&x, value, 8)
            value_object = fb_int64(x)
        elif f.op == OP_FLOAT64:
            memcpy(&d, value, 8)
            value_object = fb_float(d)
        else:
            value_object = read_value(f, value, length)
        result = <object> value_object
        Py_DECREF(value_object)
        return result

    def __len__(self):
        return self._records

    def __getitem__(self, i):
        cdef Py_ssize_t at
        if isinstance(i, slice):
            raise TypeError("rows of a block have no slices: take them one by one, or list(rows)[1:3]")
        at = i
        if at < 0:
            at += self._records
        if not 0 <= at < self._records:
            raise IndexError(f"record {i} of {self._records:,}")
        self._check()
        return self._row(at)

    def __iter__(self):
        cdef LazyIterator iterator = LazyIterator.__new__(LazyIterator)
        iterator._rows = self
        return iterator

    def values(self, field):
        """One field of every record, decoded.

        Parameters
        ----------
        field : str or int
            Its name or position.

        Returns
        -------
        list
            One per record.

        Raises
        ------
        BlockCorrupt
            A value is not valid; the message names the record.
        """
        self._check()
        cdef Py_ssize_t place = self._plan.place(field), i = 0, length
        cdef Node *f = &self._plan.root.children[place]
        cdef const uint8_t *p
        cdef const uint8_t *value
        cdef PyObject *item
        cdef PyObject *out
        cdef fb_column column
        column.kind = _column_kind(f.op)
        column.nulls = self._plan.root.bitmap != 0
        column.nullable = f.nullable
        column.place = place
        column.offset = f.offset
        column.head = self._plan.root.head
        column.before = self._plan.before[place]
        out = PyList_New(self._records)
        try:
            for i in range(fb_get_column(column, out, self._bytes, self._starts), self._records):
                p = self._bytes + self._starts[i]
                if self._find(place, p, self._starts[i + 1] - PREFIX - self._starts[i], &value, &length):
                    item = read_value(f, value, length)
                else:
                    item = Py_None
                    Py_INCREF(item)
                PyList_SET_ITEM(out, i, item)
            return <object> out
        except BlockError as error:
            raise type(error)(f"record {i}: {error}") from None
        finally:
            Py_DECREF(out)

    def array(self, field):
        """One field of every record as a NumPy array, without a Python object per record.

        Parameters
        ----------
        field : str or int
            A number, a bool, a date, a timestamp (with a zone: in UTC) or a duration.

        Returns
        -------
        ndarray
            A copy of shape (records,) and the field's own type: int8 to uint64, float16 to float64, bool, datetime64 or
            timedelta64.

        Raises
        ------
        SchemaError
            The field has another type.
        RecordError
            The field is None in some record; the message names it.
        BlockCorrupt
            A value is not valid.
        """
        self._check()
        cdef Py_ssize_t place = self._plan.place(field), failed
        cdef Node *f = &self._plan.root.children[place]
        cdef Py_buffer view
        slots, wanted = self._plan.array_types(place)
        values = EMPTY(self._records, slots)
        PyObject_GetBuffer(values, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        try:
            failed = self._gather(place, <uint8_t *> view.buf)
        finally:
            PyBuffer_Release(&view)
        if failed >= 0:
            if self._plan.root.bitmap and self._none(place, failed):
                raise RecordError(f"record {failed}: field {<object> f.path!r} is None, which an array cannot hold: "
                                  "take values()")
            raise BlockCorrupt(f"record {failed}: field {<object> f.path!r}: a bool is neither 0 nor 1")
        if wanted is None:
            return values
        return values.view(wanted) if f.slot == 8 else values.astype(wanted)

    cdef bint _none(self, Py_ssize_t place, Py_ssize_t i) except -1:
        if not self._bytes[self._starts[i] + (place >> 3)] >> (place & 7) & 1:
            return False
        if not self._plan.root.children[place].nullable:
            bad_null(&self._plan.root.children[place])
        return True

    cdef Py_ssize_t _gather(self, Py_ssize_t place, uint8_t *to) noexcept:
        # Copies the slots of a field in order.  Returns -1, or the first record in which it is null or not a valid
        # bool.
        cdef Node *f = &self._plan.root.children[place]
        cdef const uint8_t *start = self._bytes + f.offset
        cdef const uint8_t *bits = self._bytes + (place >> 3)
        cdef int64_t *starts = self._starts
        cdef Py_ssize_t i, n = self._records, slot = f.slot
        if self._plan.root.bitmap:
            for i in range(n):
                if bits[starts[i]] >> (place & 7) & 1:
                    return i
        if slot == 8:
            for i in range(n):
                memcpy(to + 8 * i, start + starts[i], 8)
        elif slot == 4:
            for i in range(n):
                memcpy(to + 4 * i, start + starts[i], 4)
        else:
            for i in range(n):
                memcpy(to + i * slot, start + starts[i], slot)
        if f.op == OP_BOOL:
            for i in range(n):
                if to[i] > 1:
                    return i
        return -1

    def release(self):
        """Release the bytes now; a second call does nothing."""
        if self._open:
            self._open = False
            PyBuffer_Release(&self._buffer)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.release()


@cython.auto_pickle(False)
@cython.freelist(64)
@cython.no_gc  # LazyRows does not refer to rows, so there is no cycle to find
@cython.final
cdef class LazyRow:
    """LazyRow()\n--\n
    One encoded record; a field is decoded each time it is read.

    Use ``row[2]``, ``row["name"]``, ``row.name`` (unless it is a method), :meth:`as_tuple`.  Rows of the same schema
    and key are compared and hashed by the encoded key, with Spark's rules for grouping and sorting: None is less than
    everything, NaN equals itself and is greater than every number, 0.0 equals -0.0.  A row keeps its :class:`LazyRows`
    and the bytes alive.
    """

    def __init__(self):
        raise TypeError("rows come from RowSerializer.view")

    def __len__(self):
        return _rows_of(self)._plan.root.count

    def __getitem__(self, field):
        cdef LazyRows rows = _rows_of(self)
        cdef int64_t place
        if not rows._open:
            rows._check()
        if PyLong_CheckExact(<PyObject *> field) and fb_exact_int64(<PyObject *> field, &place) == 0:
            if 0 <= place < rows._plan.root.count:
                return rows._read(place, self._p, self._n)
        return rows._read(rows._plan.place(field), self._p, self._n)

    def __getattribute__(self, name):
        # Look for a field first: a failed attribute lookup costs ten times as much as reading a field.
        cdef LazyRows rows = self._rows
        if rows is None:                    # made from Python, so it is empty
            return PyObject_GenericGetAttr(self, name)
        place = rows._plan.attributes.get(name)
        if place is None:
            try:
                return PyObject_GenericGetAttr(self, name)
            except AttributeError:
                raise AttributeError(
                    f"a row of the fields {<object> rows._plan.root.names} has no {name!r}", name=name, obj=self
                ) from None
        if not rows._open:
            rows._check()
        return rows._read(place, self._p, self._n)

    def as_tuple(self):
        """All fields, decoded."""
        cdef LazyRows rows = _rows_of(self)
        cdef PyObject *record
        rows._check()
        record = PyTuple_New(rows._plan.root.count)
        try:
            fill_record(rows._plan.root, record, self._p, self._n)
            return <object> record
        finally:
            Py_DECREF(record)

    def __iter__(self):
        return iter(self.as_tuple())

    @property
    def key(self):
        """The key's fields, decoded: a tuple."""
        cdef LazyRows rows = _rows_of(self)
        cdef int32_t k
        if rows._key is None:
            raise TypeError(_keyless(rows))
        rows._check()
        return tuple([rows._read(rows._key.places[k], self._p, self._n) for k in range(rows._key.count)])

    def __hash__(self):
        cdef LazyRows rows = _rows_of(self)
        cdef const uint8_t *value
        cdef Py_ssize_t length
        cdef uint64_t h = SEED
        cdef int32_t k, i
        if rows._key is None:
            raise TypeError(_keyless(rows))
        rows._check()
        for k in range(rows._key.count):
            i = rows._key.places[k]
            if rows._find(i, self._p, self._n, &value, &length):
                h = hash_of(&rows._plan.root.children[i], value, length, h)
            else:
                h = mixed(h, 0xA5A5A5A5A5A5A5A5)
        return <Py_hash_t> h

    def __richcmp__(self, other, int how):
        cdef int c
        if not isinstance(other, LazyRow) or not _alike(_rows_of(self), _rows_of(<LazyRow> other)):
            return NotImplemented
        c = _compare(self, <LazyRow> other)
        if how == Py_EQ:
            return c == 0
        if how == Py_NE:
            return c != 0
        if how == Py_LT:
            return c < 0
        if how == Py_LE:
            return c <= 0
        if how == Py_GT:
            return c > 0
        return c >= 0

    def __repr__(self):
        if not _rows_of(self)._open:
            return "LazyRow(released)"
        fields = zip(<object> self._rows._plan.root.names, self.as_tuple())
        return f"LazyRow({', '.join(f'{name}={value!r}' for name, value in fields)})"


cdef LazyRows view_block(LazyPlan plan, object buf, object fingerprint, object key):
    cdef LazyRows rows = LazyRows.__new__(LazyRows)
    cdef int64_t records
    rows._plan = plan
    rows._hold(buf, HEAD_BYTES)
    records = records_of(rows._bytes - HEAD_BYTES, rows._size + HEAD_BYTES, ROWS, fingerprint)
    if records < 0:
        check_block(buf, KIND_ROW, fingerprint)               # raises the error
        raise BlockCorrupt("a block changed while it was read")
    rows._set_key(key)
    rows._index(records)
    return rows


cdef LazyRows view_elements(LazyPlan plan, object body, Py_ssize_t records):
    cdef LazyRows rows = LazyRows.__new__(LazyRows)
    rows._plan = plan
    rows._hold(body, 0)
    rows._set_key(None)
    rows._index(records)
    return rows


cdef LazyRow view_payload(LazyPlan plan, object payload, object key):
    cdef LazyRows rows = LazyRows.__new__(LazyRows)
    rows._plan = plan
    rows._hold(payload, 0)
    rows._set_key(key)
    if rows._size < plan.root.head:
        raise BlockTruncated(f"the record needs {plan.root.head:,} bytes and has {rows._size:,}")
    rows._reserve(1)
    rows._starts[0], rows._starts[1] = 0, rows._size + PREFIX
    return rows._row(0)


cdef inline int _column_kind(uint8_t op) noexcept:
    if op == OP_INT64:
        return FB_COLUMN_INT64
    if op == OP_FLOAT64:
        return FB_COLUMN_DOUBLE
    if op == OP_STRING:
        return FB_COLUMN_TEXT
    return FB_COLUMN_BYTES if op == OP_BINARY else FB_COLUMN_OTHER


cdef inline LazyRows _rows_of(LazyRow row):
    if row._rows is None:                   # made from Python, so it is empty
        raise TypeError("rows come from RowSerializer.view")
    return row._rows


cdef str _keyless(LazyRows rows):
    return (f"rows of the fields {<object> rows._plan.root.names} have no key, since some are lists, structs or maps: "
            "give view() one")


cdef bint _alike(LazyRows a, LazyRows b):
    if a is b:
        return True
    return a.key == b.key and (a._plan is b._plan or a._plan.plan.schema == b._plan.plan.schema)


cdef int _compare(LazyRow a, LazyRow b) except -2:
    cdef LazyRows rows = a._rows
    cdef LazyRows others = b._rows
    cdef const uint8_t *x
    cdef const uint8_t *y
    cdef Py_ssize_t n, m
    cdef int32_t k, i
    cdef int here, there, c
    if rows._key is None:
        raise TypeError(_keyless(rows))
    rows._check()
    others._check()
    for k in range(rows._key.count):
        i = rows._key.places[k]
        here = rows._find(i, a._p, a._n, &x, &n)
        there = others._find(i, b._p, b._n, &y, &m)
        c = here - there
        if here and there:
            c = order_of(&rows._plan.root.children[i], x, n, y, m)
        if c:
            return c
    return 0


@cython.auto_pickle(False)
@cython.final
cdef class LazyIterator:
    """Rows of a :class:`LazyRows`, one at a time."""

    def __iter__(self):
        return self

    def __next__(self):
        cdef LazyRows rows = self._rows
        cdef LazyRow row = self._before
        cdef Py_ssize_t i = self._at
        if rows is None or i >= rows._records:
            raise StopIteration
        if not rows._open:
            rows._check()
        self._at = i + 1
        # Use the second last returned row again if only the iterator has it, as zip does with tuples.  The caller's
        # loop variable usually still has the last one.
        if row is not None and Py_REFCNT(<PyObject *> row) == OURS:
            row._p = rows._bytes + rows._starts[i]
            row._n = rows._starts[i + 1] - PREFIX - rows._starts[i]
        else:
            row = rows._row(i)
        self._before = self._last
        self._last = row
        return row

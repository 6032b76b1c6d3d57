"""Rows that stay bytes until a field of them is read; compared and hashed on their key as they lie there."""

import numpy as np

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.object cimport Py_EQ, Py_GT, Py_LE, Py_LT, Py_NE, PyObject, PyObject_GenericGetAttr
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from fastbuf.serializers.objects cimport (
    Py_DECREF, Py_INCREF, Py_None, PyList_New, PyList_SET_ITEM, PyLong_CheckExact, PyTuple_New, fb_exact_int64,
    fb_float, fb_int64,
)
from fastbuf.serializers.row_decode cimport bad_end, bad_null, fill_record, read_value
from fastbuf.serializers.row_order cimport hash_of, mixed, order_of
from fastbuf.serializers.row_plan cimport OP_FLOAT64, OP_INT64, OP_PACKED, Node, RowPlan

from fastbuf.errors import BlockCorrupt, BlockError, BlockTruncated, RecordError, SchemaError, SegmentStateError
from fastbuf.serializers.block import count_mismatch

cdef enum:
    PREFIX = 4

# As unlike from process to process as Python's own hashes of text are: keys of strangers cannot be made to collide.
cdef uint64_t SEED = <uint64_t> <int64_t> hash("fastbuf rows")

# NumPy's type of a column, by the field's kind; those with a unit are completed by it.
cdef dict ARRAYS = {"bool": "?", "date32": "M8[D]", "date64": "M8[ms]", "timestamp": "M8", "duration": "m8"}
cdef tuple NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
                      "float64")


@cython.final
cdef class LazyRows:
    """The records of a block, as they lie in it; made by :meth:`RowSerializer.view`.

    A sequence of :class:`LazyRow`.  Where one field of every record is wanted, :meth:`values` and :meth:`array` make no
    row objects at all.

    Attributes
    ----------
    key : tuple of str or None
        Names of the fields that rows are compared and hashed by; None: they cannot be.

    Notes
    -----
    It reads the bytes it was given, and copies none: it exports their buffer until :meth:`release` or until it and all
    its rows are gone.  Meanwhile a bytearray cannot be resized and a segment not recycled (``SegmentExported``); the
    bytes should not be changed either, and if they are, a field may be refused as corrupt, but nothing outside is read.
    After :meth:`release` its rows raise ``SegmentStateError``.
    """

    def __init__(self, RowPlan plan not None, body, Py_ssize_t records, key=None):
        cdef Py_ssize_t i, last = -1
        if self._starts != NULL or self._open:
            raise TypeError("LazyRows is made by RowSerializer.view")
        self._plan = plan
        self._places = {name: place for place, name in enumerate(<object> plan.root.names)}
        self._attributes = {name: place for name, place in self._places.items() if not hasattr(LazyRow, name)}
        self._before = <int32_t *> malloc(max(plan.root.count, 1) * sizeof(int32_t))
        self._key = <int32_t *> malloc(max(plan.root.count, 1) * sizeof(int32_t))
        if self._before == NULL or self._key == NULL:
            raise MemoryError
        for i in range(plan.root.count):
            self._before[i] = <int32_t> last
            if plan.root.children[i].varlen:
                last = plan.root.children[i].offset
        self._choose(key)
        PyObject_GetBuffer(body, &self._buffer, PyBUF_SIMPLE)
        self._open = True
        if records < 0:
            # One payload without its length.
            self._records = 1
        else:
            self._records = records
            if records > self._buffer.len // PREFIX:
                raise BlockCorrupt(f"a block counts {records:,} records, its body has {self._buffer.len:,} bytes")
        self._starts = <int64_t *> malloc((self._records + 1) * sizeof(int64_t))
        if self._starts == NULL:
            raise MemoryError(f"no memory to index {self._records:,} records")
        if records < 0:
            self._starts[0], self._starts[1] = 0, self._buffer.len + PREFIX
            if self._buffer.len < plan.root.head:
                raise BlockTruncated(f"the record needs {plan.root.head:,} bytes and has {self._buffer.len:,}")
        else:
            self._index(<const uint8_t *> self._buffer.buf, self._buffer.len)

    def __dealloc__(self):
        if self._open:
            PyBuffer_Release(&self._buffer)
        free(self._starts)
        free(self._before)
        free(self._key)

    cdef int _index(self, const uint8_t *p, Py_ssize_t left) except -1:
        cdef Py_ssize_t i, at = 0
        cdef uint32_t size
        for i in range(self._records):
            if left < PREFIX:
                raise count_mismatch(self._records, i)
            memcpy(&size, p + at, PREFIX)
            left -= PREFIX
            if size > left:
                raise BlockCorrupt(f"record {i}: its length is {size:,} bytes, and {left:,} are left")
            if size < <uint32_t> self._plan.root.head:
                raise BlockTruncated(f"record {i}: the record needs {self._plan.root.head:,} bytes and has {size:,}")
            at += PREFIX
            self._starts[i] = at
            at += size
            left -= size
        self._starts[self._records] = at + PREFIX
        if left:
            raise BlockCorrupt(f"{left:,} bytes are left over after {self._records:,} records")
        return 0

    cdef int _choose(self, object key) except -1:
        cdef Node *root = self._plan.root
        cdef int32_t place
        names = <object> root.names
        if key is None:
            if any(root.children[place].op >= OP_PACKED for place in range(root.count)):
                self._keys = -1
                return 0
            chosen = names
        else:
            chosen = (key,) if isinstance(key, (str, int)) else tuple(key)
            if not chosen:
                raise SchemaError("a key has one field at least")
        if len(chosen) > root.count:
            raise SchemaError(f"a key of {len(chosen)} fields of a schema of {root.count}")
        for field in chosen:
            place = <int32_t> self._place(field)
            if root.children[place].op >= OP_PACKED:
                raise SchemaError(f"field {names[place]!r} ({<object> root.children[place].type}) cannot be in a key: "
                                  "lists, structs and maps have no order")
            self._key[self._keys] = place
            self._keys += 1
        self.key = tuple([names[self._key[place]] for place in range(self._keys)])
        return 0

    cdef int _check(self) except -1:
        if not self._open:
            raise SegmentStateError("these rows were released: what they lay in may be in use for something else")
        return 0

    cdef Py_ssize_t _place(self, object field) except -1:
        cdef Py_ssize_t place
        if isinstance(field, str):
            found = self._places.get(field)
            if found is None:
                raise SchemaError(f"no field {field!r}: the fields are {<object> self._plan.root.names}")
            return found
        place = field
        if place < 0:
            place += self._plan.root.count
        if not 0 <= place < self._plan.root.count:
            raise IndexError(f"field {field} of {self._plan.root.count}")
        return place

    cdef inline LazyRow _row(self, Py_ssize_t i):
        cdef LazyRow row = LazyRow.__new__(LazyRow)
        row._rows = self
        row._p = <const uint8_t *> self._buffer.buf + self._starts[i]
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
        if self._before[i] >= 0:
            memcpy(&before, p + self._before[i], 4)
        if end < before or end > <size_t> n:
            bad_end(f, end, before, n)
        value[0] = p + root.head + before
        length[0] = end - before
        return 1

    cdef inline object _read(self, Py_ssize_t i, const uint8_t *p, Py_ssize_t n):
        cdef const uint8_t *value
        cdef Py_ssize_t length
        cdef PyObject *made
        cdef Node *f = &self._plan.root.children[i]
        cdef int64_t x
        cdef double d
        if not self._find(i, p, n, &value, &length):
            return None
        if f.op == OP_INT64:
            memcpy(&x, value, 8)
            made = fb_int64(x)
        elif f.op == OP_FLOAT64:
            memcpy(&d, value, 8)
            made = fb_float(d)
        else:
            made = read_value(f, value, length)
        found = <object> made
        Py_DECREF(made)
        return found

    def __len__(self):
        return self._records

    def __getitem__(self, i):
        cdef Py_ssize_t at = i
        if at < 0:
            at += self._records
        if not 0 <= at < self._records:
            raise IndexError(f"record {i} of {self._records:,}")
        self._check()
        return self._row(at)

    def __iter__(self):
        cdef LazyIterator found = LazyIterator.__new__(LazyIterator)
        found._rows = self
        return found

    def values(self, field):
        """One field of every record, decoded.

        Parameters
        ----------
        field : str or int
            Its name or position.

        Returns
        -------
        list
            As many as there are records.

        Raises
        ------
        BlockCorrupt
            A value that no encoder writes; the message names the record.
        """
        cdef Py_ssize_t place = self._place(field), i, length
        cdef Node *f = &self._plan.root.children[place]
        cdef const uint8_t *start
        cdef const uint8_t *value
        cdef PyObject *made
        cdef bint plain = not f.varlen and not self._plan.root.bitmap
        cdef int64_t x
        cdef double d
        self._check()
        start = <const uint8_t *> self._buffer.buf
        cdef PyObject *out = PyList_New(self._records)
        i = 0
        try:
            if plain and f.op == OP_INT64:
                for i in range(self._records):
                    memcpy(&x, start + self._starts[i] + f.offset, 8)
                    PyList_SET_ITEM(out, i, fb_int64(x))
            elif plain and f.op == OP_FLOAT64:
                for i in range(self._records):
                    memcpy(&d, start + self._starts[i] + f.offset, 8)
                    PyList_SET_ITEM(out, i, fb_float(d))
            else:
                for i in range(self._records):
                    value = start + self._starts[i]
                    if self._find(place, value, self._starts[i + 1] - PREFIX - self._starts[i], &value, &length):
                        made = read_value(f, value, length)
                    else:
                        made = Py_None
                        Py_INCREF(made)
                    PyList_SET_ITEM(out, i, made)
            return <object> out
        except BlockError as error:
            raise type(error)(f"record {i}: {error}") from None
        finally:
            Py_DECREF(out)

    def array(self, field):
        """One field of every record as a NumPy array: no Python object a record.

        Parameters
        ----------
        field : str or int
            A number, a bool, a date, a timestamp (of a zoned one its UTC) or a duration.

        Returns
        -------
        ndarray
            Of shape (records,) and the field's own type: int8 to uint64, float16 to float64, bool, datetime64 or
            timedelta64.  A copy.

        Raises
        ------
        SchemaError
            A field of another type.
        RecordError
            The field is None somewhere; the message names the record.
        """
        cdef Py_ssize_t place = self._place(field), i, length, slot
        cdef Node *f = &self._plan.root.children[place]
        cdef const uint8_t *p
        cdef const uint8_t *start
        cdef uint8_t[::1] view
        cdef uint8_t *to
        made = np.empty(self._records, _dtype(self._plan.schema.fields[place]))
        self._check()
        if self._records == 0:
            return made
        view = made.view(np.uint8)
        to = &view[0]
        slot = f.slot
        start = <const uint8_t *> self._buffer.buf + f.offset
        if self._plan.root.bitmap:
            for i in range(self._records):
                p = <const uint8_t *> self._buffer.buf + self._starts[i]
                if not self._find(place, p, self._starts[i + 1] - PREFIX - self._starts[i], &p, &length):
                    raise RecordError(f"record {i}: field {<object> f.path!r} is None, which an array cannot hold: "
                                      "take values()")
                memcpy(to + i * slot, p, slot)
        elif slot == 8:
            for i in range(self._records):
                memcpy(to + 8 * i, start + self._starts[i], 8)
        elif slot == 4:
            for i in range(self._records):
                memcpy(to + 4 * i, start + self._starts[i], 4)
        else:
            for i in range(self._records):
                memcpy(to + i * slot, start + self._starts[i], slot)
        if made.dtype.kind == "b" and (made.view(np.uint8) > 1).any():
            raise BlockCorrupt(f"field {<object> f.path!r}: a bool is neither 0 nor 1")
        return made

    def release(self):
        """Let go of the bytes now; a second time does nothing."""
        if self._open:
            self._open = False
            PyBuffer_Release(&self._buffer)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.release()


cdef object _dtype(object field):
    # The slot's type: NumPy's where it has one.
    kind = field.type.kind
    if kind == "dictionary":
        kind = field.type.children[1].type.kind
        unit = field.type.children[1].type.unit
    else:
        unit = field.type.unit
    if kind in NUMBERS:
        return np.dtype(kind).newbyteorder("<")
    if kind not in ARRAYS:
        raise SchemaError(f"field {field.name!r} ({field.type}) cannot be an array: take values()")
    return np.dtype(f"{ARRAYS[kind]}[{unit}]" if kind in ("timestamp", "duration") else ARRAYS[kind])


@cython.freelist(64)
@cython.no_gc  # its LazyRows knows no row: there is no cycle to find
@cython.final
cdef class LazyRow:
    """One encoded record; a field is decoded when it is read, each time.

    ``row[2]``, ``row["name"]``, ``row.name`` (names of methods aside), :meth:`as_tuple`.  Rows of one schema and key
    are compared and hashed by the key's bytes, as Spark groups and sorts: None is less than everything, NaN equals
    itself and is more than every number, 0.0 equals -0.0.  It keeps its :class:`LazyRows` and with that its bytes.
    """

    def __init__(self):
        raise TypeError("rows come from RowSerializer.view")

    def __len__(self):
        return self._rows._plan.root.count

    def __getitem__(self, field):
        cdef LazyRows rows = self._rows
        cdef int64_t place
        if not rows._open:
            rows._check()
        if PyLong_CheckExact(<PyObject *> field) and fb_exact_int64(<PyObject *> field, &place) == 0:
            if 0 <= place < rows._plan.root.count:
                return rows._read(place, self._p, self._n)
        return rows._read(rows._place(field), self._p, self._n)

    def __getattribute__(self, name):
        # Fields first, since looking for an attribute in vain costs ten times what reading a field does.
        cdef LazyRows rows = self._rows
        if rows is None:                    # one that Python made, with nothing in it
            return PyObject_GenericGetAttr(self, name)
        place = rows._attributes.get(name)
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
        cdef LazyRows rows = self._rows
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
        cdef LazyRows rows = self._rows
        cdef int32_t k
        if rows._keys < 0:
            raise TypeError(_keyless(rows))
        rows._check()
        return tuple([rows._read(rows._key[k], self._p, self._n) for k in range(rows._keys)])

    def __hash__(self):
        cdef LazyRows rows = self._rows
        cdef const uint8_t *value
        cdef Py_ssize_t length
        cdef uint64_t h = SEED
        cdef int32_t k, i
        if rows._keys < 0:
            raise TypeError(_keyless(rows))
        rows._check()
        for k in range(rows._keys):
            i = rows._key[k]
            if rows._find(i, self._p, self._n, &value, &length):
                h = hash_of(&rows._plan.root.children[i], value, length, h)
            else:
                h = mixed(h, 0xA5A5A5A5A5A5A5A5)
        return <Py_hash_t> h

    def __richcmp__(self, other, int how):
        cdef int c
        if not isinstance(other, LazyRow) or not _alike(self._rows, (<LazyRow> other)._rows):
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
        if not self._rows._open:
            return "LazyRow(released)"
        fields = zip(<object> self._rows._plan.root.names, self.as_tuple())
        return f"LazyRow({', '.join(f'{name}={value!r}' for name, value in fields)})"


cdef str _keyless(LazyRows rows):
    return (f"rows of the fields {<object> rows._plan.root.names} have no key, since some are lists, structs or maps: "
            "give view() one")


cdef bint _alike(LazyRows a, LazyRows b):
    if a is b:
        return True
    return a.key == b.key and (a._plan is b._plan or a._plan.schema == b._plan.schema)


cdef int _compare(LazyRow a, LazyRow b) except -2:
    cdef LazyRows rows = a._rows
    cdef LazyRows others = b._rows
    cdef const uint8_t *x
    cdef const uint8_t *y
    cdef Py_ssize_t n, m
    cdef int32_t k, i
    cdef int here, there, c
    if rows._keys < 0:
        raise TypeError(_keyless(rows))
    rows._check()
    others._check()
    for k in range(rows._keys):
        i = rows._key[k]
        here = rows._find(i, a._p, a._n, &x, &n)
        there = others._find(i, b._p, b._n, &y, &m)
        c = here - there
        if here and there:
            c = order_of(&rows._plan.root.children[i], x, n, y, m)
        if c:
            return c
    return 0


@cython.final
cdef class LazyIterator:
    """Rows of a :class:`LazyRows`, one at a time."""

    def __iter__(self):
        return self

    def __next__(self):
        cdef LazyRows rows = self._rows
        if self._at >= rows._records:
            raise StopIteration
        if not rows._open:
            rows._check()
        self._at += 1
        return rows._row(self._at - 1)

"""Encodes records of a schema as compact rows: tuples, named tuples, dicts, PySpark Rows."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from fastbuf.serializers.block_head cimport HEAD_BYTES, put_head, records_of
from fastbuf.serializers.lazy cimport LazyRow, view_block, view_payload
from fastbuf.serializers.lazy_plan cimport LazyPlan
from fastbuf.serializers.objects cimport *
from fastbuf.serializers.row_decode cimport append_records, fill_record, fill_records, new_record, track_record
from fastbuf.serializers.row_encode cimport Writer, write_elements, write_record
from fastbuf.serializers.row_plan cimport OP_BINARY, Node, RowPlan
from fastbuf.serializers.serializer cimport LEAST_TAIL, Serializer

from inspect import Parameter, signature
from types import GenericAlias
from typing import is_typeddict

from fastbuf.checks import flag, records_given
from fastbuf.errors import BlockCorrupt, BlockError, RecordError, SchemaError
from fastbuf.serializers.block import HEADER_BYTES, KIND_ROW, MAX_RECORDS, check_block, count_mismatch
from fastbuf.serializers.schema import Schema

cdef enum:
    HEADER = HEAD_BYTES
    PREFIX = 4
    ROWS = 1                  # KIND_ROW

assert HEADER_BYTES == HEADER and KIND_ROW == ROWS


cdef bint _is_named(object record, tuple names) except -1:
    if record is None or record is dict:
        return False
    if not isinstance(record, type) or not issubclass(record, tuple) or not hasattr(record, "_fields"):
        if not callable(record):
            raise SchemaError(f"records come out as a class or by a callable, not as {record!r}")
        return False
    if len(record._fields) != len(names):
        raise SchemaError(f"{record.__qualname__} has {len(record._fields)} fields, the schema has {len(names)}")
    if record._fields != names and set(record._fields) == set(names):
        # Tuples are written by position: read by name, one would not come back as it was
        raise SchemaError(f"{record.__qualname__} has the fields {', '.join(record._fields)}, the schema the same in "
                          f"another order: {', '.join(names)}")
    return True


def _takes_names(record, names):
    """Whether a callable takes the fields by name; parameters in another order than the fields do.

    SchemaError: it takes them neither by name nor in order.
    """
    try:
        sig = signature(record)
    except (TypeError, ValueError):         # a builtin that does not tell
        return False
    try:
        given = sig.bind(*names).arguments
        named = [name for name, taken in sig.parameters.items() if taken.kind is Parameter.POSITIONAL_OR_KEYWORD]
        crossed = [name for name in names if name in named and given.get(name) != name]
        if not crossed:
            return False
        why = f"in order its parameter {crossed[0]!r} would be given {given.get(crossed[0])!r}"
    except TypeError as error:
        why = error
    try:
        sig.bind(**dict.fromkeys(names))
        return True
    except TypeError:
        raise SchemaError(f"record={getattr(record, '__qualname__', record)} cannot be called with the schema's fields "
                          f"{', '.join(names)}: {why}") from None


cdef class RowSerializer(Serializer):
    """RowSerializer(schema, checksum=False, record=None)\n--\n
    Serializer of records of a fixed schema.

    Parameters
    ----------
    schema : Schema
        Any schema, except types that nest deeper than 64, and maps with nested keys.
    checksum : bool, optional
        Put a CRC32C into each block.
    record : type or callable, optional
        Class of decoded records.  Default: tuple.  A named tuple's class; ``dict`` or a TypedDict, with the fields'
        names as keys; or any callable that takes the fields' values in order, or by name (if its parameters have
        the fields' names in another order, or by name alone): a dataclass, a Struct of msgspec,
        ``pyspark.sql.Row("id", "name")``.  Structs within a record stay tuples, and lazy rows are not affected.

    Raises
    ------
    SchemaError
        Rows do not support a type of the schema, and the message names the field; or `record` does not take the
        schema's fields.

    Notes
    -----
    A record to encode is a tuple (or a subclass), a list, a dict with exactly the fields' names, or an object with
    attributes of these names.  A decoded record is a plain tuple, or a `record`.  Numbers of NumPy are accepted, and
    decoded as Python's.  Types are strict: no bool for an int, no text for a number, no naive datetime for a field with
    a time zone, no decimal that would lose digits.  A dictionary type is encoded as its values.

    A serializer keeps no data of records: any thread may use it.
    """

    def __init__(self, schema, checksum=False, record=None):
        if not isinstance(schema, Schema):
            raise SchemaError(f"a Schema is needed, not {schema!r:.100} ({type(schema).__name__}): make one by "
                              "Schema.of(name='int64'), Schema.from_arrow, from_numpy or from_class")
        self.kind = "row"
        self.schema = schema
        self.fingerprint = schema.fingerprint
        self.checksum = flag("checksum", checksum)
        self._plan = RowPlan(schema)
        self._bytes_per_record = PREFIX + self._plan.root.head + 16
        self._record = None if record is tuple else dict if is_typeddict(record) else record
        self._named = _is_named(self._record, schema.names)
        if self._record is not None and self._record is not dict and not self._named:
            self._by_name = _takes_names(self._record, schema.names)
        self._find_tail(self._plan.root)

    cdef void _find_tail(self, Node *root) noexcept:
        cdef Py_ssize_t i, last = -1
        self._tail_before = -1
        for i in range(root.count):
            if root.children[i].varlen:
                self._tail_before = root.children[last].offset if last >= 0 else -1
                last = i
        if last >= 0 and root.children[last].op == OP_BINARY:
            self._tail_field = last
            self._tail_slot = root.children[last].offset
            self.tail_head = root.head

    @classmethod
    def __class_getitem__(cls, record):
        return GenericAlias(cls, record)        # RowSerializer[Point], as in the stub

    def __reduce__(self):
        return RowSerializer, (self.schema, self.checksum, self._record)

    def __repr__(self):
        wanted = "" if self._record is None else f", record={getattr(self._record, '__qualname__', self._record)}"
        return f"RowSerializer({self.schema!r}{', checksum=True' if self.checksum else ''}{wanted})"

    cdef Py_ssize_t encode_record(self, object record, uint8_t *dst, Py_ssize_t room) except -1:
        cdef Writer w
        w.buf, w.at, w.room, w.owner = dst, 0, room, NULL
        try:
            write_record(self._plan.root, <PyObject *> record, &w)
            if w.owner != NULL and w.at <= room:
                memcpy(dst, w.buf, w.at)
        finally:
            Py_XDECREF(w.owner)
        return w.at

    cdef object decode_record(self, const uint8_t *src, Py_ssize_t length):
        return self._shaped(self._tuple(src, length))

    cdef object _tuple(self, const uint8_t *src, Py_ssize_t length):
        cdef PyTypeObject *named = <PyTypeObject *> self._record if self._named else NULL
        cdef PyObject *record = new_record(self._plan.root, named)
        try:
            fill_record(self._plan.root, record, src, length)
            if named != NULL:
                track_record(record)
            return <object> record
        finally:
            Py_DECREF(record)

    cdef object _shaped(self, object values):
        # User code may run here: no object is half made.
        if self._record is None or self._named:
            return values
        if self._record is dict:
            return dict(zip(<tuple> self._plan.root.names, values))
        if self._by_name:
            return self._record(**dict(zip(<tuple> self._plan.root.names, values)))
        return self._record(*values)

    # ---- many records at once, and records that end with long bytes (serializer.pxd)

    cdef Py_ssize_t encode_head(self, object record, uint8_t *dst, Py_ssize_t room, PyObject **tail) except -1:
        cdef PyObject *value
        cdef Py_ssize_t n
        cdef uint32_t end
        if self.tail_head and type(record) is tuple and PyTuple_GET_SIZE(<PyObject *> record) == self._plan.root.count:
            value = PyTuple_GET_ITEM(<PyObject *> record, self._tail_field)
            if PyBytes_CheckExact(value) and LEAST_TAIL <= PyBytes_GET_SIZE(value) <= 0x7FFFFFFF:
                fields = list(record)
                fields[self._tail_field] = b""
                n = self.encode_record(tuple(fields), dst, room)
                if n > 0x7FFFFFFF:
                    return self.encode_record(record, dst, room)        # it may be too long: this reports so
                if n <= room:
                    memcpy(&end, dst + self._tail_slot, 4)
                    end += <uint32_t> PyBytes_GET_SIZE(value)
                    memcpy(dst + self._tail_slot, &end, 4)
                    Py_INCREF(value)
                    tail[0] = value
                return n
        return self.encode_record(record, dst, room)

    cdef Py_ssize_t tail_at(self, const uint8_t *head, Py_ssize_t size) noexcept:
        cdef uint32_t before = 0, end
        cdef Py_ssize_t i = self._tail_field
        if self._plan.root.bitmap and head[i >> 3] >> (i & 7) & 1:
            return -1
        memcpy(&end, head + self._tail_slot, 4)
        if self._tail_before >= 0:
            memcpy(&before, head + self._tail_before, 4)
        # Otherwise the record is corrupt or has no long tail: the decoder of whole records handles it.
        if self.tail_head + <Py_ssize_t> end != size or end < before or end - before < LEAST_TAIL:
            return -1
        return self.tail_head + <Py_ssize_t> before

    cdef object decode_with_tail(self, uint8_t *head, Py_ssize_t length, bytes tail):
        # Decode it as if the field were empty, then insert the tail.
        cdef uint32_t before = <uint32_t> (length - self.tail_head)
        cdef PyObject *empty
        memcpy(head + self._tail_slot, &before, 4)
        record = self._tuple(head, length)
        empty = PyTuple_GET_ITEM(<PyObject *> record, self._tail_field)
        Py_INCREF(<PyObject *> tail)
        PyTuple_SET_ITEM(<PyObject *> record, self._tail_field, <PyObject *> tail)
        Py_DECREF(empty)
        return self._shaped(record)

    cdef Py_ssize_t decode_elements(self, const uint8_t *src, Py_ssize_t length, Py_ssize_t longest,
                                    list records) except -1:
        cdef Node *root = self._plan.root
        cdef PyTypeObject *named = <PyTypeObject *> self._record if self._named else NULL
        cdef const uint8_t *p = src
        cdef PyObject *record
        cdef uint32_t size
        if self._record is None:
            return append_records(root, src, length, longest, records)
        while length >= PREFIX:
            memcpy(&size, p, PREFIX)
            if size > <size_t> longest or length - PREFIX < <Py_ssize_t> size:
                break
            record = new_record(root, named)
            try:
                fill_record(root, record, p + PREFIX, size)
                if named != NULL:
                    track_record(record)
                records.append(self._shaped(<object> record))
            finally:
                Py_DECREF(record)
            p += PREFIX + <Py_ssize_t> size
            length -= PREFIX + <Py_ssize_t> size
        return p - src

    def dumps(self, records):
        """Encode records into one block.

        Parameters
        ----------
        records : iterable of tuple, list, dict or object

        Returns
        -------
        bytes
            A block, as docs/format.md draws it.

        Raises
        ------
        RecordError
            A record does not match the schema: the message has the record's number (from 0), the field and the value.
        """
        if not PyList_CheckExact(<PyObject *> records):
            records = list(records_given(records))
        return self._dump(records)

    cdef object _dump(self, object records):
        cdef Py_ssize_t i = 0, n = len(<list> records), room
        cdef Writer w
        self.check_made()
        if n > MAX_RECORDS:
            raise RecordError(f"{n:,} records: a block has at most {MAX_RECORDS:,}")
        room = HEADER + min(n * self._bytes_per_record, 1 << 26) + 64
        w.owner = PyBytes_FromStringAndSize(NULL, room)
        w.buf, w.at, w.room = <uint8_t *> PyBytes_AS_STRING(w.owner), HEADER, room
        try:
            write_elements(self._plan.root, <PyObject *> records, &w, &i)
            if i:
                self._bytes_per_record = (w.at - HEADER) // i + 1 + (w.at - HEADER) // i // 16
            _PyBytes_Resize(&w.owner, w.at)
            w.buf = <uint8_t *> PyBytes_AS_STRING(w.owner)
            put_head(w.buf, w.at, ROWS, self.fingerprint, <uint32_t> i, self.checksum)
            return <object> w.owner
        except RecordError as error:
            raise type(error)(f"record {i}: {error}") from None
        finally:
            Py_XDECREF(w.owner)

    def loads(self, buf):
        """Decode a block.

        Parameters
        ----------
        buf : bytes-like

        Returns
        -------
        list of tuple
            Or of objects made by `record`.

        Raises
        ------
        BlockTruncated, BlockCorrupt, SchemaMismatch
            The block is truncated, altered, or of another schema.
        """
        cdef Py_buffer view
        cdef int64_t records
        PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
        try:
            records = records_of(<const uint8_t *> view.buf, view.len, ROWS, self.fingerprint)
            if records < 0:
                check_block(buf, KIND_ROW, self.fingerprint, self.schema)          # raises the error
                raise BlockCorrupt("a block changed while it was read")
            return self._load(<const uint8_t *> view.buf + HEADER, view.len - HEADER, records)
        finally:
            PyBuffer_Release(&view)

    cdef object _load(self, const uint8_t *p, Py_ssize_t left, Py_ssize_t records):
        cdef Py_ssize_t i = 0
        cdef bint collecting
        cdef PyObject *out
        cdef PyTypeObject *named = <PyTypeObject *> self._record if self._named else NULL
        if records > left // PREFIX:
            raise BlockCorrupt(f"a block counts {records:,} records, its body has {left:,} bytes")
        if records == 0:
            if left:
                raise count_mismatch(0, 1)
            return []
        out = PyList_New(records)
        # All objects made here stay in use until this returns: garbage collections would find nothing, and would visit
        # the list and each tuple in it again.  The GIL is held throughout.
        PyObject_GC_UnTrack(out)
        collecting = PyGC_Disable() if not self._plan.root.atoms or named != NULL else False
        try:
            fill_records(self._plan.root, named, out, p, left, &i)
            PyObject_GC_Track(out)
            tuples = <object> out
        except BlockError as error:
            raise type(error)(f"record {i}: {error}") from None
        finally:
            if collecting:
                PyGC_Enable()
            Py_DECREF(out)
        if self._record is None or named != NULL:
            return tuples
        shaped = []
        try:
            for values in <list> tuples:
                shaped.append(self._shaped(values))
        except Exception as error:
            error.add_note(f"This was raised by record {len(shaped):,} of a block.")
            raise
        return shaped

    def iter(self, buf):
        """Decode a block record by record.

        Parameters
        ----------
        buf : bytes-like
            Checked at once and kept alive by the iterator; do not change it meanwhile.

        Returns
        -------
        iterator of tuple
            Or of objects made by `record`.
        """
        return RowIterator(self, buf)

    def view(self, buf, key=None):
        """The records of a block as lazy rows: their lengths are checked now, a field is decoded when it is read.

        Parameters
        ----------
        buf : bytes-like
            A block.  It is read in place: its buffer stays exported until the view's ``release()``, or until the view
            and its rows are freed.
        key : str, int, or sequence of them, optional
            Fields by which rows are compared and hashed.  Default: all, if all are of plain types.

        Returns
        -------
        LazyRows
            A sequence of LazyRow.

        Raises
        ------
        BlockTruncated, BlockCorrupt, SchemaMismatch
            As for :meth:`loads`, but values are checked when they are read.
        SchemaError
            The key is not a field, or is a list, struct or map.
        """
        return view_block(self._lazy_plan(), buf, self.fingerprint, key)

    def lazy(self, payload, key=None):
        """One record, encoded by :meth:`Serializer.encode`, as a lazy row; see :meth:`view`.

        Parameters
        ----------
        payload : bytes-like
            Read in place.
        key : str, int, or sequence of them, optional

        Returns
        -------
        LazyRow
        """
        return view_payload(self._lazy_plan(), payload, key)

    cdef LazyPlan _lazy_plan(self):
        if self._lazy is None:
            self._lazy = LazyPlan(self._plan, LazyRow)
        return self._lazy


@cython.auto_pickle(False)
cdef class RowIterator:
    """Records of a block, one at a time; made by :meth:`RowSerializer.iter`."""
    def __init__(self, RowSerializer serializer, buf):
        records, self._body = check_block(buf, KIND_ROW, serializer.fingerprint, serializer.schema)
        self._serializer = serializer
        self._records = records

    def __iter__(self):
        return self

    def __next__(self):
        cdef Py_ssize_t left = self._body.shape[0] - self._at
        cdef const uint8_t *p
        cdef uint32_t size
        if left == 0:
            if self._number != self._records:
                raise count_mismatch(self._records, self._number)
            raise StopIteration
        if self._number == self._records:
            raise BlockCorrupt(f"{left:,} bytes are left over after {self._records:,} records")
        if left < PREFIX:
            raise count_mismatch(self._records, self._number)
        p = &self._body[self._at]
        memcpy(&size, p, PREFIX)
        if size > left - PREFIX:
            raise BlockCorrupt(f"record {self._number}: its length is {size:,} bytes, and {left - PREFIX:,} are left")
        number = self._number
        self._at += PREFIX + <Py_ssize_t> size          # now: the next call goes on behind a record that is refused
        self._number += 1
        try:
            return self._serializer.decode_record(p + PREFIX, size)
        except BlockError as error:
            raise type(error)(f"record {number}: {error}") from None
        except StopIteration as error:      # a loop would take it for the end
            raise RuntimeError(f"record {number}: code of a record raised StopIteration: {error}") from error
        except Exception as error:
            error.add_note(f"This was raised by record {number:,} of a block.")
            raise

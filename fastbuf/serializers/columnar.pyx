"""Blocks of Arrow batches.

An element; all numbers are little-endian::

    element := u32 length of what follows | u32 rows | flags | zeros | parts
    flags   := one bit for each node of the schema, in preorder, node 0 being the struct of all columns.
               Bit k: node k ships a validity bitmap
    part    := bytes | zeros, to a multiple of 8

Every part begins at a multiple of 8 from the element's first byte, so that a block can be read in place. The parts
follow the order of the columns: first the bitmap, if its flag is set (ceil(rows / 8) bytes), then the parts of the
type.

    type                                   parts of n rows; nothing for no rows
    ----                                   ------------------------------------
    null                                   none
    bool                                   ceil(n / 8) bytes, bit i % 8 of byte i / 8
    numbers, dates, times, decimals,
    fixed_size_binary                      n values as Arrow stores them
    string, binary, large_..., ..._view    n + 1 u32 offsets from 0, counted in bytes; the bytes
    list, large_list, map                  n + 1 u32 offsets from 0, counted in the child's rows; parts of the child
    fixed_size_list(w)                     parts of the child, n * w rows
    struct                                 parts of the fields, n rows each
    dictionary (of a whole column)         as its value type

Offsets never decrease; a null string or list is empty.  A chunk (the content of an element) contains only its own rows:
slices are compacted.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.ref cimport Py_XDECREF, PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from fastbuf._native.crc32c cimport fb_crc32c
from fastbuf.serializers.assemble cimport BatchAssembler
from fastbuf.serializers.column_plan cimport ColumnPlan, is_record_batch
from fastbuf.serializers.scatter cimport BatchScatter
from fastbuf.serializers.serializer cimport Serializer

from fastbuf.checks import flag
from fastbuf.errors import BlockTruncated, RecordError, RecordTooLong
from fastbuf.serializers.block import (
    FLAG_CRC, HEADER_BYTES, KIND_COLUMNAR, MAX_RECORDS, check_block, count_mismatch, encode_header,
)
from fastbuf.serializers.frames import is_stream, table_of
from fastbuf.serializers.schema import Schema

cdef Py_ssize_t HEAD = HEADER_BYTES
cdef int HEAD_FLAGS = 7            # offset of the flags

cdef extern from "Python.h":
    # By pointer: a bytes object can be shrunk only while there is just one reference to it.
    PyObject *PyBytes_FromStringAndSize(const char *, Py_ssize_t) except NULL
    int _PyBytes_Resize(PyObject **, Py_ssize_t) except -1


cdef bytes encode_rest(BatchScatter scatter, Py_ssize_t head):
    # Encodes as many of the remaining rows as one element holds, after `head` bytes reserved for a header.
    cdef Py_ssize_t room = min(scatter.rest_bytes(0), <Py_ssize_t> 1 << 31), written
    cdef PyObject *block = PyBytes_FromStringAndSize(NULL, head + room)
    cdef uint8_t *dst = <uint8_t *> PyBytes_AS_STRING(<object> block) + head
    try:
        with nogil:
            written = scatter.encode(0, dst, room)
        if not written:
            raise RecordError(f"a row takes {scatter.next_row_bytes(0):,} bytes; one element holds "
                              f"{scatter.plan.max_element:,}")
        if written < room:
            _PyBytes_Resize(&block, head + written)
        return <bytes> block
    finally:
        Py_XDECREF(block)


cdef class ColumnarSerializer(Serializer):
    """ColumnarSerializer(schema=None, checksum=False)\n--\n
    Encodes Arrow record batches and NumPy structured arrays into blocks and back, without Python objects.

    Parameters
    ----------
    schema : Schema or pyarrow.Schema, optional
        None: taken from the first batch that is dumped.
    checksum : bool, default False
        Blocks contain a CRC32C of their body.

    Attributes
    ----------
    schema : Schema or None
        None until the first batch.
    arrow_schema : pyarrow.Schema or None
        The schema as given, with its metadata: the schema of loaded batches.

    Raises
    ------
    SchemaError
        A type is not supported.
    """

    def __init__(self, schema=None, checksum=False):
        self.kind = "columnar"
        self.checksum = flag("checksum", checksum)
        if schema is not None:
            self.learn(schema)

    def __reduce__(self):
        return ColumnarSerializer, (self._given, self.checksum)

    def __repr__(self):
        given = [repr(self.schema)] if self.schema is not None else []
        return f"ColumnarSerializer({', '.join(given + ['checksum=True'] * self.checksum)})"

    cdef int learn(self, object schema) except -1:
        arrow = schema.to_arrow() if isinstance(schema, Schema) else schema
        self.plan = ColumnPlan(arrow)
        self._given = schema
        self.schema = schema if isinstance(schema, Schema) else Schema.from_arrow(self.plan.arrow_schema())
        self.fingerprint = self.schema.fingerprint
        self._plain = encode_header(KIND_COLUMNAR, 0, self.fingerprint, 0, 0, 0)[:16]
        self._scatter = None
        self._assembler = None
        return 0

    @property
    def arrow_schema(self):
        return None if self.plan is None else self.plan.arrow_schema()

    cdef BatchScatter scatter(self, int partitions):
        """A scatter of this schema; SchemaError before the schema is known."""
        return BatchScatter(self._need_plan(), partitions)

    cdef BatchAssembler assembler(self):
        """An assembler of this schema; SchemaError before the schema is known."""
        return BatchAssembler(self._need_plan())

    cdef ColumnPlan _need_plan(self):
        if self.plan is None:
            raise RecordError("this ColumnarSerializer has no schema yet: give it one, or dump a batch first")
        return self.plan

    def dumps(self, data):
        """Encode batches.

        Parameters
        ----------
        data : pyarrow.RecordBatch or Table, NumPy structured array, a frame of pandas or polars
            Or any object with ``__arrow_c_array__`` or ``__arrow_c_stream__``.  Of a slice only its own rows are
            encoded.  A list of batches of one schema becomes one block.

        Returns
        -------
        bytes
            One block.

        Raises
        ------
        SchemaMismatch
            The columns differ from the schema's.
        """
        cdef BatchScatter scatter
        cdef int64_t rows = 0
        cdef list batches = self._begin(data), pieces = []
        cdef bytes block
        # Taken out while in use: two threads may dump with one serializer.
        scatter, self._scatter = self._scatter or BatchScatter(self.plan, 1), None
        for batch in batches:
            scatter.begin(batch, None)
            rows += scatter.rows_left(0)
            while scatter.rows_left(0):
                pieces.append(encode_rest(scatter, 0 if pieces else HEAD))
            scatter.end()
        self._scatter = scatter
        if not pieces:
            pieces.append(bytes(HEAD))
        block = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        # No other thread can see this bytes object yet.
        self._write_header(<uint8_t *> PyBytes_AS_STRING(block), len(block), rows)
        return block

    def dump_into(self, data, buffer):
        """Encode batches into existing memory: a segment, a mapping, a bytearray that is reused.

        Parameters
        ----------
        data
            See :meth:`dumps`.
        buffer : writable bytes-like
            Contiguous. Bytes after the block may be overwritten too.

        Returns
        -------
        int
            Bytes of the block, which starts at the first byte of the buffer.

        Raises
        ------
        SchemaMismatch
            The columns differ from the schema's.
        RecordTooLong
            The block is longer than the buffer, whose content is undefined then.
        """
        cdef Py_buffer export
        cdef Py_ssize_t length = 0
        cdef list batches = self._begin(data)
        PyObject_GetBuffer(buffer, &export, PyBUF_WRITABLE)
        try:
            self._dump_to(batches, <uint8_t *> export.buf, export.len, &length)
        finally:
            PyBuffer_Release(&export)
        return length

    cdef int _dump_to(self, list batches, uint8_t *block, Py_ssize_t room, Py_ssize_t *length) except -1:
        cdef BatchScatter scatter
        cdef int64_t rows = 0
        cdef Py_ssize_t at = HEAD, written
        if room < HEAD:
            raise RecordTooLong(f"a buffer of {room} bytes: the header of a block alone takes {HEAD}")
        scatter, self._scatter = self._scatter or BatchScatter(self.plan, 1), None
        for batch in batches:
            scatter.begin(batch, None)
            rows += scatter.rows_left(0)
            while scatter.rows_left(0):
                with nogil:
                    written = scatter.encode(0, block + at, room - at)
                if not written:
                    raise RecordTooLong(
                        f"a buffer of {room:,} bytes: {at:,} are written, and {scatter.rows_left(0):,} rows left "
                        f"of a batch take up to {scatter.rest_bytes(0):,}"
                    )
                at += written
            scatter.end()
        self._scatter = scatter
        self._write_header(block, at, rows)
        length[0] = at
        return 0

    cdef list _begin(self, object data):
        if is_stream(data):
            data = table_of(data, self.arrow_schema)
        cdef list batches = _batches_of(data)
        if self.plan is None:
            if not batches and not hasattr(data, "schema"):
                raise RecordError("no batch, and no schema yet: give this ColumnarSerializer one")
            self.learn(_schema_of(data if hasattr(data, "schema") else batches[0]))
        return batches

    cdef int _write_header(self, uint8_t *block, Py_ssize_t length, int64_t rows) except -1:
        cdef uint32_t crc = 0
        if self.checksum and length > HEAD:
            with nogil:
                crc = fb_crc32c(0, block + HEAD, length - HEAD)
        if rows > MAX_RECORDS:
            raise RecordError(f"{rows:,} rows in one block: its header counts up to {MAX_RECORDS:,}")
        # As encode_header does.
        cdef uint64_t body = <uint64_t> (length - HEAD)
        cdef uint32_t records = <uint32_t> rows
        memcpy(block, PyBytes_AS_STRING(self._plain), 16)
        block[HEAD_FLAGS] = FLAG_CRC if self.checksum else 0
        memcpy(block + 16, &body, 8)
        memcpy(block + 24, &records, 4)
        memcpy(block + 28, &crc, 4)
        return 0

    def loads(self, buf, copy=True, check=True):
        """Decode one block into one batch.

        Parameters
        ----------
        buf : bytes-like
        copy : bool, default True
            False: the batch points into `buf`.  Only data stored differently than in Arrow is copied: the offsets of
            large strings, binaries and lists, views, and dictionaries.  The batch's buffers hold an export of `buf`
            until the last of them is freed, in whatever column, slice or table it is used: until then a bytearray
            cannot be resized, and a segment cannot be recycled (``SegmentExported``).  Do not change the bytes
            meanwhile: they are checked only once.
        check : bool, default True
            False: offsets, padding and text are not checked, as in Arrow IPC: only for blocks of a trusted writer.
            (Otherwise a text column that is not UTF-8 raises ``BlockCorrupt`` with the column's name.) Header, lengths,
            flags and checksum are always checked, so every part is inside `buf`; but if offsets decrease, readers of
            the batch's strings or lists read outside of it.  Views and dictionaries are built from the offsets here, so
            theirs are always checked.

        Returns
        -------
        pyarrow.RecordBatch

        Raises
        ------
        BlockTruncated, BlockCorrupt, SchemaMismatch
            The block is damaged; the message has the figures.
        ValueError
            Only without a copy: the block has several chunks, which cannot be one batch in place (see :meth:`iter`), or
            does not start at a multiple of 8 bytes in memory.
        """
        self._need_plan()
        batch = self._load_plain(buf, copy, check)
        return self._load(buf, copy, check) if batch is None else batch

    cdef object _load_plain(self, object buf, bint copy, bint check):
        # The usual case: a whole block of this schema, with one chunk and without a checksum.
        cdef BatchAssembler assembler
        cdef const uint8_t *block
        cdef uint64_t size
        cdef uint32_t records, crc, chunk
        cdef object batch = None
        cdef Py_buffer *export = <Py_buffer *> calloc(1, sizeof(Py_buffer))
        if export == NULL:
            raise MemoryError
        try:
            PyObject_GetBuffer(buf, export, PyBUF_SIMPLE)
            block = <const uint8_t *> export.buf
            if export.len < HEAD + 4 or memcmp(block, PyBytes_AS_STRING(self._plain), 16):
                return None
            memcpy(&size, block + 16, 8)
            memcpy(&records, block + 24, 4)
            memcpy(&crc, block + 28, 4)
            memcpy(&chunk, block + HEAD, 4)
            if size != <uint64_t> (export.len - HEAD) or crc or <uint64_t> chunk + 4 != size:
                return None
            # Taken out while in use: two threads may load with one serializer.
            assembler, self._assembler = self._assembler or BatchAssembler(self.plan), None
            assembler.believe(not check)
            if copy:
                batch = assembler.copied(block + HEAD + 4, chunk)
            else:
                check_aligned(block + HEAD)
                batch = assembler.placed_in(block + HEAD + 4, chunk, &export)
            if assembler.piece_rows() != records:
                raise count_mismatch(records, assembler.piece_rows())
            self._assembler = assembler
            return batch
        finally:
            if export != NULL:
                PyBuffer_Release(export)
                free(export)

    cdef object _load(self, object buf, bint copy, bint check):
        cdef BatchAssembler assembler = BatchAssembler(self.plan)
        cdef const uint8_t[::1] view
        cdef int64_t rows
        records, body = check_block(buf, KIND_COLUMNAR, self.fingerprint, self.schema)
        view = body
        batch = None
        assembler.believe(not check)
        if not is_one(view):
            if not copy and view.shape[0]:
                raise ValueError(f"a block of {count_elements(view)} chunks cannot be read in place as one batch: use "
                                 "iter(buf, copy=False)")
            if view.shape[0]:
                assembler.append_elements(&view[0], view.shape[0])
            rows = assembler.rows
        else:
            if copy:
                batch = assembler.copied(&view[4], view.shape[0] - 4)
            else:
                check_aligned(&view[0])
                batch = assembler.in_place(&view[4], view.shape[0] - 4, body)
            rows = assembler.piece_rows()
        if rows != records:
            raise count_mismatch(records, rows)
        return assembler.take() if batch is None else batch

    def iter(self, buf, max_rows=None, max_bytes=None, copy=True, check=True):
        """Decode one block into batches of a given size.

        Parameters
        ----------
        buf : bytes-like
            Kept alive by the iterator; do not change it meanwhile.
        max_rows, max_bytes : int, optional
            Most rows and most bytes (``RecordBatch.nbytes``) of a batch; a single row may take more. None: no bound.
            Chunks of the block are joined up to the bounds, and split if they exceed them.
        copy : bool, default True
            False: batches point into `buf` and keep it alive, as in :meth:`loads`; chunks are split, but not joined.
        check : bool, default True
            False: offsets and padding are not checked; see :meth:`loads`.

        Returns
        -------
        iterator of pyarrow.RecordBatch
            Each has at least one row.

        Raises
        ------
        BlockTruncated, BlockCorrupt, SchemaMismatch
            As for :meth:`loads`: for the header at once, for a chunk when it is reached.
        ValueError
            A bound is below 1; or, without a copy, the block does not start at a multiple of 8 bytes in memory.
        """
        for name, bound in (("max_rows", max_rows), ("max_bytes", max_bytes)):
            if bound is not None and bound < 1:
                raise ValueError(f"{name} is {bound}: it must be at least 1")
        return BatchIterator(self, buf, max_rows or 0xFFFFFFFF, max_bytes or 0x7FFFFFFFFFFFFFFF, copy, check)


@cython.auto_pickle(False)
cdef class BatchIterator:
    """Batches of a block, one at a time; made by :meth:`ColumnarSerializer.iter`."""

    def __init__(self, ColumnarSerializer serializer not None, buf, int64_t max_rows, int64_t max_bytes,
                 bint copy, bint check):
        self._assembler = BatchAssembler(serializer._need_plan())
        self._assembler.believe(not check)
        self._records, self._body = check_block(buf, KIND_COLUMNAR, serializer.fingerprint, serializer.schema)
        self._in_place = not copy
        if not copy and self._body.shape[0]:
            check_aligned(&self._body[0])
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._ready = []

    def __iter__(self):
        return self

    def __next__(self):
        cdef int64_t left = self._body.shape[0] - self._at
        cdef uint32_t size, rows
        if self._ready:
            return self._ready.pop()
        while left:
            if left < 8:
                raise BlockTruncated(f"{left} bytes at byte {self._at:,} are too few for an element")
            memcpy(&size, &self._body[self._at], 4)
            memcpy(&rows, &self._body[self._at + 4], 4)
            if size < 4 or size > left - 4:
                raise BlockTruncated(
                    f"an element at byte {self._at:,} announces {size:,} bytes and {left - 4:,} are left"
                )
            if self._assembler.rows and (
                    self._assembler.rows + rows > self._max_rows or self._assembler.nbytes + size > self._max_bytes):
                break
            self._at += 4 + <int64_t> size
            left -= 4 + <int64_t> size
            if self._in_place:
                batch = self._assembler.in_place(&self._body[self._at - size], size, self._body.base)
                self._number += batch.num_rows
                if batch.num_rows:
                    self._ready = self._cut(batch)
                    break
            else:
                self._assembler.append(&self._body[self._at - size], size)
        self._number += self._assembler.rows
        if self._assembler.rows:
            self._ready = self._cut(self._assembler.take())
        if not left and self._number != self._records:
            raise count_mismatch(self._records, self._number)
        if not self._ready:
            raise StopIteration
        return self._ready.pop()

    cdef list _cut(self, object batch):
        # The last piece comes first.  Rows may differ in size: a piece that is still too long is halved.
        cdef list pieces = [], left
        left = [batch.slice(at, self._max_rows) for at in range(0, batch.num_rows, self._max_rows)]
        while left:
            piece = left.pop()
            if piece.num_rows > 1 and piece.nbytes > self._max_bytes:
                half = piece.num_rows // 2
                left += [piece.slice(0, half), piece.slice(half)]
            else:
                pieces.append(piece)
        return pieces


cdef Py_ssize_t count_elements(const uint8_t[::1] body) except -1:
    # Finds the chunks by their lengths; BlockTruncated if the last one does not end with the body.
    cdef int64_t left = body.shape[0]
    cdef Py_ssize_t count = 0
    cdef uint32_t size = 0
    while left:
        if left >= 4:
            memcpy(&size, &body[body.shape[0] - left], 4)
        if left < 4 or size > left - 4:
            raise BlockTruncated(f"element {count} announces {size:,} bytes and {max(left - 4, 0):,} are left")
        left -= 4 + <int64_t> size
        count += 1
    return count


cdef bint is_one(const uint8_t[::1] body) noexcept:
    # Whether the body is a single element, by its length.
    cdef uint32_t size
    if body.shape[0] < 4:
        return False
    memcpy(&size, &body[0], 4)
    return size == body.shape[0] - 4


cdef int check_aligned(const uint8_t *element) except -1:
    if <uintptr_t> element & 7:
        raise ValueError(f"a block {<uintptr_t> element & 7} bytes behind a multiple of 8 in memory is not read in "
                         "place: its values would not be aligned; move it, or take copy=True")
    return 0


cdef object _schema_of(object data):
    # A pyarrow batch or table has a schema; an array of structs from another library can be read as a batch.
    if hasattr(data, "schema"):
        return data.schema
    import pyarrow

    return pyarrow.schema(data)


cdef list _batches_of(object data):
    if is_record_batch(data) or hasattr(data, "__arrow_c_array__"):
        return [data]
    if hasattr(data, "to_batches"):
        return data.to_batches()
    if hasattr(data, "dtype") and data.dtype.names:
        return [from_numpy(data)]
    if isinstance(data, (list, tuple)) and all(hasattr(batch, "__arrow_c_array__") for batch in data):
        return list(data)
    raise TypeError(f"{type(data).__name__} is neither an Arrow batch or table, a list of batches, nor a NumPy "
                    "structured array")


def from_numpy(array):
    """The columns of a NumPy structured array as a ``pyarrow.RecordBatch`` (each field is made contiguous once).

    Parameters
    ----------
    array : ndarray
        Of a structured dtype, shape (rows,).  A subarray becomes a fixed_size_list.
    """
    from fastbuf.serializers.structured import record_batch

    return record_batch(array)

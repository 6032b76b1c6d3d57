"""Blocks of Arrow batches.

One chunk, the payload of an element of the columnar kind; all numbers little-endian, nothing aligned::

    chunk  := u32 rows | flags | columns | zeros
    flags  := one bit for each node of the schema, in preorder, node 0 being the struct of all columns;
              padded to whole bytes.  Bit k: node k ships a validity bitmap
    column := [bitmap] body          the bitmap, ceil(rows / 8) bytes, only if its flag is set

    type                                   body of n rows
    ----                                   --------------
    null                                   nothing
    bool                                   ceil(n / 8) bytes, bit i % 8 of byte i / 8
    numbers, dates, times, decimals,
    fixed_size_binary                      n values as Arrow stores them
    string, binary, large_..., ..._view    n x u32 end of the value in the bytes | bytes
    list, large_list, map                  n x u32 end of the value in the child's rows | column of the child
    fixed_size_list(w)                     column of the child, n * w rows
    struct                                 columns of the fields, n rows each
    dictionary (of a whole column)         as its value type

Ends never fall; a null string or list has the end of the one before it.  The whole element (u32 length, then
the chunk) is padded with zeros to a multiple of 8 bytes, so that a batch cut up for 200 partitions pays some
twelve bytes a chunk.  A chunk never ships more than its rows: slices are compacted.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from fastbuf.serializers.assemble cimport BatchAssembler
from fastbuf.serializers.column_plan cimport ColumnPlan
from fastbuf.serializers.scatter cimport BatchScatter
from fastbuf.serializers.serializer cimport Serializer

from fastbuf.errors import BlockTruncated, RecordError
from fastbuf.serializers.block import (
    FLAG_CRC,
    HEADER_BYTES,
    KIND_COLUMNAR,
    check_block,
    count_mismatch,
    encode_header,
)
from fastbuf.serializers.checksum import crc32c
from fastbuf.serializers.column_view import views
from fastbuf.serializers.schema import Schema

cdef Py_ssize_t HEAD = HEADER_BYTES


cdef class ColumnarSerializer(Serializer):
    """Arrow record batches, and NumPy structured arrays, to blocks and back, without Python objects.

    Parameters
    ----------
    schema : Schema or pyarrow.Schema, optional
        None: learnt from the first batch that is dumped.
    checksum : bool, default False
        Blocks carry a CRC32C of their body.

    Attributes
    ----------
    schema : Schema or None
        None until it is known.
    arrow_schema : pyarrow.Schema or None
        As it was given, with its metadata: what loaded batches have.

    Raises
    ------
    SchemaError
        A type that cannot be carried.
    """

    def __init__(self, schema=None, bint checksum=False):
        self.kind = "columnar"
        self.checksum = checksum
        if schema is not None:
            self.learn(schema)

    def __reduce__(self):
        return ColumnarSerializer, (self._given, self.checksum)

    cdef int learn(self, object schema) except -1:
        arrow = schema.to_arrow() if isinstance(schema, Schema) else schema
        self.plan = ColumnPlan(arrow)
        self._given = schema
        self.schema = schema if isinstance(schema, Schema) else Schema.from_arrow(self.plan.arrow_schema())
        self.fingerprint = self.schema.fingerprint
        self._scatter = None
        return 0

    @property
    def arrow_schema(self):
        return None if self.plan is None else self.plan.arrow_schema()

    cdef BatchScatter scatter(self, int partitions):
        """A scatter of this schema; SchemaError while none is known."""
        return BatchScatter(self._known(), partitions)

    cdef BatchAssembler assembler(self):
        """An assembler of this schema; SchemaError while none is known."""
        return BatchAssembler(self._known())

    cdef ColumnPlan _known(self):
        if self.plan is None:
            raise RecordError("this ColumnarSerializer has no schema yet: give it one, or dump a batch first")
        return self.plan

    def dumps(self, data):
        """Encode batches.

        Parameters
        ----------
        data : pyarrow.RecordBatch, pyarrow.Table, NumPy structured array, or anything with ``__arrow_c_array__``
            A slice ships its own rows only.  A list of batches, all of one schema, becomes one block.

        Returns
        -------
        bytes
            One block.

        Raises
        ------
        SchemaMismatch
            Columns other than the schema's.
        """
        cdef BatchScatter scatter
        cdef Py_ssize_t room, head, written
        cdef int64_t rows = 0
        cdef bytes block
        cdef uint8_t *dst
        cdef list batches
        batches = _batches_of(data)
        if self.plan is None:
            if not batches and not hasattr(data, "schema"):
                raise RecordError("no batch, and no schema yet: give this ColumnarSerializer one")
            self.learn(_schema_of(data if hasattr(data, "schema") else batches[0]))
        # Taken out while it is in use: two threads may dump with one serializer.
        scatter, self._scatter = self._scatter or BatchScatter(self.plan, 1), None
        pieces = []
        for batch in batches:
            scatter.begin(batch, None)
            rows += scatter.rows_left(0)
            while scatter.rows_left(0):
                room = min(scatter.rest_bytes(0), <Py_ssize_t> 1 << 31)
                head = 0 if pieces else HEAD
                block = PyBytes_FromStringAndSize(NULL, head + room)
                dst = <uint8_t *> PyBytes_AS_STRING(block) + head
                with nogil:
                    written = scatter.encode(0, dst, room)
                if not written:
                    raise RecordError(f"a row takes {scatter.next_row_bytes(0):,} bytes; one element holds "
                                      f"{self.plan.max_element:,}")
                pieces.append(block if written == room else block[:head + written])
            scatter.end()
        self._scatter = scatter
        return self._finish(pieces, rows)

    cdef bytes _finish(self, list pieces, int64_t rows):
        cdef bytes block
        if not pieces:
            pieces.append(bytes(HEAD))
        block = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        crc = crc32c(memoryview(block)[HEAD:]) if self.checksum else 0
        flags = FLAG_CRC if self.checksum else 0
        header = encode_header(KIND_COLUMNAR, flags, self.fingerprint, len(block) - HEAD, rows, crc)
        # Nobody else has seen this bytes object yet.
        memcpy(PyBytes_AS_STRING(block), PyBytes_AS_STRING(header), HEAD)
        return block

    def loads(self, buf):
        """Decode one block.

        Parameters
        ----------
        buf : bytes-like
            Copied out.

        Returns
        -------
        pyarrow.RecordBatch

        Raises
        ------
        BlockTruncated, BlockCorrupt, SchemaMismatch
            What is wrong with it, with the figures.
        """
        cdef BatchAssembler assembler = BatchAssembler(self._known())
        cdef const uint8_t[::1] view
        records, body = check_block(buf, KIND_COLUMNAR, self.fingerprint)
        view = body
        if view.shape[0]:
            assembler.append_elements(&view[0], view.shape[0])
        if assembler.rows != records:
            raise count_mismatch(records, assembler.rows)
        return assembler.take()

    def view(self, buf):
        """The columns of a block as NumPy arrays that lie in it: zero-copy.

        Parameters
        ----------
        buf : bytes-like
            Every array holds an export of it: while one is in use a bytearray cannot be resized, and a segment not
            recycled (``SegmentExported``). It should not be changed meanwhile.

        Returns
        -------
        list of ColumnView
            One for each chunk, which is each batch that was dumped.

        Raises
        ------
        BlockTruncated, BlockCorrupt, SchemaMismatch
            As :meth:`loads`.
        """
        self._known()
        records, body = check_block(buf, KIND_COLUMNAR, self.fingerprint)
        found = list(views(self.schema, body))
        rows = sum([chunk.rows for chunk in found])
        if rows != records:
            raise count_mismatch(records, rows)
        return found

    def iter(self, buf, max_rows=None, max_bytes=None):
        """Decode one block into batches of a wanted size.

        Parameters
        ----------
        buf : bytes-like
            Kept alive by the iterator, not to be changed meanwhile; what it gives is copied out.
        max_rows, max_bytes : int, optional
            Most rows of a batch, and most bytes (``RecordBatch.nbytes``); a single row may take more. None: no bound.
            Chunks of the block are put together up to the bounds, and cut where they pass them.

        Returns
        -------
        iterator of pyarrow.RecordBatch
            None of them without rows.

        Raises
        ------
        BlockTruncated, BlockCorrupt, SchemaMismatch
            As :meth:`loads`: of the header at once, of a chunk when it is reached.
        """
        for name, bound in (("max_rows", max_rows), ("max_bytes", max_bytes)):
            if bound is not None and bound < 1:
                raise ValueError(f"{name} is {bound}: it must be at least 1")
        return BatchIterator(self, buf, max_rows or 0xFFFFFFFF, max_bytes or 0x7FFFFFFFFFFFFFFF)


cdef class BatchIterator:
    """Batches of a block, one at a time; made by :meth:`ColumnarSerializer.iter`."""

    def __init__(self, ColumnarSerializer serializer not None, buf, int64_t max_rows, int64_t max_bytes):
        self._assembler = BatchAssembler(serializer._known())
        self._records, self._body = check_block(buf, KIND_COLUMNAR, serializer.fingerprint)
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
            self._assembler.append(&self._body[self._at + 4], size)
            self._at += 4 + <int64_t> size
            left -= 4 + <int64_t> size
        self._number += self._assembler.rows
        if not self._assembler.rows or not left and self._number != self._records:
            if self._number != self._records:
                raise count_mismatch(self._records, self._number)
            raise StopIteration
        self._ready = self._cut(self._assembler.take())
        return self._ready.pop()

    cdef list _cut(self, object batch):
        # Last piece first.  Rows may differ in size: what is still too long is halved.
        cdef list found = [], left
        left = [batch.slice(at, self._max_rows) for at in range(0, batch.num_rows, self._max_rows)]
        while left:
            piece = left.pop()
            if piece.num_rows > 1 and piece.nbytes > self._max_bytes:
                half = piece.num_rows // 2
                left += [piece.slice(0, half), piece.slice(half)]
            else:
                found.append(piece)
        return found


cdef object _schema_of(object data):
    # What a pyarrow batch or table has, and an array of structs from elsewhere can be read as.
    if hasattr(data, "schema"):
        return data.schema
    import pyarrow

    return pyarrow.schema(data)


cdef list _batches_of(object data):
    if hasattr(data, "__arrow_c_array__"):
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

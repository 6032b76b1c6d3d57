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
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

from fastbuf.serializers.assemble cimport BatchAssembler
from fastbuf.serializers.column_plan cimport ColumnPlan
from fastbuf.serializers.scatter cimport BatchScatter
from fastbuf.serializers.serializer cimport Serializer

from fastbuf.errors import RecordError
from fastbuf.serializers.block import (
    FLAG_CRC,
    HEADER_BYTES,
    KIND_COLUMNAR,
    check_block,
    count_mismatch,
    encode_header,
)
from fastbuf.serializers.checksum import crc32c
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
            A slice ships its own rows only.

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
    raise TypeError(f"{type(data).__name__} is neither an Arrow batch or table nor a NumPy structured array")


def from_numpy(array):
    """The columns of a NumPy structured array as a ``pyarrow.RecordBatch`` (each field is made contiguous once).

    Parameters
    ----------
    array : ndarray
        Of a structured dtype, shape (rows,).  A subarray becomes a fixed_size_list.
    """
    import numpy as np
    import pyarrow as pa

    if array.ndim != 1:
        raise RecordError(f"a structured array of shape {array.shape}: rows have one dimension")
    schema = Schema.from_numpy(array.dtype).to_arrow()
    columns = []
    for field in schema:
        values = array[field.name]
        values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
        if pa.types.is_fixed_size_list(field.type):
            inner = pa.array(values.reshape(-1), type=field.type.value_type)
            columns.append(pa.FixedSizeListArray.from_arrays(inner, type=field.type))
        else:
            columns.append(pa.array(values, type=field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)

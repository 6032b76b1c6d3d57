"""Copies small Arrow batches together into large ones."""

from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc

from fastbuf.serializers.assemble cimport BatchAssembler
from fastbuf.serializers.scatter cimport BatchScatter


cdef class BatchCoalescer:
    """Copies small batches into columns, and returns them as one ``pyarrow.RecordBatch``.

    A batch of a few rows is copied in a third of the time that Arrow's own ways take: it is encoded as it would be for
    a channel, and appended as on the other end.

    Parameters
    ----------
    schema : Schema, pyarrow.Schema, ColumnPlan, or anything with ``__arrow_c_schema__``
        The batches have its names and types.
    most_bytes : int
        A batch that takes more, encoded, is not small.

    Raises
    ------
    SchemaError
        A type is not supported.
    """

    cdef BatchScatter _scatter
    cdef BatchAssembler _assembler
    cdef uint8_t *_element         # a batch, encoded; _room bytes
    cdef Py_ssize_t _room

    def __cinit__(self, schema, Py_ssize_t most_bytes):
        self._scatter = BatchScatter(schema, 1)
        self._assembler = BatchAssembler(self._scatter.plan)
        # Its elements come from here
        self._assembler.believe(True)
        self._assembler.trust(True)
        self._room = max(most_bytes, 8)
        self._element = <uint8_t *> malloc(self._room)
        if self._element == NULL:
            raise MemoryError(f"{self._room:,} bytes to copy batches")

    def __dealloc__(self):
        free(self._element)

    @property
    def rows(self):
        """Rows since a batch was taken."""
        return self._assembler.rows

    @property
    def nbytes(self):
        """Bytes that they take, encoded."""
        return self._assembler.nbytes

    def add(self, batch):
        """Copy a batch, if it is small.

        Parameters
        ----------
        batch : pyarrow.RecordBatch, or anything with ``__arrow_c_array__``

        Returns
        -------
        bool
            Whether it was copied, all of it; else it is to be used as it is.

        Raises
        ------
        SchemaMismatch
            The columns differ, or there are nulls where the schema allows none.
        RecordTooLong
            32-bit offsets would exceed 2 GiB: take the batch first.
        """
        cdef Py_ssize_t written
        self._scatter.begin(batch, None)
        try:
            if self._scatter.rest_bytes(0) > self._room:
                return False
            written = self._scatter.encode(0, self._element, self._room)
            if self._scatter.rows_left(0):
                return False
            if written:
                self._assembler.append_elements(self._element, written)
            return True
        finally:
            self._scatter.end()

    def batch(self):
        """All rows so far as a ``pyarrow.RecordBatch``; the coalescer starts anew."""
        return self._assembler.take()

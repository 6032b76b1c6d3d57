"""Any picklable Python object: pickle protocol 5, and cloudpickle for what plain pickle cannot do."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from fastbuf._native.crc32c cimport fb_crc32c
from fastbuf.serializers.serializer cimport Serializer

from pickle import PicklingError
from pickle import dumps as pickle_dumps
from pickle import loads as pickle_loads

from fastbuf.errors import BlockCorrupt, BlockError, BlockTruncated, RecordError, RecordTooLong
from fastbuf.serializers.block import (
    FLAG_CRC, HEADER_BYTES, KIND_PICKLED, MAX_RECORDS, check_block, count_mismatch, encode_header,
)

cdef enum:
    HEADER = 32
    PREFIX = 4

assert HEADER_BYTES == HEADER


cdef bytes _pickle(object record):
    try:
        return pickle_dumps(record, 5)
    except (PicklingError, TypeError, AttributeError, RecursionError) as error:
        # Lambdas, classes of __main__, closures: what cloudpickle is for.
        reason = error
    try:
        import cloudpickle
    except ImportError:
        raise RecordError(
            f"cannot pickle a {type(record).__qualname__}: {reason}; cloudpickle, which can do more, is not installed"
        ) from reason
    try:
        return cloudpickle.dumps(record, 5)
    except Exception as second:
        raise RecordError(
            f"cannot pickle a {type(record).__qualname__}: pickle says {reason}; cloudpickle says {second}"
        ) from reason


cdef object _unpickle(const uint8_t *src, Py_ssize_t length):
    # Through a view where the bytes are many; pickle copies out what it keeps.
    if length == 0:
        raise BlockTruncated("a pickle of 0 bytes")
    if length < 4096:
        data = PyBytes_FromStringAndSize(<const char *> src, length)
    else:
        data = <const uint8_t[:length]> src
    try:
        return pickle_loads(data)
    except BlockError:
        raise
    except Exception as error:
        raise BlockCorrupt(
            f"a pickle of {length:,} bytes cannot be read ({type(error).__name__}: {error}): it was altered, or this "
            "process has not the classes in it"
        ) from error


cdef class PickledSerializer(Serializer):
    """Serializer of any picklable object.

    Parameters
    ----------
    checksum : bool, optional
        Put a CRC32C into each block.

    Notes
    -----
    Reading a pickle runs what it says: read only what comes from a side you trust, or over an exchange with a secret.
    A process that reads needs the classes that were written; cloudpickle carries those of ``__main__`` along.

    Pickling runs Python code, and the serializer keeps the pickle of a record that did not fit: one serializer serves
    one writer at a time.
    """

    def __init__(self, checksum=False):
        self.kind = "pickled"
        self.schema = None
        self.fingerprint = 0
        self.checksum = checksum

    def __reduce__(self):
        return PickledSerializer, (self.checksum,)

    def __repr__(self):
        return f"PickledSerializer({'checksum=True' if self.checksum else ''})"

    cdef Py_ssize_t encode_record(self, object record, uint8_t *dst, Py_ssize_t room) except -1:
        cdef bytes out
        cdef Py_ssize_t size
        if self._kept_pickle is not None and self._kept_record is record:
            out = self._kept_pickle
            self._kept_record = self._kept_pickle = None
        else:
            self._kept_record = self._kept_pickle = None
            out = _pickle(record)
        size = PyBytes_GET_SIZE(out)
        if size <= room:
            memcpy(dst, PyBytes_AS_STRING(out), size)
        else:
            self._kept_record = record
            self._kept_pickle = out
        return size

    cdef object decode_record(self, const uint8_t *src, Py_ssize_t length):
        return _unpickle(src, length)

    def dumps(self, records):
        """Encode records into one block, a pickle each.

        Parameters
        ----------
        records : iterable of object

        Returns
        -------
        bytes
            A block, as docs/format.md draws it.

        Raises
        ------
        RecordError
            A record cannot be pickled: the message names its number (from 0) and type.
        """
        cdef list parts = [b""]
        cdef bytes out
        cdef Py_ssize_t i = 0, total = 0, size
        cdef uint8_t *at
        cdef uint32_t prefix, crc
        for record in records:
            try:
                out = _pickle(record)
            except RecordError as error:
                raise type(error)(f"record {i}: {error}") from error.__cause__
            size = PyBytes_GET_SIZE(out)
            if size > 0xFFFFFFFF:
                raise RecordTooLong(f"record {i}: its pickle has {size:,} bytes, the format ends at {0xFFFFFFFF:,}")
            parts.append(out)
            total += PREFIX + size
            i += 1
        if i > MAX_RECORDS:
            raise RecordError(f"{i:,} records: a block has at most {MAX_RECORDS:,}")
        block = PyBytes_FromStringAndSize(NULL, HEADER + total)
        at = <uint8_t *> PyBytes_AS_STRING(block) + HEADER
        for i in range(1, len(parts)):
            out = <bytes> parts[i]
            prefix = <uint32_t> PyBytes_GET_SIZE(out)
            memcpy(at, &prefix, PREFIX)
            memcpy(at + PREFIX, PyBytes_AS_STRING(out), prefix)
            at += PREFIX + <Py_ssize_t> prefix
        at = <uint8_t *> PyBytes_AS_STRING(block)
        crc = fb_crc32c(0, at + HEADER, total) if self.checksum else 0
        header = encode_header(KIND_PICKLED, FLAG_CRC if self.checksum else 0, 0, total, len(parts) - 1, crc)
        memcpy(at, PyBytes_AS_STRING(header), HEADER)
        return block

    def loads(self, buf):
        """Decode a block.

        Parameters
        ----------
        buf : bytes-like
            From a trusted source: a pickle can run any code.

        Returns
        -------
        list

        Raises
        ------
        BlockTruncated, BlockCorrupt, SchemaMismatch
            The block is cut short, altered, or of another kind.
        """
        return list(PickleIterator(buf))

    def iter(self, buf):
        """Decode a block record by record; the block is kept alive, and must not be changed meanwhile."""
        return PickleIterator(buf)


cdef class PickleIterator:
    """Records of a block, one at a time; made by :meth:`PickledSerializer.iter`."""

    def __init__(self, buf):
        records, self._body = check_block(buf, KIND_PICKLED, 0)
        if records > self._body.shape[0] // PREFIX:
            raise BlockCorrupt(f"a block counts {records:,} records, its body has {self._body.shape[0]:,} bytes")
        self._records = records

    def __iter__(self):
        return self

    def __next__(self):
        cdef Py_ssize_t left = self._body.shape[0] - self._at
        cdef const uint8_t *p
        cdef uint32_t size
        if self._number == self._records:
            if left:
                raise BlockCorrupt(f"{left:,} bytes are left over after {self._records:,} records")
            raise StopIteration
        if left < PREFIX:
            raise count_mismatch(self._records, self._number)
        p = &self._body[self._at]
        memcpy(&size, p, PREFIX)
        if size > left - PREFIX:
            raise BlockCorrupt(f"record {self._number}: its length is {size:,} bytes, and {left - PREFIX:,} are left")
        try:
            record = _unpickle(p + PREFIX, size)
        except BlockError as error:
            raise type(error)(f"record {self._number}: {error}") from error.__cause__
        self._at += PREFIX + <Py_ssize_t> size
        self._number += 1
        return record

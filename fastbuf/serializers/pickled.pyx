"""Any picklable Python object: pickle protocol 5, and cloudpickle for objects that plain pickle cannot handle."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastbuf._native.crc32c cimport fb_crc32c
from fastbuf.serializers.serializer cimport Serializer

import sys
from importlib import import_module
from pickle import Pickler, PicklingError, UnpicklingError
from pickle import loads as pickle_loads

from fastbuf.checks import flag, one_of, records_given, whole
from fastbuf.errors import BlockCorrupt, BlockError, BlockTruncated, RecordError, RecordTooLong, text_of
from fastbuf.serializers.block import (
    FLAG_CRC, FLAG_GROUPS, HEADER_BYTES, KIND_PICKLED, MAX_RECORDS, check_block, count_mismatch, encode_header,
)

cdef enum:
    HEADER = 32
    PREFIX = 4
    OUTSIDE = 0x42            # "B" starts a payload with out-of-band buffers; a pickle starts with 0x80
    LEAST_OUTSIDE = 4096      # a smaller buffer is cheaper to copy into the pickle
    GROUP_BYTES = 65536       # approximate bytes of a group of small records
    SMALL = 2048              # a pickler is reused after a pickle shorter than this

assert HEADER_BYTES == HEADER

CLOUDPICKLES = ("cloudpickle", "pyspark.cloudpickle")


cdef class Pickle:
    """The file that a pickler writes to; it also decides about out-of-band buffers."""

    def __cinit__(self):
        self.pieces = []
        self.buffers = []

    def write(self, data):
        # A large bytes object is passed whole, between frames: it is copied only once, to its final place.
        if not PyBytes_CheckExact(data):
            data = bytes(data)
        if self.inner == 0:
            self.first = data
        else:
            self.pieces.append(data)
        self.inner += PyBytes_GET_SIZE(data)

    def take(self, buffer):
        """Called for each PickleBuffer; returns whether it stays in the pickle."""
        try:
            flat = buffer.raw()
        except BufferError:
            return True
        if flat.nbytes < LEAST_OUTSIDE:
            return True
        self.buffers.append(flat)
        self.outer += <Py_ssize_t> flat.nbytes
        return False

    cdef Py_ssize_t size(self) noexcept:
        cdef Py_ssize_t n = len(self.buffers)
        return self.inner if n == 0 else 16 + 8 * n + self.inner + self.outer

    cdef int put(self, uint8_t *dst) except -1:
        cdef Py_buffer view
        cdef Py_ssize_t n = len(self.buffers), i
        cdef uint64_t x = <uint64_t> self.inner
        cdef uint32_t count = <uint32_t> n
        if n:
            # "B" 0 0 0 | u32 buffers | u64 bytes of the pickle | u64 bytes of each buffer | pickle | buffers
            memcpy(dst, b"B\0\0\0", 4)
            memcpy(dst + 4, &count, 4)
            memcpy(dst + 8, &x, 8)
            dst += 16
            for i in range(n):
                x = self.buffers[i].nbytes
                memcpy(dst, &x, 8)
                dst += 8
        memcpy(dst, PyBytes_AS_STRING(self.first), PyBytes_GET_SIZE(self.first))
        dst += PyBytes_GET_SIZE(self.first)
        for piece in self.pieces:
            memcpy(dst, PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece))
            dst += PyBytes_GET_SIZE(piece)
        for i in range(n):
            PyObject_GetBuffer(self.buffers[i], &view, PyBUF_SIMPLE)
            memcpy(dst, view.buf, view.len)
            dst += view.len
            PyBuffer_Release(&view)
        return 0

    cdef int clear(self) except -1:
        self.first = None
        if len(self.pieces) or len(self.buffers):
            self.pieces.clear()
            self.buffers.clear()
        self.inner = self.outer = 0
        return 0


cdef str _cloudpickle_here():
    # Each of the two keeps track of the classes that it has pickled and loaded, by which an object that comes back is
    # of the class that it was of.  In a task of Spark, classes have come by Spark's own
    context = sys.modules.get("pyspark.taskcontext")
    return CLOUDPICKLES[1 if context is not None and context.TaskContext.get() is not None else 0]


cdef Pickle _cloudpickle(str module, object record, object reason):
    cdef Pickle out = Pickle()
    try:
        cloudpickle = import_module(module or _cloudpickle_here())
    except ImportError:
        raise RecordError(
            f"cannot pickle a {type(record).__qualname__}: {reason}; cloudpickle, which can do more, is not installed"
        ) from reason
    try:
        out.write(cloudpickle.dumps(record, 5, out.take))
    except Exception as second:
        raise RecordError(
            f"cannot pickle a {type(record).__qualname__}: pickle says {reason}; cloudpickle says {second}"
        ) from reason
    return out


cdef object _unpickle(const uint8_t *src, Py_ssize_t length):
    # Long pickles are read through a view; pickle copies the data it keeps.
    cdef Py_ssize_t inner = length
    buffers = None
    if length == 0:
        raise BlockTruncated("a pickle of 0 bytes")
    if src[0] == OUTSIDE:
        buffers = []
        src = _take_buffers(src, length, &inner, buffers)
    if inner < 4096:
        data = PyBytes_FromStringAndSize(<const char *> src, inner)
    else:
        data = <const uint8_t[:inner]> src
    try:
        return pickle_loads(data) if buffers is None else pickle_loads(data, buffers=buffers)
    except BlockError:
        raise
    except Exception as error:
        raise BlockCorrupt(
            f"a pickle of {inner:,} bytes cannot be read ({text_of(type(error), error)}): {_why_not(error)}, or its "
            "bytes were altered"
        ) from error


cdef str _why_not(object error):
    if isinstance(error, (ImportError, AttributeError)):
        return "this process lacks what it needs"
    return "it is none" if isinstance(error, (UnpicklingError, EOFError)) else "code of its class refused it"


cdef const uint8_t *_take_buffers(const uint8_t *src, Py_ssize_t length, Py_ssize_t *inner, list buffers) except NULL:
    # Each buffer is copied once, into a bytearray that its object then keeps.  The pickle itself says which of them
    # must be read-only.
    cdef const uint8_t *pickle
    cdef const uint8_t *at
    cdef uint32_t count, i
    cdef uint64_t size
    cdef Py_ssize_t left
    if length < 16:
        raise BlockTruncated(f"a payload with buffers of {length} bytes: its head alone takes 16")
    if src[1] or src[2] or src[3]:
        raise BlockCorrupt("a payload is neither a pickle nor one with buffers outside")
    memcpy(&count, src + 4, 4)
    memcpy(&size, src + 8, 8)
    left = length - 16
    if count > left // 8:
        raise BlockTruncated(f"{count:,} buffers are announced, and {left:,} bytes are left for all of them")
    left -= 8 * <Py_ssize_t> count
    if size > <uint64_t> left:
        raise BlockTruncated(f"a pickle of {size:,} bytes is announced, and {left:,} are left")
    inner[0] = <Py_ssize_t> size
    left -= inner[0]
    pickle = src + 16 + 8 * <Py_ssize_t> count
    at = pickle + inner[0]
    for i in range(count):
        memcpy(&size, src + 16 + 8 * <Py_ssize_t> i, 8)
        if size > <uint64_t> left:
            raise BlockTruncated(f"buffer {i} of {count} announces {size:,} bytes, and {left:,} are left")
        buffers.append(PyByteArray_FromStringAndSize(<const char *> at, <Py_ssize_t> size))
        at += size
        left -= <Py_ssize_t> size
    if left:
        raise BlockCorrupt(f"{left:,} bytes are left over after {count} buffers")
    return pickle


cdef class PickledSerializer(Serializer):
    """PickledSerializer(checksum=False, group=256, cloudpickle=None)\n--\n
    Serializer of any picklable object.

    Parameters
    ----------
    checksum : bool, optional
        Put a CRC32C into each block.
    group : int, optional
        In blocks, put up to this many small records into one pickle, about 64 KiB together; 1: a pickle for each.  A
        group costs a third of the time.  Records of one group that are, or share, the same object still do after
        reading.
    cloudpickle : {"cloudpickle", "pyspark.cloudpickle"}, optional
        The module for objects that plain pickle cannot handle, such as lambdas.  Default: in a task of Spark PySpark's
        own, by which classes of the driver's ``__main__`` stay the classes that they are; else PyPI's.

    Notes
    -----
    Buffers of 4 KiB and more that objects offer under protocol 5 (NumPy arrays, Arrow buffers, pandas columns) are
    stored outside the pickle: they are copied once to their place in the record, and once more when it is read.

    Reading a pickle can run any code: read pickles only from a trusted peer, or over an exchange with a secret. A
    reading process needs the classes of the objects.  Those of functions are included, by cloudpickle; of modules, and
    of ``__main__``, pickle has the names alone, which processes of ``multiprocessing`` know.

    Pickling runs Python code, and the serializer keeps the pickle of a record that did not fit: use a serializer for
    one writer at a time.
    """

    def __init__(self, checksum=False, group=256, cloudpickle=None):
        group = whole("group", group, 1)
        self.kind = "pickled"
        self.schema = None
        self.fingerprint = 0
        self.checksum = flag("checksum", checksum)
        self.group = group
        self.cloudpickle = None if cloudpickle is None else one_of("cloudpickle", cloudpickle, CLOUDPICKLES)

    def __reduce__(self):
        return PickledSerializer, (self.checksum, self.group, self.cloudpickle)

    def __repr__(self):
        given = [f"{name}={value!r}" for name, value, usual in
                 (("checksum", self.checksum, False), ("group", self.group, 256),
                  ("cloudpickle", self.cloudpickle, None)) if value != usual]
        return f"PickledSerializer({', '.join(given)})"

    cdef Pickle _pickle(self, object record):
        """The record's pickle; the caller clears it after writing."""
        # Reuses this serializer's pickler: making one per record is a third of the cost of a small record.
        cdef Pickle out = self._sink
        pickler = self._pickler
        self._pickler = self._sink = None
        if out is None:
            out = Pickle()
            pickler = Pickler(out, 5, buffer_callback=out.take)
        try:
            pickler.dump(record)
        except (PicklingError, TypeError, AttributeError, RecursionError) as error:
            # Lambdas, local classes, closures: these need cloudpickle.
            return _cloudpickle(self.cloudpickle, record, error)
        if out.inner < SMALL and len(out.buffers) == 0:
            pickler.clear_memo()                       # its cost depends on the largest memo so far
            self._pickler, self._sink = pickler, out
        return out

    cdef Py_ssize_t encode_record(self, object record, uint8_t *dst, Py_ssize_t room) except -1:
        cdef Pickle out
        cdef Py_ssize_t size
        if self._kept_pickle is not None and self._kept_record is record:
            out = self._kept_pickle
            self._kept_record = self._kept_pickle = None
        else:
            self._kept_record = self._kept_pickle = None
            out = self._pickle(record)
        size = out.size()
        if size <= room:
            out.put(dst)
            out.clear()
        else:
            if out is self._sink:
                self._pickler = self._sink = None
            self._kept_record = record
            self._kept_pickle = out
        return size

    cdef void forget(self) noexcept:
        self._kept_record = self._kept_pickle = None

    cdef object decode_record(self, const uint8_t *src, Py_ssize_t length):
        return _unpickle(src, length)

    cdef list _one_by_one(self, object records):
        cdef list pickles = []
        cdef Pickle out
        for record in records:
            try:
                out = self._pickle(record)
            except RecordError as error:
                raise type(error)(f"record {len(pickles)}: {error}") from error.__cause__
            if out.size() > 0xFFFFFFFF:
                raise RecordTooLong(f"record {len(pickles)}: its pickle has {out.size():,} bytes, the format allows at "
                                    f"most {0xFFFFFFFF:,}")
            if out is self._sink:
                # Small, in one piece: the pickler continues with the same sink.
                pickles.append(out.first)
                out.clear()
            else:
                pickles.append(out)
        return pickles

    cdef list _in_groups(self, object records):
        # None if a group cannot be pickled whole: pickling one by one then finds the bad record.
        cdef list pickles = []
        cdef Py_ssize_t at = 0, n = len(records), take = 1, size
        cdef Pickle out
        while at < n:
            take = min(take, n - at)
            group = list(records[at:at + take])
            if len(group) != take:
                raise RecordError(f"the records changed in number while record {at} was pickled")
            out = Pickle()
            try:
                Pickler(out, 5, buffer_callback=out.take).dump(group)
            except (PicklingError, TypeError, AttributeError, RecursionError):
                return None
            size = out.size()
            if size > 0xFFFFFFFF:
                return None
            pickles.append(out)
            at += take
            take = max(1, min(self.group, GROUP_BYTES * take // (size + 1)))
        return pickles

    def dumps(self, records):
        """Encode records into one block.

        Parameters
        ----------
        records : iterable of object
            Those of a list or tuple are pickled in groups (see `group`), those of an iterator one by one.

        Returns
        -------
        bytes
            A block, as docs/format.md draws it.

        Raises
        ------
        RecordError
            A record cannot be pickled: the message names its number (from 0) and type.
        """
        cdef list parts = None
        cdef Py_ssize_t total = 0, count
        cdef uint8_t *at
        cdef uint32_t prefix, crc
        cdef int flags = FLAG_CRC if self.checksum else 0
        if self.group > 1 and isinstance(records, (list, tuple)) and len(records) > 1:
            count = len(records)
            parts = self._in_groups(records)
            if parts is not None:
                flags |= FLAG_GROUPS
        if parts is None:
            parts = self._one_by_one(records_given(records))
            count = len(parts)
        if count > MAX_RECORDS:
            raise RecordError(f"{count:,} records: a block has at most {MAX_RECORDS:,}")
        for part in parts:
            total += PREFIX + (PyBytes_GET_SIZE(part) if PyBytes_CheckExact(part) else (<Pickle> part).size())
        block = PyBytes_FromStringAndSize(NULL, HEADER + total)
        at = <uint8_t *> PyBytes_AS_STRING(block) + HEADER
        for part in parts:
            if PyBytes_CheckExact(part):
                prefix = <uint32_t> PyBytes_GET_SIZE(part)
                memcpy(at + PREFIX, PyBytes_AS_STRING(part), prefix)
            else:
                prefix = <uint32_t> (<Pickle> part).size()
                (<Pickle> part).put(at + PREFIX)
            memcpy(at, &prefix, PREFIX)
            at += PREFIX + <Py_ssize_t> prefix
        at = <uint8_t *> PyBytes_AS_STRING(block)
        crc = fb_crc32c(0, at + HEADER, total) if self.checksum else 0
        header = encode_header(KIND_PICKLED, flags, 0, total, count, crc)
        memcpy(at, PyBytes_AS_STRING(header), HEADER)
        return block

    def loads(self, buf):
        """Decode a block.

        Parameters
        ----------
        buf : bytes-like
            Only from a trusted source: a pickle can run any code.

        Returns
        -------
        list

        Raises
        ------
        BlockTruncated, BlockCorrupt, SchemaMismatch
            The block is cut short, altered, or of another kind.
        """
        cdef PickleIterator source = PickleIterator(buf)
        cdef list records
        if not source._grouped:
            return list(source)
        records = []
        while source._number < source._records:
            records += <list> source._next_payload()
        source._check_end()
        return records

    def iter(self, buf):
        """Decode a block record by record, or group by group; the iterator keeps it alive.  Do not change it."""
        return PickleIterator(buf)


@cython.auto_pickle(False)
cdef class PickleIterator:
    """Records of a block, one at a time; made by :meth:`PickledSerializer.iter`."""

    def __init__(self, buf):
        records, self._body = check_block(buf, KIND_PICKLED, 0)
        if self._body.shape[0] < PREFIX and records:
            raise BlockCorrupt(f"a block counts {records:,} records, its body has {self._body.shape[0]:,} bytes")
        self._grouped = memoryview(buf).cast("B")[7] & FLAG_GROUPS
        if not self._grouped and records > self._body.shape[0] // PREFIX:
            raise BlockCorrupt(f"a block counts {records:,} records, its body has {self._body.shape[0]:,} bytes")
        self._records = records

    def __iter__(self):
        return self

    def __next__(self):
        if self._group is None:
            if not self._grouped:
                return self._next_payload()
            self._group = iter(())
        for record in self._group:
            return record
        self._group = iter(self._next_payload())
        return next(self._group)                       # a group is never empty

    cdef int _check_end(self) except -1:
        cdef Py_ssize_t left = self._body.shape[0] - self._at
        if left:
            raise BlockCorrupt(f"{left:,} bytes are left over after {self._records:,} records")
        return 0

    cdef object _next_payload(self):
        cdef Py_ssize_t left = self._body.shape[0] - self._at
        cdef const uint8_t *p
        cdef uint32_t size
        if self._number == self._records or (self._lost and left == 0):
            self._check_end()
            raise StopIteration
        if left < PREFIX:
            raise count_mismatch(self._records, self._number)
        p = &self._body[self._at]
        memcpy(&size, p, PREFIX)
        if size > left - PREFIX:
            raise BlockCorrupt(f"record {self._number}: its length is {size:,} bytes, and {left - PREFIX:,} are left")
        self._at += PREFIX + <Py_ssize_t> size          # now: the next call goes on behind one that does not load
        try:
            value = _unpickle(p + PREFIX, size)
        except BlockError as error:
            where = f"record {self._number}"
            if self._grouped:
                self._lost = True
                where += ", with which others are in one pickle (group=1: each has its own)"
            else:
                self._number += 1
            raise type(error)(f"{where}: {error}") from error.__cause__
        if not self._grouped:
            self._number += 1
            return value
        if type(value) is not list or not value:
            raise BlockCorrupt(f"record {self._number}: a group is a list of records, not a {type(value).__name__}")
        if len(value) > self._records - self._number:
            raise count_mismatch(self._records, self._number + len(value))
        self._number += len(value)
        return value

"""Channel selectors: forward, hash, round robin, random, broadcast, and the user's own.

``select`` is called once a record, ``begin`` once a batch; both hold the GIL.
"""

import datetime
import random

import numpy as np

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.long cimport PyLong_AsLongLong
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from fastbuf.serializers.partition cimport HashPartitioner
from fastbuf.serializers.scatter cimport BatchScatter

from fastbuf.errors import ConfigError, RecordError, SchemaError

cdef extern from "fb_murmur3.h" nogil:
    uint32_t fb_hash_int(uint32_t v, uint32_t h)
    uint32_t fb_hash_long(uint64_t v, uint32_t h)
    uint32_t fb_hash_bytes(const uint8_t *p, int64_t n, uint32_t h)
    uint32_t fb_float_bits(uint32_t u)
    uint64_t fb_double_bits(uint64_t u)


cdef class ChannelSelector:
    """Base of all selectors."""

    cdef int bind(self, int n, object schema) except -1:
        self.n = n
        self.schema = schema
        return 0

    cdef int select(self, object record) except -1:
        raise TypeError(f"{type(self).__name__} selects batches only")

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        raise TypeError(f"{type(self).__name__} selects single records only")


cdef class _Forward(ChannelSelector):
    cdef int to

    def __init__(self, int to):
        self.to = to

    def __reduce__(self):
        return forward, (self.to,)

    cdef int bind(self, int n, object schema) except -1:
        if not 0 <= self.to < n:
            raise ConfigError(f"forward({self.to}): there are {n} subpartitions")
        return ChannelSelector.bind(self, n, schema)

    cdef int select(self, object record) except -1:
        return self.to

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        return scatter.begin(batch, np.full(batch.num_rows, self.to, dtype=np.int32))


cdef class _RoundRobin(ChannelSelector):
    cdef int at

    def __reduce__(self):
        return round_robin, ()

    cdef int select(self, object record) except -1:
        self.at += 1
        if self.at >= self.n:
            self.at = 0
        return self.at

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        cdef int rows = batch.num_rows
        pids = ((np.arange(rows, dtype=np.int64) + self.at + 1) % self.n).astype(np.int32)
        self.at = (self.at + rows) % self.n
        return scatter.begin(batch, pids)


cdef class _Shuffle(ChannelSelector):
    cdef object seed
    cdef object source

    def __init__(self, seed):
        self.seed = seed
        self.source = random.Random(seed)

    def __reduce__(self):
        return shuffle, (self.seed,)

    cdef int select(self, object record) except -1:
        return self.source.randrange(self.n)

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        rng = np.random.default_rng(self.source.getrandbits(64))
        return scatter.begin(batch, rng.integers(0, self.n, batch.num_rows, dtype=np.int32))


cdef class _Broadcast(ChannelSelector):
    def __reduce__(self):
        return broadcast, ()

    cdef int bind(self, int n, object schema) except -1:
        self.to_all = True
        return ChannelSelector.bind(self, n, schema)


cdef class _Rescale(ChannelSelector):
    cdef int producer
    cdef int producers
    cdef int first              # consumers [first, first + span) are this producer's
    cdef int span
    cdef int at

    def __init__(self, int producer, int producers):
        if not 0 <= producer < producers:
            raise ConfigError(f"rescale(producer={producer}, producers={producers}): producers count from 0")
        self.producer = producer
        self.producers = producers

    def __reduce__(self):
        return rescale, (self.producer, self.producers)

    cdef int bind(self, int n, object schema) except -1:
        cdef int64_t first = <int64_t> self.producer * n // self.producers
        self.first = <int> first
        self.span = max(1, <int> ((<int64_t> self.producer + 1) * n // self.producers - first))
        self.at = -1
        return ChannelSelector.bind(self, n, schema)

    cdef int select(self, object record) except -1:
        self.at = (self.at + 1) % self.span
        return self.first + self.at

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        cdef int rows = batch.num_rows
        pids = (self.first + (np.arange(rows, dtype=np.int64) + self.at + 1) % self.span).astype(np.int32)
        self.at = (self.at + rows) % self.span
        return scatter.begin(batch, pids)


cdef class _Custom(ChannelSelector):
    cdef object func

    def __init__(self, func):
        self.func = func

    def __reduce__(self):
        return custom, (self.func,)

    cdef int select(self, object record) except -1:
        cdef int to = self.func(record, self.n)
        if not 0 <= to < self.n:
            raise RecordError(f"the selector gave subpartition {to} of {self.n} for {record!r:.200}")
        return to

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        return scatter.begin(batch, np.asarray(self.func(batch, self.n), dtype=np.int32))


# How a Python value of a field is hashed, by the field's type: as F.hash does it.
cdef enum HashKind:
    HASH_INT
    HASH_LONG
    HASH_FLOAT
    HASH_DOUBLE
    HASH_BYTES
    HASH_BOOL
    HASH_DATE
    HASH_TIMESTAMP

_KINDS = {
    "bool": HASH_BOOL, "int8": HASH_INT, "int16": HASH_INT, "int32": HASH_INT, "int64": HASH_LONG,
    "float32": HASH_FLOAT, "float64": HASH_DOUBLE, "string": HASH_BYTES, "large_string": HASH_BYTES,
    "binary": HASH_BYTES, "large_binary": HASH_BYTES, "date32": HASH_DATE, "timestamp": HASH_TIMESTAMP,
}
_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
cdef int _EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_MICROSECOND = datetime.timedelta(microseconds=1)


cdef class _Hash(ChannelSelector):
    cdef readonly tuple keys
    cdef int *positions         # of each key's field, and how it is hashed; NULL until the first record asks
    cdef int *kinds
    cdef int n_keys
    cdef HashPartitioner partitioner

    def __init__(self, tuple keys):
        if not keys:
            raise ConfigError("hash_by() needs at least one key")
        self.keys = keys
        self.n_keys = <int> len(keys)

    def __dealloc__(self):
        free(self.positions)
        free(self.kinds)

    def __reduce__(self):
        return hash_by, self.keys

    cdef int bind(self, int n, object schema) except -1:
        ChannelSelector.bind(self, n, schema)
        self.partitioner = HashPartitioner(self.keys, n)
        free(self.positions)
        self.positions = NULL
        return 0

    def _resolve(self):
        if self.schema is None:
            raise SchemaError("hash_by needs a serializer with a schema; for objects use custom(func)")
        fields = []
        for key in self.keys:
            field = self.schema[key]
            kind = _KINDS.get(field.type.kind)
            if kind is None or (field.type.kind == "timestamp" and field.type.unit != "us"):
                raise SchemaError(
                    f"key {key!r} has type {field.type}: single records cannot be hashed by it; use batches")
            fields.append((self.schema.index(key), kind))
        free(self.kinds)
        self.kinds = <int *> calloc(self.n_keys, sizeof(int))
        self.positions = <int *> calloc(self.n_keys, sizeof(int))
        if self.kinds == NULL or self.positions == NULL:
            raise MemoryError
        for i in range(self.n_keys):
            self.positions[i], self.kinds[i] = fields[i]

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        return scatter.begin_hashed(batch, self.partitioner)

    cdef int select(self, object record) except -1:
        cdef uint32_t h = 42
        cdef int32_t signed
        cdef int i
        if self.positions == NULL:
            self._resolve()
        for i in range(self.n_keys):
            if isinstance(record, tuple) and self.positions[i] < len(<tuple> record):
                value = (<tuple> record)[self.positions[i]]
            elif isinstance(record, dict):
                value = record[self.keys[i]]
            else:
                value = record[self.positions[i]]
            if value is not None:
                h = self.hash_value(self.kinds[i], value, h)
        signed = <int32_t> h % self.n
        return signed + self.n if signed < 0 else signed

    cdef uint32_t hash_value(self, int kind, object value, uint32_t h) except? 0:
        cdef float f
        cdef double d
        cdef uint32_t u32
        cdef uint64_t u64
        cdef const char *text
        cdef Py_ssize_t length
        if kind == HASH_LONG:
            return fb_hash_long(<uint64_t> PyLong_AsLongLong(value), h)
        if kind == HASH_BYTES:
            if isinstance(value, str):
                text = PyUnicode_AsUTF8AndSize(value, &length)
            else:
                value = bytes(value)
                text, length = PyBytes_AS_STRING(value), len(<bytes> value)
            return fb_hash_bytes(<const uint8_t *> text, length, h)
        if kind == HASH_INT:
            return fb_hash_int(<uint32_t> <int32_t> PyLong_AsLongLong(value), h)
        if kind == HASH_BOOL:
            return fb_hash_int(1 if value else 0, h)
        if kind == HASH_DOUBLE:
            d = value
            memcpy(&u64, &d, 8)
            return fb_hash_long(fb_double_bits(u64), h)
        if kind == HASH_FLOAT:
            f = value
            memcpy(&u32, &f, 4)
            return fb_hash_int(fb_float_bits(u32), h)
        if kind == HASH_DATE:
            return fb_hash_int(<uint32_t> <int32_t> (value.toordinal() - _EPOCH_DAY), h)
        since = value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC)
        return fb_hash_long(<uint64_t> <int64_t> (since // _MICROSECOND), h)


def hash_by(*keys):
    """Records with equal keys go to one consumer, the one ``df.repartition(n, keys)`` of Spark chooses.

    Source: Spark's ``pmod(hash(keys), n)`` with Murmur3 x86_32, seed 42.
    """
    return _Hash(keys)


def forward(int to=0):
    """Everything goes to consumer `to` (0: Flink's global partitioner)."""
    return _Forward(to)


def round_robin():
    """Record by record to the next consumer (Flink's rebalance)."""
    return _RoundRobin()


def shuffle(seed=None):
    """Each record to a random consumer."""
    return _Shuffle(seed)


def rescale(int producer, int producers):
    """Round robin among the consumers nearest to this producer, so that few channels are used (Flink's rescale).

    Parameters
    ----------
    producer : int
        This producer's number, from 0.
    producers : int
        How many there are.  With more consumers than producers each producer has a share of its own of the consumers;
        with fewer, neighbouring producers share one.
    """
    return _Rescale(producer, producers)


def broadcast():
    """Every record to every consumer: written once, into buffers that all of them read."""
    return _Broadcast()


def custom(func):
    """The user's own: ``func(record, n) -> int`` for records, ``func(batch, n) -> int32 array`` for batches."""
    return _Custom(func)

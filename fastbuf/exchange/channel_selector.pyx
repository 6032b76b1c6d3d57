"""Channel selectors: forward, hash, range, round robin, random, broadcast, and the user's own.

``select`` is called once a record, ``begin`` once a batch; both hold the GIL.
"""

import random

import numpy as np

from libc.stdint cimport int64_t

from fastbuf.serializers.partition cimport HashPartitioner
from fastbuf.serializers.record_hash cimport RecordHasher, field_of
from fastbuf.serializers.scatter cimport BatchScatter

from fastbuf.errors import ConfigError, RecordError, SchemaError

cdef class ChannelSelector:
    """Base of all selectors."""

    cdef int bind(self, int n, object schema) except -1:
        self.n = n
        self.always = 0 if n == 1 else -1
        self.schema = schema
        return 0

    cdef int select(self, object record) except -1:
        raise TypeError(f"{type(self).__name__} selects batches only")

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        raise TypeError(f"{type(self).__name__} selects single records only")


cdef object _rows(object batch):
    return batch.num_rows if hasattr(batch, "num_rows") else len(batch)


cdef class _Forward(ChannelSelector):
    cdef int to

    def __init__(self, int to):
        self.to = to

    def __reduce__(self):
        return forward, (self.to,)

    cdef int bind(self, int n, object schema) except -1:
        if not 0 <= self.to < n:
            raise ConfigError(f"forward({self.to}): there are {n} subpartitions")
        ChannelSelector.bind(self, n, schema)
        self.always = self.to
        return 0

    cdef int select(self, object record) except -1:
        return self.to

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        return scatter.begin(batch, np.full(_rows(batch), self.to, dtype=np.int32))


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
        cdef int rows = _rows(batch)
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
        return scatter.begin(batch, rng.integers(0, self.n, _rows(batch), dtype=np.int32))


cdef class _Broadcast(ChannelSelector):
    def __reduce__(self):
        return broadcast, ()

    cdef int bind(self, int n, object schema) except -1:
        ChannelSelector.bind(self, n, schema)
        self.to_all = True
        self.always = n             # as open_buffer has it
        return 0


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
        cdef int rows = _rows(batch)
        pids = (self.first + (np.arange(rows, dtype=np.int64) + self.at + 1) % self.span).astype(np.int32)
        self.at = (self.at + rows) % self.span
        return scatter.begin(batch, pids)


cdef class _Custom(ChannelSelector):
    cdef object func

    def __init__(self, func):
        self.func = func

    def __reduce__(self):
        return custom, (self.func,)

    cdef int bind(self, int n, object schema) except -1:
        ChannelSelector.bind(self, n, schema)
        self.always = -1            # the function is the user's: it is called for every record
        return 0

    cdef int select(self, object record) except -1:
        cdef int to = self.func(record, self.n)
        if not 0 <= to < self.n:
            raise RecordError(f"the selector gave subpartition {to} of {self.n} for {record!r:.200}")
        return to

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        return scatter.begin(batch, np.asarray(self.func(batch, self.n), dtype=np.int32))


cdef class _Hash(ChannelSelector):
    cdef readonly tuple keys
    cdef RecordHasher hasher
    cdef HashPartitioner partitioner

    def __init__(self, tuple keys):
        if not keys:
            raise ConfigError("hash_by() needs at least one key")
        self.keys = keys

    def __reduce__(self):
        return hash_by, self.keys

    cdef int bind(self, int n, object schema) except -1:
        ChannelSelector.bind(self, n, schema)
        self.partitioner = HashPartitioner(self.keys, n)
        # Now, so that a type that has no hash is refused before there is a record.
        self.hasher = None if schema is None else RecordHasher(schema, self.keys)
        self.by_fields = True
        return 0

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        return scatter.begin_hashed(batch, self.partitioner)

    cdef int select(self, object record) except -1:
        if self.hasher is None:
            _schema_for("hash_by", self.schema)
        return self.hasher.partition(record, self.n)


cdef class _Range(ChannelSelector):
    cdef readonly tuple keys
    cdef object sample          # one of these two
    cdef object bounds
    cdef bint ascending
    cdef object seed
    cdef object partitioner     # a RangePartitioner
    cdef list fields            # (position, name) of each key

    def __init__(self, tuple keys, sample, bounds, bint ascending, seed):
        if not keys:
            raise ConfigError("range_by() needs at least one key")
        if (sample is None) == (bounds is None):
            raise ConfigError("range_by() takes its bounds from a sample, or is given them: one of sample and bounds")
        self.keys = keys
        self.sample = sample
        self.bounds = bounds
        self.ascending = ascending
        self.seed = seed

    def __reduce__(self):
        return _Range, (self.keys, self.sample, self.bounds, self.ascending, self.seed)

    cdef int bind(self, int n, object schema) except -1:
        from fastbuf.serializers.partitioners import RangePartitioner

        ChannelSelector.bind(self, n, schema)
        if self.bounds is None:
            self.partitioner = RangePartitioner.from_sample(
                self.sample, self.keys, n, ascending=self.ascending, seed=self.seed)
        else:
            self.partitioner = RangePartitioner(self.keys, self.bounds, ascending=self.ascending)
            if self.partitioner.partitions > n:
                raise ConfigError(
                    f"range_by() has {self.partitioner.partitions - 1} bounds for {n} subpartitions: {n - 1} at most")
        self.fields = None
        self.by_fields = True
        return 0

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        return scatter.begin(batch, self.partitioner.partition(batch))

    cdef int select(self, object record) except -1:
        if self.fields is None:
            schema = _schema_for("range_by", self.schema)
            self.fields = [(schema.index(key), key) for key in self.keys]
        return self.partitioner.place([field_of(record, place, name) for place, name in self.fields])


cdef object _schema_for(str selector, object schema):
    if schema is None:
        raise SchemaError(f"{selector} needs a serializer with a schema; for objects use custom(func)")
    return schema


def hash_by(*keys):
    """Records with equal keys go to one consumer, the one ``df.repartition(n, keys)`` of Spark chooses.

    Source: Spark's ``pmod(hash(keys), n)`` with Murmur3 x86_32, seed 42.
    """
    return _Hash(keys)


def range_by(*keys, sample=None, bounds=None, ascending=True, seed=0):
    """Ranges of the keys' order: consumer 0 gets the least ones, and no consumer has a key between two of another's.

    Parameters
    ----------
    *keys : str
        Key fields, the first one first.  None is less than everything, NaN more than every number.
    sample : pyarrow.RecordBatch or Table, iterable of batches, or NumPy structured array, optional
        Rows of the data: bounds are chosen that part it evenly.  All producers of an exchange must be given one sample
        (or one set of bounds), else they send equal keys to different consumers.
    bounds : pyarrow.RecordBatch, optional
        Instead of a sample: the greatest key of each consumer but the last, ascending; its columns are the keys.
    ascending : bool
        False: consumer 0 gets the greatest keys.
    seed : int
        Of drawing from the sample.

    Raises
    ------
    ConfigError
        No key; neither a sample nor bounds, or both; and, when the writer is made, more bounds than consumers.

    See Also
    --------
    fastbuf.serializers.RangePartitioner
    """
    return _Range(keys, sample, bounds, ascending, seed)


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

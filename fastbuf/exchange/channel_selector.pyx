"""Channel selectors: forward, hash, range, round robin, random, broadcast, and the user's own.

``select`` is called once a record, ``begin`` once a batch; both hold the GIL.
"""

import random
from collections.abc import Sequence

import numpy as np

from libc.stdint cimport int32_t, int64_t

from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.serializers.partition cimport HOT_EVERY, HashPartitioner, HotKeys, hot_count
from fastbuf.serializers.record_hash cimport RecordHasher, field_of
from fastbuf.serializers.scatter cimport BatchScatter

from fastbuf.checks import flag, whole
from fastbuf.errors import ConfigError, RecordError, SchemaError

cdef enum:
    HASHES = 1 << 30            # number of different hashes, as in HashPartitioner


cdef class ChannelSelector:
    """Base of all selectors."""

    cdef int bind(self, int n, object schema) except -1:
        self.n = n
        self.always = 0 if n == 1 else -1
        self.schema = schema
        return 0

    cdef int attach(self, ResultPartition partition) except -1:
        return 0

    cdef int select(self, object record) except -1:
        raise TypeError(f"{type(self).__name__} selects batches only")

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        raise TypeError(f"{type(self).__name__} selects single records only")

    cdef int watch_keys(self, bint values) except -1:
        return 0

    cdef dict hot_keys(self):
        return {}

    cdef dict key_values(self):
        return {}

    cdef object digest(self):
        return None


cdef object _renamed(object partitions, object only, int n):
    # Maps a partition to its subpartition: its place in `only`, else n, which is dropped.  None: they are the same.
    if only is None:
        if partitions is not None and partitions != n:
            raise ConfigError(f"partitions={partitions!r:.80} without only=, for {n} consumers: each consumer is a "
                              "partition; leave partitions out, or say which of them the consumers get, as only=[0, 2]")
        return None
    fits = isinstance(partitions, int) and isinstance(only, Sequence) and len(only) == n
    if fits:
        whole("partitions", partitions, 1)
        places = [whole(f"a partition of only={only!r:.80}", partition, 0, partitions - 1) for partition in only]
        fits = places == sorted(set(places))
    if not fits:
        raise ConfigError(f"only={only!r} with partitions={partitions!r}: only must have one partition for each of the "
                          f"{n} consumers, ascending, and partitions must be the number of all partitions")
    to = np.full(partitions, n, np.int32)
    to[places] = np.arange(n, dtype=np.int32)
    return to


cdef str _given(dict settings):
    return ", ".join([f"{name}={value!r:.40}" for name, value in settings.items() if value is not None])


cdef object _rows(object batch):
    return batch.num_rows if hasattr(batch, "num_rows") else len(batch)


cdef class _Forward(ChannelSelector):
    cdef int to

    def __init__(self, int to):
        self.to = to

    def __reduce__(self):
        return forward, (self.to,)

    def __repr__(self):
        return f"forward({self.to})"

    cdef int bind(self, int n, object schema) except -1:
        if not 0 <= self.to < n:
            raise ConfigError(f"forward({self.to}): there are {n} subpartitions, to must be from 0 to {n - 1}")
        ChannelSelector.bind(self, n, schema)
        self.always = self.to
        return 0

    cdef int select(self, object record) except -1:
        return self.to

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        return scatter.begin(batch, np.full(_rows(batch), self.to, dtype=np.int32))


cdef class _RoundRobin(ChannelSelector):
    cdef int at
    cdef int round              # partitions that take turns
    cdef object partitions      # as given
    cdef object only
    cdef object to              # maps a partition to its subpartition; None: they are the same

    def __init__(self, partitions, only, int at):
        self.partitions = partitions
        self.only = only
        self.at = at

    def __reduce__(self):
        return _RoundRobin, (self.partitions, self.only, self.at)

    def __repr__(self):
        return f"round_robin({_given({'partitions': self.partitions, 'only': self.only})})"

    cdef int bind(self, int n, object schema) except -1:
        ChannelSelector.bind(self, n, schema)
        self.to = _renamed(self.partitions, self.only, n)
        self.round = n
        if self.only is not None:
            self.round = self.partitions
            self.always = -1
            self.dropped = 1
        self.at %= self.round
        return 0

    cdef int select(self, object record) except -1:
        self.at += 1
        if self.at >= self.round:
            self.at = 0
        if self.to is None:
            return self.at
        raise TypeError("round_robin(only=...) selects batches only")

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        cdef int rows = _rows(batch)
        pids = ((np.arange(rows, dtype=np.int64) + self.at + 1) % self.round).astype(np.int32)
        self.at = (self.at + rows) % self.round
        return scatter.begin(batch, pids if self.to is None else self.to[pids])


cdef class _Shuffle(ChannelSelector):
    cdef object seed
    cdef object source

    def __init__(self, seed):
        self.seed = seed
        self.source = random.Random(seed)

    def __reduce__(self):
        return shuffle, (self.seed,)

    def __repr__(self):
        return f"shuffle({_given({'seed': self.seed})})"

    cdef int select(self, object record) except -1:
        return self.source.randrange(self.n)

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        rng = np.random.default_rng(self.source.getrandbits(64))
        return scatter.begin(batch, rng.integers(0, self.n, _rows(batch), dtype=np.int32))


cdef class _Broadcast(ChannelSelector):
    def __reduce__(self):
        return broadcast, ()

    def __repr__(self):
        return "broadcast()"

    def __cinit__(self):
        self.to_all = True

    cdef int bind(self, int n, object schema) except -1:
        ChannelSelector.bind(self, n, schema)
        self.always = n             # stands for all subpartitions, as in open_buffer
        return 0


cdef class _Rescale(ChannelSelector):
    cdef int producer
    cdef int producers
    cdef int first              # consumers [first, first + span) are this producer's
    cdef int span
    cdef int at

    def __init__(self, int producer, int producers):
        self.producer = producer
        self.producers = producers

    def __reduce__(self):
        return rescale, (self.producer, self.producers)

    def __repr__(self):
        return f"rescale(producer={self.producer}, producers={self.producers})"

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


cdef class _FirstFree(ChannelSelector):
    cdef ResultPartition partition      # of the writer that has this copy of the selector
    cdef int at

    def __reduce__(self):
        return first_free, ()

    def __repr__(self):
        return "first_free()"

    cdef int attach(self, ResultPartition partition) except -1:
        if partition.stage != partition.subs:
            raise ConfigError("first_free() needs a pipelined partition: it looks at what consumers have read, and "
                              "they read nothing of a blocking partition before it is finished. Use round_robin()")
        self.partition = partition
        self.by_room = True
        self.always = -1
        self.at = -1
        return 0

    cdef int select(self, object record) except -1:
        self.at = self.partition.most_free(self.at)
        return self.at

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        return scatter.begin(batch, np.full(_rows(batch), self.select(None), dtype=np.int32))


cdef class _Custom(ChannelSelector):
    cdef readonly object func

    def __init__(self, func):
        self.func = func

    def __reduce__(self):
        return custom, (self.func,)

    def __repr__(self):
        return f"custom({getattr(self.func, '__qualname__', self.func)})"

    cdef int bind(self, int n, object schema) except -1:
        ChannelSelector.bind(self, n, schema)
        self.always = -1            # call the user's function for every record, even with one subpartition
        return 0

    cdef int select(self, object record) except -1:
        cdef Py_ssize_t to
        number = self.func(record, self.n)
        try:
            to = number          # by __index__: a float is refused
        except TypeError:
            raise RecordError(f"{self!r} gave {number!r:.80} for {record!r:.200}: it must be a number from 0 to "
                              f"{self.n - 1}") from None
        if not 0 <= to < self.n:
            raise RecordError(f"the selector gave subpartition {to} of {self.n} for {record!r:.200}")
        return <int> to

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        from fastbuf.serializers.partitioners import CustomPartitioner

        return scatter.begin(batch, CustomPartitioner(self.func, self.n).partition(batch))

    cdef int watch_keys(self, bint values) except -1:
        if hasattr(self.func, "watch_keys"):
            self.func.watch_keys(values)
        return 0

    cdef dict hot_keys(self):
        return self.func.hot_keys() if hasattr(self.func, "hot_keys") else {}

    cdef dict key_values(self):
        return self.func.key_values() if hasattr(self.func, "key_values") else {}


cdef class _Hash(ChannelSelector):
    cdef readonly tuple keys
    cdef readonly object partitions     # as given
    cdef readonly object only
    cdef int32_t[::1] to                # with `only`: maps a partition to its subpartition
    cdef RecordHasher hasher
    cdef HashPartitioner partitioner

    def __init__(self, tuple keys, partitions, only):
        if not keys:
            raise ConfigError("hash_by() needs at least one key")
        self.keys = keys
        self.partitions = partitions
        self.only = only

    def __reduce__(self):
        return _Hash, (self.keys, self.partitions, self.only)

    def __repr__(self):
        given = _given({'partitions': self.partitions, 'only': self.only})
        return f"hash_by({', '.join([repr(key) for key in self.keys] + [given] * bool(given))})"

    cdef int bind(self, int n, object schema) except -1:
        ChannelSelector.bind(self, n, schema)
        self.to = _renamed(self.partitions, self.only, n)
        if self.only is not None:
            self.always = -1
            self.dropped = 1
        self.partitioner = HashPartitioner(self.keys, n if self.only is None else self.partitions)
        # Made now, so that a type that cannot be hashed is refused before the first record.
        self.hasher = None if schema is None else RecordHasher(schema, self.keys)
        self.by_fields = True
        return 0

    cdef int begin(self, BatchScatter scatter, object batch) except -1:
        scatter.begin_hashed(batch, self.partitioner, NULL if self.only is None else &self.to[0])
        if self.partitioner.texts is not None:
            self.partitioner.name_batch(batch)
        return 0

    cdef object digest(self):
        return self.partitioner.digest

    cdef int watch_keys(self, bint values) except -1:
        self.partitioner.watch_keys(values)
        return 0

    cdef dict hot_keys(self):
        return self.partitioner.hot_keys()

    cdef dict key_values(self):
        return self.partitioner.key_values()

    cdef int select(self, object record) except -1:
        cdef int part
        cdef int32_t key
        cdef HotKeys *hot = self.partitioner.hot
        if self.only is not None:
            raise TypeError("hash_by(only=...) selects batches only")
        if self.hasher is None:
            _schema_for("hash_by", self.schema)
        part = self.hasher.partition(record, self.n)
        if hot != NULL:
            hot.rows += 1
            if hot.rows % HOT_EVERY == 0:
                key = self.hasher.partition(record, HASHES)
                hot_count(hot, key, part)
                if self.partitioner.texts is not None:
                    self.partitioner.name_key(key, self.hasher.values(record))
        return part


cdef class _Range(ChannelSelector):
    cdef readonly tuple keys
    cdef object sample          # None if bounds are given
    cdef object bounds
    cdef bint ascending
    cdef object seed
    cdef object partitioner     # a RangePartitioner
    cdef list fields            # (position, name) of each key

    def __init__(self, tuple keys, sample, bounds, bint ascending, seed):
        if not keys:
            raise ConfigError("range_by() needs at least one key")
        if (sample is None) == (bounds is None):
            raise ConfigError(
                f"range_by() has {'neither' if sample is None else 'both'} of sample and bounds: give one of them")
        self.keys = keys
        self.sample = sample
        self.bounds = bounds
        self.ascending = ascending
        self.seed = seed

    def __reduce__(self):
        return _Range, (self.keys, self.sample, self.bounds, self.ascending, self.seed)

    def __repr__(self):
        keys = ", ".join([repr(key) for key in self.keys])
        by = "sample=..." if self.bounds is None else f"bounds={_rows(self.bounds)} rows"
        return f"range_by({keys}, {by}{'' if self.ascending else ', ascending=False'})"

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
                    f"range_by() has {self.partitioner.partitions - 1} bounds for {n} subpartitions: give at most "
                    f"{n - 1}")
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


def hash_by(*keys, partitions=None, only=None):
    """Records with equal keys go to one consumer, the one ``df.repartition(n, keys)`` of Spark chooses.

    Parameters
    ----------
    *keys : str or int
        Names or positions of the key columns.
    partitions, only : int and sequence of int, optional
        For batches: the consumers get only the partitions `only` (ascending) of `partitions` in all; rows of other
        partitions are dropped before they are encoded.

    See Also
    --------
    RecordWriter.digest : equal if two writers got the same keys.

    Notes
    -----
    Source: Spark's ``pmod(hash(keys), n)`` with Murmur3 x86_32, seed 42.
    """
    for key in keys:
        if isinstance(key, bool) or not isinstance(key, (str, int)):
            raise ConfigError(f"hash_by() has the key {key!r:.80}: it must be a column's name, or its position")
    return _Hash(keys, partitions, only)


def range_by(*keys, sample=None, bounds=None, ascending=True, seed=0):
    """Each consumer gets a range of the keys; consumer 0 gets the smallest keys.

    Parameters
    ----------
    *keys : str
        Key fields, the most significant first.  None is less than everything, NaN more than every number.
    sample : pyarrow.RecordBatch or Table, pandas or polars DataFrame, NumPy structured array, or iterable of these
        Rows of the data; the bounds are chosen so that they divide it evenly.  All producers of an exchange need the
        same sample (or the same bounds), else they send equal keys to different consumers.
    bounds : pyarrow.RecordBatch or Table, pandas or polars DataFrame, or NumPy structured array
        Instead of a sample: the greatest key of each consumer except the last, ascending; its columns are the keys.
    ascending : bool
        False: consumer 0 gets the greatest keys.
    seed : int
        Seed for drawing rows from the sample.

    Raises
    ------
    ConfigError
        No key; neither or both of sample and bounds; or, when the writer is made, too many bounds.

    See Also
    --------
    fastbuf.serializers.RangePartitioner
    """
    for key in keys:
        if not isinstance(key, str):
            raise ConfigError(f"range_by() has the key {key!r:.80}: it must be a column's name")
    return _Range(keys, sample, bounds, flag("ascending", ascending), seed)


def forward(to=0):
    """Everything goes to consumer `to` (0: Flink's global partitioner)."""
    return _Forward(whole("to", to, 0))


def round_robin(partitions=None, only=None, start=0):
    """Record by record to the next consumer (Flink's rebalance).

    Parameters
    ----------
    partitions, only : int and sequence of int, optional
        As for :func:`hash_by`.
    start : int
        The first record goes to the consumer after this one.  Give each producer another start, so that all consumers
        get the same amount.
    """
    return _RoundRobin(partitions, only, whole("start", start, 0))


def first_free():
    """Each record, or each batch as a whole, to the consumer with the fewest waiting buffers: a work queue.

    Only buffers that wait in this writer are counted.  To hand out records one by one, set ``buffer_timeout_s=0``: then
    each record gets its own buffer.  Over TCP a consumer holds up to ``exclusive + floating`` further buffers, which
    are not counted: small values divide the work more evenly.
    """
    return _FirstFree()


def shuffle(seed=None):
    """Each record to a random consumer."""
    return _Shuffle(seed)


def rescale(producer, producers):
    """Round robin among the consumers nearest to this producer, so that few channels are used (Flink's rescale).

    Parameters
    ----------
    producer : int
        This producer's number, from 0.
    producers : int
        Number of producers.  With more consumers than producers each producer has its own consumers; with fewer,
        neighbouring producers share one.
    """
    producers = whole("producers", producers, 1)
    return _Rescale(whole("producer", producer, 0, producers - 1), producers)


def broadcast():
    """Every record to every consumer; it is written once, into buffers that all consumers read."""
    return _Broadcast()


def custom(func):
    """A user-defined selector: ``func(record, n) -> int`` or, for batches, ``func(batch, n) -> int32 array``.

    A ``func`` that knows which keys are frequent may have methods ``watch_keys(values)``, ``hot_keys()`` and
    ``key_values()``, as :class:`RecordWriter` has them.

    Notes
    -----
    Python's ``hash`` of text is another number in each process that was not forked, so that equal keys of several
    producers would part: use :func:`fastbuf.serializers.portable_hash`, with one PYTHONHASHSEED for all processes.
    ``hash`` of text is refused in a process that ``multiprocessing`` has spawned, and a RuntimeWarning elsewhere, if
    records go to other processes.
    """
    if not callable(func):
        raise ConfigError(f"func is {func!r:.80}: it must be callable")
    return _Custom(func)

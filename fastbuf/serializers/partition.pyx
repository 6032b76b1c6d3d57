"""The partition of a row under Spark's ``repartition(n, keys)``: ``pmod(murmur3(keys, seed=42), n)``."""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free

from fastbuf.serializers.column_plan cimport BoundBatch, ColumnPlan
from fastbuf.serializers.columns cimport *

from fastbuf.checks import whole
from fastbuf.errors import SchemaError, SchemaMismatch
from fastbuf.serializers.key_text import key_rows, key_text

cdef enum:
    MAX_PARTITIONS = 1 << 30


cdef void hot_count(HotKeys *h, int32_t hash, int32_t partition) noexcept nogil:
    cdef int i, least = 0
    h.taken += 1
    for i in range(h.n):
        if h.hash[i] == hash:
            h.count[i] += 1
            return
        if h.count[i] < h.count[least]:
            least = i
    if h.n < HOT_KEYS:
        least = h.n
        h.n += 1
    else:
        h.error[least] = h.count[least]
    h.hash[least] = hash
    h.partition[least] = partition
    h.count[least] += 1


cdef int check_hashable(ColumnPlan plan, int node) except -1:
    """SchemaError unless Spark has a hash for all types below `node`."""
    cdef int k
    for k in range(node, plan.nodes[node].next):
        if plan.nodes[k].hash == FB_HASH_NONE:
            fmt = plan.formats[k].decode()
            why = "cast it to a type that Spark has (timestamps and durations of microseconds, date32, decimal128 ...)"
            if fmt == "+m":
                why = "Spark cannot hash maps"
            raise SchemaError(f"column {plan.paths[k]!r} of Arrow format {fmt!r} cannot be hashed as Spark does: {why}")
    return 0


cdef object key_fields(object array, tuple keys):
    # Converts a structured array to a record batch. Positions count all fields, so then all are converted.
    from fastbuf.serializers.structured import record_batch

    names = array.dtype.names
    if names is None:
        raise SchemaError(f"an array of {array.dtype} has no fields: give a structured array")
    wanted = [name for name in names if name in keys]
    return record_batch(array[wanted] if len(wanted) == len(set(keys)) else array)


cdef class HashPartitioner:
    """Partitions of the rows of batches by the hash of key columns, as Spark computes it.

    Parameters
    ----------
    keys : str, int, or sequence of them
        Names or positions of the key columns, in Spark's order.
    partitions : int
        From 1 to 2**30.

    Attributes
    ----------
    digest : int
        A 64-bit sum over the mixed hashes of all keys so far: equal for the same keys, in any order and any batches.

    Raises
    ------
    ValueError
        There is no key, or `partitions` is out of range.
    """

    def __cinit__(self, keys, partitions):
        self.keys = (keys,) if isinstance(keys, (str, int)) else tuple(keys)
        self.partitions = whole("partitions", partitions, 1, MAX_PARTITIONS)
        if not self.keys:
            raise ValueError("at least one key column is needed")
        self.n_keys = len(self.keys)
        self.key_nodes = <int32_t *> calloc(len(self.keys), sizeof(int32_t))
        if self.key_nodes == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.key_nodes)
        free(self.hot)

    def watch_keys(self, values=False):
        """From now on count the most frequent keys, in one row of 1,024; values: keep their text, too."""
        if self.hot == NULL:
            self.hot = <HotKeys *> calloc(1, sizeof(HotKeys))
            if self.hot == NULL:
                raise MemoryError
        if values and self.texts is None:
            self.texts = {}

    def hot_keys(self):
        """The most frequent keys: a lower bound of each one's share of the rows, and its partition.

        Returns
        -------
        dict of int to tuple of float and int
            By 30 bits of the key's hash; the most frequent first.
        """
        cdef int i
        if self.hot == NULL or not self.hot.taken:
            return {}
        counts = [(self.hot.count[i] - self.hot.error[i], self.hot.hash[i], self.hot.partition[i])
                  for i in range(self.hot.n)]
        return {key: (count / self.hot.taken, part) for count, key, part in sorted(counts, reverse=True) if count}

    def key_values(self):
        """The keys of :meth:`hot_keys` as text, by hash; empty unless requested."""
        return dict(self.texts or ())

    cdef int name_key(self, int32_t hash, tuple values) except -1:
        if hash not in self.texts:
            if len(self.texts) >= 4 * HOT_KEYS:     # drop keys that are no longer counted
                hashes = {self.hot.hash[i] for i in range(self.hot.n)}
                self.texts = {key: text for key, text in self.texts.items() if key in hashes}
            self.texts[hash] = key_text(values)
        return 0

    cdef int name_batch(self, object batch) except -1:
        cdef int i
        if self.hot == NULL or not self.hot.fresh:
            return 0
        new = [i for i in range(self.hot.fresh) if self.hot.fresh_hash[i] not in self.texts]
        if new:
            for i, values in zip(new, key_rows(batch, self.keys, [self.hot.fresh_row[i] for i in new])):
                self.name_key(self.hot.fresh_hash[i], values)
        return 0

    cdef void look(self, BoundBatch batch, const int32_t *pids) noexcept nogil:
        cdef int64_t i, row, due, step
        cdef uint64_t mixed
        self.hot.fresh = 0
        self.hot.rows += batch.c.rows
        due = min(<int64_t> (self.hot.rows // HOT_EVERY - self.hot.taken), batch.c.rows, <int64_t> HOT_KEYS)
        if due <= 0:
            return
        # One row of each equal part of the batch, at a place that differs from part to part: equal keys often stand
        # together, or at the batch's beginning
        step = batch.c.rows // due
        mixed = self.hot.rows
        self.hot.fresh = <int> due
        for i in range(due):
            mixed = (mixed + 1) * 0x9E3779B97F4A7C15ULL
            row = i * step + <int64_t> ((mixed >> 32) % <uint64_t> step)
            self.hot.fresh_row[i] = row
            self.hot.fresh_hash[i] = fb_hash_row(batch.c.nodes, batch.c.cols, self.key_nodes, self.n_keys, 42, row,
                                                 MAX_PARTITIONS)
            hot_count(self.hot, self.hot.fresh_hash[i], pids[row])

    def __reduce__(self):
        return HashPartitioner, (self.keys, self.partitions)

    cdef int resolve(self, ColumnPlan plan) except -1:
        cdef int i, k, place
        cdef list nodes = [], names = plan.columns
        k = 1
        while k < plan.n_nodes:
            nodes.append(k)
            k = plan.nodes[k].next
        for i, key in enumerate(self.keys):
            if isinstance(key, str):
                if names.count(key) != 1:
                    count = names.count(key)
                    raise SchemaError(f"the schema has {count} columns named {key!r}; its columns are {names}")
                place = names.index(key)
            else:
                place = key
                if not 0 <= place < len(nodes):
                    raise SchemaError(f"key column {place} of a schema with {len(nodes)} columns")
            check_hashable(plan, nodes[place])
            self.key_nodes[i] = nodes[place]
        self.plan = plan
        return 0

    cdef int check(self, ColumnPlan plan) except -1:
        if self.plan is not plan:
            self.resolve(plan)
        return 0

    cdef int fill(self, BoundBatch batch, int32_t *pids) except -1:
        cdef uint64_t mixed
        self.check(batch.plan)
        with nogil:
            mixed = fb_hash_partition(batch.c.nodes, batch.c.cols, self.key_nodes, self.n_keys, 42, batch.c.rows,
                                      self.partitions, pids)
        if self.hot != NULL:
            self.look(batch, pids)      # with the GIL, like readers of the counts
        self.digest += mixed
        return 0

    def partition(self, batch):
        """Partition of each row.

        Parameters
        ----------
        batch : pyarrow.RecordBatch, NumPy structured array, or anything with ``__arrow_c_array__``
            Types of the key columns are looked up once: batches of one schema are the fast case.  Of a structured array
            only the key fields are read; this needs pyarrow.

        Returns
        -------
        ndarray
            int32, of shape (rows,), from 0 to partitions - 1.

        Raises
        ------
        SchemaError
            There is no such column, or Spark does not hash its type.
        """
        cdef int32_t[::1] out
        if isinstance(batch, np.ndarray):
            batch = key_fields(batch, self.keys)
        if self.batch is None:
            self.batch = BoundBatch(ColumnPlan(batch.schema if hasattr(batch, "schema") else batch))
        try:
            self.batch.bind(batch)
        except SchemaMismatch:
            self.batch = BoundBatch(ColumnPlan(batch.schema if hasattr(batch, "schema") else batch))
            self.batch.bind(batch)
        try:
            ids = np.empty(self.batch.c.rows, np.int32)
            if self.batch.c.rows:
                out = ids
                self.fill(self.batch, &out[0])
            else:
                self.check(self.batch.plan)
        finally:
            self.batch.unbind()
        return ids


def hash_partition(batch, keys, int n):
    """Partition of each row, as in Spark after ``df.repartition(n, *keys)``.

    Parameters
    ----------
    batch : pyarrow.RecordBatch, NumPy structured array, or anything with ``__arrow_c_array__``
    keys : str, int, or sequence of them
        Names or positions of the key columns, in order.
    n : int
        Number of partitions, from 1 to 2**30.

    Returns
    -------
    ndarray
        int32, of shape (rows,): ``pmod(murmur3_hash(keys), n)``.

    Raises
    ------
    SchemaError
        There is no such column, or Spark does not hash its type.

    See Also
    --------
    HashPartitioner : for many batches of one schema.
    """
    return HashPartitioner(keys, n).partition(batch)


def _best_way(int way):
    """For tests: select the kernels: without AVX2 (0), with AVX2 (1), or the best that this processor has (2)."""
    global fb_best_way
    fb_best_way = way

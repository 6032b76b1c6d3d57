"""Pairs collected by key in one dict: merged by a function, or with the values of a key in a list.

Both ends of a shuffle of pairs use it.  It estimates the memory of its entries as they arrive, so that the caller knows
when to empty it.
"""

from cpython.dict cimport PyDict_GetItemWithError, PyDict_SetItem
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from fastbuf.serializers.objects cimport *
from fastbuf.serializers.portable cimport portable_by_value
from fastbuf.serializers.record_groups cimport key_and_value, mixed

from itertools import islice
from sys import getsizeof

from fastbuf.errors import RecordError
from fastbuf.serializers.plain_sums import own_merge

cdef enum:
    ENTRY = 96              # bytes per key in a dict, including its unused places
    LIST = 96               # bytes of a list, including the places of its first values
    PLACE = 10              # bytes per further value, since a list has more places than values
    DEEPEST = 4             # containers in containers that are measured
    SAMPLE = 8              # items of a container that are measured
    SOME = 32               # of this many merges, or objects of unknown types, one is measured

cdef int64_t NO_END = 0x7FFFFFFFFFFFFFFF


def _stopped(error):
    return RuntimeError(f"a function of the pairs raised StopIteration, which would end the input early: {error}")


cdef class PairTable:
    """PairTable(create=None, merge=None, sides=0)\n--\n
    Collects pairs by key.

    Parameters
    ----------
    create : callable, optional
        Makes the first accumulator from a key's first value. Default: the value itself.
    merge : callable, optional
        Returns the new accumulator from the current one and a value. Default: the values of a key are put into a list,
        in order of arrival.
    sides : int, optional
        Values are pairs (side, value) with a side below this number: a key has a tuple of that many lists. Default: one
        list.

    Attributes
    ----------
    table : dict
        The accumulator of each key.
    rows : int
        Records read by :meth:`fill` and :meth:`passing`.
    proof : int
        A sum over the keys of these records, as in :class:`~fastbuf.serializers.record_groups.RecordGroups`.
    nbytes : int
        Approximate memory of the entries. Objects that several entries share count for each.
    """

    def __init__(self, create=None, merge=None, sides=0):
        self.table = {}
        self._create = create
        self._merge = own_merge(merge)
        self._sides = sides

    def __len__(self):
        return len(self.table)

    def fill(self, source, int64_t limit, int64_t most=NO_END):
        """Merge records into the table, until it has ``limit`` bytes, or ``most`` records have been read.

        Parameters
        ----------
        source : iterator
            Yields (key, value) pairs, or objects that Python unpacks into two.

        Returns
        -------
        bool
            Whether the source has ended.

        Raises
        ------
        RecordError
            A record is not a pair.
        TypeError
            A key cannot be hashed.
        """
        cdef tuple pair
        cdef int64_t last = self.rows + most if most < NO_END - self.rows else NO_END
        if self.nbytes >= limit or most <= 0:
            return False
        try:
            for record in source:
                pair = key_and_value(record, self.rows)
                self.rows += 1
                key = <object> PyTuple_GET_ITEM(<PyObject *> pair, 0)
                self.proof += mixed(<uint64_t> portable_by_value(key))
                self._put(key, <object> PyTuple_GET_ITEM(<PyObject *> pair, 1), True)
                if self.nbytes >= limit or self.rows >= last:
                    return False
        except StopIteration as error:
            raise _stopped(error) from error
        return True

    def passing(self, source, int64_t most):
        """The next records, each converted as if it were alone in the table.

        Parameters
        ----------
        source : iterator
            See :meth:`fill`.
        most : int
            How many.

        Returns
        -------
        list of tuple
            Fewer than ``most`` only at the end of the source.
        """
        cdef tuple pair
        cdef int64_t last = self.rows + most
        cdef list pairs = []
        if most <= 0:
            return pairs
        try:
            for record in source:
                pair = key_and_value(record, self.rows)
                self.rows += 1
                self.proof += mixed(<uint64_t> portable_by_value(pair[0]))
                if self._create is not None:
                    pair = (pair[0], self._create(pair[1]))
                PyList_Append(pairs, pair)
                if self.rows >= last:
                    break
        except StopIteration as error:
            raise _stopped(error) from error
        return pairs

    def add(self, list pairs not None):
        """Merge pairs into the table whose values are accumulators already: ``create`` is not called.

        Parameters
        ----------
        pairs : list of tuple
            Tuples of two, as :class:`~fastbuf.serializers.record_groups.RecordGroups` returns them.
        """
        cdef Py_ssize_t i = 0
        cdef int collects = 0
        if self._merge is None:
            collects = PyGC_Disable()                  # no garbage is made here, and collections would visit it often
        try:
            while i < PyList_GET_SIZE(<PyObject *> pairs):
                pair = <object> PyList_GET_ITEM(<PyObject *> pairs, i)
                i += 1
                if not (PyTuple_CheckExact(<PyObject *> pair) and PyTuple_GET_SIZE(<PyObject *> pair) == 2):
                    raise RecordError(f"{pair!r:.80} is not a tuple of a key and a value")
                key = <object> PyTuple_GET_ITEM(<PyObject *> pair, 0)
                self._put(key, <object> PyTuple_GET_ITEM(<PyObject *> pair, 1), False)
        except StopIteration as error:
            raise _stopped(error) from error
        finally:
            if collects:
                PyGC_Enable()

    def extend(self, key, Py_ssize_t side, list values not None):
        """Append to the list of a key, or of one of its sides."""
        for value in values:
            self._put(key, (side, value) if self._sides else value, False)

    def groups(self):
        """The keys with their lists, as :class:`Values`.

        Returns
        -------
        iterator of (object, Values), or of (object, tuple of Values)
        """
        if self._sides:
            for key, lists in self.table.items():
                yield key, tuple([Values(one) for one in lists])
        else:
            for key, values in self.table.items():
                yield key, Values(values)

    def bytes_of(self, o):
        """Approximate memory of an object."""
        return self._bytes_of(<PyObject *> o, 0)

    def clear(self):
        """Forget all entries."""
        self.table = {}
        self.nbytes = 0

    cdef int _put(self, object key, object value, bint fresh) except -1:
        cdef PyObject *old = PyDict_GetItemWithError(self.table, key)
        cdef list values
        cdef Py_ssize_t side = 0
        if self._merge is not None:
            if old != NULL:
                return self._merged(key, old, value)
            if fresh and self._create is not None:
                value = self._create(value)
            PyDict_SetItem(self.table, key, value)
            self.nbytes += ENTRY + self._bytes_of(<PyObject *> key, 0) + self._bytes_of(<PyObject *> value, 0)
            return 0
        if self._sides:
            side, value = value
            if not 0 <= side < self._sides:
                raise RecordError(f"a value is of side {side}, and there are {self._sides}")
        if old == NULL:
            self.nbytes += ENTRY + self._bytes_of(<PyObject *> key, 0) + LIST * max(1, self._sides)
            if self._sides:
                values = []
                PyDict_SetItem(self.table, key, tuple([values if i == side else [] for i in range(self._sides)]))
            else:
                values = []
                PyDict_SetItem(self.table, key, values)
        elif self._sides:
            values = <list> PyTuple_GET_ITEM(old, side)
        else:
            values = <list> old
        PyList_Append(values, value)
        self.nbytes += PLACE + self._bytes_of(<PyObject *> value, 0)
        return 0

    cdef int _merged(self, object key, PyObject *old, object value) except -1:
        cdef object had = <object> old
        cdef int64_t before = 0, times = 0
        if PyUnicode_CheckExact(old) or PyBytes_CheckExact(old):
            times = 1
        elif not PyLong_CheckExact(old) and not PyFloat_CheckExact(old):
            self._turn += 1
            if self._turn % SOME == 0:
                times = SOME
        if times:
            self._others = 0                           # measure the next object of an unknown type
            before = self._bytes_of(old, 0)
        merged = self._merge(had, value)
        if times:
            self._others = 0
            # Never subtract: when the table is full, the earlier entries may not have become smaller
            self.nbytes += times * max(<int64_t> 0, self._bytes_of(<PyObject *> merged, 0) - before)
        if merged is not had:
            PyDict_SetItem(self.table, key, merged)
        return 0

    cdef int64_t _bytes_of(self, PyObject *o, int depth) except -1:
        cdef int64_t x
        if PyLong_CheckExact(o):
            if fb_exact_int64(o, &x) == 0:
                return 0 if -5 <= x <= 256 else 32     # Python shares one object for each of these
            return 32 + ((<object> o).bit_length() >> 3)
        if PyUnicode_CheckExact(o):
            return 64 + PyUnicode_GET_LENGTH(o) * PyUnicode_KIND(o)
        if PyFloat_CheckExact(o):
            return 32
        if o is Py_None or PyBool_Check(o):
            return 0
        if PyBytes_CheckExact(o):
            return 48 + PyBytes_GET_SIZE(o)
        if depth < DEEPEST:
            if PyTuple_CheckExact(o):
                return self._bytes_of_items(<object> o, PyTuple_GET_SIZE(o), 56 + 8 * PyTuple_GET_SIZE(o), depth)
            if PyList_CheckExact(o):
                return self._bytes_of_items(<object> o, PyList_GET_SIZE(o), 72 + 9 * PyList_GET_SIZE(o), depth)
        return self._bytes_of_other(<object> o, depth)

    def _bytes_of_items(self, items, int64_t count, int64_t own, int depth):
        cdef int64_t used = 0, some = 0
        if count > SAMPLE and hasattr(items, "__getitem__") and not isinstance(items, dict):
            # a sample of the whole container: the first items may differ from the others
            items = [items[i * count // SAMPLE] for i in range(SAMPLE)]
        for item in islice(items, SAMPLE):
            used += self._bytes_of(<PyObject *> item, depth + 1)
            some += 1
        return own + (used * count // some if some else 0)

    def _bytes_of_other(self, o, int depth):
        cdef int64_t own, each
        self._others += 1
        if self._others % SOME != 1:
            return self._other
        try:
            own = getsizeof(o)
            nbytes = getattr(o, "nbytes", 0)           # also for an array that is a view of another
            if isinstance(nbytes, int) and nbytes > own:
                own += nbytes
            if depth < DEEPEST:
                if isinstance(o, dict):
                    each = self._bytes_of_items(o.values(), len(o), 0, depth)
                    own += each + self._bytes_of_items(o, len(o), 0, depth)
                elif isinstance(o, (set, frozenset, tuple, list)):
                    own += self._bytes_of_items(o, len(o), 0, depth)
                elif hasattr(o, "__dict__"):
                    own += self._bytes_of_items(vars(o).values(), len(vars(o)), 104, depth)
        except Exception:                              # an object may refuse to be measured
            own = 1024
        self._other = own
        return own


cdef class Values:
    """Values(data)\n--\n
    The values of a key, as in Spark's ``groupByKey``: it has a length and can be read several times.

    Parameters
    ----------
    data : sized iterable
        A list, or an object that reads the values from a file.
    """

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(self.data)

    def __len__(self):
        return len(self.data)

    def __reduce__(self):
        return Values, (self.data if type(self.data) is list else list(self.data),)

    def __repr__(self):
        return f"<{len(self.data)} values>"

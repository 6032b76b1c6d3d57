"""Records of any type, in lists by partition; each list is pickled and sent as one element."""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t

from fastbuf.serializers.objects cimport *
from fastbuf.serializers.portable cimport portable_by_value

from operator import index
from pickle import HIGHEST_PROTOCOL
from pickle import dumps as pickle_dumps

from fastbuf.errors import RecordError

cdef enum:
    MOST_PARTITIONS = 0x7FFFFFFF
    DEEPEST = 4             # containers in containers that are measured
    SAMPLE = 64             # items of a container that are measured
    MOST_OTHERS = 512       # objects with guessed size in a group, at most


cdef uint64_t mixed(uint64_t x) noexcept nogil:
    # The last steps of splitmix64 (Steele, Lea, Flood, OOPSLA 2014): every bit of x moves about half of all bits.
    x = (x ^ (x >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t> 0x94D049BB133111EB
    return x ^ (x >> 31)


cdef tuple key_and_value(object record, int64_t number):
    if PyTuple_CheckExact(<PyObject *> record) and PyTuple_GET_SIZE(<PyObject *> record) == 2:
        return <tuple> record
    return _pair(record, number)


cdef tuple _pair(object record, int64_t number):
    """The pair that ``for k, v in records`` makes of a record."""
    try:
        iterator = iter(record)
    except TypeError as error:
        if hasattr(type(record), "__iter__"):
            raise                                      # raised by the record itself
        raise _no_pair(record, number, f"a {type(record).__qualname__} cannot be unpacked") from error
    items = []
    for item in iterator:
        if len(items) == 2:
            raise _no_pair(record, number, f"a {type(record).__qualname__} that has more than two items")
        items.append(item)
    if len(items) < 2:
        raise _no_pair(record, number, f"a {type(record).__qualname__} that has {len(items)}")
    return tuple(items)


def _no_pair(record, number, why):
    shown = repr(record)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return RecordError(f"record {number} is not a (key, value) pair but {why}: {shown}; map the records to pairs first")


cdef class RecordGroups:
    """RecordGroups(partitions, key=None, partition_func=None, wanted=None, group_bytes=32768, side=None,\
 dumps=None)\n--\n
    Puts records into lists by partition, in order of arrival.

    Parameters
    ----------
    partitions : int
        From 1 to 2**31 - 1; each takes 16 bytes.
    key : callable, optional
        Returns the key of a record; the records stay unchanged. Default: records are (key, value) pairs, or objects
        that Python unpacks into two, and are returned as tuples of two, as from PySpark's ``partitionBy``.
    partition_func : callable, optional
        Returns an int for a key. Default: PySpark's ``portable_hash``.
    wanted : sequence of int, optional
        The partitions to return; records of others are counted and dropped. Default: all.
    group_bytes : int, optional
        Approximate pickled size of a full group. At most one group of each partition is open.
    side : int, optional
        Pairs are returned as (key, (side, value)).
    dumps : callable, optional
        Pickles what pickle cannot, as cloudpickle does, to measure it. Default: such an object fills a group.

    Attributes
    ----------
    rows : int
        Records seen, including dropped ones.
    proof : int
        Sum, modulo 2**64, of a mix of each record's hash, or of the result of ``partition_func``. It does not depend on
        the order of records: if two readings of one input give different sums, they did not read the same keys.

    Notes
    -----
    A key that Python hashes by its address in memory counts as 0: NaN (of float, NumPy and Decimal; Python 3.10 and
    later), and objects of classes without a hash of their own; also inside tuples. PySpark's own placement of these is
    arbitrary, since the address changes with pickling: its NaN keys are spread over all partitions, differently in each
    run. Inside a frozenset, or an object with its own hash, NaN makes the hash differ from run to run here too, and so
    does `proof`.
    """

    def __init__(self, partitions, key=None, partition_func=None, wanted=None, group_bytes=32768, side=None,
                 dumps=None):
        cdef int64_t p
        if not 1 <= partitions <= MOST_PARTITIONS:
            raise ValueError(f"partitions is {partitions}: it must be within 1 and {MOST_PARTITIONS}")
        if group_bytes < 1:
            raise ValueError(f"group_bytes is {group_bytes}: it must be 1 or more")
        if self._sizes != NULL:
            raise RuntimeError("RecordGroups is set up once")
        self.partitions = partitions
        self.group_bytes = group_bytes
        self._key = key
        self._partition_func = partition_func
        self._side = side
        self._dumps = dumps
        self._others = {}
        self._groups = [None] * partitions
        self._sizes = <int64_t *> PyMem_Calloc(partitions, sizeof(int64_t))
        if self._sizes == NULL:
            raise MemoryError(f"no memory for {partitions:,} partitions")
        if wanted is not None:
            self._wanted = <uint8_t *> PyMem_Calloc(partitions, 1)
            if self._wanted == NULL:
                raise MemoryError(f"no memory for {partitions:,} partitions")
            for p in wanted:
                if not 0 <= p < self.partitions:
                    raise ValueError(f"wanted names partition {p}, and there are {self.partitions}, from 0 on")
                self._wanted[p] = 1

    def __dealloc__(self):
        PyMem_Free(self._sizes)
        PyMem_Free(self._wanted)

    def items(self, source):
        """The groups of a source's records.

        Parameters
        ----------
        source : iterable
            It is read as groups are requested.

        Returns
        -------
        iterator of (int, list)
            Partition and records. A group is returned when it is full, or after the last record. The caller owns the
            list. `rows` and `proof` continue from one source to the next; read one to its end before the next.

        Raises
        ------
        RecordError
            A record is not a pair, or a partition function's result is not an int; the message has the record's number.
        TypeError
            A key cannot be hashed.
        """
        return self._items(iter(source))

    cdef int64_t _place(self, object key) except -1:
        """Returns the partition of a key, and counts the record."""
        cdef int64_t to
        cdef uint64_t x
        if self._partition_func is None:
            x = <uint64_t> portable_by_value(key)
            to = <int64_t> x % self.partitions
            if to < 0:
                to += self.partitions
        else:
            to = self._from_number(self._partition_func(key), &x)
        self.rows += 1
        self.proof += mixed(x)
        return to

    cdef object _from_number(self, object number, uint64_t *x):
        try:
            whole = index(number)
        except TypeError as error:
            raise RecordError(
                f"the partition function gave {number!r} for the key of record {self.rows}: it must be an int"
            ) from error
        x[0] = <uint64_t> (whole & 0xFFFFFFFFFFFFFFFF)
        return whole % self.partitions

    cdef int64_t _bytes_of(self, PyObject *o, int depth) except -1:
        """Approximate bytes of an object's pickle."""
        cdef int64_t x
        if PyLong_CheckExact(o):
            if fb_exact_int64(o, &x) == 0:
                return 3 if 0 <= x < 65536 else 5 if -0x80000000 <= x < 0x80000000 else 11
            return 6 + ((<object> o).bit_length() >> 3)
        if PyUnicode_CheckExact(o):
            return 3 + PyUnicode_GET_LENGTH(o) * PyUnicode_KIND(o)
        if PyFloat_CheckExact(o):
            return 9
        if o is Py_None or PyBool_Check(o):
            return 1
        if PyBytes_CheckExact(o):
            return 3 + PyBytes_GET_SIZE(o)
        if depth < DEEPEST:
            if PyTuple_CheckExact(o):
                return self._bytes_of_items(o, False, depth + 1)
            if PyList_CheckExact(o):
                return self._bytes_of_items(o, True, depth + 1)
        return self._bytes_of_other(<object> o)

    cdef int64_t _bytes_of_items(self, PyObject *o, bint is_list, int depth) except -1:
        cdef Py_ssize_t n = PyList_GET_SIZE(o) if is_list else PyTuple_GET_SIZE(o), i
        cdef Py_ssize_t some = min(n, <Py_ssize_t> SAMPLE)
        cdef int64_t used = 0
        for i in range(some):
            # Keep a reference: pickling an item may run code that changes the list.
            if is_list:
                if i >= PyList_GET_SIZE(o):
                    break
                item = <object> PyList_GET_ITEM(o, i)
            else:
                item = <object> PyTuple_GET_ITEM(o, i)
            used += self._bytes_of(<PyObject *> item, depth)
        return 2 + (used if some == n else used // some * n)

    cdef int64_t _bytes_of_other(self, object o) except -1:
        if PyObject_CheckBuffer(<PyObject *> o):
            try:
                return max(memoryview(o).nbytes + 64, self.group_bytes // MOST_OTHERS)
            except (BufferError, ValueError, TypeError):
                pass                                   # it offers no buffer after all: measure it like other objects
        kind = id(type(o))           # a class may have no hash
        size = self._others.get(kind)
        if size is None:
            size = self._others[kind] = self._measured(o)
        return max(<int64_t> size, self.group_bytes // MOST_OTHERS)

    def _measured(self, o):
        try:
            return len(pickle_dumps(o, HIGHEST_PROTOCOL))
        except Exception:
            pass
        try:
            # A class of __main__, or of a function, is in the pickle: a group has it once
            return len(self._dumps(o)) - len(self._dumps(type(o)))
        except Exception:
            return self.group_bytes                    # if nothing can pickle it, the serializer raises

    cdef tuple _next_group(self, object source):
        cdef int64_t to, size
        for record in source:
            if self._key is None:
                if not (PyTuple_CheckExact(<PyObject *> record) and PyTuple_GET_SIZE(<PyObject *> record) == 2):
                    record = _pair(record, self.rows)
                to = self._place(<object> PyTuple_GET_ITEM(<PyObject *> record, 0))
                if self._side is not None:
                    record = ((<tuple> record)[0], (self._side, (<tuple> record)[1]))
            else:
                to = self._place(self._key(record))
            if self._wanted != NULL and not self._wanted[to]:
                continue
            size = self._sizes[to] + self._bytes_of(<PyObject *> record, 0)
            # Looked up after the last step that may run user code
            group = <object> PyList_GET_ITEM(<PyObject *> self._groups, to)
            if group is None:
                group = self._groups[to] = []
            PyList_Append(group, record)
            if size >= self.group_bytes:
                self._groups[to] = None
                self._sizes[to] = 0
                self._others.clear()
                return to, group
            self._sizes[to] = size
        return None

    def _items(self, source):
        cdef int64_t p
        while (item := self._next_group(source)) is not None:
            yield item
        for p in range(self.partitions):
            group = self._groups[p]
            if group is not None:
                self._groups[p] = None
                self._sizes[p] = 0
                yield p, group

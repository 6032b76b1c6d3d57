"""The partition of a key under PySpark's ``rdd.partitionBy(n)``: exactly ``portable_hash(key) % n``.

Source: ``pyspark.core.rdd.portable_hash``, which is CPython 2.7's hash for tuples and Python's own hash for everything
else; arithmetic modulo 2**64 gives the low 63 bits of its unbounded integers.
"""

import os

import numpy as np

from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject_Hash
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int32_t, int64_t, uint64_t

from fastbuf.errors import ConfigError, RecordError

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        Py_hash_t (*tp_hash)(object) except? -1
    PyTypeObject PyBaseObject_Type

cdef enum:
    DEEPEST = 500        # nested tuples: far below the limit of C's stack

cdef bint _seeded = False


cdef int _check_seed() except -1:
    global _seeded
    if "PYTHONHASHSEED" not in os.environ:
        raise ConfigError(
            "PYTHONHASHSEED is not set: Python then hashes text differently in each process, and equal keys would "
            "part; set it to one number everywhere (Spark sets 0 for its workers)"
        )
    _seeded = True
    return 0


cdef Py_hash_t _portable(object x, int depth, bint by_value) except? -1:
    cdef uint64_t h
    cdef Py_hash_t of
    if x is None:
        return 0
    if not isinstance(x, tuple):
        of = PyObject_Hash(x)
        if by_value and not PyLong_CheckExact(x) and not PyUnicode_CheckExact(x) and of == PyBaseObject_Type.tp_hash(x):
            return 0
        return of
    if depth > DEEPEST:
        raise RecordError(f"a key is nested deeper than {DEEPEST} tuples")
    h = 0x345678
    for item in <tuple> x:
        of = _portable(item, depth + 1, by_value)
        h = ((h ^ <uint64_t> of) * 1000003) & 0x7FFFFFFFFFFFFFFF
    return <Py_hash_t> (h ^ <uint64_t> len(<tuple> x))


cdef Py_hash_t portable(object x) except? -1:
    if not _seeded:
        _check_seed()
    return _portable(x, 0, False)


cdef Py_hash_t portable_by_value(object x) except? -1:
    if not _seeded:
        _check_seed()
    return _portable(x, 0, True)


def portable_hash(x):
    """PySpark's ``portable_hash``.

    Parameters
    ----------
    x : hashable
        None is 0; tuples (also named ones and Rows) are hashed item by item, other objects by Python.

    Returns
    -------
    int
        64 bits, signed.

    Raises
    ------
    ConfigError
        PYTHONHASHSEED is not set.
    TypeError
        Some part of it is not hashable.
    """
    return portable(x)


def portable_partition(keys, n):
    """Partition of each key: ``portable_hash(key) % n``.

    Parameters
    ----------
    keys : iterable of hashable
    n : int
        Partitions, from 1 to 2**31 - 1.

    Returns
    -------
    ndarray
        int32, of shape (keys,), from 0 to n - 1.
    """
    cdef list items = keys if type(keys) is list else list(keys)
    cdef Py_ssize_t i, count = len(items)
    cdef int64_t parts = n, to
    cdef int32_t[::1] out
    if not 1 <= parts <= 0x7FFFFFFF:
        raise ValueError(f"n is {n}: it must be within 1 and {0x7FFFFFFF}")
    partitions = np.empty(count, np.int32)
    out = partitions
    for i in range(count):
        if i >= len(items):
            raise RecordError("the keys changed in number while they were hashed")
        to = portable(items[i]) % parts
        out[i] = <int32_t> (to + parts if to < 0 else to)
    return partitions

# Pairs collected by key: merged by a function, or their values in lists.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t


# For one thread.  Runs the caller's Python code: the source, create and merge, hashes and equality of keys.  It also
# pickles some objects of unknown types to learn their size.
cdef class PairTable:
    cdef readonly dict table            # by key: the merged value, a list of values, or one list per side
    cdef readonly int64_t rows          # pairs read by fill
    cdef readonly uint64_t proof        # sum of mixed key hashes, as in RecordGroups
    cdef readonly int64_t nbytes        # approximate memory of the table's entries
    cdef object _create                 # None: the first value of a key is merged with the next ones
    cdef object _merge                  # None: values are collected in lists
    cdef Py_ssize_t _sides              # lists per key, if values name their side; 0: one list, and they do not
    cdef int64_t _turn                  # merge counter: growth is measured only for some merges
    cdef int64_t _other                 # bytes of the last measured object of an unknown type
    cdef int64_t _others                # objects of unknown types so far

    cdef int _put(self, object key, object value, bint fresh) except -1
    cdef int _merged(self, object key, PyObject *old, object value) except -1
    cdef int64_t _bytes_of(self, PyObject *o, int depth) except -1


cdef class Values:
    cdef readonly object data           # has a length, and can be iterated more than once

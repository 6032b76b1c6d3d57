# Pairs collected by key: merged by a function, or their values in lists.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t


# For one thread.  Runs the caller's Python code: the source, create and merge, hashes and equality of keys.  It also
# pickles some objects of unknown types to learn their size.
cdef class PairTable:
    cdef readonly dict table            # by key: what was merged, a list of values, or a list for each side
    cdef public int64_t rows          # that fill has read
    cdef public uint64_t proof        # of their keys, as in RecordGroups
    cdef readonly int64_t nbytes        # of memory that the table's entries take, about
    cdef object _create                 # None: a value is what the next ones are merged with
    cdef object _merge                  # None: values are put into lists
    cdef Py_ssize_t _sides              # lists of a key, which values name then; 0: one, and they do not
    cdef int64_t _turn                  # merges whose growth is looked at now and then
    cdef int64_t _other                 # bytes of the last object of an unknown kind that was looked at
    cdef int64_t _others                # such objects seen

    cdef int _put(self, object key, object value, bint fresh) except -1
    cdef int _merged(self, object key, PyObject *old, object value) except -1
    cdef int64_t _bytes_of(self, PyObject *o, int depth) except -1


cdef class Values:
    cdef readonly object data           # has a length, and can be iterated more than once

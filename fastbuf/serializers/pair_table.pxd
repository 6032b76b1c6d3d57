# Pairs collected by key: merged by a function, or their values in lists.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t


# For one thread.  Runs the caller's Python code: the source, create and merge, hashes and equality of keys.
#
# It reckons what objects take in memory, as a table must fit there; RecordGroups reckons what they take in a pickle, as
# a group is to fill a segment.  An int takes 32 bytes here and 3 to 11 there; what a class of C code holds is seen by
# its pickle alone.  So there are two estimators.
cdef class PairTable:
    cdef readonly dict table            # by key: the merged value, a list of values, or a list for each side
    cdef public int64_t rows            # records read by fill
    cdef public uint64_t proof          # sum of their keys' hashes, as in RecordGroups
    cdef readonly int64_t nbytes        # approximate memory of the entries
    cdef object _create                 # None: the first accumulator is the value itself
    cdef object _merge                  # None: values are put into lists
    cdef Py_ssize_t _sides              # lists per key, and values then have a list's number; 0: one list
    cdef int64_t _turn                  # merges so far; the growth of every SOMEth one is measured
    cdef int64_t _other                 # bytes of the last measured object of an unknown type
    cdef int64_t _others                # such objects seen

    cdef int _put(self, object key, object value, bint fresh) except -1
    cdef int _merged(self, object key, PyObject *old, object value) except -1
    cdef int64_t _bytes_of(self, PyObject *o, int depth) except -1


cdef class Values:
    cdef readonly object data           # has a length, and can be iterated more than once

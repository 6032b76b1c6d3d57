# Records of any type, in lists by partition.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef uint64_t mixed(uint64_t x) noexcept nogil
# Checks that a record is a tuple of two; number: the record's number in errors.
cdef tuple key_and_value(object record, int64_t number)


# For one thread.  Runs the caller's Python code: the source, key and partition_func, hashes of keys that are not of
# built-in types.  It also pickles one object of each unknown type per group, to learn the size of such objects.
cdef class RecordGroups:
    cdef readonly int64_t partitions
    cdef readonly int64_t group_bytes
    cdef public int64_t rows          # records seen, including those for unwanted partitions
    cdef public uint64_t proof        # sum of mixed hashes of the keys of all rows
    cdef object _key                    # None: records are pairs
    cdef object _partition_func         # None: portable_hash
    cdef object _side                   # None: pairs are returned unchanged
    cdef list _groups                   # the open group of each partition, or None
    cdef int64_t *_sizes                # approximate bytes of each open group
    cdef uint8_t *_wanted               # 1 or 0 for each partition; NULL: all are wanted
    cdef object _dumps                  # pickles what pickle cannot; None: nothing does
    cdef dict _others                   # by address of an unknown type: bytes of the object of it that was pickled

    cdef int64_t _place(self, object key) except -1
    cdef object _from_number(self, object number, uint64_t *x)
    cdef int64_t _bytes_of(self, PyObject *o, int depth) except -1
    cdef int64_t _bytes_of_items(self, PyObject *o, bint is_list, int depth) except -1
    cdef int64_t _bytes_of_other(self, object o) except -1
    cdef tuple _next_group(self, object source)      # None at the end of the source

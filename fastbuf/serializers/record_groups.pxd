# Records of any kind, in lists by partition.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef uint64_t mixed(uint64_t x) noexcept nogil
# A record as a tuple of two; number: what an error calls it by.
cdef tuple key_and_value(object record, int64_t number)


# For one thread.  Its Python code is the caller's alone: the source, key and partition_func, the hashes of keys of
# other than built-in types, and pickling one object of an unknown kind a group to learn how long such objects are.
cdef class RecordGroups:
    cdef readonly int64_t partitions
    cdef readonly int64_t group_bytes
    cdef public int64_t rows          # seen, those that nobody wants too
    cdef public uint64_t proof        # sum of mixed hashes of the keys of all rows
    cdef object _key                    # None: records are pairs
    cdef object _partition_func         # None: portable_hash
    cdef object _side                   # None: pairs come out as they are
    cdef list _groups                   # the open group of each partition, or None
    cdef int64_t *_sizes                # bytes of each open group, about
    cdef uint8_t *_wanted               # 1 or 0 for each partition; NULL: all are wanted
    cdef int64_t _other_bytes           # of an object of an unknown kind: the last one that was pickled
    cdef bint _ask                      # pickle the next one

    cdef int64_t _place(self, object key) except -1
    cdef object _from_number(self, object number, uint64_t *x)
    cdef int64_t _bytes_of(self, PyObject *o, int depth) except -1
    cdef int64_t _bytes_of_items(self, PyObject *o, bint is_list, int depth) except -1
    cdef int64_t _bytes_of_other(self, object o) except -1
    cdef tuple _next_group(self, object source)      # None at the end of the source
    cdef tuple _next_rest(self, int64_t *at)         # from partition at[0] on; None when all are out


cdef class GroupIterator:
    cdef RecordGroups _groups
    cdef object _source                 # None: has ended
    cdef int64_t _at                    # the next partition to give out, then

# What views of one schema share, so that a view of a few records costs little more than they do.
#
# A plan is never changed after it was made, but for what it remembers (arrays' types, keys): under the GIL, and made
# twice at worst.
from libc.stdint cimport int32_t

from fastbuf.serializers.row_plan cimport Node, RowPlan


cdef class LazyKey:
    cdef int32_t *places         # positions of the key's fields; freed with it
    cdef int32_t count
    cdef tuple names


cdef class LazyPlan:
    cdef RowPlan plan
    cdef Node *root              # the plan's
    cdef int32_t *before         # per field: offset of the slot of the var-length field before it, -1 for none
    cdef dict places             # name -> position
    cdef dict attributes         # the same without names of a row's methods
    cdef dict _arrays            # position -> NumPy's types: of the slots, and of the array if it is another
    cdef dict _keys              # what was asked for as a key -> LazyKey or None

    # Where a field stands, by name or position; SchemaError, IndexError.
    cdef Py_ssize_t place(self, object field) except -1
    # What rows are compared by; None for all fields where some have no order.
    cdef LazyKey key(self, object wanted)
    cdef LazyKey _choose(self, object wanted)
    cdef tuple array_types(self, Py_ssize_t place)

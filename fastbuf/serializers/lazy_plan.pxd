# State shared by all views of one schema, so that a view of a few records is cheap.
#
# A plan is immutable, except for caches (array types, keys).  They are filled under the GIL, in the worst case twice.
from libc.stdint cimport int32_t

from fastbuf.serializers.row_plan cimport Node, RowPlan


cdef class LazyKey:
    cdef int32_t *places         # positions of the key's fields; owned
    cdef int32_t count
    cdef tuple names


cdef class LazyPlan:
    cdef RowPlan plan
    cdef Node *root              # the plan's node, borrowed
    cdef int32_t *before         # per field: offset of the slot of the previous var-length field, -1 if none
    cdef dict places             # name -> position
    cdef dict attributes         # the same without names that are methods of a row
    cdef dict _arrays            # position -> NumPy's types: of the slots, and of the array if that differs
    cdef dict _keys              # requested key -> LazyKey or None

    # Position of a field given by name or position; raises SchemaError or IndexError.
    cdef Py_ssize_t place(self, object field) except -1
    # The fields that rows are compared by; None: all fields, some of which have no order.
    cdef LazyKey key(self, object wanted)
    cdef LazyKey _choose(self, object wanted)
    cdef tuple array_types(self, Py_ssize_t place)

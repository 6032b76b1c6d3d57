# The plan of a schema: its nodes in preorder, as the kernels need them.  Built once, immutable, shared.
from libc.stdint cimport int32_t, int64_t

from fastbuf.serializers.arrow_abi cimport ArrowArray, ArrowSchema
from fastbuf.serializers.columns cimport fb_batch, fb_node


cdef class ColumnPlan:
    cdef fb_node *nodes            # malloc'ed, n_nodes of them; node 0 is the struct of all columns
    cdef int32_t n_nodes
    cdef int64_t max_element       # most bytes of an element of this schema
    cdef list paths                # per node: "a", "a[]", "a.x", for error messages
    cdef list formats              # per node: Arrow's format string, as bytes
    cdef list names                # per node: the field's name, as bytes
    # pyarrow.Schema of the encoded columns, if their types differ (column_wire.py); or None
    cdef object wire
    cdef object arrow              # the schema given, until arrow_schema is called; then the pyarrow.Schema
    cdef bint is_arrow             # whether `arrow` is the pyarrow.Schema

    cdef int _check(self, const ArrowSchema *s, int *at) except -1
    cdef int start(self, const ArrowSchema *s) except -1
    cdef int read(self, const ArrowSchema *s, str path, bint no_nulls, int depth) except -1
    cdef int kind_of(self, const ArrowSchema *s, str path, fb_node *t) except -1
    cdef int check(self, const ArrowSchema *s) except -1       # SchemaMismatch unless names and types equal the plan's
    cdef object arrow_schema(self)                              # imports pyarrow


# A batch bound to a plan.  Holds the batch between bind and unbind.
cdef class BoundBatch:
    cdef ColumnPlan plan
    cdef fb_batch c
    cdef object capsule            # the array capsule that the columns point into
    cdef ArrowArray own            # used instead for a pyarrow batch whose schema was seen before
    cdef object seen               # the pyarrow.Schema checked last

    cdef int bind(self, object batch) except -1
    cdef int bind_array(self, const ArrowArray *array) except -1   # the caller holds the array
    cdef void unbind(self)
    cdef int make_scratch(self) except -1
    cdef void _free_scratch(self)
    cdef void _release(self)


cdef ColumnPlan plan_of(const ArrowSchema *s)                     # the caller holds the struct, which is read once
cdef const ArrowSchema *schema_of(object capsule) except NULL
cdef const ArrowArray *array_of(object capsule) except NULL
cdef bint is_record_batch(object data)                            # pyarrow's class, not a subclass

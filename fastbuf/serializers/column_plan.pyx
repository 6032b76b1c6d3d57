"""The columnar plan of an Arrow schema, and batches bound to it through the Arrow C data interface."""

import sys

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int64_t, uint32_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset, strcmp

from fastbuf.serializers.arrow_abi cimport ARROW_FLAG_NULLABLE, ArrowArray, ArrowSchema
from fastbuf.serializers.columns cimport *

from fastbuf.errors import SchemaError, SchemaMismatch
from fastbuf.serializers.column_wire import plain_schema, to_wire, unordered

cdef int MAX_DEPTH = 64

# Format -> (kind, bytes, hash); kind_of handles formats with parameters.
cdef dict _FORMATS = {
    b"n": (FB_NULL, 0, FB_HASH_NULL),
    b"b": (FB_BOOL, 0, FB_HASH_BOOL),
    b"c": (FB_FIXED, 1, FB_HASH_INT8),
    b"C": (FB_FIXED, 1, FB_HASH_UINT8),
    b"s": (FB_FIXED, 2, FB_HASH_INT16),
    b"S": (FB_FIXED, 2, FB_HASH_UINT16),
    b"i": (FB_FIXED, 4, FB_HASH_INT32),
    b"I": (FB_FIXED, 4, FB_HASH_UINT32),
    b"l": (FB_FIXED, 8, FB_HASH_INT64),
    b"L": (FB_FIXED, 8, FB_HASH_NONE),
    b"e": (FB_FIXED, 2, FB_HASH_NONE),
    b"f": (FB_FIXED, 4, FB_HASH_FLOAT),
    b"g": (FB_FIXED, 8, FB_HASH_DOUBLE),
    b"z": (FB_VAR32, 0, FB_HASH_BYTES),
    b"u": (FB_VAR32, 0, FB_HASH_BYTES),
    b"Z": (FB_VAR64, 0, FB_HASH_BYTES),
    b"U": (FB_VAR64, 0, FB_HASH_BYTES),
    b"tdD": (FB_FIXED, 4, FB_HASH_INT32),
    b"tdm": (FB_FIXED, 8, FB_HASH_NONE),
    b"tts": (FB_FIXED, 4, FB_HASH_NONE),
    b"ttm": (FB_FIXED, 4, FB_HASH_NONE),
    b"ttu": (FB_FIXED, 8, FB_HASH_NONE),
    b"ttn": (FB_FIXED, 8, FB_HASH_INT64),
    b"tDs": (FB_FIXED, 8, FB_HASH_NONE),
    b"tDm": (FB_FIXED, 8, FB_HASH_NONE),
    b"tDu": (FB_FIXED, 8, FB_HASH_INT64),
    b"tDn": (FB_FIXED, 8, FB_HASH_NONE),
    b"+l": (FB_LIST32, 0, FB_HASH_NESTED),
    b"+L": (FB_LIST64, 0, FB_HASH_NESTED),
    b"+s": (FB_STRUCT, 0, FB_HASH_NESTED),
    b"+m": (FB_LIST32, 0, FB_HASH_NONE),
}
# Arrow types that are not supported, with their common names, and what to do.
cdef dict _REFUSED = {
    b"+vl": ("list_view", "make lists of its values (pyarrow.array(column.to_pylist()))"),
    b"+vL": ("large_list_view", "make lists of its values (pyarrow.array(column.to_pylist()))"),
    b"+r": ("run_end_encoded", "decode it, as by pyarrow.compute.run_end_decode"),
    b"+us": ("sparse_union", "make a column of each of its types, or leave it out"),
    b"+ud": ("dense_union", "make a column of each of its types, or leave it out"),
    b"tiM": ("month_interval", "make numbers of it, or leave it out"),
    b"tiD": ("day_time_interval", "make numbers of it, or leave it out"),
    b"tin": ("month_day_nano_interval", "make numbers of it, or leave it out"),
}


cdef const ArrowSchema *schema_of(object capsule) except NULL:
    return <const ArrowSchema *> PyCapsule_GetPointer(capsule, "arrow_schema")


cdef const ArrowArray *array_of(object capsule) except NULL:
    return <const ArrowArray *> PyCapsule_GetPointer(capsule, "arrow_array")


cdef bint travels_as_other(const ArrowSchema *s) noexcept:
    # Whether the schema contains a view or a dictionary.
    cdef int64_t i
    if s.dictionary != NULL or strcmp(s.format, "vu") == 0 or strcmp(s.format, "vz") == 0:
        return True
    for i in range(s.n_children):
        if travels_as_other(s.children[i]):
            return True
    return False


cdef class ColumnPlan:
    """The nodes of a schema, as the columnar kernels need them.

    Parameters
    ----------
    schema : Schema, pyarrow.Schema, or anything with ``__arrow_c_schema__``
        A struct of named columns.

    Raises
    ------
    SchemaError
        A type is not supported; the message names the field and the type.
    """

    def __cinit__(self, schema):
        self.paths, self.formats, self.names = [], [], []
        self.max_element = <int64_t> 1 << 31
        self.arrow = schema
        if schema is None:
            return  # plan_of fills it
        if not hasattr(schema, "__arrow_c_schema__"):
            if not hasattr(schema, "to_arrow"):
                raise TypeError(
                    f"{type(schema).__name__} is not a schema: give a Schema or something with __arrow_c_schema__"
                )
            self.arrow = schema.to_arrow()
        capsule = self.arrow.__arrow_c_schema__()
        if travels_as_other(schema_of(capsule)):
            self.arrow = unordered(self.arrow_schema())
            self.wire = plain_schema(self.arrow)
            capsule = self.wire.__arrow_c_schema__()
        self.start(schema_of(capsule))

    def __dealloc__(self):
        free(self.nodes)

    cdef int start(self, const ArrowSchema *s) except -1:
        if <bytes> s.format != b"+s":
            raise SchemaError(f"a schema is a struct of columns, this is an Arrow {<bytes> s.format!r}")
        return self.read(s, "", True, 0)

    cdef int read(self, const ArrowSchema *s, str path, bint no_nulls, int depth) except -1:
        # Appends the node of s and its descendants; sets its `next`, `bits` and `dynamic` afterwards.
        cdef int at = self.n_nodes, child
        cdef int64_t i, bits = 0
        cdef bint dynamic, is_map, filled
        cdef fb_node *grown = <fb_node *> realloc(self.nodes, (at + 1) * sizeof(fb_node))
        cdef str where
        if grown == NULL:
            raise MemoryError
        self.nodes = grown
        self.n_nodes = at + 1
        memset(&grown[at], 0, sizeof(fb_node))
        if depth > MAX_DEPTH:
            raise SchemaError(f"column {path!r} is nested more than {MAX_DEPTH} deep")
        if s.dictionary != NULL:
            raise SchemaError(
                f"column {path!r} is dictionary-encoded, which is not supported: cast it to its values' type"
            )
        self.kind_of(s, path, &grown[at])
        self.paths.append(path)
        self.formats.append(<bytes> s.format)
        self.names.append(<bytes> s.name if s.name != NULL else b"")
        cdef int kind = grown[at].kind
        cdef int64_t width = grown[at].width
        grown[at].no_nulls = no_nulls
        dynamic = kind == FB_VAR32 or kind == FB_VAR64 or kind == FB_LIST32 or kind == FB_LIST64
        is_map = <bytes> s.format == b"+m"
        for i in range(s.n_children):
            child = self.n_nodes
            if kind == FB_STRUCT:
                name = (<bytes> s.children[i].name).decode("utf-8", "replace") if s.children[i].name != NULL else str(i)
                where = f"{path}.{name}" if path else name
            else:
                where = f"{path}[]"
            # A nested field may hold nulls wherever its parent is null, whatever its own flag says.
            filled = at == 0 and not s.children[i].flags & ARROW_FLAG_NULLABLE
            self.read(s.children[i], where, filled or is_map, depth + 1)
            if is_map and self.nodes[child].next > child + 1:
                self.nodes[child + 1].no_nulls = True  # the map's key
            if kind == FB_STRUCT:
                bits += self.nodes[child].bits
                dynamic = dynamic or self.nodes[child].dynamic
                continue
            if self.nodes[child].bits == 0 and not (kind == FB_FSL and width == 0):
                inside = {b"n": "nulls", b"+s": "structs without fields"}.get(self.formats[child], "values")
                raise SchemaError(
                    f"column {path!r} is a list of {inside} that take no bytes: such lists are not supported; cast "
                    "what is in it to another type, as int8")
            if kind == FB_FSL:
                bits += width * self.nodes[child].bits
                dynamic = dynamic or self.nodes[child].dynamic
            elif self.nodes[child].bits < 4:
                self.max_element = <int64_t> 1 << 29
        if kind == FB_FIXED:
            bits = 8 * width
        elif kind == FB_BOOL:
            bits = 1
        elif kind == FB_VAR32 or kind == FB_VAR64 or kind == FB_LIST32 or kind == FB_LIST64:
            bits = 32
        if bits > <int64_t> 1 << 36:
            raise SchemaError(
                f"a row of column {path or 'all'!r} takes {bits // 8:,} bytes; at most {1 << 33:,} are carried"
            )
        self.nodes[at].bits = bits
        self.nodes[at].dynamic = dynamic
        self.nodes[at].next = self.n_nodes
        return 0

    cdef int kind_of(self, const ArrowSchema *s, str path, fb_node *t) except -1:
        cdef bytes fmt = <bytes> s.format
        cdef int64_t wanted
        layout = _FORMATS.get(fmt)
        refused = _REFUSED.get(fmt[:3] if fmt.startswith(b"+u") else fmt)
        parameters = fmt.partition(b":")[2]
        if layout is not None:
            t.kind, t.width, t.hash = layout
            t.text = fmt == b"u" or fmt == b"U"
        elif refused is not None:
            raise SchemaError(f"column {path!r} has the type {refused[0]}, which is not supported: {refused[1]}")
        elif fmt.startswith((b"tss:", b"tsm:", b"tsu:", b"tsn:")):
            t.kind, t.width = FB_FIXED, 8
            # Spark's timestamps are in microseconds: other units would have other hashes.
            t.hash = FB_HASH_INT64 if fmt.startswith(b"tsu:") else FB_HASH_NONE
        elif fmt.startswith(b"w:"):
            t.kind, t.width, t.hash = FB_FIXED, int(parameters), FB_HASH_BYTES
        elif fmt.startswith(b"d:"):
            digits = [int(x) for x in parameters.split(b",")]
            t.kind = FB_FIXED
            t.width = (digits[2] if len(digits) > 2 else 128) // 8
            if t.width == 16:
                t.hash = FB_HASH_DECIMAL_LONG if digits[0] <= 18 else FB_HASH_DECIMAL_BIG
        elif fmt.startswith(b"+w:"):
            t.kind, t.width, t.hash = FB_FSL, int(parameters), FB_HASH_NESTED
        else:
            text = fmt.decode("utf-8", "replace")
            raise SchemaError(f"column {path!r} has the Arrow format {text!r}, which is not supported")
        wanted = s.n_children if t.kind == FB_STRUCT else 0
        if t.kind == FB_LIST32 or t.kind == FB_LIST64 or t.kind == FB_FSL:
            wanted = 1
        if s.n_children != wanted or t.width < 0:
            raise SchemaError(f"column {path!r} of Arrow format {fmt.decode()!r} has {s.n_children} children")
        return 0

    cdef int check(self, const ArrowSchema *s) except -1:
        cdef int at = 0
        self._check(s, &at)
        return 0

    cdef int _check(self, const ArrowSchema *s, int *at) except -1:
        # Only names of struct fields matter: the item of a list may be called "item" or "element".
        cdef int node = at[0], children = 0, k
        cdef int64_t i
        cdef bint named = node == 0 or self.nodes[node].kind == FB_STRUCT
        cdef const char *name
        at[0] += 1
        k = node + 1
        while k < self.nodes[node].next:
            children += 1
            k = self.nodes[k].next
        if strcmp(s.format, <const char *> <bytes> self.formats[node]) or s.dictionary != NULL:
            raise SchemaMismatch(
                f"column {self.paths[node]!r} is of Arrow format {self.formats[node].decode()!r} in the schema and of "
                f"{(<bytes> s.format).decode('utf-8', 'replace')!r}{' (dictionary)' if s.dictionary != NULL else ''} "
                "in the batch: cast the batch to the schema"
            )
        if s.n_children != children:
            raise SchemaMismatch(f"{f'column {self.paths[node]!r}' if node else 'the schema'} has {children} fields, "
                                 f"the batch has {s.n_children}")
        for i in range(children):
            name = s.children[i].name
            if name == NULL:
                name = ""
            if named and strcmp(name, <const char *> <bytes> self.names[at[0]]):
                raise SchemaMismatch(f"column {i} is {self.paths[at[0]]!r} in the schema and "
                                     f"{(<bytes> name).decode('utf-8', 'replace')!r} in the batch")
            self._check(s.children[i], at)
        return 0

    cdef object arrow_schema(self):
        if not self.is_arrow:
            import pyarrow

            if not isinstance(self.arrow, pyarrow.Schema):
                self.arrow = pyarrow.schema(self.arrow)
            self.is_arrow = True
        return self.arrow

    def __len__(self):
        return self.n_nodes

    @property
    def columns(self):
        """Names of the columns, in order."""
        cdef int k = 1
        names = []
        while k < self.n_nodes:
            names.append(self.names[k].decode("utf-8", "replace"))
            k = self.nodes[k].next
        return names


cdef ColumnPlan plan_of(const ArrowSchema *s):
    """A plan without a schema object: for reading arrays, not for making batches."""
    cdef ColumnPlan plan = ColumnPlan.__new__(ColumnPlan, None)
    plan.start(s)
    return plan


cdef object _class_of_batches = None


cdef object _record_batch():
    # pyarrow.RecordBatch if pyarrow is imported already: this does not import it.
    global _class_of_batches
    if _class_of_batches is None and "pyarrow" in sys.modules:
        _class_of_batches = getattr(sys.modules["pyarrow"], "RecordBatch", None)
    return _class_of_batches


cdef bint is_record_batch(object data):
    return type(data) is _record_batch()


cdef class BoundBatch:
    """A batch whose buffers are bound to the nodes of a plan."""

    def __cinit__(self, ColumnPlan plan):
        self.plan = plan
        self.c.nodes = plan.nodes
        self.c.n_nodes = plan.n_nodes
        self.c.max_element = plan.max_element
        self.c.cols = <fb_column *> calloc(plan.n_nodes, sizeof(fb_column))
        if self.c.cols == NULL:
            raise MemoryError

    def __dealloc__(self):
        self._release()
        self._free_scratch()
        free(self.c.cols)

    cdef void _release(self):
        if self.own.release != NULL:
            self.own.release(&self.own)

    cdef void _free_scratch(self):
        cdef int k
        if self.c.cols == NULL or not self.c.needs_scratch:
            return
        for k in range(self.c.n_nodes):
            free(self.c.cols[k].scratch)
            self.c.cols[k].scratch = NULL
        self.c.needs_scratch = 0

    cdef int bind(self, object batch) except -1:
        self.unbind()
        if type(batch) is _record_batch() and self.seen is not None and self.seen.equals(batch.schema):
            # Without capsules and schema check: saves a third of the time per batch.
            batch._export_to_c(<uintptr_t> &self.own)
            return self.bind_array(&self.own)
        if not hasattr(batch, "__arrow_c_array__"):
            raise TypeError(f"{type(batch).__name__} is not a batch: give something with __arrow_c_array__")
        schema, array = batch.__arrow_c_array__()
        if self.plan.wire is not None or travels_as_other(schema_of(schema)):
            batch = to_wire(batch, self.plan.arrow_schema())
            schema, array = batch.__arrow_c_array__()
            self.plan.check(schema_of(schema))
        else:
            self.plan.check(schema_of(schema))
            if type(batch) is _record_batch():
                self.seen = batch.schema
        self.capsule = array
        return self.bind_array(array_of(array))

    cdef int bind_array(self, const ArrowArray *array) except -1:
        cdef int error = fb_bind_batch(&self.c, array)
        if error:
            where = self.plan.paths[self.c.bad_node]
            self.c.needs_scratch = 0
            self.unbind()
            if error == FB_BIND_NULLS:
                raise SchemaMismatch(f"column {where!r} has nulls and the schema allows none: make the field nullable")
            if error == FB_BIND_LARGE:
                raise SchemaMismatch(f"column {where!r} has {1 << 32:,} rows or more in one batch: slice the batch")
            if error == FB_BIND_OFFSETS:
                raise SchemaMismatch(f"column {where!r} has offsets that decrease: the batch is not valid Arrow")
            raise SchemaMismatch(
                f"column {where!r} does not have the buffers that its type needs: the batch is not valid Arrow"
            )
        return 0

    cdef int make_scratch(self) except -1:
        cdef int k
        cdef int64_t rows
        if not self.c.needs_scratch:
            return 0
        for k in range(self.c.n_nodes):
            rows = fb_scratch_rows(&self.c, k)
            if rows:
                self.c.cols[k].scratch = <uint32_t *> malloc(rows * sizeof(uint32_t))
                if self.c.cols[k].scratch == NULL:
                    raise MemoryError(f"{rows * 4:,} bytes to number the items of column {self.plan.paths[k]!r}")
        return 0

    cdef void unbind(self):
        self._free_scratch()
        self.c.rows = 0
        self.c.sorted = NULL
        self.capsule = None
        self._release()

"""State that views of one schema share: positions of fields, keys, and NumPy types of columns."""

import numpy as np

from libc.stdint cimport int32_t
from libc.stdlib cimport free, malloc

from fastbuf.serializers.row_plan cimport OP_PACKED, Node, RowPlan

from fastbuf.errors import SchemaError

# NumPy's type of a column, by the field's kind; a unit is appended where there is one.
cdef dict ARRAYS = {"bool": "?", "date32": "M8[D]", "date64": "M8[ms]", "timestamp": "M8", "duration": "m8"}
cdef tuple NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
                      "float64")

cdef enum:
    REMEMBERED = 64           # keys cached; a program has few


cdef class LazyKey:
    """The fields by which rows are compared and hashed."""

    def __cinit__(self, Py_ssize_t n):
        self.places = <int32_t *> malloc(n * sizeof(int32_t))
        if self.places == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.places)


cdef class LazyPlan:
    """The additional data that lazy rows need for a compiled schema.

    Parameters
    ----------
    plan : RowPlan
    row : type
        The class of the rows: names of its attributes are not used for fields.
    """

    def __cinit__(self, RowPlan plan not None, row):
        cdef Py_ssize_t i
        cdef int32_t last = -1
        self.plan = plan
        self.root = plan.root
        self.places = {name: place for place, name in enumerate(<object> plan.root.names)}
        self.attributes = {name: place for name, place in self.places.items() if not hasattr(row, name)}
        self._arrays = {}
        self._keys = {}
        self.before = <int32_t *> malloc(max(plan.root.count, 1) * sizeof(int32_t))
        if self.before == NULL:
            raise MemoryError
        for i in range(plan.root.count):
            self.before[i] = last
            if plan.root.children[i].varlen:
                last = plan.root.children[i].offset

    def __dealloc__(self):
        free(self.before)

    cdef Py_ssize_t place(self, object field) except -1:
        cdef Py_ssize_t place
        if isinstance(field, str):
            number = self.places.get(field)
            if number is None:
                raise SchemaError(f"no field {field!r}: the fields are {<object> self.root.names}")
            return number
        place = field
        if place < 0:
            place += self.root.count
        if not 0 <= place < self.root.count:
            raise IndexError(f"field {field} of {self.root.count}")
        return place

    cdef LazyKey key(self, object wanted):
        if wanted is not None and not isinstance(wanted, (str, int)):
            wanted = tuple(wanted)
        try:
            return <LazyKey> self._keys[wanted]
        except (KeyError, TypeError):         # not cached yet, or not hashable
            lazy_key = self._choose(wanted)
        if len(self._keys) < REMEMBERED:
            self._keys[wanted] = lazy_key
        return lazy_key

    cdef LazyKey _choose(self, object wanted):
        cdef Node *root = self.root
        cdef LazyKey key
        cdef Py_ssize_t i, place
        names = <object> root.names
        if wanted is None:
            for i in range(root.count):
                if root.children[i].op >= OP_PACKED:
                    return None
            wanted = names
        elif not isinstance(wanted, tuple):
            wanted = (wanted,)
        elif not wanted:
            raise SchemaError("a key has one field at least")
        if len(wanted) > root.count:
            raise SchemaError(f"a key of {len(wanted)} fields of a schema of {root.count}")
        key = LazyKey(max(len(wanted), 1))
        for field in wanted:
            place = self.place(field)
            if root.children[place].op >= OP_PACKED:
                raise SchemaError(f"field {names[place]!r} ({<object> root.children[place].type}) cannot be in a key: "
                                  "lists, structs and maps have no order")
            key.places[key.count] = <int32_t> place
            key.count += 1
        key.names = tuple([names[key.places[i]] for i in range(key.count)])
        return key

    cdef tuple array_types(self, Py_ssize_t place):
        types = self._arrays.get(place)
        if types is None:
            types = _types(self.plan.schema.fields[place], self.root.children[place].slot)
            self._arrays[place] = types
        return types


cdef tuple _types(object field, int slot):
    kind = field.type.kind
    if kind == "dictionary":
        kind = field.type.children[1].type.kind
        unit = field.type.children[1].type.unit
    else:
        unit = field.type.unit
    if kind in NUMBERS:
        return np.dtype(kind).newbyteorder("<"), None
    if kind not in ARRAYS:
        raise SchemaError(f"field {field.name!r} ({field.type}) cannot be an array: take values()")
    wanted = np.dtype(f"{ARRAYS[kind]}[{unit}]" if kind in ("timestamp", "duration") else ARRAYS[kind])
    # Times are read as integers: NumPy cannot import buffers of times, and has days in 64 bits only.
    return (wanted, None) if kind == "bool" else (np.dtype(f"<i{slot}"), wanted)

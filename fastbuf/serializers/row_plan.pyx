"""Compiles a schema into the tree of C structs that the row encoder and decoder use."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free

from fastbuf.serializers.row_scalars cimport SCALAR_DATE, SCALAR_DURATION, SCALAR_TIME, SCALAR_TIMESTAMP

from datetime import UTC

from fastbuf.errors import SchemaError
from fastbuf.serializers.schema_types import DataType, Field

cdef int DEPTH = 64

cdef dict SIMPLE = {
    "null": (OP_NULL, 1), "bool": (OP_BOOL, 1),
    "int8": (OP_INT8, 1), "int16": (OP_INT16, 2), "int32": (OP_INT32, 4), "int64": (OP_INT64, 8),
    "uint8": (OP_UINT8, 1), "uint16": (OP_UINT16, 2), "uint32": (OP_UINT32, 4), "uint64": (OP_UINT64, 8),
    "float16": (OP_FLOAT16, 2), "float32": (OP_FLOAT32, 4), "float64": (OP_FLOAT64, 8),
    "decimal128": (OP_DECIMAL, 16), "decimal256": (OP_DECIMAL, 32),
    "string": (OP_STRING, 4), "large_string": (OP_STRING, 4), "string_view": (OP_STRING, 4),
    "binary": (OP_BINARY, 4), "large_binary": (OP_BINARY, 4), "binary_view": (OP_BINARY, 4),
}
cdef dict SCALARS = {
    "date32": (SCALAR_DATE, 4), "date64": (SCALAR_DATE, 8), "time32": (SCALAR_TIME, 4), "time64": (SCALAR_TIME, 8),
    "timestamp": (SCALAR_TIMESTAMP, 8), "duration": (SCALAR_DURATION, 8),
}
cdef dict PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def _zone(name, path):
    if name in ("UTC", "Etc/UTC", "Z", "+00:00"):
        return UTC
    from datetime import timedelta, timezone
    from zoneinfo import ZoneInfo

    if name[0] in "+-" and len(name) == 6 and name[3] == ":":
        offset = timedelta(hours=int(name[1:3]), minutes=int(name[4:]))
        return timezone(-offset if name[0] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise SchemaError(f"field {path!r}: no time zone {name!r} on this machine ({error})") from None


cdef bint _nullable(object field):
    # As _fill does: a dictionary counts as its values, which may be nullable when the field is not.
    if field.nullable or field.type.kind == "null":
        return True
    return field.type.kind == "dictionary" and _nullable(field.type.children[1])


cdef int _plain(Node *f) noexcept:
    # The kind in fb_put_rows.h, or -1.
    if f.op == OP_INT64:
        return FB_PUT_INT64
    if OP_INT8 <= f.op <= OP_UINT32:
        return FB_PUT_INT
    if f.op == OP_FLOAT64:
        return FB_PUT_DOUBLE
    if f.op == OP_BOOL:
        return FB_PUT_BOOL
    if f.op == OP_STRING:
        return FB_PUT_TEXT
    if f.op == OP_BINARY:
        return FB_PUT_BYTES
    if f.op == OP_PACKED and f.count < 0 and f.children.op == OP_FLOAT64:
        return FB_PUT_DOUBLES
    return -1


cdef class RowPlan:
    """The compiled form of a schema.

    Raises
    ------
    SchemaError
        Rows do not support a type; the message names field and type.
    """

    def __init__(self, schema):
        self.schema = schema
        self._nodes = []
        self._objects = []
        self.root = self._allocate(1)
        self._struct(self.root, schema.fields, "", 0)
        self._find_plain()

    def __dealloc__(self):
        for address in self._nodes or ():
            free(<void *> <size_t> address)

    cdef Node *_allocate(self, Py_ssize_t n) except NULL:
        cdef Node *nodes = <Node *> calloc(max(n, 1), sizeof(Node))
        if nodes == NULL:
            raise MemoryError(f"no memory for a plan of {n} fields")
        self._nodes.append(<size_t> nodes)
        return nodes

    cdef int _find_plain(self) except -1:
        cdef Node *f
        cdef int32_t i
        cdef fb_put_plan *plain
        for i in range(self.root.count):
            if _plain(&self.root.children[i]) < 0:
                return 0
        plain = <fb_put_plan *> calloc(1, sizeof(fb_put_plan) + self.root.count * sizeof(fb_put_field))
        if plain == NULL:
            raise MemoryError(f"no memory for a plan of {self.root.count} fields")
        self._nodes.append(<size_t> plain)
        plain.count, plain.bitmap, plain.head = self.root.count, self.root.bitmap, self.root.head
        for i in range(self.root.count):
            f = &self.root.children[i]
            plain.fields[i].kind = <uint8_t> _plain(f)
            plain.fields[i].nullable = f.nullable
            plain.fields[i].slot = <uint8_t> f.slot
            plain.fields[i].offset = f.offset
            plain.fields[i].low, plain.fields[i].high = f.low, f.high
        self.root.plain = plain
        return 0

    cdef PyObject *_keep(self, object o) except NULL:
        self._objects.append(o)
        return <PyObject *> o

    cdef int _struct(self, Node *node, tuple fields, str path, int depth) except -1:
        cdef Py_ssize_t i, at
        cdef Node *child
        if depth > DEPTH:
            raise SchemaError(f"field {path!r} is nested deeper than {DEPTH}")
        if len(fields) > 0xFFFF:
            raise SchemaError(f"{len(fields)} fields in {path or 'the schema'}: rows have at most {0xFFFF}")
        node.op = OP_STRUCT
        node.varlen = True
        node.slot = 4
        node.count = <int32_t> len(fields)
        node.names = self._keep(tuple(f.name for f in fields))
        node.path = self._keep(path)
        node.type = self._keep("record" if not depth else "struct")
        node.children = self._allocate(node.count)
        node.atoms = True
        if any(_nullable(f) for f in fields):
            node.bitmap = (node.count + 7) // 8
        at = node.bitmap
        for i in range(node.count):
            child = &node.children[i]
            self._fill(child, fields[i], f"{path}.{fields[i].name}" if path else fields[i].name, depth)
            child.offset = <int32_t> at
            at += child.slot
            if at > 0x7FFFFFF:
                raise SchemaError(f"the fixed part of {path or 'the schema'} takes more than {0x7FFFFFF:,} bytes")
            if child.op in (OP_PACKED, OP_LIST, OP_MAP) or (child.op == OP_STRUCT and not child.atoms):
                node.atoms = False
        node.head = <int32_t> at
        return 0

    cdef int _fill(self, Node *node, object field, str path, int depth) except -1:
        kind = field.type
        if kind.kind == "dictionary":
            value = kind.children[1]
            self._fill(node, type(field)(field.name, value.type, value.nullable or field.nullable), path, depth)
            return 0
        node.nullable = field.nullable or kind.kind == "null"
        node.count = -1
        if kind.kind in SIMPLE:
            node.op, node.slot = SIMPLE[kind.kind]
            node.varlen = node.op >= OP_STRING
            node.precision = kind.precision
            node.scale = kind.scale
            if OP_INT8 <= node.op <= OP_INT64:
                node.low = -((<int64_t> 1 << (8 * node.slot - 2)) - 1) * 2 - 2
                node.high = -(node.low + 1)
            elif OP_UINT8 <= node.op <= OP_UINT32:
                node.high = (<int64_t> 1 << (8 * node.slot)) - 1
        elif kind.kind in SCALARS:
            node.op = OP_SCALAR
            node.scalar, node.slot = SCALARS[kind.kind]
            node.unit = PER_SECOND.get(kind.unit, 0 if kind.kind == "date32" else 1_000)
            node.extra = self._keep(_zone(kind.zone, path) if kind.zone else None)
        elif kind.kind == "fixed_size_binary":
            if kind.width == 0:
                raise SchemaError(
                    f"field {path!r} has the type {kind}: rows support fixed_size_binary of 1 byte or more")
            node.op = OP_FIXED_BINARY
            node.slot = kind.width
        elif kind.kind == "struct":
            self._struct(node, kind.children, path, depth + 1)
        elif kind.kind in ("list", "large_list", "fixed_size_list"):
            self._items(node, kind.children[0], path + "[]", depth + 1)
            if kind.kind == "fixed_size_list":
                node.count = kind.width
        elif kind.kind == "map":
            if kind.children[0].type.nested:
                raise SchemaError(f"field {path!r} has the type {kind}: rows support only maps with plain keys")
            self._items(node, Field("entry", DataType("struct", children=kind.children)), path + "[]", depth + 1)
            node.op = OP_MAP
        else:
            raise SchemaError(f"field {path!r} has the type {kind}, which rows do not support")
        node.path = self._keep(path)
        node.type = self._keep(str(kind))
        return 0

    cdef int _items(self, Node *node, object field, str path, int depth) except -1:
        if depth > DEPTH:
            raise SchemaError(f"field {path!r} is nested deeper than {DEPTH}")
        node.children = self._allocate(1)
        self._fill(node.children, field, path, depth)
        node.varlen = True
        node.slot = 4
        node.op = OP_LIST if node.children.nullable or node.children.varlen else OP_PACKED
        return 0

"""The partition of a single record under Spark's ``repartition(n, keys)``: ``pmod(murmur3(keys, seed=42), n)``."""

import datetime
import decimal

cimport cython
from cpython.long cimport PyLong_AsLongLong, PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_CheckExact
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastbuf.serializers.lazy cimport LazyRow

from fastbuf.errors import SchemaError

cdef extern from "fb_murmur3.h" nogil:
    uint32_t fb_hash_int(uint32_t v, uint32_t h)
    uint32_t fb_hash_long(uint64_t v, uint32_t h)
    uint32_t fb_hash_bytes(const uint8_t *p, int64_t n, uint32_t h)
    uint32_t fb_float_bits(uint32_t u)
    uint64_t fb_double_bits(uint64_t u)

cdef extern from "Python.h":            # borrowed reference: hashing an int runs no user code
    Py_ssize_t PyTuple_GET_SIZE(object o)
    PyObject *PyTuple_GET_ITEM(object o, Py_ssize_t i)
    long long PyLong_AsLongLongAndOverflow(object o, int *overflow) except? -1

cdef enum Kind:
    INT
    LONG
    FLOAT
    DOUBLE
    BYTES
    BOOL
    DATE
    TIMESTAMP
    DURATION
    TIME
    DECIMAL_LONG
    DECIMAL_BIG
    NULL_ONLY
    LIST
    STRUCT

cdef dict _KINDS = {
    "bool": BOOL, "int8": INT, "int16": INT, "int32": INT, "int64": LONG, "uint8": INT, "uint16": INT, "uint32": LONG,
    "float32": FLOAT, "float64": DOUBLE, "string": BYTES, "large_string": BYTES, "string_view": BYTES,
    "binary": BYTES, "large_binary": BYTES, "binary_view": BYTES, "fixed_size_binary": BYTES, "date32": DATE,
    "timestamp[us]": TIMESTAMP, "duration[us]": DURATION, "time64[ns]": TIME, "null": NULL_ONLY, "list": LIST,
    "large_list": LIST, "fixed_size_list": LIST, "struct": STRUCT,
}
_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
cdef int _EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_MICROSECOND = datetime.timedelta(microseconds=1)
# For at most 38 digits; rounding raises an error.
_EXACT = decimal.Context(prec=100, traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow])


@cython.boundscheck(True)               # a record may be too short: the encoder reports that later
cdef object field_of(object record, Py_ssize_t place, str name):
    if isinstance(record, tuple):
        return (<tuple> record)[place]
    if isinstance(record, list):
        return (<list> record)[place]
    if isinstance(record, (dict, LazyRow)):     # a lazy row has attributes of its own
        return record[name]
    return getattr(record, name)


cdef _Field _field(object field, Py_ssize_t place, str path):
    cdef _Field result = _Field.__new__(_Field)
    kind = field.type
    if kind.kind == "dictionary":
        kind = kind.children[1].type
    result.place = place
    result.name = field.name
    if kind.kind == "decimal128":
        result.kind = DECIMAL_LONG if kind.precision <= 18 else DECIMAL_BIG
        result.scale = kind.scale
        return result
    code = _KINDS.get(f"{kind.kind}[{kind.unit}]" if kind.unit else kind.kind)
    if code is None:
        why = "Spark cannot hash maps" if kind.kind == "map" else "cast it to a type that Spark has"
        raise SchemaError(f"key {path!r} has the type {kind}, which cannot be hashed as Spark does: {why}")
    result.kind = code
    if result.kind == LIST or result.kind == STRUCT:
        result.children = [
            _field(child, i, f"{path}.{child.name}" if result.kind == STRUCT else f"{path}[]")
            for i, child in enumerate(kind.children)
        ]
    return result


cdef class _Field:
    """One field of a key, and its children."""

    cdef uint32_t hashed(self, object value, uint32_t h) except? 0:
        cdef float f
        cdef double d
        cdef uint32_t u32
        cdef uint64_t u64
        cdef bytes text
        cdef const char *chars
        cdef Py_ssize_t length
        if value is None:
            return h
        if self.kind == LONG:
            return fb_hash_long(<uint64_t> PyLong_AsLongLong(value), h)
        if self.kind == BYTES:
            if isinstance(value, str):      # in place: the string caches its UTF-8
                chars = PyUnicode_AsUTF8AndSize(value, &length)
                return fb_hash_bytes(<const uint8_t *> chars, length, h)
            if not isinstance(value, (bytes, bytearray, memoryview)):
                raise TypeError("bytes are needed")     # bytes() of a number would be that many zeros
            text = bytes(value)
            return fb_hash_bytes(<const uint8_t *> <const char *> text, len(text), h)
        if self.kind == INT:
            return fb_hash_int(<uint32_t> <int32_t> PyLong_AsLongLong(value), h)
        if self.kind == DOUBLE:
            d = value
            memcpy(&u64, &d, 8)
            return fb_hash_long(fb_double_bits(u64), h)
        if self.kind == FLOAT:
            f = value
            memcpy(&u32, &f, 4)
            return fb_hash_int(fb_float_bits(u32), h)
        return self.other(value, h)

    cdef uint32_t other(self, object value, uint32_t h) except? 0:
        cdef bytes text
        cdef _Field member
        if self.kind == BOOL:
            return fb_hash_int(1 if value else 0, h)
        if self.kind == DATE:
            return fb_hash_int(<uint32_t> <int32_t> (value.toordinal() - _EPOCH_DAY), h)
        if self.kind == TIMESTAMP:
            since = value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC)
            return fb_hash_long(<uint64_t> <int64_t> (since // _MICROSECOND), h)
        if self.kind == DURATION:
            return fb_hash_long(<uint64_t> <int64_t> (value // _MICROSECOND), h)
        if self.kind == TIME:
            micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
            return fb_hash_long(<uint64_t> <int64_t> (micros * 1000), h)
        if self.kind == DECIMAL_LONG or self.kind == DECIMAL_BIG:
            unscaled = int(decimal.Decimal(value).scaleb(self.scale, _EXACT))
            if self.kind == DECIMAL_LONG:
                return fb_hash_long(<uint64_t> PyLong_AsLongLong(unscaled), h)
            # Java's BigInteger.toByteArray: the fewest bytes that also hold the sign.
            bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
            text = unscaled.to_bytes(bits // 8 + 1, "big", signed=True)
            return fb_hash_bytes(<const uint8_t *> <const char *> text, len(text), h)
        if self.kind == LIST:
            for item in value:
                h = (<_Field> self.children[0]).hashed(item, h)
            return h
        if self.kind == STRUCT:
            for child in self.children:
                member = <_Field> child
                h = member.hashed(field_of(value, member.place, member.name), h)
            return h
        raise TypeError("only None is possible")


cdef class RecordHasher:
    """Partitions of single records by the hash of key fields, as Spark computes it.

    Parameters
    ----------
    schema : Schema
    keys : tuple of str or int
        Names or positions of the key fields, in Spark's order.

    Raises
    ------
    SchemaError
        There is no such field, or Spark does not hash its type; the message names it.
    """

    def __init__(self, schema, tuple keys):
        for key in keys:
            if not isinstance(key, str) and not 0 <= key < len(schema):
                raise SchemaError(f"key column {key} of a schema with {len(schema)} columns")
        self.keys = keys
        self.fields = [_field(schema[key], schema.index(schema[key].name), schema[key].name) for key in keys]
        self.long_place = -1
        if len(keys) == 1 and (<_Field> self.fields[0]).kind == LONG:
            self.long_place = (<_Field> self.fields[0]).place

    def __reduce__(self):
        raise TypeError("a RecordHasher is made where it is used: pickle schema and keys")

    cdef int32_t partition(self, object record, int32_t n) except -1:
        cdef uint32_t h = 42
        cdef int32_t to
        cdef _Field field
        cdef int64_t x
        cdef int over
        cdef PyObject *value
        if self.long_place >= 0 and PyTuple_CheckExact(record) and \
                self.long_place < PyTuple_GET_SIZE(record):
            value = PyTuple_GET_ITEM(record, self.long_place)
            if PyLong_CheckExact(<object> value):
                x = PyLong_AsLongLongAndOverflow(<object> value, &over)
                if not over:
                    to = <int32_t> fb_hash_long(<uint64_t> x, h) % n
                    return to + n if to < 0 else to
        for field in self.fields:
            h = field.hashed(field_of(record, field.place, field.name), h)
        to = <int32_t> h % n
        return to + n if to < 0 else to

    cdef tuple values(self, object record):
        cdef _Field field
        return tuple([field_of(record, field.place, field.name) for field in self.fields])

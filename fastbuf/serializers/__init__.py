"""Serializers: rows, columns and objects to bytes and back, their schemas, and Spark's hash."""

from fastbuf.serializers.columnar import ColumnarSerializer
from fastbuf.serializers.lazy import LazyRow, LazyRows
from fastbuf.serializers.murmur3 import murmur3_hash
from fastbuf.serializers.partition import hash_partition
from fastbuf.serializers.partitioners import (
    CustomPartitioner,
    RandomPartitioner,
    RangePartitioner,
    RoundRobinPartitioner,
)
from fastbuf.serializers.pickled import PickledSerializer
from fastbuf.serializers.portable import portable_hash, portable_partition
from fastbuf.serializers.row import RowSerializer
from fastbuf.serializers.schema import Schema
from fastbuf.serializers.schema_types import DataType, Field
from fastbuf.serializers.serializer import Serializer
from fastbuf.serializers.structured import structured_array

__all__ = [
    "ColumnarSerializer",
    "CustomPartitioner",
    "DataType",
    "Field",
    "LazyRow",
    "LazyRows",
    "PickledSerializer",
    "RandomPartitioner",
    "RangePartitioner",
    "RoundRobinPartitioner",
    "RowSerializer",
    "Schema",
    "Serializer",
    "hash_partition",
    "murmur3_hash",
    "portable_hash",
    "portable_partition",
    "structured_array",
]

"""Serializers: rows, columns and objects to bytes and back, their schemas, and Spark's hash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from fastbuf.serializers.schema import DataType, Field, Schema
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

# Loaded when first used: a shuffle of objects needs no columns.
_HOMES = {
    "ColumnarSerializer": "columnar",
    "CustomPartitioner": "partitioners",
    "DataType": "schema",
    "Field": "schema",
    "LazyRow": "lazy",
    "LazyRows": "lazy",
    "PickledSerializer": "pickled",
    "RandomPartitioner": "partitioners",
    "RangePartitioner": "partitioners",
    "RoundRobinPartitioner": "partitioners",
    "RowSerializer": "row",
    "Schema": "schema",
    "Serializer": "serializer",
    "hash_partition": "partition",
    "murmur3_hash": "murmur3",
    "portable_hash": "portable",
    "portable_partition": "portable",
    "structured_array": "structured",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

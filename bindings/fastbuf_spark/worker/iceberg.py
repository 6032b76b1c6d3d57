"""Tasks that write the files of an Iceberg table: each has the rows of one partition, and is told with its footer."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from fastbuf_spark.worker.writing import Write

if TYPE_CHECKING:
    import pyarrow as pa

#: Transforms of times, by NumPy's name of what they count from the beginning of 1970
TIMES = {"year": "Y", "month": "M", "day": "D", "hour": "h"}
NULL = "null"


@dataclass(frozen=True)
class IcebergWrite(Write):
    """Rows are shared out by transforms of columns, and files have all columns.

    Attributes
    ----------
    transforms
        For each of ``by``, which has the names of the partition's fields: the name of its transform, or the function
        that it is of one value.
    """

    transforms: tuple[Any, ...] = ()
    #: As Iceberg asks for
    options: ClassVar[Mapping[str, Any]] = {"store_decimal_as_integer": True}

    def _keys(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [transformed(key, how) for key, how in zip(super()._keys(batch), self.transforms, strict=True)]

    def _folder(self, values: list[tuple[str, Any]]) -> str:
        return "".join(f"{quote(name, safe='')}={quote(text_of(value), safe='')}/" for name, value in values)

    def details(self, footer: Any) -> str:
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        footer.write_metadata_file(sink)
        return base64.b64encode(sink.getvalue()).decode()


@dataclass(frozen=True)
class ByValue:
    """A transform that pyiceberg does value by value."""

    transform: Any
    source: Any

    def __call__(self, values: pa.Array) -> pa.Array:
        import pyarrow as pa

        coded = values.dictionary_encode()
        apply = self.transform.transform(self.source)
        kind = pa.int32() if str(self.transform).startswith("bucket") else coded.dictionary.type
        return pa.array([apply(value) for value in coded.dictionary.to_pylist()], kind).take(coded.indices)


def transformed(values: pa.Array, how: Any) -> pa.Array:
    """What the partition has of values; days and microseconds are whole numbers."""
    import pyarrow as pa

    if pa.types.is_date(values.type):
        unit, values = "D", values.view(pa.int32())
    elif pa.types.is_timestamp(values.type):
        unit, values = values.type.unit, values.view(pa.int64())
    if how == "void":
        return pa.nulls(len(values), pa.int32())
    if how == "identity":
        return values
    if how not in TIMES:
        return how(values)
    counts = values.fill_null(0).to_numpy().astype("int64").view(f"datetime64[{unit}]")
    periods = counts.astype(f"datetime64[{TIMES[how]}]").astype("int64").astype("int32")
    return pa.array(periods, mask=values.is_null().to_numpy(zero_copy_only=False))


def text_of(value: Any) -> str:
    """A value of a partition as text, of which :func:`value_of` knows it."""
    if value is None:
        return NULL
    if isinstance(value, str):
        return f"'{value}" if value == NULL or value.startswith("'") else value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return format(value, "f")
    return repr(float(value)) if type(value).__name__.startswith("float") else str(value)


def value_of(text: str, kind: str) -> Any:
    """The value of a type of Iceberg's that has this text."""
    if text == NULL:
        return None
    if kind == "string":
        return text.removeprefix("'")
    if kind == "binary":
        return bytes.fromhex(text)
    if kind == "boolean":
        return text == "True"
    if kind.startswith("decimal"):
        return Decimal(text)
    return float(text) if kind in ("float", "double") else int(text)

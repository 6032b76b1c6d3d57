from collections.abc import Iterator
from typing import Any

import pyarrow
from _typeshed import ReadableBuffer, WriteableBuffer
from numpy.typing import NDArray

from fastbuf.serializers.column_plan import ColumnPlan
from fastbuf.serializers.serializer import Serializer

class ColumnarSerializer(Serializer):
    plan: ColumnPlan | None
    def __init__(self, schema: Any = None, checksum: bool = False) -> None: ...
    @property
    def arrow_schema(self) -> pyarrow.Schema | None: ...
    def dumps(self, data: Any) -> bytes: ...
    def dump_into(self, data: Any, buffer: WriteableBuffer) -> int: ...
    def loads(self, buf: ReadableBuffer, copy: bool = True, check: bool = True) -> pyarrow.RecordBatch: ...
    def iter(
        self,
        buf: ReadableBuffer,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        copy: bool = True,
        check: bool = True,
    ) -> Iterator[pyarrow.RecordBatch]: ...

def from_numpy(array: NDArray[Any]) -> pyarrow.RecordBatch: ...

from collections.abc import Iterable, Iterator
from typing import Any

from _typeshed import ReadableBuffer

from fastbuf.serializers.serializer import Serializer

class PickledSerializer(Serializer):
    group: int
    cloudpickle: str | None
    def __init__(self, checksum: bool = False, group: int = 256, cloudpickle: str | None = None) -> None: ...
    def dumps(self, records: Iterable[Any]) -> bytes: ...
    def loads(self, buf: ReadableBuffer) -> list[Any]: ...
    def iter(self, buf: ReadableBuffer) -> Iterator[Any]: ...

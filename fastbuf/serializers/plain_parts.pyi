from collections.abc import Iterator, Sequence
from typing import Any

class PlainParts:
    rows: int
    read: int
    proof: int
    def __init__(
        self, partitions: int, wanted: Sequence[int] | None = None, group_bytes: int = 32768, side: int | None = None
    ) -> None: ...
    def add(self, packed: Any) -> bool: ...
    @property
    def full(self) -> bool: ...
    def lists(self) -> Iterator[tuple[int, bytes]]: ...

class PlainPickles:
    rows: int
    def packed(self, pickle: bytes) -> bytes | None: ...

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

class RecordGroups:
    partitions: int
    group_bytes: int
    rows: int
    proof: int
    def __init__(
        self,
        partitions: int,
        key: Callable[[Any], Any] | None = None,
        partition_func: Callable[[Any], int] | None = None,
        wanted: Sequence[int] | None = None,
        group_bytes: int = 32768,
        side: int | None = None,
        dumps: Callable[[Any], bytes] | None = None,
    ) -> None: ...
    def items(self, source: Iterable[Any]) -> Iterator[tuple[int, list[Any]]]: ...

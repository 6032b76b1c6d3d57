from typing import Any

from fastbuf.config import ExchangeConfig
from fastbuf.exchange.result_partition import ResultPartition

class BlockingPartition(ResultPartition):
    """A result partition that is stored in a file, and can be read when it is finished."""

    directory: str
    def __init__(
        self, environment: Any, subpartitions: int, channel: int, config: ExchangeConfig, maximum: int | None = None
    ) -> None: ...
    def before_fork(self) -> None: ...
    def after_fork(self, child: bool) -> None: ...
    @property
    def spilled_bytes(self) -> int: ...

from collections.abc import Callable, Sequence
from typing import Any

class ChannelSelector:
    """Base of all selectors; a selector chooses the subpartition of each record."""

    to_all: bool

def hash_by(*keys: str | int, partitions: int | None = None, only: Sequence[int] | None = None) -> ChannelSelector:
    """Records with equal keys go to the consumer that ``df.repartition(n, keys)`` of Spark chooses."""

def range_by(
    *keys: str, sample: Any = None, bounds: Any = None, ascending: bool = True, seed: int = 0
) -> ChannelSelector:
    """Each consumer gets a range of the keys, by bounds or a sample; consumer 0 gets the smallest keys."""

def forward(to: int = 0) -> ChannelSelector:
    """Everything goes to consumer `to`."""

def round_robin(partitions: int | None = None, only: Sequence[int] | None = None, start: int = 0) -> ChannelSelector:
    """Record by record to the next consumer."""

def first_free() -> ChannelSelector:
    """Each record, or each batch as a whole, to the consumer with the fewest waiting buffers."""

def shuffle(seed: int | None = None) -> ChannelSelector:
    """Each record to a random consumer."""

def rescale(producer: int, producers: int) -> ChannelSelector:
    """Round robin among the consumers nearest to this producer."""

def broadcast() -> ChannelSelector:
    """Every record to every consumer."""

def custom(func: Callable[[Any, int], Any]) -> ChannelSelector:
    """``func(record, n) -> int`` for records, ``func(batch, n) -> int32 array`` for batches."""

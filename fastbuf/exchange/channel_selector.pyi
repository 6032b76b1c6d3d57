from collections.abc import Callable, Sequence
from typing import Any

class ChannelSelector:
    """Base of all selectors: which subpartition a record goes to."""

def hash_by(*keys: str | int, partitions: int | None = None, only: Sequence[int] | None = None) -> ChannelSelector:
    """Records with equal keys go to the consumer that ``df.repartition(n, keys)`` of Spark chooses."""

def range_by(
    *keys: str, sample: Any = None, bounds: Any = None, ascending: bool = True, seed: int = 0
) -> ChannelSelector:
    """Ranges of the keys' order, with bounds from a sample or given: consumer 0 gets the least keys."""

def forward(to: int = 0) -> ChannelSelector:
    """Everything goes to consumer `to`."""

def round_robin(partitions: int | None = None, only: Sequence[int] | None = None, start: int = 0) -> ChannelSelector:
    """Record by record to the next consumer."""

def first_free() -> ChannelSelector:
    """Each record, or each batch as a whole, to the consumer that has least to do."""

def shuffle(seed: int | None = None) -> ChannelSelector:
    """Each record to a random consumer."""

def rescale(producer: int, producers: int) -> ChannelSelector:
    """Round robin among the consumers nearest to this producer."""

def broadcast() -> ChannelSelector:
    """Every record to every consumer."""

def custom(func: Callable[[Any, int], Any]) -> ChannelSelector:
    """``func(record, n) -> int`` for records, ``func(batch, n) -> int32 array`` for batches."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

class HashPartitioner:
    keys: tuple[str | int, ...]
    partitions: int
    def __init__(self, keys: str | int | Sequence[str | int], partitions: int) -> None: ...
    def partition(self, batch: Any) -> NDArray[np.int32]: ...

def hash_partition(batch: Any, keys: str | int | Sequence[str | int], n: int) -> NDArray[np.int32]: ...
def _best_way(way: int) -> None: ...

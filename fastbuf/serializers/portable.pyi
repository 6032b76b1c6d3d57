from collections.abc import Iterable
from typing import Any

import numpy as np

def portable_hash(x: Any) -> int: ...
def portable_partition(keys: Iterable[Any], n: int) -> np.ndarray[Any, np.dtype[np.int32]]: ...

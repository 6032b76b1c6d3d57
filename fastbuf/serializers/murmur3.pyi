from typing import Any

import numpy as np
from numpy.typing import NDArray

def murmur3_hash(columns: Any, seed: int = 42) -> NDArray[np.int32]: ...

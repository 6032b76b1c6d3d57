"""Numbers and metadata as texts, as Java writes them."""

from __future__ import annotations

import json
import re
from typing import Any

#: A control character as Python escapes it, but not what stands behind an escaped backslash
_CONTROL = re.compile(r"(?:\\\\)|\\u00[01][0-9a-f]")


def java_float(value: Any) -> str:
    """A float of NumPy, by the fewest digits: a few have more in Java before 19."""
    import numpy as np

    if not np.isfinite(value):
        return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return np.format_float_positional(value, trim="0")
    return np.format_float_scientific(value, trim="0", exp_digits=1).replace("e+", "E").replace("e", "E")


def java_json(value: Any) -> str:
    """The JSON of a column's metadata, byte for byte."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{java_json(key)}:{java_json(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(java_json, value)) + "]"
    if isinstance(value, float):
        import numpy as np

        return java_float(np.float64(value))
    text = json.dumps(value, ensure_ascii=False)
    return _CONTROL.sub(lambda match: match[0][:-1] + match[0][-1].upper(), text) if isinstance(value, str) else text

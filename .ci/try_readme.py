"""Runs the Python examples of a page, in one namespace, with the fastbuf that is installed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import fastbuf

assert "site-packages" in fastbuf.__file__, f"not an installed one: {fastbuf.__file__}"
page = Path(sys.argv[1])
text = page.read_text()
space: dict[str, object] = {"__name__": "__main__"}
blocks = list(re.finditer(r"^```python[ ]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
for block in blocks:
    line = text.count("\n", 0, block.start()) + 1
    exec(compile("\n" * line + block[1], str(page), "exec"), space)
print(f"{len(blocks)} examples of {page.name} run with fastbuf {fastbuf.__version__}, Python {sys.version.split()[0]}")

"""Runs a program as a notebook does: cell by cell, in a module ``__main__`` that has no file."""

from __future__ import annotations

import sys
import types
from pathlib import Path

if __name__ == "__main__":
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    program = sys.argv.pop(1)
    for number, cell in enumerate(Path(program).read_text().split("# %%")):
        exec(compile(cell, f"<cell {number}>", "exec"), vars(module))

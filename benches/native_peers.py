"""C++ programs that benches measure beside ours: compiled when first asked for, called through ctypes, no GIL held."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent / "peers"


@cache
def compiled(name: str) -> ctypes.CDLL | None:
    """The shared library made of ``peers/<name>.cpp``; ``None`` where there is no C++ compiler.

    ``-O3 -march=native``: a peer gets what its users would give it.
    """
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None
    library = Path(tempfile.mkdtemp(prefix="fastbuf-peers-")) / f"{name}.so"
    command = [compiler, "-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread", "-w"]
    # after the source: what 16-byte atomics of boost need where the compiler does not inline them
    subprocess.run([*command, str(SOURCES / f"{name}.cpp"), "-o", str(library), "-latomic"], check=True)
    loaded = ctypes.CDLL(str(library))
    shutil.rmtree(library.parent)  # it is mapped: the file is not needed any more
    return loaded

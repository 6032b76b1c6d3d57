"""Whether the native code, and what checks it, is as it was when ``make checked`` passed.

The models' checker, the stress tests, the debug build and the sanitizers look at nothing but the native rooms, and take
a third of a run.
``make checked`` runs them and records the digest of all that goes in; where it is still the same, CI leaves them to the
night, which always runs them.

    python tests/native.py            exit code 0: it is the same
    python tests/native.py --record   write it down
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / ".ci" / "native.sha256"
ROOMS = ("_native", "memory", "flow", "exchange", "transports", "serializers")
CODE = (".py", ".pyx", ".pxd", ".h")  #: what Cython makes of it is not looked at
TESTS = ("models", "contract", "stress", "property", *(f"unit/{room}" for room in ROOMS[1:]))


def files() -> Iterator[Path]:
    """All that is native, and all that is run when it is checked."""
    for room in ROOMS:
        yield from sorted(path for path in (ROOT / "fastbuf" / room).rglob("*") if path.suffix in CODE)
    yield from sorted(path for path in (ROOT / "fastbuf").iterdir() if path.suffix in CODE)
    for name in TESTS:
        folder = ROOT / "tests" / name
        yield from sorted(path for path in folder.rglob("*") if path.suffix in (*CODE, ".c", ".pml"))
    yield from (ROOT / "setup.py", ROOT / ".ci" / "sanitize", ROOT / ".ci" / "planted.c")


def digest() -> str:
    """Of the names and the bytes of those files."""
    total = hashlib.sha256()
    for path in files():
        total.update(f"{path.relative_to(ROOT)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def is_checked() -> bool:
    """Whether ``make checked`` has passed for them as they are."""
    return RECORD.exists() and RECORD.read_text().strip() == digest()


#: Whether this run leaves them to the night
LEFT = os.environ.get("FASTBUF_LONG") != "1" and os.environ.get("FASTBUF_NATIVE") != "1" and is_checked()

if __name__ == "__main__":
    if sys.argv[1:] == ["--record"]:
        RECORD.write_text(digest() + "\n")
    elif not is_checked():
        sys.exit("native code has changed since `make checked` passed")

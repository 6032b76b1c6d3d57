"""The notes of the version that fastbuf says it is, out of CHANGELOG.md; ``--version``: that version alone."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def version() -> str:
    """What ``fastbuf/__init__.py`` says, the one place that does."""
    for node in ast.parse((ROOT / "fastbuf" / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__version__":
            return str(ast.literal_eval(node.value))
    sys.exit("fastbuf/__init__.py has no __version__")


def notes(changelog: str, version: str) -> str:
    """The text below the version's heading."""
    sections = dict(re.findall(r"^## (\S+)[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE))
    if not sections.get(version, "").strip():
        sys.exit(f"CHANGELOG.md has no notes on {version}, but on {', '.join(sections) or 'none'}")
    return f"# fastbuf {version}\n\n{sections[version].strip()}\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--version"]:
        print(version())
    else:
        print(notes((ROOT / "CHANGELOG.md").read_text(), version()), end="")

"""The oldest versions that extras of fastbuf take, as pip takes them: ``numpy==1.26 pyarrow==18`` and so on.

    .ci/floors.py spark

They are tried in a release (.ci/wheels), or nobody would know whether what is promised holds.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text())["project"]


def floors(*extras: str) -> dict[str, str]:
    """Version by package, of what fastbuf itself needs and of the extras, and of those that they name."""
    found: dict[str, str] = {}
    wanted = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    for requirement in (each for requirements in wanted for each in requirements):
        if named := re.fullmatch(r"fastbuf\[(.*)\]", requirement):
            found |= floors(*named[1].split(","))
        elif least := re.match(r"([\w.-]+)(?:\[.*\])?>=([\w.]+)", requirement):
            found[least[1]] = least[2]
    return found


if __name__ == "__main__":
    print(*(f"{package}=={version}" for package, version in sorted(floors(*sys.argv[1:]).items())))

"""The command line: ``fastbuf demo``, ``fastbuf shuffle``, ``fastbuf bench``, ``fastbuf doctor``.

Only this package may import the Spark binding, and it does so inside functions.  The library imports nothing from here.
"""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Entry point of the ``fastbuf`` command."""
    try:
        from fastbuf.cli import stop
        from fastbuf.cli.app import cli
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"fastbuf: the command line needs {error.name}: pip install 'fastbuf[cli]'")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that is not UTF-8 has no arrows
            stream.reconfigure(errors="replace")
    stop.listen()
    cli()

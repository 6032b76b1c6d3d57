"""fastbuf is of the main interpreter: a subinterpreter is told so before an extension is loaded."""

from __future__ import annotations

import importlib


def _is_main() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # from 3.13 on, before
        try:
            interpreters = importlib.import_module(name)
        except ImportError:  # not CPython, or built without it
            continue
        return bool(interpreters.get_current() == interpreters.get_main())
    return True


if not _is_main():
    raise ImportError(
        "fastbuf cannot be imported in a subinterpreter: its extensions, like NumPy's, are of the process. Import it "
        "in the main interpreter, and use threads or processes (under mod_wsgi: WSGIApplicationGroup %{GLOBAL})"
    )

"""fastbuf is of the main interpreter: a subinterpreter is refused with words that say what to do."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import importlib, sys
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            interpreters = importlib.import_module(name)
            break
        except ImportError:
            continue
    else:
        sys.exit("skip")
    {before}
    lines = (
        f"import sys; sys.path[:] = {{sys.path!r}}",
        "try: import {module}",
        "except ImportError as error: print(type(error).__name__, error, flush=True)",
    )
    interpreters.run_string(interpreters.create(), "\\n".join(lines))
"""


@pytest.mark.parametrize(
    ("module", "before"), [("fastbuf", ""), ("fastbuf.memory", "import fastbuf"), ("fastbuf_spark.conf", "")]
)
def test_a_subinterpreter_is_refused(module: str, before: str) -> None:
    """Alone it was let in; beside the main interpreter Cython said "Interpreter change detected"."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM.format(before=before, module=module))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "skip" in done.stderr:
        pytest.skip("this Python has no subinterpreters (CPython has)")
    assert done.returncode == 0, done.stderr
    assert "ImportError fastbuf cannot be imported in a subinterpreter" in done.stdout
    assert "WSGIApplicationGroup %{GLOBAL}" in done.stdout

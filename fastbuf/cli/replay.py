"""``fastbuf replay``: shows a saved history again."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from rich.console import Console
from rich.text import Text

from fastbuf.monitor import History, serve
from fastbuf.monitor.trace import chrome_trace


def run(console: Console, file: Path, *, port: int = 0, trace: Path | None = None) -> int:
    """Show it until interrupted, or write it as a trace."""
    history = History.load(file)
    if trace is not None:
        trace.write_text(json.dumps(chrome_trace(history.moments())))
        console.print(Text(f"{trace}: open it in chrome://tracing or in Perfetto"))
        return 0
    with serve(history.exchanges, port=port, history=history) as server:
        console.print(Text(server.url), soft_wrap=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return 0
    return 0

"""``fastbuf replay``: shows a saved history again."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from fastbuf.monitor import Exchange, History, serve
from fastbuf.monitor.trace import chrome_trace


class Saved(History):
    """A history that is over: looking at it adds nothing, and no run of it is running."""

    def add(self, snapshot: dict[str, Any], exchanges: Sequence[Exchange] = ()) -> None:
        """Nothing is added."""

    def exchanges(self) -> list[Exchange]:
        """Its runs; of one that ran when it was saved nobody knows how it ended."""
        return [
            dataclasses.replace(exchange, outcome="cancelled") if exchange.outcome == "running" else exchange
            for exchange in super().exchanges()
        ]


def run(console: Console, file: Path, *, port: int = 0, trace: Path | None = None) -> int:
    """Show it until interrupted, or write it as a trace."""
    history = Saved.load(file)
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

"""A progress bar for running shuffles."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf_spark.driver.exchanges import progress
from fastbuf_spark.driver.summary import RunSummary

if TYPE_CHECKING:
    from rich.console import Console

EVERY_S = 0.25
KEPT_S = 1.0  #: an ended run is shown for this time, so that short ones can be seen


class ProgressBar:
    """Shows each run while the ``with`` block runs: rows, bytes, rate, back pressure, and the time left.

    >>> with fbs.ProgressBar():                                            # doctest: +SKIP
    ...     result.count()

    The time left is shown if Spark knows the number of producers; it is estimated from those that have ended.  Nothing
    is shown if the console is not a terminal.

    Parameters
    ----------
    console
        The console to draw on; default: standard error, like Spark's own bar.

    Raises
    ------
    ConfigError
        The package rich is not installed.
    """

    def __init__(self, console: Console | None = None) -> None:
        try:
            from rich.console import Console
            from rich.live import Live
        except ImportError as error:
            raise ConfigError("a ProgressBar needs rich: pip install 'fastbuf[cli]'") from error
        self._console = console or Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._runs: dict[int, _Shown] = {}  # by the run's number
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fastbuf-progress", daemon=True)

    def __enter__(self) -> ProgressBar:
        if self._console.is_terminal:
            self._live.start()
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:  # it was started; an error may have ended it
            self._thread.join()
            self._live.stop()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._live.update(self._table(progress(), time.monotonic()), refresh=True)

    def _table(self, runs: list[RunSummary], now: float) -> Any:
        from rich.progress_bar import ProgressBar as Bar
        from rich.table import Table
        from rich.text import Text

        for run in runs:
            shown = self._runs.setdefault(run.number, _Shown(run))
            shown.look(now)
        self._runs = {key: shown for key, shown in self._runs.items() if now - shown.seen < KEPT_S}
        table = Table.grid(padding=(0, 2))
        for shown in self._runs.values():
            line = shown.line()
            # As plain text, since a name given by the user may look like markup
            table.add_row(
                Text(line["name"], overflow="ellipsis", no_wrap=True),
                Bar(total=line["tasks"] or None, completed=line["done"], width=20, pulse=not line["tasks"]),
                *(Text(line[part], no_wrap=True) for part in ("rows", "bytes", "rate", "pressed", "left")),
            )
        return table


class _Shown:
    """The figures shown for one run."""

    def __init__(self, run: RunSummary) -> None:
        self._run = run
        self._begin: float | None = None
        self._last = (0.0, 0)
        self._rate = 0.0
        self.seen = 0.0

    def look(self, now: float) -> None:
        """Update the figures."""
        records = self._moved
        if self._begin is None:
            self._begin, self._last = now, (now, records)
        since, before = self._last
        if now - since >= 1.0:
            self._rate, self._last = max(0, records - before) / (now - since), (now, records)
        self.seen = now

    @property
    def _moved(self) -> int:
        """Rows sent; in blocking mode, where rows are read after all were sent, rows read as well."""
        run = self._run
        return run.records_sent + (run.records_received if run.mode == "blocking" else 0)

    def line(self) -> dict[str, Any]:
        """The texts to show."""
        run = self._run
        tasks, done = run.tasks or 0, run.producers_done
        left, pressed = run.left_s, run.back_pressured
        read = f"{run.records_received:,} of " if run.mode == "blocking" and run.consumers else ""
        return {
            "name": run.name,
            "tasks": tasks,
            "done": done,
            "rows": f"{read}{run.records_sent:,} rows",
            "bytes": _bytes(run.bytes_sent),
            "rate": f"{self._rate:,.0f}/s" if self._rate else "",
            "pressed": "" if pressed is None else f"{pressed:.0%} held back",
            "left": "" if left is None else f"{left:.0f} s left",
        }


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"

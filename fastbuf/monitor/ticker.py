"""Flink's classic measure of back pressure for one writer: every minute 100 samples, 50 ms apart."""

from __future__ import annotations

import threading
from typing import Any

from fastbuf.exchange.named_thread import start_thread
from fastbuf.exchange.record_writer import RecordWriter
from fastbuf.exchange.sampler import Sampler
from fastbuf.monitor.task import level

SAMPLES, SAMPLE_S, REFRESH_S = 100, 0.05, 60.0


def samples_of(taken: int, blocked: int) -> dict[str, Any]:
    """The report on a series of samples: ``taken``, ``blocked``, and the ``level``, OK, LOW or HIGH."""
    return {"taken": taken, "blocked": blocked, "level": level(blocked / taken)}


class Ticker:
    """Samples a writer in a thread of its own, from :meth:`start` until the ``with`` block is left.

    Attributes
    ----------
    samples
        The last complete series; None before the first is complete.
    """

    def __init__(self, writer: RecordWriter) -> None:
        self.samples: dict[str, Any] | None = None
        self._writer = writer
        self._sampler = Sampler()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, unless it has; a task that ends soon needs no thread for it."""
        if self._thread is None:
            self._thread = start_thread(self._run, "fastbuf-ticker")

    def _run(self) -> None:
        while not self._over.is_set():
            taken, (blocked,) = self._sampler.blocked([self._writer], SAMPLES, SAMPLE_S)
            if taken == SAMPLES:
                self.samples = samples_of(taken, blocked)
            self._over.wait(REFRESH_S)

    def __enter__(self) -> Ticker:
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._sampler.stop()
        if self._thread is not None:
            self._thread.join()

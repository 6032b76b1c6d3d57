"""The page of this driver's exchanges: its data, and the one server."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fastbuf.monitor import Diagnosis, Exchange, Server, serve
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver import rendezvous
from fastbuf_spark.driver.summary import RunSummary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("fastbuf_spark")

_lock = threading.Lock()
_open: tuple[int, Server] | None = None  # with its process id: a fork inherits the sockets, but not the thread
_ended: dict[int, tuple[tuple[Any, ...], Diagnosis | None]] = {}  # diagnoses of ended runs, by run number


def ui(
    spark: SparkSession | None = None,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    names: Iterable[str] = (),
) -> Server:
    """Serve a page with this driver's shuffles and streams, also for programs (REST) and Prometheus.

    It is off unless you call this, or ``spark.fastbuf.ui`` is true: then the address is logged when the first shuffle
    is planned, or the first stream starts.  A driver has one page; if it is open already, that one is returned.

    Parameters
    ----------
    spark
        Session or context with the settings (``spark.fastbuf.uiPort``).
    host, port, token, certificate, key, names
        See :func:`fastbuf.monitor.serve`: by default only this machine may open it, on a free port.

    Returns
    -------
    fastbuf.monitor.Server
        Open its ``url`` in a browser; ``close()`` ends it.

    Raises
    ------
    ConfigError
        ``fastbuf[monitor]`` is not installed, the address is not available, or it is open to other hosts without TLS.
    """
    global _open
    with _lock:
        if _open is not None and _open[0] == os.getpid() and not _open[1].closed:
            return _open[1]
        if port is None:
            port = ShuffleConf.from_session(spark).ui_port if spark is not None else 0
        from fastbuf_spark.streams.query import queries

        server = serve(
            exchanges,
            host=host,
            port=port,
            token=token,
            certificate=certificate,
            key=key,
            names=names,
            queries=queries,
        )
        _open = os.getpid(), server
        return server


def start(port: int) -> None:
    """Open the page for ``spark.fastbuf.ui``, unless it is open, and log its address."""
    with _lock:
        if _open is not None and _open[0] == os.getpid():
            return  # a page closed by the user stays closed
    # A warning, since a driver without logging settings shows warnings only
    log.warning("fastbuf's page: %s", ui(port=port).url)


def exchanges() -> list[Exchange]:
    """The current runs, and the last ones that have ended."""
    summaries = []
    for server in rendezvous.servers():
        server.progress()  # brings their seconds up to now
        summaries += list(server.summaries)
    above: dict[int, list[str]] = {}
    for summary in summaries:
        if summary.parent:
            above.setdefault(summary.parent, []).append(_id(summary))
    numbers = {summary.number for summary in summaries}
    for number in [number for number in _ended if number not in numbers]:
        _ended.pop(number, None)
    return [_exchange(summary, above.get(summary.epoch, []) if summary.epoch else []) for summary in summaries]


def _id(summary: RunSummary) -> str:
    return f"{summary.exchange[:8]}-{summary.number}"


def _exchange(summary: RunSummary, upstream: list[str]) -> Exchange:
    return Exchange(
        _id(summary),
        summary.name,
        summary.mode,
        summary.epoch,
        summary.outcome,
        summary.reason,
        summary.began,
        summary.seconds,
        summary.tasks,
        tuple(upstream),
        dict(summary.producers),
        dict(summary.consumers),
        _diagnosis(summary),
    )


def _diagnosis(summary: RunSummary) -> Diagnosis | None:
    if not any("seconds" in figures for figures in [*summary.producers.values(), *summary.consumers.values()]):
        return None
    if summary.outcome == "running":
        return summary.diagnosis
    mark = (summary.outcome, len(summary.producers), len(summary.consumers), summary.records_received)
    if _ended.get(summary.number, ((), None))[0] != mark:
        _ended[summary.number] = mark, summary.diagnosis
    return _ended[summary.number][1]

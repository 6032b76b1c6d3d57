"""The monitor's web server: the page, REST and Prometheus, in one thread that takes a snapshot once a second.

It needs starlette and uvicorn, which come with ``fastbuf[monitor]``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterable
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fastbuf.checks import instance, named_host
from fastbuf.checks import port as a_port
from fastbuf.errors import ConfigError
from fastbuf.exchange.named_thread import start_thread
from fastbuf.fork_safe import openssl
from fastbuf.monitor import rest
from fastbuf.monitor.flamegraph import KINDS
from fastbuf.monitor.guard import Guard, new_token
from fastbuf.monitor.history import History
from fastbuf.monitor.metrics import FRESH_S
from fastbuf.monitor.prometheus import CONTENT_TYPE, exposition
from fastbuf.monitor.queries import Source as QuerySource
from fastbuf.monitor.recorder import Recorder, Source
from fastbuf.monitor.trace import ChromeTrace
from fastbuf.transports.addresses import listen
from fastbuf.transports.tls import empty_context

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

EVERY_S = 1.0
REST_TIMES = 10.0  #: after a snapshot the thread rests this many times as long as the snapshot took
START_S, STOP_S = 10.0, 5.0
MOST_STREAMS = 32  #: most pages that may watch at once
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def page_files() -> dict[str, tuple[bytes, str]]:
    """The page's files by path, with their types.  They contain no figures, so they need no token."""
    files: dict[str, tuple[bytes, str]] = {}

    def walk(folder: Any, path: str) -> None:
        for item in folder.iterdir():
            if item.is_dir():
                walk(item, f"{path}{item.name}/")
            else:
                kind = _KINDS.get(os.path.splitext(item.name)[1])
                if kind is not None:
                    files[path + item.name] = (item.read_bytes(), kind + "; charset=utf-8")

    walk(resources.files("fastbuf.monitor") / "page", "/page/")
    files["/"] = files["/page/index.html"]
    return files


class Streams:
    """The pages that watch: each snapshot is encoded once and sent to all of them."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[bytes | None]] = set()

    def send(self, text: bytes | None) -> None:
        """Send to all; None: end the streams.  A slow page misses snapshots that it has not read."""
        for queue in self._queues:
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(text)

    @property
    def full(self) -> bool:
        """Whether the limit of watching pages is reached."""
        return len(self._queues) >= MOST_STREAMS

    async def watch(self, first: bytes) -> AsyncIterator[bytes]:
        """The stream of events for one page."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._queues.add(queue)
        try:
            yield b"retry: 2000\n\n" + first
            while (text := await queue.get()) is not None:
                yield text
        finally:
            self._queues.discard(queue)


def event(snapshot: dict[str, Any]) -> bytes:
    """A snapshot as a server-sent event."""
    return b"event: snapshot\ndata: " + json.dumps(snapshot, separators=(",", ":")).encode() + b"\n\n"


def application(recorder: Recorder, streams: Streams) -> Starlette:
    """The ASGI application with all routes, without access control.

    Raises
    ------
    ConfigError
        A package is not installed.
    """
    try:
        import uvicorn  # noqa: F401
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse, Response, StreamingResponse
        from starlette.routing import Route
    except ImportError as error:
        raise ConfigError("the page needs starlette and uvicorn: pip install 'fastbuf[monitor]'") from error

    files = page_files()

    def answers(make: Any) -> Any:
        async def endpoint(request: Request) -> Response:
            try:
                return JSONResponse(make(recorder.look(FRESH_S), request.query_params, **request.path_params))
            except rest.Unknown as error:
                return JSONResponse({"errors": [str(error)]}, status_code=404)

        return endpoint

    def flames(look: Any, query: Any, job: str, vertex: str) -> Any:
        kind, subtask = query.get("type", "full").lower(), query.get("subtaskindex")
        if kind not in KINDS:
            raise rest.Unknown(f"type={kind} is unknown: use {', '.join(KINDS)}")
        if subtask is not None and not subtask.isdecimal():
            raise rest.Unknown(f"subtaskindex={subtask} must be a number")
        return rest.flames(look, recorder.exchanges, job, vertex, kind, None if subtask is None else int(subtask))

    def metrics(look: Any, query: Any, job: str, vertex: str) -> Any:
        return rest.subtask_metrics(look, job, vertex, query.get("get"), query.get("agg"), query.get("subtasks"))

    def moment(look: Any, query: Any) -> Any:
        try:
            snapshot = recorder.history.at(float(query["at"]))
        except (KeyError, ValueError) as error:
            raise rest.Unknown("give the moment as at=SECONDS since 1970") from error
        if snapshot is None:
            raise rest.Unknown("the history is still empty")
        return snapshot

    # Both responses may cover hours, so other requests get a turn after each moment
    async def saved(request: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            for piece in recorder.history.pieces(recorder.running):
                yield piece
                await asyncio.sleep(0)

        return StreamingResponse(pieces(), media_type="application/json", headers=_as_file("fastbuf-history.json"))

    async def trace(request: Request) -> Response:
        chrome_trace = ChromeTrace()
        for moment in recorder.history.moments():
            chrome_trace.add(moment)
            await asyncio.sleep(0)
        return JSONResponse(chrome_trace.to_json(), headers=_as_file("fastbuf-trace.json"))

    async def page(request: Request) -> Response:
        body, kind = files[request.url.path]
        return Response(body, media_type=kind)

    async def prometheus(request: Request) -> Response:
        return Response(exposition(recorder), media_type=CONTENT_TYPE)

    async def events(request: Request) -> Response:
        if streams.full:
            return JSONResponse({"errors": [f"{MOST_STREAMS} pages, the limit, are watching"]}, status_code=503)
        return StreamingResponse(streams.watch(event(recorder.look(FRESH_S))), media_type="text/event-stream")

    of_vertex = "/jobs/{job}/vertices/{vertex}"
    gets = {
        "/snapshot": answers(lambda look, query: look),
        "/streams": answers(lambda look, query: look["queries"]),
        "/jobs": answers(lambda look, query: rest.jobs(look)),
        "/jobs/overview": answers(lambda look, query: rest.overview(look)),
        "/jobs/{job}": answers(lambda look, query, job: rest.details(look, job)),
        "/jobs/{job}/diagnosis": answers(lambda look, query, job: rest.diagnosis(look, job)),
        "/jobs/{job}/history": answers(lambda look, query, job: recorder.history.line(job)),
        f"{of_vertex}/backpressure": answers(lambda look, query, job, vertex: rest.backpressure(look, job, vertex)),
        f"{of_vertex}/flamegraph": answers(flames),
        f"{of_vertex}/subtasks/metrics": answers(metrics),
        "/history": saved,
        "/history/moment": answers(moment),
        "/history/trace": trace,
        "/events": events,
        "/metrics": prometheus,
    }
    routes = [Route(path, page, methods=["GET"]) for path in files]
    return Starlette(routes=routes + [Route(path, endpoint, methods=["GET"]) for path, endpoint in gets.items()])


def _as_file(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}


class Server:
    """A running web server of the monitor, until it is closed.

    Made by :func:`serve`.  Its thread is a daemon, so it does not keep the interpreter from ending.

    Attributes
    ----------
    recorder
        Takes the snapshots; it has the history, and is needed for OpenTelemetry.
    token
        The token, which programs send as ``Authorization: Bearer TOKEN``.
    """

    def __init__(
        self,
        recorder: Recorder,
        sock: socket.socket,
        host: str,
        token: str,
        tls: ssl.SSLContext | None = None,
        names: Iterable[str] = (),
    ) -> None:
        self._streams = Streams()
        app = application(recorder, self._streams)  # which says what is not installed
        import uvicorn

        self.recorder = recorder
        self.token = token
        self._sock = sock
        port = sock.getsockname()[1]
        scheme = "http" if tls is None else "https"
        named = f"[{host}]" if ":" in host else host
        #: The URL without the token
        self.address = f"{scheme}://{named}:{port}"
        hosts = {f"{name.lower()}:{port}" for name in (named, "127.0.0.1", "localhost", "[::1]", *names)}
        config = uvicorn.Config(
            Guard(app, token, hosts, page_files(), tls is not None),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=1,
            ws="none",
            limit_concurrency=4 * MOST_STREAMS,
        )
        config.load()
        if tls is not None:
            config.ssl = tls
        self._uvicorn = uvicorn.Server(config)
        self._thread = start_thread(self._run, "fastbuf-monitor")
        end = time.monotonic() + START_S
        while not self._uvicorn.started and self._thread.is_alive() and time.monotonic() < end:
            time.sleep(0.005)  # uvicorn has no event for this
        if not self._uvicorn.started:
            self.close()
            raise ConfigError(f"the web server of the monitor at {self.address} did not start within {START_S:g} s")

    @property
    def url(self) -> str:
        """The URL for a browser.  It contains the token, so anyone who has it sees everything."""
        return f"{self.address}/#token={quote(self.token, safe='')}"

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"<Server {self.address}>"  # without the token: this may be logged

    def _run(self) -> None:
        with contextlib.suppress(SystemExit):
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        looking = asyncio.create_task(self._look())
        try:
            await self._uvicorn.serve(sockets=[self._sock])
        finally:
            looking.cancel()

    async def _look(self) -> None:
        while not self._uvicorn.started and not self._uvicorn.should_exit:
            await asyncio.sleep(0.01)
        due = time.monotonic()
        while not self._uvicorn.should_exit:
            begin = time.monotonic()
            with contextlib.suppress(Exception):  # the source may work again the next time
                self._streams.send(event(self.recorder.look()))
            took = time.monotonic() - begin
            # With very many tasks snapshots become rarer, so that they take only a small share of a CPU
            due = max(due + EVERY_S, begin + REST_TIMES * took)
            while (left := due - time.monotonic()) > 0 and not self._uvicorn.should_exit:
                await asyncio.sleep(min(left, 0.1))
        self._streams.send(None)

    def close(self) -> None:
        """Stop the server, and end the streams of open pages."""
        self._uvicorn.should_exit = True
        if self._thread.is_alive():
            self._thread.join(STOP_S)
        self._sock.close()

    @property
    def closed(self) -> bool:
        """Whether the server has stopped."""
        return not self._thread.is_alive()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def serve(
    source: Source,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    names: Iterable[str] = (),
    history: History | None = None,
    queries: QuerySource | None = None,
) -> Server:
    """Serve exchanges as a web page, by REST and for Prometheus.

    Parameters
    ----------
    source
        Called once a second; returns the current exchanges as :class:`Exchange`.
    host
        The address to listen on.  Any except loopback needs `token`, `certificate` and `key`.
    port
        0: any.
    token
        The token that readers must send, at least 32 characters; default: 256 random bits.
    certificate, key
        Paths of PEM files for TLS; default: no TLS.
    names
        Further host names or addresses that clients may use, besides `host`; requests for others are refused.
    history
        Stores the snapshots; default: a new one.
    queries
        Called once a second; returns the current streams, each as :mod:`fastbuf.monitor.queries` says.

    Returns
    -------
    Server
        Open its ``url`` in a browser.

    Raises
    ------
    ConfigError
        A package is missing (``fastbuf[monitor]``), the server cannot listen on the address, or other hosts can reach
        it and there is no TLS.
    """
    named_host("host", host)
    instance("token", token, str, type(None))
    if isinstance(names, str):
        raise ConfigError(f"names is {names!r:.80}: give a list of names of hosts")
    instance("history", history, History, type(None))
    if (certificate is None) != (key is None):
        raise ConfigError("certificate and key go together: give both, or neither")
    if not _loopback(host):
        missing = [
            name for name, value in (("token", token), ("certificate", certificate), ("key", key)) if value is None
        ]
        if missing:
            raise ConfigError(
                f"host is {host!r}, which other hosts can reach: it needs token, certificate and key; "
                f"{' and '.join(missing)} are missing.  Or listen on 127.0.0.1 and forward the port (ssh -L)"
            )
    tls = None
    if certificate is not None and key is not None:
        try:
            with openssl:
                tls = empty_context(ssl.PROTOCOL_TLS_SERVER, ssl.TLSVersion.TLSv1_2)
                tls.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"certificate {certificate} and key {key} cannot be used: {error}") from error
    recorder = Recorder(source, history, queries=queries)
    try:
        sock = listen(host, (a_port("port", port),) * 2, 128)
    except OSError as error:
        raise ConfigError(f"the page cannot listen on {host}:{port}: {error}; choose another host or port") from error
    try:
        return Server(recorder, sock, host, new_token() if token is None else token, tls, names)
    except BaseException:
        sock.close()
        raise


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"

"""The monitor's web server: the page, REST and Prometheus, in one thread that takes a snapshot once a second.

It needs starlette and uvicorn, which come with ``fastbuf[monitor]``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Iterable
from urllib.parse import quote

from fastbuf.checks import instance, named_host
from fastbuf.checks import port as a_port
from fastbuf.errors import ConfigError
from fastbuf.exchange.named_thread import start_thread
from fastbuf.fork_safe import openssl
from fastbuf.monitor.guard import Guard, new_token
from fastbuf.monitor.history import History
from fastbuf.monitor.queries import Source as QuerySource
from fastbuf.monitor.recorder import Recorder, Source
from fastbuf.monitor.routes import MOST_STREAMS, Streams, application, event, page_files
from fastbuf.transports.addresses import listen
from fastbuf.transports.tls import empty_context

EVERY_S = 1.0
REST_TIMES = 10.0  #: after a snapshot the thread rests this many times as long as the snapshot took
START_S, STOP_S = 10.0, 5.0


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

"""An S3 server on this host, behind a proxy that is slow, refuses and breaks off as stores do."""

from __future__ import annotations

import http.client
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote
from urllib.request import urlopen

EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
SET = "/-/"  # of a path that sets an attribute of the proxy, as name=value in JSON
FAULTS = {"busy_each": 7, "reset_each": 11, "latency_s": 0.005}
BUSY = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>"


class Proxy(ThreadingHTTPServer):
    """Passes requests on; each ``busy_each``th is answered 503, each ``reset_each``th by the end of its connection.

    Of each ``half_each``th answer to a GET half of the body comes, and then the end of the connection.
    """

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = port
        self.busy_each = self.reset_each = self.half_each = 0
        self.latency_s = 0.0
        self.token_left: int | None = None  # requests that are answered before the token has expired; None: it does not
        #: What is not answered; `stuck` says that there is such a request, and `ends` ends its connection
        self.holds: Callable[[Any], bool] = lambda request: False
        self.one_by_one = threading.Lock()
        self.stuck, self.ends = threading.Event(), threading.Event()
        self.accounts: dict[str, str] = {}  # the access key, and no other, that a bucket opens to
        self.numbers = itertools.count(1)
        self.answers = itertools.count(1)
        self.faults = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _pass(self) -> None:
        if self.path.startswith(SET):
            name, _, value = unquote(self.path.removeprefix(SET)).partition("=")
            setattr(self.server, name, json.loads(value))
            self._answer(200, [], str(next(self.server.numbers)).encode())
            return
        number = next(self.server.numbers)
        body = self._body()
        time.sleep(self.server.latency_s)
        if self.server.holds(self):
            self.server.stuck.set()
            self.server.ends.wait()
            self.close_connection = True
            return
        if self.server.reset_each and number % self.server.reset_each == 0:
            self.server.faults += 1
            self.close_connection = True
            return
        if self.server.busy_each and number % self.server.busy_each == 0:
            self.server.faults += 1
            self._answer(503, [("Content-Type", "application/xml")], BUSY)
            return
        if self.server.token_left is not None:
            self.server.token_left -= 1
            if self.server.token_left < 0:
                self._answer(403, [("Content-Type", "application/xml")], EXPIRED)
                return
        owner = self.server.accounts.get(self.path.strip("/").partition("/")[0].partition("?")[0])
        if owner is not None and f"Credential={owner}/" not in self.headers.get("Authorization", ""):
            self._answer(403, [("Content-Type", "application/xml")], DENIED)
            return
        # moto looks whether an object is there, and makes it, in two steps
        with self.server.one_by_one if "If-None-Match" in self.headers else nullcontext():
            self._ask(body)

    def _ask(self, body: bytes) -> None:
        """Have the server answer."""
        target = http.client.HTTPConnection("127.0.0.1", self.server.target, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "transfer-encoding"}
        if body:
            headers["Content-Length"] = str(len(body))
        target.request(self.command, self.path, body, headers)
        answer = target.getresponse()
        self._answer(answer.status, answer.getheaders(), answer.read())
        target.close()

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        made = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            made += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return made

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        sized = self.command == "HEAD"
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection") and (sized or name.lower() != "content-length"):
                self.send_header(name, value)
        if not sized:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not sized:
            half = self.command == "GET" and len(body) > 1 and self.server.half_each
            if half and next(self.server.answers) % half == 0:
                self.server.faults += 1
                self.close_connection = True
                body = body[: len(body) // 2]
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def served() -> Iterator[Proxy]:
    """A store with the bucket ``bucket``."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        with passed_on(server.get_host_and_port()[1]) as proxy:
            store(proxy, allow_bucket_creation=True).create_dir("bucket")
            yield proxy
    finally:
        server.stop()


@contextmanager
def passed_on(port: int) -> Iterator[Proxy]:
    """A proxy of a server on this host."""
    proxy = Proxy(port)
    serving = threading.Thread(target=proxy.serve_forever, daemon=True)
    serving.start()
    try:
        yield proxy
    finally:
        proxy.ends.set()
        proxy.shutdown()
        proxy.server_close()
        serving.join()


@contextmanager
def served_apart(**settings: Any) -> Iterator[str]:
    """A store in a process of its own, for clients that hold Python's lock while they wait; its address.

    ``settings`` are attributes of the proxy; without any it is slow and has faults.
    """
    command = [sys.executable, __file__, json.dumps(settings or FAULTS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.stdin.close()
        assert int(server.stdout.read()) > 3 or settings, "faults"


def store(proxy: Proxy, **options: Any) -> Any:
    """The file system."""
    return store_at(proxy.address, **options)


def store_at(address: str, **options: Any) -> Any:
    from pyarrow import fs

    account = {"access_key": "someone", "secret_key": "s3cr3t", "region": "us-east-1", **options}
    return fs.S3FileSystem(endpoint_override=address, scheme="http", **account)


def set_apart(address: str, name: str, value: Any) -> int:
    """Set an attribute of a proxy of :func:`served_apart`; its requests until now, with those of this."""
    with urlopen(f"http://{address}{SET}{name}={quote(json.dumps(value))}") as answer:
        return int(answer.read())


def delta_options(address: str) -> dict[str, str]:
    """What deltalake takes to open a table there."""
    options = {"ACCESS_KEY_ID": "someone", "SECRET_ACCESS_KEY": "s3cr3t", "ENDPOINT_URL": f"http://{address}"}
    return {f"AWS_{name}": value for name, value in {**options, "REGION": "us-east-1", "ALLOW_HTTP": "true"}.items()}


if __name__ == "__main__":
    with served() as made:
        vars(made).update(json.loads(sys.argv[1]))
        print(made.address, flush=True)
        sys.stdin.read()
        print(made.faults, flush=True)

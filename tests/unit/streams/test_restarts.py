"""When a stream that has failed begins again: after which errors, how often in a row, and after how long."""

from __future__ import annotations

import errno
import http.server
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

from fastbuf_spark.streams.outage import is_outage
from fastbuf_spark.streams.query import MOST_LOSSES, SAME_ERROR, STEADY_S, StreamingQuery, wait_after
from fastbuf_spark.streams.run import Outcome

ERROR = Outcome("failed", "ValueError: 7 is bad", by_task=True)
LOST = Outcome("failed", "task 0 of stage map was lost")
FULL = Outcome("failed", "OSError: No space left on device", by_task=True, outage=True)


@pytest.fixture
def query() -> StreamingQuery:
    """A query that nobody runs."""
    made = object.__new__(StreamingQuery)
    made._failures, made._last_errors, made._draining, made._began = 0, [], False, 0.0
    return made


def restarts(query: StreamingQuery, outcome: Outcome) -> int:
    """How often it begins again after the same end."""
    count = 0
    while query._may_restart(outcome):
        count += 1
        assert count < 100
    return count


def test_waits_grow_to_a_bound() -> None:
    waits = [wait_after(n) for n in range(1, 30)]
    assert waits[:4] == [0.1, 0.2, 0.4, 0.8]
    assert waits == sorted(waits)
    assert set(waits[9:]) == {30.0}


@pytest.mark.parametrize(
    ("outcome", "most"), [(ERROR, SAME_ERROR - 1), (LOST, MOST_LOSSES - 1), (FULL, MOST_LOSSES - 1)]
)
def test_how_often(query: StreamingQuery, outcome: Outcome, most: int) -> None:
    assert restarts(query, outcome) == most


def test_a_stream_that_is_drained_does_not_wait_for_the_end_of_an_outage(query: StreamingQuery) -> None:
    query._draining = True
    assert restarts(query, FULL) == SAME_ERROR - 1


def test_a_checkpoint_that_has_read_on_sets_the_waits_back(
    query: StreamingQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("fastbuf_spark.streams.query.time.monotonic", lambda: now[0])
    for _ in range(10):
        assert query._may_restart(LOST)
    query._completed(has_read=False)  # it may be in front of what is bad
    assert query._failures == 10
    query._completed(has_read=True)
    assert query._failures == 0
    assert query._may_restart(ERROR)
    now[0] = STEADY_S + 1
    query._completed(has_read=False)
    assert (query._failures, query._last_errors) == (0, [])


def chained() -> BaseException:
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise RuntimeError("rows could not be written") from error
    except RuntimeError as error:
        return error


class ClientError(Exception):
    """As botocore's, which is no OSError."""


def while_handled(kind: type[Exception], hides: bool = False) -> BaseException:
    try:
        try:
            raise TimeoutError("no answer")
        except TimeoutError:
            if hides:
                raise kind("a row is bad") from None
            raise kind("no endpoint")  # noqa: B904
    except kind as error:
        return error


def refused() -> BaseException:
    """What urllib makes of a port that nobody listens on."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{unused.getsockname()[1]}", timeout=5)
        except urllib.error.URLError as error:
            return error
    raise AssertionError("somebody answered")


def store(name: str) -> BaseException:
    """What pyarrow raises for a store where nobody listens, or which says 503."""
    fs = pytest.importorskip("pyarrow.fs", reason="pip install 'fastbuf[arrow]'")

    class Unavailable(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Nothing on the terminal."""

    with http.server.HTTPServer(("127.0.0.1", 0), Unavailable) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"127.0.0.1:{server.server_port if name == 'unavailable' else 1}"
        once = fs.AwsStandardS3RetryStrategy(max_attempts=1)
        keys = {"access_key": "a", "secret_key": "b", "region": "us-east-1"}
        there = fs.S3FileSystem(endpoint_override=place, scheme="http", retry_strategy=once, **keys)
        try:
            there.get_file_info(fs.FileSelector("bucket/folder"))
        except OSError as error:
            return error
        finally:
            server.shutdown()
    raise AssertionError("it answered")


def circular() -> BaseException:
    error = ValueError("its own cause")
    error.__cause__ = error
    return error


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (chained, True),
        (refused, True),
        (lambda: while_handled(ClientError), True),
        (lambda: while_handled(ClientError, hides=True), False),
        (lambda: while_handled(TypeError), False),
        (lambda: store("unavailable"), True),
        (lambda: store("away"), True),
        (circular, False),
        (lambda: TimeoutError(), True),
        (lambda: BrokenPipeError(), True),
        (lambda: OSError(errno.EHOSTUNREACH, "No route to host"), True),
        (lambda: OSError("closed"), False),
        (lambda: FileNotFoundError(errno.ENOENT, "none"), False),
        (lambda: PermissionError(errno.EACCES, "no"), False),
        (lambda: KeyError("a"), False),
    ],
)
def test_what_an_outage_is(make: Callable[[], BaseException], wanted: bool) -> None:
    assert is_outage(make()) is wanted

"""A worker's control connection to the rendezvous.  It has no thread: the task's thread reads it when needed."""

from __future__ import annotations

import contextlib
import secrets
import select
import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from fastbuf import __version__
from fastbuf.errors import AuthenticationError, ExchangeAborted, FastbufError, PeerLost, ProtocolError, StallTimeout
from fastbuf.exchange.clock import monotonic
from fastbuf.json_frames import FRAME_BYTES, same
from fastbuf.transports.addresses import connect
from fastbuf_spark.messages import Unpacker
from fastbuf_spark.protocol import Abort, FromDriver, FromWorker, Hello, Proof, RunFailed, Stop
from fastbuf_spark.tracebacks import fold
from fastbuf_spark.wire import VERSION, clip, prepare, proof
from fastbuf_spark.worker.task_input import LOOK_S

#: How long a participant whose channel broke waits for the cause, which the driver may have to get from Spark
#: (``run.CAUSE_S``)
REASON_WAIT_S = 8.0


#: What the core advises, and what that is in Spark.
CORE_ADVICE = {
    "raise max_record_bytes on both sides": "raise spark.fastbuf.maxRecordBytes",
    "raise stall_timeout_s": "raise spark.fastbuf.stallTimeout",
}

A = TypeVar("A")
M = TypeVar("M", bound=FromDriver)


class StageFailed(FastbufError):
    """An earlier stage failed; the text is that stage's error with its traceback."""


class Unreached(PeerLost):
    """Nobody answers at the driver's address."""


def words(error: BaseException) -> str:
    """An error as text for other participants: the error first, then its traceback."""
    if isinstance(error, StageFailed):
        return str(error)
    fold(error)
    if isinstance(error, FastbufError):
        error.args = tuple(_with_settings(text) if isinstance(text, str) else text for text in error.args)
    last = "".join(traceback.format_exception_only(error)).strip()
    return f"{last}\n{''.join(traceback.format_exception(error)).strip()}"


def _with_settings(text: str) -> str:
    """The core names fields of its configuration; who uses Spark has settings for them."""
    for field, setting in CORE_ADVICE.items():
        text = text.replace(field, setting)
    return text


class Control:
    """Connects, proves the secret, and checks that the driver knows it too.

    Parameters
    ----------
    address
        Host and port of the rendezvous.
    exchange, secret
        The exchange's id, and the secret that proves membership.
    timeout
        Seconds to connect, and to wait for each answer.
    reach
        Seconds to connect, if others.

    Raises
    ------
    PeerLost
        The driver cannot be reached (:class:`Unreached`), or closed the connection.
    AuthenticationError
        The peer does not know the secret.
    """

    def __init__(
        self, address: tuple[str, int], exchange: str, secret: bytes, timeout: float, reach: float | None = None
    ) -> None:
        self._unpacker = Unpacker(FromDriver)
        self._ended = False
        self._sending = threading.Lock()  # held by the task's thread, or by the thread that sends reports
        self._verdict: Abort | Stop | None = None
        #: Called twice a second while this worker waits for the driver; an exception ends the wait
        self.watch: Callable[[], None] = lambda: None
        where = f"{address[0]}:{address[1]}"
        reach = timeout if reach is None else reach
        try:
            self._sock = connect(*address, reach)
        except OSError as error:
            raise Unreached(
                f"the driver's rendezvous at {where} cannot be reached within {reach:g} s: {error}; "
                "executors must reach spark.driver.host (fix its port with spark.fastbuf.driverPort)"
            ) from error
        try:
            prepare(self._sock)
            hello = self.expect(Hello, timeout=timeout)
            if hello.version != VERSION:
                raise ProtocolError(
                    f"the driver has fastbuf {hello.fastbuf}, this worker {__version__}: "
                    "they do not understand each other, install the same version everywhere"
                )
            nonce = secrets.token_hex(16)
            mine = proof(secret, "worker", hello.nonce, nonce, exchange)
            welcome = self.ask(Proof(exchange, nonce, mine), timeout)
            if not same(welcome.proof, proof(secret, "driver", hello.nonce, nonce, exchange)):
                raise AuthenticationError(f"the server at {where} does not know the secret of exchange {exchange}")
            self._unpacker.limit = FRAME_BYTES
        except BaseException:
            self._sock.close()
            raise

    @property
    def local_host(self) -> str:
        """This worker's address on its route to the driver: where it listens for others (loopback in local mode)."""
        return str(self._sock.getsockname()[0])

    def _ready(self, event: int, seconds: float) -> bool:
        """Whether it comes within that time.  By poll: select knows no descriptor above 1,023, however few are open."""
        poller = select.poll()
        poller.register(self._sock, event)
        return bool(poller.poll(1000 * seconds))

    def send(self, message: FromWorker[Any]) -> None:
        """Send; if the connection is closed, the next receive reports that, with the reason if there is one."""
        with contextlib.suppress(OSError), self._sending:
            self._sock.sendall(message.encode())

    def tell(self, message: FromWorker[Any]) -> None:
        """Send a short message that may as well be lost, from any thread: nobody waits for a driver that is busy."""
        if self._ready(select.POLLOUT, 0) and self._sending.acquire(blocking=False):
            try:
                self._sock.sendall(message.encode())
            except OSError:  # see send
                pass
            finally:
                self._sending.release()

    def poll(self, timeout: float = 0.0) -> FromDriver | None:
        """The next message, or None if none arrives within ``timeout`` seconds.

        Raises
        ------
        PeerLost
            The driver has closed the connection.
        """
        deadline = monotonic() + timeout
        while True:
            message = self._unpacker.next()
            if message is not None:
                if isinstance(message, Abort | Stop):
                    self._verdict = message
                return message
            if self._ended:
                raise PeerLost("the control connection to the driver ended")
            left = max(0.0, deadline - monotonic())
            if not self._ready(select.POLLIN, min(left, LOOK_S)):
                if left <= LOOK_S:
                    return None
                self.watch()
                continue
            try:
                data = self._sock.recv(1 << 16)
            except OSError:
                data = b""
            self._ended = not data
            self._unpacker.feed(data)

    def wait(self, seconds: float) -> None:
        """Sleep, unless something arrives."""
        self._ready(select.POLLIN, seconds)

    def ask(self, message: FromWorker[A], timeout: float) -> A:
        """Send, and wait for the answer; raises as :meth:`expect`."""
        self.send(message)
        kinds: Any = message.answers()
        answer: A = self.expect(*kinds, timeout=timeout)
        return answer

    def expect(self, *kinds: type[M], timeout: float) -> M:
        """Wait for a message of one of these kinds.

        Raises
        ------
        ExchangeAborted
            The driver has aborted the run.
        StallTimeout
            None arrived within ``timeout`` seconds.
        """
        message = self.poll(timeout)
        if isinstance(message, kinds):
            return message
        if isinstance(message, Abort):
            raise ExchangeAborted(message.reason)
        names = " or ".join(kind.op for kind in kinds)
        if message is None:
            raise StallTimeout(f"the driver did not answer with {names} within {timeout:g} s (stall_timeout)")
        raise ProtocolError(f"the driver sent {message.op!r}, expected {names}")

    def verdict(self, timeout: float = REASON_WAIT_S) -> Abort | Stop | None:
        """The end of the run, if the driver reports it within ``timeout`` seconds.

        A participant whose channel broke calls this first: the broken channel is rarely the cause.
        """
        deadline = monotonic() + timeout
        with contextlib.suppress(PeerLost, ProtocolError):
            while self._verdict is None and monotonic() < deadline:
                self.poll(deadline - monotonic())
        return self._verdict

    def abort(self, reason: str, kind: Callable[[str], FromWorker[Any]] = RunFailed) -> None:
        """Tell the driver that this participant failed."""
        self.send(kind(clip(reason)))

    def close(self) -> None:
        """Close; the driver treats this as the end of this participant."""
        self._sock.close()

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

"""Wires under watermarks between environments: the flow control that credit replaced, over TCP, to compare with.

A wire is one connection for all channels from one environment to another (``watermark_wire.pxd`` is its map). Who may
connect, how many strangers may wait and for how long is the listener's, as for the connections under credit; TLS is
not spoken.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import weakref
from typing import Any

from fastbuf.errors import ConfigError, ExchangeClosed, PeerLost
from fastbuf.exchange.connection import register_transport
from fastbuf.exchange.shared_wire import WireTarget
from fastbuf.transports import handshake as hs
from fastbuf.transports.applicant import Applicant
from fastbuf.transports.listener import Listener
from fastbuf.transports.socket_options import tune
from fastbuf.transports.watermark_end import WatermarkEnd


class WatermarkWire:
    """The dialling end of a wire; made by :meth:`ShuffleEnvironment.create_wire` with an address.

    Parameters
    ----------
    transport
        The environment's.
    host, port
        Where the other environment listens for wires.
    """

    def __init__(self, transport: WatermarkTransport, host: str, port: int) -> None:
        self._transport = transport
        self._address = host, port
        self._lock = threading.Lock()
        self._end: WatermarkEnd | None = None
        self._secret = b""

    def to(self, gate_id: int) -> Any:
        """The gate of that number, over this wire, as a target of a result partition."""
        return WireTarget(self, gate_id)  # type: ignore[arg-type]

    def connect(self, partition: Any, index: int, gate_id: int) -> None:
        """Called by the environment: the first channel dials and proves the secret, the others join it.

        Raises
        ------
        PeerLost
            Nobody listens there.
        AuthenticationError, SequenceError, SchemaMismatch
            The first channel is refused. One that joins is told so as an ABORT.
        ConfigError
            A channel that joins has another secret.
        """
        channel = partition.credentials
        where = f"{self._address[0]}:{self._address[1]}"

        def hello(stream: int) -> hs.Hello:
            return hs.Hello(
                gate_id=gate_id,
                channel=partition.channel,
                epoch=channel["epoch"],
                fingerprint=channel["fingerprint"],
                segment_size=partition.segment_size,
                nonce=hs.fresh_nonce(),
                flush_ns=partition.flush_ns,
                stream=stream,
            )

        with self._lock:
            if self._end is not None and not self._end.ended():
                if channel["secret"] != self._secret:
                    raise ConfigError(f"the wire to {where} was proved with another secret: make one for each")
                self._end.add_partition(partition, index, lambda stream: hello(stream).pack(), True)
            else:
                deadline = time.monotonic() + partition.config.connect_timeout_s
                sock = hs.patiently(lambda: self._greet(hello(0), partition, where), deadline, partition.check)
                try:
                    end = WatermarkEnd(self._transport, False, channel["secret"], where)
                    self._transport.know(end)
                    try:
                        end.add_partition(partition, index, lambda stream: hello(stream).pack(), False)
                        self._transport.start(end, sock)
                    except BaseException:
                        end.let_go_partition(partition)
                        self._transport.forget(end)
                        raise
                except BaseException:
                    sock.close()
                    raise
                self._secret = channel["secret"]
                self._end = end
        partition.set_transport(index, "watermark", f"{where} gate {gate_id}")

    def _greet(self, hello: hs.Hello, partition: Any, where: str) -> socket.socket:
        try:
            sock = socket.create_connection(self._address, partition.config.connect_timeout_s)
        except OSError as error:
            raise PeerLost(f"consumer {where} cannot be reached: {error}") from error
        try:
            tune(sock)
            hs.greet(sock, hello, partition.credentials["secret"], f"consumer {where}")
        except BaseException:
            sock.close()
            raise
        return sock

    def stats(self) -> dict[str, Any]:
        """Bytes sent, most bytes queued at once, the marks."""
        return self._end.stats() if self._end is not None else {}


class WatermarkTransport:
    """All wires of an environment, in both directions."""

    def __init__(self, environment: Any) -> None:
        if environment.tls is not None:
            raise ConfigError("a wire under watermarks speaks no TLS, and this environment's connections must")
        self._environment = weakref.ref(environment)  # threads keep none alive that is forgotten
        self.pool = environment.pool
        self._lock = threading.Lock()
        self._ends: list[WatermarkEnd] = []
        self._listener: Listener | None = None
        self._letters: tuple[socket.socket, ...] = ()
        self._closed = False

    def listen(self, host: str, ports: tuple[int, int]) -> tuple[str, int]:
        """Let wires be dialled to this environment's gates."""
        with self._lock:
            if self._listener is not None:
                raise ConfigError(f"this environment listens for wires on {self._listener.address} already")
            self._letters = socket.socketpair()
            self._listener = Listener(host, ports, self)
            return self._listener.address

    def wire(self, address: tuple[str, int]) -> WatermarkWire:
        """A wire to the environment that listens there; dialled when its first channel connects."""
        return WatermarkWire(self, *address)

    # An end is known before it has its first channel.  Who closes a gate or a partition says so first, and then has all
    # ends let go of it; who adds one to an end looks whether it is closed: so either finds the other.

    def know(self, end: WatermarkEnd) -> None:
        """The end is about to get its first channel: gates and partitions that are closed are let go of there too."""
        with self._lock:
            self._ends = [e for e in self._ends if not e.ended()]
            self._ends.append(end)

    def forget(self, end: WatermarkEnd) -> None:
        """Nothing came of it."""
        with self._lock:
            self._ends.remove(end)

    def start(self, end: WatermarkEnd, sock: socket.socket) -> None:
        """It has its first channel: its thread ends with the environment."""
        with self._lock:
            if self._closed:
                raise ExchangeClosed("the environment was closed while a wire connected")
            end.start(sock)

    # ---- the listener's desk

    def find_gate(self, gate_id: int) -> Any:
        """The open gate of that number, or None."""
        environment = self._environment()
        return environment.gate(gate_id) if environment is not None else None

    def admit(self, sock: socket.socket, applicant: Applicant) -> None:
        """The secret is proved."""
        assert applicant.hello is not None
        end = WatermarkEnd(self, True, applicant.gate.secret, applicant.peer)
        self.know(end)
        try:
            end.add_gate(applicant.gate, applicant.hello, 0)
            with contextlib.suppress(OSError):  # gone again: reading says so
                sock.send(applicant.welcome())
            self.start(end, sock)
        except BaseException:
            end.let_go_gate(applicant.gate)
            self.forget(end)
            raise

    def letters_fd(self) -> int:
        """Never readable: channels join by frames of the wire itself."""
        return self._letters[0].fileno()

    def letters(self) -> list[tuple[int, int, bytes, str]]:
        """None, ever."""
        return []

    def reply(self, connection: int, stream: int, message: bytes, last: bool) -> None:
        """Nobody is answered who has not written."""

    def admit_stream(self, connection: int, applicant: Applicant) -> None:
        """Nobody joins by letters."""

    def received(self) -> list[dict[str, Any]]:
        """What each wire that was dialled to here has to say of itself (tests and benches)."""
        with self._lock:
            return [end.stats() for end in self._ends]

    def stats(self) -> dict[str, int]:
        """Connections there are, and what the listener has to say of strangers."""
        with self._lock:
            connections = sum(not end.ended() for end in self._ends)
        out = self._listener.strangers.stats() if self._listener is not None else {}
        return {**out, "connections": connections}

    # ---- ending

    def let_go_gate(self, gate: Any) -> None:
        """The gate is about to be freed."""
        with self._lock:
            ends = list(self._ends)
        for end in ends:
            end.let_go_gate(gate)

    def let_go_partition(self, partition: Any) -> None:
        """The partition is about to be freed."""
        with self._lock:
            ends = list(self._ends)
        for end in ends:
            end.let_go_partition(partition)

    def close(self) -> None:
        """End the listener, threads and connections. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._listener is not None:
            self._listener.close()
        for end in self._ends:
            end.close()
        for sock in self._letters:
            sock.close()


register_transport("watermark", WatermarkTransport)  # type: ignore[arg-type]  # it connects by its wires

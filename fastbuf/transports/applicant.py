"""The listener's side of a handshake, message by message; ``handshake`` has the order and the proof."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from typing import Any

from fastbuf.errors import SchemaMismatch, SequenceError
from fastbuf.transports import handshake as hs

log = logging.getLogger("fastbuf")


class Refused(Exception):
    """The applicant is refused; `reply` is sent to it, if not empty.  Text: what is suspicious about it."""

    def __init__(self, reply: bytes, why: str = "") -> None:
        super().__init__(why)
        self.reply = reply


class Applicant:
    """A producer's channel that has not proved its gate's secret yet.

    Parameters
    ----------
    find_gate
        Returns the open gate with a number, or None.
    stream
        The channel's number on its connection.
    peer
        The producer's address, for error messages.
    """

    def __init__(self, find_gate: Callable[[int], Any], stream: int, peer: str) -> None:
        self._find_gate = find_gate
        self._hello_bytes = b""
        self._nonce = b""
        self.stream = stream
        self.peer = peer
        self.wanted = hs.HELLO_BYTES  #: length of the next message
        self.hello: hs.Hello | None = None
        self.gate: Any = None
        self.proved = False
        self.taken = False  #: the listener no longer owns its connection, even if it is not admitted

    def hear(self, message: bytes) -> bytes:
        """Handle a message; returns the answer, empty once the secret is proved.

        Raises
        ------
        Refused
            The applicant must be refused.
        ProtocolError
            The bytes are not the expected message.
        """
        return self._hear_hello(message) if self.hello is None else self._hear_proof(self.hello, message)

    def _hear_hello(self, message: bytes) -> bytes:
        if len(message) != self.wanted:
            raise Refused(b"", "what it says is no greeting")
        hello = hs.Hello.unpack(message)
        gate = self._find_gate(hello.gate_id)
        if gate is None or hello.stream != self.stream:
            raise Refused(hs.pack_refusal(hs.REFUSED_GATE))
        self.hello, self.gate = hello, gate
        self._hello_bytes = message
        self._nonce = hs.fresh_nonce()
        self.wanted = hs.PROOF_BYTES
        return hs.pack_challenge(self._nonce)

    def welcome(self) -> bytes:
        """The last message, after the applicant proved the secret: the proof that we know it too."""
        return hs.pack_welcome(self.gate.secret, self._hello_bytes, self._nonce)

    def _hear_proof(self, hello: hs.Hello, message: bytes) -> bytes:
        gate = self.gate
        due = hs.client_proof(gate.secret, self._hello_bytes, self._nonce)
        if len(message) != self.wanted or not hmac.compare_digest(message, due):
            why = "the secret was not proved"
            raise Refused(hs.pack_verdict(hs.REFUSED_SECRET, why), f"{why} (of gate {hello.gate_id})")
        try:
            gate.check_producer(hello.epoch, hello.fingerprint)
        except SequenceError as error:
            raise self._refused(hs.REFUSED_EPOCH, str(error)) from error
        except SchemaMismatch as error:
            raise self._refused(hs.REFUSED_SCHEMA, str(error)) from error
        size = gate.environment.pool.segment_size
        if hello.segment_size > size:
            theirs = f"its segments have {hello.segment_size} bytes, the consumer's {size}"
            reason = f"{theirs}: make both environments with the same segment_size"
            raise self._refused(hs.REFUSED_SIZE, reason)
        if hello.flow_control != gate.config.flow_control:
            reason = f"flow_control is {hello.flow_control!r}; the consumer's is {gate.config.flow_control!r}"
            raise self._refused(hs.REFUSED_SIZE, reason)
        self.proved = True
        return b""

    def _refused(self, status: int, reason: str) -> Refused:
        """The secret is proved, and the producer still does not fit: its gate would wait for it in vain."""
        assert self.hello is not None
        message = f"The producer of channel {self.hello.channel} was refused: {reason}"
        if message != self.gate.refused:  # the same producer tries one transport after the other
            self.gate.refused = message
            log.warning("%s (at %s, for gate %d)", message, self.peer, self.gate.gate_id)
        return Refused(hs.pack_verdict(status, reason))

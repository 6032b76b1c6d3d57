"""Credit goes with what goes anyway: seen by a relay between two environments, which keeps what passes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

import fastbuf as fb
from fastbuf.transports import handshake as hs

ROWS = fb.RowSerializer(fb.Schema.of(data="binary"))
AT_ONCE = fb.ExchangeConfig(buffer_timeout_s=0)
HEADER = struct.Struct("<IBBHIIII")
DATA, CREDIT = 1, 2
TRIPS = 100


class Relay:
    """Hands on everything, and keeps what the listening side says."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = self.server.getsockname()
        self.target = target
        self.said = bytearray()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        with self.server.accept()[0] as near, socket.create_connection(self.target) as far:
            for sock in (near, far):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=self.hand_on, args=(far, near, self.said))
            back.start()
            self.hand_on(near, far, bytearray())
            back.join(10)

    @staticmethod
    def hand_on(source: socket.socket, to: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                kept += data
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)

    def frames(self) -> list[tuple[int, int]]:
        """Kind and value of each whole frame that the listening side has said after the handshake."""
        at = hs.CHALLENGE_BYTES + hs.VERDICT_HEAD_BYTES + hs.PROOF_BYTES
        found = []
        while at + HEADER.size <= len(self.said):
            length, kind, _, _, _, _, value, _ = HEADER.unpack_from(self.said, at)
            found.append((kind, value))
            at += HEADER.size + length
        return found

    def close(self) -> None:
        self.thread.join(10)
        self.server.close()


def test_an_answer_carries_the_credit_for_what_it_answers() -> None:
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=4096) as far,
        fb.ShuffleEnvironment(segments=64, segment_size=4096) as near,
    ):
        relay = Relay(far.listen())
        near.listen()
        there = far.create_input_gate(ROWS, channels=1, config=AT_ONCE)
        here = near.create_input_gate(ROWS, channels=1, config=AT_ONCE)
        out = near.create_result_partition(ROWS, [(*relay.address, there.gate_id)], secret=there.secret, config=AT_ONCE)
        back = far.create_result_partition(ROWS, [here.address], config=AT_ONCE)
        for k in range(TRIPS):
            out.emit((b"%d" % k,))
            (record,) = there.poll()
            back.emit(record)
            assert here.poll() == [(b"%d" % k,)]
        frames = relay.frames()
        # What the first trip finds depends on whether the credit of the beginning has been told.
        answers = [at for at, (kind, _) in enumerate(frames) if kind == DATA]
        assert len(answers) == TRIPS
        assert frames[answers[1] :] == [(DATA, 0), (CREDIT, 1)] * (TRIPS - 1), "with each answer, and never two at once"
        ends = [threading.Thread(target=end.close) for end in (out, back)]
        for end in ends:
            end.start()
        assert list(there) == list(here) == []
        for end in ends:
            end.join(10)
        relay.close()

"""Callers who prove nothing: they are bounded in number and time, they are counted, and they lock nobody out."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flood import FLOOD, Flood
from promises import PATIENCE_S

import fastbuf as fb
from fastbuf.errors import PeerLost
from fastbuf.transports import handshake as hs
from fastbuf.transports import memfd, strangers
from fastbuf.transports.strangers import KNOWN_ADDRESSES, PLACES, Stranger, Strangers

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))
SOON_S = 10.0  # a producer is in at once; a machine that does much else may take some seconds


@pytest.fixture(params=["tcp", "memfd"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[str, fb.ShuffleEnvironment, fb.ShuffleEnvironment]]:
    shared = request.param == "memfd"
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=4096, shared=shared) as near,
        fb.ShuffleEnvironment(segments=64, segment_size=4096, shared=shared) as far,
    ):
        far.listen()
        yield request.param, near, far


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)  # polling a state that has no event
    return condition()


def door_of(kind: str, far: fb.ShuffleEnvironment) -> Any:
    assert far.address is not None
    return memfd.name_of(*far.address) if kind == "memfd" else far.address


def send_one(near: fb.ShuffleEnvironment, gate: fb.InputGate, kind: str, n: int) -> None:
    config = fb.ExchangeConfig(transport=kind)
    with near.create_result_partition(ROWS, [gate.address], channel=n, config=config) as writer:
        writer.emit((n,))
        writer.flush()
        assert gate.poll(PATIENCE_S) == [(n,)]


@pytest.mark.parametrize("greets", [False, True])
def test_a_flood_of_strangers_does_not_lock_producers_out(
    ends: tuple[str, fb.ShuffleEnvironment, fb.ShuffleEnvironment], greets: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """300 idle sockets, renewed, of the very address that the producer has; silent, or with the greeting of one."""
    kind, near, far = ends
    caplog.set_level(logging.WARNING, logger="fastbuf")
    gate = far.create_input_gate(ROWS, channels=4)
    hello = hs.Hello(gate.gate_id, 0, 0, ROWS.fingerprint, 4096, b"c" * 32).pack()
    with Flood(door_of(kind, far), hello if greets else b"") as flood:
        assert until(lambda: flood.renewed > FLOOD)
        for n in range(3):  # the first from an address that has proved nothing yet
            began = time.monotonic()
            send_one(near, gate, kind, n)
            assert time.monotonic() - began < SOON_S
        figures = far.stats()
    assert figures["strangers_dropped"] >= FLOOD
    assert 0 < figures["places_taken"] <= figures["places"]
    assert figures["producers_proved"] == 3
    warnings = [record for record in caplog.records if record.name == "fastbuf"]
    assert len(warnings) == 1, "one warning in a minute"
    assert "place was needed" in warnings[0].getMessage()
    gate.close()


def test_an_address_that_has_proved_itself_keeps_its_places(
    ends: tuple[str, fb.ShuffleEnvironment, fb.ShuffleEnvironment],
) -> None:
    """The places of addresses that prove themselves are not those of strangers."""
    kind, near, far = ends
    if kind == "memfd":
        pytest.skip("processes of one host: the test has one, and the order of places is tested below")
    gate = far.create_input_gate(ROWS, channels=2)
    send_one(near, gate, kind, 0)
    assert far.address is not None
    with socket.create_connection(far.address, timeout=PATIENCE_S) as waiting, Flood(far.address, source="127.0.0.2"):
        assert until(lambda: far.stats()["strangers_dropped"] >= FLOOD)
        waiting.settimeout(0.05)
        with pytest.raises(TimeoutError):
            waiting.recv(1)  # a connection of the producer's address that has said nothing is not dropped for them
        send_one(near, gate, kind, 1)
    gate.close()


def test_who_says_nothing_has_ten_seconds_and_is_counted(
    ends: tuple[str, fb.ShuffleEnvironment, fb.ShuffleEnvironment], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, _, far = ends
    monkeypatch.setattr(strangers, "PROOF_TIME_S", 0.2)
    with socket.socket(socket.AF_UNIX if kind == "memfd" else socket.AF_INET) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(door_of(kind, far))
        assert sock.recv(100) == hs.pack_refusal(hs.BUSY)
        assert sock.recv(1) == b""
    assert until(lambda: far.stats()["strangers_dropped"] == 1)
    assert far.stats()["places_taken"] == 0


def test_a_wrong_secret_is_counted_and_told(
    ends: tuple[str, fb.ShuffleEnvironment, fb.ShuffleEnvironment], caplog: pytest.LogCaptureFixture
) -> None:
    kind, near, far = ends
    gate = far.create_input_gate(ROWS, channels=1)
    target = gate.address._replace(secret=b"x" * 32)
    with pytest.raises(fb.FastbufError, match="secret was not proved"):
        near.create_result_partition(ROWS, [target], config=fb.ExchangeConfig(transport=kind))
    assert until(lambda: far.stats()["strangers_refused"] == 1)
    assert until(lambda: "secret was not proved" in caplog.text)
    assert gate.secret.hex() not in caplog.text


def test_a_producer_that_finds_no_place_comes_again() -> None:
    """And whoever found none until its time was over has not been told that its consumer had enough."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        fb.ShuffleEnvironment(segments=16, segment_size=4096) as near,
    ):
        server.settimeout(PATIENCE_S)
        tries = 0

        def full() -> None:
            nonlocal tries
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = server.accept()
                    with sock:
                        tries += 1
                        if tries % 2:
                            sock.sendall(hs.pack_refusal(hs.BUSY))  # and the greeting is not read
                        else:
                            sock.recv(hs.HELLO_BYTES, socket.MSG_WAITALL)
                            sock.sendall(hs.pack_challenge(b"n" * 32))
                            sock.recv(hs.PROOF_BYTES, socket.MSG_WAITALL)
                            sock.sendall(hs.pack_verdict(hs.BUSY))

        thread = threading.Thread(target=full)
        thread.start()
        config = fb.ExchangeConfig(connect_timeout_s=0.5)
        for loss in ("error", "cancel"):
            with pytest.raises(PeerLost, match=r"no place .* connect_timeout_s"):
                near.create_result_partition(
                    ROWS, [(*server.getsockname(), 1)], secret=b"s", config=config, on_peer_loss=loss
                )
        server.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)
        assert tries >= 6


# ---- whose place is given away


def fill(waiting: Strangers, address: str, n: int, heard: bool = False) -> list[Stranger]:
    made = [Stranger(address) for _ in range(n)]
    for stranger in made:
        assert waiting.enter(stranger) is None
        stranger.heard = heard
    waiting.next_round()
    return made


def test_the_oldest_silent_one_of_the_address_with_most_goes() -> None:
    waiting = Strangers("here")
    few = fill(waiting, "few", 1)
    many = fill(waiting, "many", PLACES - 1)
    many[0].heard = True
    assert waiting.enter(Stranger("new")) is many[1]
    assert few[0] in waiting


def test_an_address_with_most_places_takes_from_itself() -> None:
    waiting = Strangers("here")
    one = fill(waiting, "a", PLACES // 2)
    fill(waiting, "b", PLACES // 2)
    assert waiting.enter(Stranger("a")) is one[0]


def test_who_has_just_come_has_the_time_to_say_something() -> None:
    waiting = Strangers("here")
    there = fill(waiting, "a", PLACES, heard=True)
    first, second = Stranger("a"), Stranger("a")
    for newcomer, loser in ((first, there[0]), (second, there[1])):
        assert waiting.enter(newcomer) is loser
        waiting.drop(loser, "")
    waiting.next_round()
    assert waiting.enter(Stranger("a")) is first


def test_addresses_that_are_remembered_are_bounded() -> None:
    waiting = Strangers("here")
    for n in range(KNOWN_ADDRESSES + 10):
        waiting.believe(Stranger(n))
    fill(waiting, "stranger", PLACES)
    assert waiting.enter(Stranger(KNOWN_ADDRESSES)) is None, "a place of its own"
    assert waiting.enter(Stranger(5)) is not None, "forgotten"

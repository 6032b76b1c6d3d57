"""Connecting and its limits of time under a clock that stands still, as tests' clocks do (freezegun, time-machine)."""

from __future__ import annotations

import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.transports import listener, strangers

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))
PATIENCE_S = 20.0
CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop the clocks of ``time``, and of every module of ours that has imported one by name, as freezegun does."""
    for name in CLOCKS:
        real = getattr(time, name)
        still = real()
        for module in [time, *(m for n, m in sys.modules.items() if n.startswith("fastbuf") and m is not None)]:
            for attribute in [a for a, value in vars(module).items() if value is real]:
                monkeypatch.setattr(module, attribute, lambda still=still: still)
    assert time.monotonic() == time.monotonic()
    yield
    monkeypatch.undo()


def outcome(call: Callable[[], Any]) -> Any:
    """What it gives or raises; it must not take longer than a frozen clock would let it."""
    came: list[Any] = []

    def run() -> None:
        try:
            came.append(call())
        except Exception as error:
            came.append(error)

    thread = threading.Thread(target=run, daemon=True)  # were it to wait, it would end when the clock goes on
    thread.start()
    thread.join(PATIENCE_S)
    assert came, "it still waits"
    return came[0]


@pytest.mark.parametrize("transport", ["tcp", "memfd", "auto"])
def test_a_gate_that_nobody_has_is_waited_for_as_long_as_was_said(transport: str, frozen: None) -> None:
    with socket.create_server(("127.0.9.2", 0)) as taken:
        address = taken.getsockname()[:2]
    config = fb.ExchangeConfig(transport=transport, connect_timeout_s=0.2)
    with fb.ShuffleEnvironment(segments=16, segment_size=4096, shared=True) as env:
        error = outcome(lambda: env.create_result_partition(ROWS, [(*address, 1)], secret=b"never" * 4, config=config))
    assert isinstance(error, fb.PeerLost)
    assert "0.2 s" in str(error)


@pytest.mark.parametrize("transport", ["tcp", "memfd"])
def test_one_that_is_there_is_reached_and_read(transport: str, frozen: None) -> None:
    config = fb.ExchangeConfig(transport=transport)
    room: dict[str, Any] = {"segments": 16, "segment_size": 4096, "shared": True}
    with fb.ShuffleEnvironment(**room) as near, fb.ShuffleEnvironment(**room) as far:
        far.listen()
        gate = far.create_input_gate(ROWS, channels=1, config=config)

        def write() -> None:
            with near.create_result_partition(ROWS, [gate.address], config=config) as writer:
                writer.emit_many([(n,) for n in range(100)])

        thread = threading.Thread(target=write)
        thread.start()
        assert outcome(lambda: list(gate)) == [(n,) for n in range(100)]
        thread.join(PATIENCE_S)
    assert near.pool.available == far.pool.available == 16


@pytest.mark.parametrize("shared", [False, True], ids=["tcp", "memfd"])
def test_strangers_lose_their_places_in_time(shared: bool, frozen: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (listener, strangers):
        monkeypatch.setattr(module, "PROOF_TIME_S", 0.2)
    with fb.ShuffleEnvironment(segments=16, segment_size=4096, shared=shared) as env:
        host, port = env.listen()
        if shared:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.connect(f"\0fastbuf/{host}/{port}")
        else:
            sock = socket.create_connection((host, port))
        with sock:
            sock.settimeout(PATIENCE_S)
            while sock.recv(4096):  # it is told, then hung up on, then counted
                pass
        for _ in range(20_000):
            if env.stats()["strangers_dropped"]:
                break
            time.sleep(0.001)
        assert env.stats()["strangers_dropped"] == 1


def test_no_wait_of_exchanges_looks_at_a_clock_that_tests_may_stop() -> None:
    root = Path(fb.__file__).parent
    waits = [*(root / "exchange").iterdir(), *(root / "transports").iterdir()]
    waits = [path for path in waits if path.suffix in (".py", ".pyx") and path.name != "_testing.pyx"]
    assert len(waits) > 40
    clocks = re.compile(r"\btime\.(time|monotonic|perf_counter)(_ns)?\(")
    found = [path.name for path in waits if clocks.search(path.read_text())]
    assert found == []

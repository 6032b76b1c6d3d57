"""What the kernel says of a writer's connections: a link that is slow, and a reader that is."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pacing
import pytest

import fastbuf as fb
from fastbuf.monitor.links import Links, read_info

ROWS = fb.RowSerializer(fb.Schema.of(k="int64", text="string"))
TEXT = "x" * 1000
SOON_S = 20.0


def until(found: Callable[[], object]) -> bool:
    end = time.monotonic() + SOON_S
    while time.monotonic() < end:
        if found():
            return True
        time.sleep(0.1)  # the kernel's figures have no event
    return False


def test_kernels_figures_lie_where_linux_has_them() -> None:
    info = bytearray(256)
    struct.pack_into("=I", info, 68, 34_000)
    struct.pack_into("=I", info, 100, 12)
    struct.pack_into("=Q", info, 120, 2_000_000)
    struct.pack_into("=QQ", info, 168, 1_500_000, 250_000)
    assert read_info(bytes(info)) == (0.034, 12, 2_000_000, 1.5, 0.25)
    assert read_info(bytes(info[:128])) is None  # an old kernel's
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        near, _ = server.accept()
        with near:
            sock.sendall(b"x" * 1000)
            assert near.recv(1000, socket.MSG_WAITALL)
            found = read_info(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256))
    assert found is not None
    rtt, resent, arrived, busy, full = found
    assert 0 < rtt < 1
    assert (resent, full) == (0, 0)
    assert arrived in (1000, 1001)  # Linux counts what opened the connection
    assert busy < 1


def test_a_link_of_which_the_kernel_told_late_has_figures() -> None:
    """Without figures in the first sample it had none for five seconds."""
    info = bytearray(256)
    writer: Any = SimpleNamespace(partition=SimpleNamespace(gates=[("gate", "far:1")]))
    links = Links()
    links.look(writer, {})
    assert "links" not in links.figures([5])
    for busy_us in (100_000, 200_000):
        struct.pack_into("=Q", info, 168, busy_us)
        links.look(writer, {"far:1": (7, bytes(info))})
        told = links.figures([5])
    assert told["unsent"] == {"5": 2}
    assert told["links"]["5"]["busy"] > 0


@pytest.mark.parametrize("slow", ["link", "reader"])
def test_a_slow_link_is_busy_and_a_slow_reader_lets_it_rest(slow: str) -> None:
    over = threading.Event()
    with fb.ShuffleEnvironment(segments=64) as far, fb.ShuffleEnvironment(segments=64) as near:
        far.listen()
        gate = far.create_input_gate(ROWS, channels=1)
        writer = near.create_result_partition(ROWS, [gate.address], maximum=32)
        assert until(lambda: len(near.links()) == 1)
        if slow == "link":
            assert pacing.pace(far.address[1], 2_000_000) >= 1

        def write() -> None:
            with suppress(fb.FastbufError):
                while not over.is_set():
                    writer.emit_many([(k, TEXT) for k in range(20)])

        def read() -> None:
            with suppress(fb.FastbufError):
                while not over.is_set():
                    gate.poll(0.05)
                    over.wait(0.02 if slow == "reader" else 0.0)

        threads = [threading.Thread(target=write), threading.Thread(target=read)]
        for thread in threads:
            thread.start()
        links, told = Links(), {}

        def look() -> bool:
            links.look(writer, near.links())
            told.update(links.figures([5]))
            return told["looks"] >= 20

        try:
            assert until(look)
        finally:
            over.set()
            writer.abort("enough")
            gate.close()
            for thread in threads:
                thread.join()
    if slow == "link":
        assert told["unsent"]["5"] >= 10
        link = told["links"]["5"]
        assert link["busy"] > 0.8, "bytes were under way all the time"
        assert 0.5e6 < link["bytes_per_s"] < 4e6
        assert link["rtt_s"] > 0
    else:
        assert told["unsent"].get("5", 0) < 10
        assert told.get("links", {}).get("5", {"busy": 0.0})["busy"] < 0.5

"""What a writer and a gate do, and for how long: waits that have not ended count, and each is told by its reason."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import fastbuf as fb
from fastbuf.exchange._testing import Changing

BLOBS = fb.RowSerializer(fb.Schema.of(n="int64", blob="binary"))
SECRET = b"a secret that is long enough"
STATES = {"runs", "credit", "link", "segment", "input", "codec"}


def until(found: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.005)


def pressed(e: fb.ShuffleEnvironment, transport: str, other: fb.ShuffleEnvironment) -> tuple[Any, list[Any]]:
    """A writer to two consumers, and their gates."""
    config = fb.ExchangeConfig(
        transport=transport if transport != "local" else "auto", max_buffers_per_channel=2, exclusive=1, floating=0
    )
    if transport == "local":
        gates = [e.create_input_gate(BLOBS, channels=1, config=config) for _ in range(2)]
        return e.create_result_partition(BLOBS, gates, selector=fb.custom(by_number), config=config), gates
    gates = [other.create_input_gate(BLOBS, channels=1, secret=SECRET, config=config) for _ in range(2)]
    address = other.listen()
    targets = [(*address, gate.gate_id) for gate in gates]
    return e.create_result_partition(BLOBS, targets, secret=SECRET, selector=fb.custom(by_number), config=config), gates


class Holding:
    """Hands bytes on both ways, and none to the consumer while it is held."""

    def __init__(self) -> None:
        self.may_pass = threading.Event()
        self.may_pass.set()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.threads: list[threading.Thread] = []
        self.sockets: list[socket.socket] = []

    def __enter__(self) -> Holding:
        return self

    def __exit__(self, *exc: object) -> None:
        self.may_pass.set()
        for each in [self.server, *self.sockets]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self.threads:
            thread.join()

    def to(self, target: tuple[str, int]) -> tuple[str, int]:
        self.start(lambda: self.connect(target))
        host, port = self.server.getsockname()
        return host, port

    def start(self, work: Callable[[], None]) -> None:
        self.threads.append(threading.Thread(target=work))
        self.threads[-1].start()

    def connect(self, target: tuple[str, int]) -> None:
        near, _ = self.server.accept()
        far = socket.create_connection(target)
        self.sockets += [near, far]
        self.start(lambda: self.pump(near, far))
        self.start(lambda: self.pump(far, near))

    def pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source is self.sockets[0]:
                    self.may_pass.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def hold(self) -> None:
        self.may_pass.clear()

    def go_on(self) -> None:
        self.may_pass.set()


def by_number(record: Any, n: int) -> int:
    return int(record[0])


@pytest.mark.parametrize("transport", ["local", "tcp", "memfd"])
def test_a_wait_under_way_is_counted_and_names_who_is_waited_for(transport: str) -> None:
    shared = transport == "memfd"
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=4096, shared=shared) as e,
        fb.ShuffleEnvironment(segments=64, segment_size=4096, shared=shared) as other,
    ):
        before = time.monotonic()
        writer, gates = pressed(e, transport, other)
        producer = threading.Thread(target=lambda: ([writer.emit((1, bytes(3000))) for _ in range(50)], writer.close()))
        producer.start()
        until(lambda: writer.activity()["state"] == "credit" and writer.activity()["since_s"] > 0.2)
        doing = writer.activity()
        assert doing["target"] == 1  # it wants to write to the second consumer, which takes nothing
        assert writer.stats()["wait_s"] >= 0.2  # though the wait has not ended
        assert writer.blocked_s()[1] >= 0.2
        assert writer.blocked_s()[0] == 0.0
        assert len(list(gates[1])) == 50
        producer.join()
        assert list(gates[0]) == []
        doing = writer.activity()
        assert doing["state"] == "runs"
        assert set(doing["seconds"]) == STATES
        passed = time.monotonic() - before
        assert sum(doing["seconds"].values()) <= passed
        assert doing["longest_s"]["credit"] >= 0.2
        assert abs(sum(writer.blocked_s()) - doing["seconds"]["credit"] - doing["seconds"]["link"]) < 1e-6


def test_a_gate_that_waits_for_its_producers() -> None:
    with fb.ShuffleEnvironment(segments=16) as e:
        writer, [gate] = e.exchange(serializer=BLOBS)
        found: list[Any] = []
        consumer = threading.Thread(target=lambda: found.extend(gate))
        consumer.start()
        until(lambda: gate.activity()["state"] == "input" and gate.stats()["wait_s"] > 0.1)
        writer.emit((0, b"x"))
        writer.close()
        consumer.join()
        assert gate.activity()["state"] == "runs"
        assert gate.activity()["longest_s"]["input"] > 0.05
        assert found == [(0, b"x")]


def test_a_pool_that_others_have_emptied_is_no_slow_consumer() -> None:
    """Two writers share a pool; one has begun buffers for all it may take, and nothing of the other's is queued."""
    with fb.ShuffleEnvironment(segments=8, segment_size=4096) as e:
        gate = e.create_input_gate(BLOBS, channels=1)
        writer = e.create_result_partition(BLOBS, [gate])
        held = [segment for segment in iter(writer.partition.pool.try_request, None)]
        producer = threading.Thread(target=lambda: (writer.emit((0, b"x")), writer.close()))
        producer.start()
        until(lambda: writer.activity()["state"] == "segment")
        assert writer.activity()["target"] is None
        for segment in held:
            segment.recycle()
        assert len(list(gate)) == 1
        producer.join()


def test_a_link_that_is_full_is_no_slow_consumer() -> None:
    """The consumer has given more credit than the sockets hold, and stands still as a process: nothing is read."""
    config = fb.ExchangeConfig(transport="tcp", exclusive=900, floating=0, max_buffers_per_channel=4)
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=32768) as e,
        fb.ShuffleEnvironment(segments=1000, segment_size=32768) as other,
        Holding() as relay,
    ):
        gate = other.create_input_gate(BLOBS, channels=1, secret=SECRET, config=config)
        target = (*relay.to(other.listen()), gate.gate_id)
        writer = e.create_result_partition(BLOBS, [target], secret=SECRET, config=config)
        relay.hold()
        producer = threading.Thread(
            target=lambda: ([writer.emit((0, bytes(30_000))) for _ in range(700)], writer.close())
        )
        producer.start()
        until(lambda: writer.activity()["state"] == "link" and writer.activity()["since_s"] > 0.05)
        relay.go_on()
        assert sum(1 for _ in gate) == 700
        producer.join()
        assert writer.activity()["seconds"]["link"] > 0.05


def test_nobody_sees_a_picture_of_two_changes() -> None:
    pictures, end = 0, time.monotonic() + 60
    while pictures < 1000 and time.monotonic() < end:  # on a busy machine all may be changed before one has looked
        changing = Changing()
        with ThreadPoolExecutor(1) as pool:
            looks = pool.submit(changing.look)
            changing.change(3_000_000)
            seen, torn = looks.result()
        assert torn == 0
        pictures += seen
    assert pictures >= 1000


def test_batches_are_coded_in_a_time_of_their_own_and_waits_are_none_of_it() -> None:
    batch = pa.record_batch({"k": pa.array(range(200_000)), "text": pa.array(["x" * 20] * 200_000)})
    with fb.ShuffleEnvironment(segments=64) as e:
        writer, [gate] = e.exchange(serializer=fb.ColumnarSerializer(batch.schema))
        spent = 0.0

        def write() -> None:
            nonlocal spent
            for _ in range(20):
                begin = time.monotonic()
                writer.emit_batch(batch)
                spent += time.monotonic() - begin
            writer.close()

        producer = threading.Thread(target=write)
        producer.start()
        until(lambda: writer.activity()["since_s"] > 0.2 and writer.activity()["state"] == "credit")
        begin, rows = time.monotonic(), 0
        while (got := gate.poll()) is not None:
            rows += got.num_rows
        read = time.monotonic() - begin
        producer.join()
        assert rows == 20 * batch.num_rows
        seconds = writer.activity()["seconds"]
        assert seconds["credit"] >= 0.2
        # 120 MB are coded: no machine does it in a millisecond. What a busy one adds is in no state of the writer.
        assert 0.001 <= seconds["codec"] <= spent - seconds["credit"] + 0.01
        seconds = gate.activity()["seconds"]
        assert 0 < seconds["codec"] <= read

"""The memfd transport beyond the contract: when it is not to be had, peers that misbehave, ends in any order."""

from __future__ import annotations

import asyncio
import contextlib
import math
import mmap
import os
import selectors
import socket
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from left_behind import nothing_left

import fastbuf as fb
from fastbuf.errors import ConfigError, ExchangeAborted, PeerLost, ProtocolError, ResourceError, SequenceError
from fastbuf.exchange.doorbell import Doorbell
from fastbuf.exchange.shared_lender import SharedWriter
from fastbuf.exchange.shared_reader import SharedReader
from fastbuf.transports import memfd, memfd_greeting, memfd_lines

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
SECRET = b"memfd"
SEGMENT = 4096
# Offsets of shared_block.pxd.
TAIL, ENDED, HEAD, READER_ENDED, ENDS, SLOT = 64, 68, 192, 196, 256, 4416


def until(true: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.001)  # what another thread is about to do
    return true()


@contextlib.contextmanager
def two(near: bool = True, far: bool = True) -> Iterator[tuple[fb.ShuffleEnvironment, fb.ShuffleEnvironment, Any]]:
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT, shared=near) as producer,
        fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT, shared=far) as consumer,
    ):
        yield producer, consumer, consumer.listen()


def pair(
    producer: fb.ShuffleEnvironment, consumer: fb.ShuffleEnvironment, address: Any, channels: int = 1, **config: Any
) -> tuple[fb.RecordWriter, fb.InputGate]:
    settings = fb.ExchangeConfig(**config)
    gate = consumer.create_input_gate(ROWS, channels=channels, secret=SECRET, config=settings)
    writer = producer.create_result_partition(ROWS, [(*address, gate.gate_id)], secret=SECRET, config=settings)
    return writer, gate


def exchange_some(writer: fb.RecordWriter, gate: fb.InputGate) -> None:
    thread = threading.Thread(
        target=lambda: (writer.emit_many((k, "x" * (k % 99)) for k in range(3000)), writer.close())
    )
    thread.start()
    assert [n for n, _ in gate] == list(range(3000))
    thread.join(10)


def test_programs_inherit_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that came from the peer were inherited: ``recv_fds`` leaves out its flags."""
    came: list[int] = []
    for module in (memfd, memfd_greeting):
        real = module.receive

        def seen(sock: socket.socket, size: int, real: Any = real) -> tuple[bytes, list[int]]:
            data, fds = real(sock, size)
            assert not any(map(os.get_inheritable, fds))
            came.extend(fds)
            return data, fds

        monkeypatch.setattr(module, "receive", seen)
    with two() as (producer, consumer, address):
        before = {fd for fd in map(int, os.listdir("/proc/self/fd")) if is_inherited(fd)}
        writer, gate = pair(producer, consumer, address)
        assert {fd for fd in map(int, os.listdir("/proc/self/fd")) if is_inherited(fd)} <= before
        assert len(came) == 5
        exchange_some(writer, gate)


@pytest.mark.parametrize("watched", [False, True])
def test_a_line_that_has_ended_is_forgotten(watched: bool) -> None:
    """Also one that the thread has never seen: it has the eventfd of its peer."""
    near, far = socket.socketpair()
    with selectors.DefaultSelector() as selector, far:
        lines = memfd_lines.Lines(selector)
        end: Any = object()
        line = memfd_lines.Line(near, end, owner=lines, channel=0, ping_s=1.0)
        lines.add(line)
        assert list(lines.of(lines)) == [line]
        if watched:
            lines.watch_new()
            assert lines.watched(near.fileno()) is line
        assert lines.next_check() == line.due
        lines.remove(line)
        lines.remove(line)
        assert (len(lines), len(selector.get_map()), lines.next_check()) == (0, 0, math.inf)
        ended = weakref.ref(line)
        del line
        assert ended() is None


def is_inherited(fd: int) -> bool:
    with contextlib.suppress(OSError):  # the listing's own
        return os.get_inheritable(fd)
    return False


# ---- when it is not to be had


@pytest.mark.parametrize(("near", "far", "fallbacks"), [(False, True, 0), (True, False, 1), (True, True, 0)])
def test_it_is_found_out_by_trying(near: bool, far: bool, fallbacks: int) -> None:
    with two(near, far) as (producer, consumer, address):
        writer, gate = pair(producer, consumer, address)
        stats = writer.stats()
        assert stats["transports"] == {"memfd" if near and far else "tcp": 1}
        assert stats["fallbacks"] == fallbacks
        exchange_some(writer, gate)


def test_memory_that_cannot_be_mapped_is_tcps(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> Any:
        raise ResourceError("RLIMIT_AS leaves nothing")

    class NoArena:
        attach = staticmethod(full)

    with two() as (producer, consumer, address):
        monkeypatch.setattr(memfd, "Arena", NoArena)
        writer, gate = pair(producer, consumer, address)
        assert (writer.stats()["transports"], writer.stats()["fallbacks"]) == ({"tcp": 1}, 1)
        exchange_some(writer, gate)


def test_who_only_sits_on_the_name_is_not_believed() -> None:
    """Another process's socket of that name: it cannot prove the secret, so it gets nothing but a greeting."""
    with two(far=False) as (producer, consumer, address):
        heard = []
        with socket.socket(socket.AF_UNIX) as squatter:
            squatter.bind(memfd.name_of(*address))
            squatter.listen(1)

            def squat() -> None:
                with squatter.accept()[0] as line:
                    heard.append(line.recv(1000))
                    line.send(b"\x00" * 33)

            thread = threading.Thread(target=squat)
            thread.start()
            writer, gate = pair(producer, consumer, address)
            thread.join(20)
        assert SECRET not in heard[0]
        assert writer.stats()["transports"] == {"tcp": 1}
        exchange_some(writer, gate)


def test_an_address_of_another_host_is_not_looked_for_here() -> None:
    assert memfd.names_for("192.0.2.1", 5) == []
    assert memfd.names_for("127.0.0.1", 5) == [f"\0fastbuf/{name}/5" for name in ("127.0.0.1", "0.0.0.0", "::")]


def test_over_ipv6_the_same_host_is_known_too() -> None:
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT, shared=True) as producer,
        fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT, shared=True) as consumer,
    ):
        address = consumer.listen("::1")
        assert memfd.names_for(*address) == [f"\0fastbuf/::1/{address[1]}", f"\0fastbuf/::/{address[1]}"]
        exchange_some(*pair(producer, consumer, address, transport="memfd"))


def test_it_may_be_insisted_on() -> None:
    with two(far=False) as (producer, consumer, address), pytest.raises(PeerLost, match="transport is 'memfd'"):
        pair(producer, consumer, address, transport="memfd", connect_timeout_s=0.2)
    with two(near=False) as (producer, consumer, address), pytest.raises(ConfigError, match="shared=True"):
        pair(producer, consumer, address, transport="memfd")
    with two() as (producer, consumer, address):
        writer, gate = pair(producer, consumer, address, transport="tcp")
        assert writer.stats()["transports"] == {"tcp": 1}
        exchange_some(writer, gate)


def test_a_channel_connects_once_and_knows_the_secret() -> None:
    with two() as (producer, consumer, address):
        writer, gate = pair(producer, consumer, address)
        target = [(*address, gate.gate_id)]
        with pytest.raises(SequenceError, match="channel 0 is connected already"):
            producer.create_result_partition(ROWS, target, secret=SECRET)
        with pytest.raises(fb.FastbufError):
            producer.create_result_partition(ROWS, target, channel=1, secret=b"wrong")
        exchange_some(writer, gate)


# ---- ends


def test_what_was_written_may_be_read_when_the_writer_has_closed_and_when_all_of_it_has() -> None:
    """Shared memory outlives who made it: close() leaves what is finished, and waits for nobody."""
    with fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT, shared=True) as consumer:
        address = consumer.listen()
        with fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT, shared=True) as producer:
            writer, gate = pair(producer, consumer, address, transport="memfd")
            writer.emit_many((k, "y" * 500) for k in range(30))
            writer.close()
            assert [n for n, _ in gate.poll(20)][:3] == [0, 1, 2]
            writer, other = pair(producer, consumer, address, transport="memfd")
            writer.emit_many((k, "z" * 500) for k in range(30))
            writer.close()
        assert [n for n, _ in other] == list(range(30))
        other.close()
        gate.close()


def test_segments_come_home_though_the_writer_asks_for_none() -> None:
    """Another pool of the environment may wait for them: the writer's own thread does, perhaps."""
    with two() as (producer, consumer, address):
        writer, gate = pair(producer, consumer, address, transport="memfd")
        writer.emit_many((k, "y" * 1000) for k in range(30))
        writer.flush()
        got = 0
        while got < 30:
            got += len(gate.poll(20))
        assert until(lambda: producer.pool.stats().in_use <= 1)
        writer.abort("over")


def test_an_abort_takes_back_what_was_lent() -> None:
    with two() as (producer, consumer, address):
        writer, gate = pair(producer, consumer, address, transport="memfd")
        writer.emit_many((k, "y" * 1000) for k in range(20))
        writer.abort("the disk is on fire")
        assert until(lambda: producer.pool.available == 64)
        with pytest.raises(ExchangeAborted, match="the disk is on fire"):
            gate.poll(20)


def test_nothing_is_left() -> None:
    def round_trip() -> None:
        with two() as (producer, consumer, address):
            for _ in range(5):
                exchange_some(*pair(producer, consumer, address, transport="memfd"))
            writer, gate = pair(producer, consumer, address, transport="memfd")
            writer.emit((1, "nobody reads this"))
            del writer, gate

    round_trip()
    with nothing_left():
        round_trip()


def test_a_coroutine_is_woken() -> None:
    with two() as (producer, consumer, address):
        writer, gate = pair(producer, consumer, address, transport="memfd", buffer_timeout_s=0)

        async def read() -> Any:
            timer = threading.Timer(0.05, lambda: writer.emit((7, "seven")))
            timer.start()
            got = await gate.poll_async(20)
            timer.join()
            return got

        assert asyncio.run(read()) == [(7, "seven")]
        writer.close()


# ---- peers that misbehave


@pytest.fixture
def bare(request: pytest.FixtureRequest) -> Iterator[tuple[fb.RecordWriter, fb.InputGate, memoryview]]:
    """Both ends connected by hand, and the block between them."""
    broadcast = {"selector": fb.broadcast(), "on_slow_consumer": "drop_oldest"}
    settings: Any = broadcast if getattr(request, "param", "") == "drop_oldest" else {}
    with fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT, shared=True) as env:
        config = fb.ExchangeConfig(transport="tcp")
        gate = env.create_input_gate(ROWS, channels=2, secret=SECRET, config=config)
        writer = env.create_result_partition(ROWS, [gate], channel=1, secret=SECRET, config=config)
        writer.close()
        unread = env.create_input_gate(ROWS, channels=1)
        other = env.create_result_partition(ROWS, [unread], channel=0, config=config, **settings)
        partition = other.partition
        end = SharedWriter(partition, 0)
        reader = SharedReader(
            end.fd, fb.Arena.attach(env.pool.arena.fileno()), Doorbell.attach(partition.bell.fd), "somebody"
        )
        with mmap.mmap(end.fd, 0) as mapped, memoryview(mapped) as view, view.cast("I") as words:
            end.connect(partition, Doorbell.attach(gate.bell.fd), -1, "somebody", False)
            partition.set_transport(0, "memfd", "by hand")
            gate.add_shared(reader, 0, 0)
            yield other, gate, words
            end.release()
            end.lost("the end")
            end.drop()


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (SLOT, 64),  # no such segment
        (SLOT, 0xFFFFFFFF),
        (SLOT + 4, SEGMENT + 1),  # an event that is too long
        (SLOT + 4, 0xFFFFFFFF),
        (SLOT + 12, SEGMENT + 1),  # more bytes than a segment has
        (TAIL, 5000),  # more buffers than there are slots
        (TAIL, 0xFFFFFFF0),
    ],
)
def test_a_writer_that_lends_what_it_has_not(bare: Any, offset: int, value: int) -> None:
    writer, gate, words = bare
    writer.emit((1, "one"))
    writer.flush()
    words[offset // 4] = value
    with pytest.raises(ProtocolError, match="producer somebody"):
        gate.poll(20)


def test_a_writer_that_takes_bytes_back(bare: Any) -> None:
    writer, gate, words = bare
    writer.emit((1, "one"))
    writer.flush()
    assert gate.poll(20) == [(1, "one")]
    words[SLOT // 4 + 3] = 3
    with pytest.raises(ProtocolError):
        gate.poll(20)


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (HEAD, 1),  # the buffer that is just being filled
        (HEAD, 70),
        (HEAD, 0xFFFFFFFF),
        (READER_ENDED, 1),  # has had everything, though there is more
        (READER_ENDED, 77),
    ],
)
def test_a_reader_that_gives_back_what_it_was_not_lent(bare: Any, offset: int, value: int) -> None:
    writer, _, words = bare
    writer.emit((1, "one"))
    words[offset // 4] = value
    assert not writer.cancelled  # looks at what came back
    with pytest.raises(ProtocolError, match="gave back what it was not lent"):
        writer.flush()


@pytest.mark.parametrize("bare", ["drop_oldest"], indirect=True)
@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (HEAD, 1),  # a buffer that it has not claimed, which the writer may drop
        (HEAD, 2),
        (ENDS, 2),  # it claims what is not there
        (ENDS, 0xFFFFFFFF),
    ],
)
def test_a_reader_that_claims_or_gives_back_what_is_not_its_own(bare: Any, offset: int, value: int) -> None:
    writer, _, words = bare
    writer.emit((1, "one"))
    words[offset // 4] = value
    assert not writer.cancelled
    with pytest.raises(ProtocolError, match="gave back what it was not lent"):
        writer.flush()


@pytest.mark.parametrize("bare", ["drop_oldest"], indirect=True)
@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (ENDS, 1),  # as if somebody else had read
        (ENDS + 4, 5000),  # more buffers than there are slots
        (SLOT + 20, SEGMENT + 1),  # nothing of the segment is to be read, and more
    ],
)
def test_a_writer_that_drops_what_it_has_not(bare: Any, offset: int, value: int) -> None:
    writer, gate, words = bare
    writer.emit((1, "one"))
    writer.flush()
    words[offset // 4] = value
    with pytest.raises(ProtocolError, match="producer somebody"):
        gate.poll(20)


def test_what_is_no_block_of_a_channel(tmp_path: Any) -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT, shared=True) as env:
        gate = env.create_input_gate(ROWS, channels=1)
        writer = env.create_result_partition(ROWS, [gate], channel=0)
        end = SharedWriter(writer.partition, 0)
        arena, bell = fb.Arena.attach(env.pool.arena.fileno()), Doorbell.attach(gate.bell.fd)
        with open(tmp_path / "file", "wb+") as file, pytest.raises(ConfigError, match="sealed"):
            SharedReader(file.fileno(), arena, bell, "somebody")
        with pytest.raises(ConfigError, match="not the shared block of a channel"):
            SharedReader(gate.bell.fd, arena, bell, "somebody")
        with pytest.raises(ConfigError, match="is not a doorbell"):
            Doorbell.attach(end.fd)
        with mmap.mmap(end.fd, 0) as mapped, memoryview(mapped) as view, view.cast("I") as words:
            for word, value in ((3, 1), (3, 3), (3, 1 << 20), (3, 2048), (4, 64)):
                right, words[word] = words[word], value
                with pytest.raises(ConfigError, match="has invalid values"):
                    SharedReader(end.fd, arena, bell, "somebody")
                words[word] = right
            words[2] = 99
            with pytest.raises(ConfigError, match="another version"):
                SharedReader(end.fd, arena, bell, "somebody")
        writer.close()
        assert list(gate) == []


@pytest.mark.parametrize("whole", [False, True], ids=["gate", "environment"])
def test_a_consumer_that_has_enough_while_a_producer_connects(monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    """Between the greeting and the offer: the producer took it for a lost peer, and failed its job."""
    with two() as (producer, consumer, address):
        gate = consumer.create_input_gate(ROWS, channels=1, secret=SECRET)
        real = memfd.greet

        def greet(*given: Any) -> Any:
            found = real(*given)
            gate.close()
            if whole:
                consumer.close()
            return found

        monkeypatch.setattr(memfd, "greet", greet)
        writer = producer.create_result_partition(
            ROWS, [(*address, gate.gate_id)], secret=SECRET, on_peer_loss="cancel"
        )
        assert until(lambda: writer.cancelled)
        writer.close()


def test_bytes_that_may_not_become_text_by_accident() -> None:
    """``python -bb``: the repr of a socket with an abstract name raises."""
    script = """
        import fastbuf as fb
        rows = fb.RowSerializer(fb.Schema.of(n="int64"))
        config = fb.ExchangeConfig(transport="memfd", connect_timeout_s=10.0)
        made = (fb.ShuffleEnvironment(segments=32, shared=True) for _ in "ab")
        with next(made) as far, next(made) as near:
            far.listen()
            with far.create_input_gate(rows, channels=1) as gate:
                with near.create_result_partition(rows, [gate.address], config=config) as writer:
                    writer.emit((1,))
                assert list(gate) == [(1,)]
    """
    done = subprocess.run(
        [sys.executable, "-bb", "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-2000:]

"""Both ends of everything that carries messages of bytes from one Python process to another.

An end sends and receives: one message at a time, or many of one kind.  ``Pair`` keeps the other end in a process of its
own, which counts what it is sent, or sends it back.  Each way is used as its own documentation says it is fast: whole
lists where it takes lists, bytes without pickling where it can.
"""

from __future__ import annotations

import importlib.util
import multiprocessing as mp
import os
import socket
import tempfile
import time
from collections.abc import Callable
from typing import Any, Protocol

import fastbuf as fb

CONTEXT = mp.get_context("spawn")
PENDING = 64  #: messages a bounded queue of the peers may hold


class End(Protocol):
    def send(self, message: bytes) -> None: ...
    def receive(self) -> bytes: ...
    def send_many(self, message: bytes, n: int) -> None: ...
    def receive_many(self, n: int) -> int: ...
    def close(self) -> None: ...


class OneByOne:
    """For ways that know no lists."""

    send: Callable[[bytes], None]
    receive: Callable[[], bytes]

    def send_many(self, message: bytes, n: int) -> None:
        send = self.send
        for _ in range(n):
            send(message)

    def receive_many(self, n: int) -> int:
        receive = self.receive
        got = 0
        for _ in range(n):
            got += len(receive())
        return got

    def close(self) -> None:
        pass


class Fastbuf:
    """Rows of one binary field through an exchange each way, of up to 64 segments of 32 KiB: the least of the peers'
    bounds, whose queues hold 64 messages of any length."""

    ROWS = fb.RowSerializer(fb.Schema.of(data="binary"))

    def __init__(self, control: Any, timeout_s: float, transport: str) -> None:
        self.env = fb.ShuffleEnvironment(segments=512, shared=transport == "memfd")
        config = fb.ExchangeConfig(
            buffer_timeout_s=timeout_s, transport=transport, floating=PENDING - 2, max_buffers_per_channel=PENDING
        )
        self.gate = self.env.create_input_gate(self.ROWS, channels=1, config=config)
        self.env.listen()
        control.send(self.gate.address)
        self.writer = self.env.create_result_partition(
            self.ROWS, [control.recv()], selector=fb.forward(), config=config
        )

    def send(self, message: bytes) -> None:
        self.writer.emit((message,))

    def receive(self) -> bytes:
        (record,) = self.gate.poll()
        return record[0]  # type: ignore[no-any-return]

    def send_many(self, message: bytes, n: int) -> None:
        emit = self.writer.emit
        for _ in range(n):
            emit((message,))
        self.writer.flush()

    def receive_many(self, n: int) -> int:
        got = records = 0
        poll = self.gate.poll
        while records < n:
            for (data,) in some if (some := poll()) is not None else ():
                got += len(data)
                records += 1
        return got

    def close(self) -> None:
        # the other end goes at the same moment: whoever is first tells the other
        self.writer.abort("the bench has ended")
        self.gate.close()
        self.env.close()


class Queue(OneByOne):
    """multiprocessing.Queue, which pickles in a thread of its own."""

    def __init__(self, control: Any, out: Any, back: Any) -> None:
        self.send, self.receive = out.put, back.get


class Pipe(OneByOne):
    def __init__(self, control: Any, pipe: Any) -> None:
        self.send, self.receive = pipe.send_bytes, pipe.recv_bytes


class FasterFifo:
    """faster-fifo with bytes as they are, 32 at once when there are many."""

    def __init__(self, control: Any, out: Any, back: Any) -> None:
        self.out, self.back = out, back

    def send(self, message: bytes) -> None:
        self.out.put(message, timeout=60)

    def receive(self) -> bytes:
        return self.back.get(timeout=60)  # type: ignore[no-any-return]

    def send_many(self, message: bytes, n: int) -> None:
        most = max(1, min(32, self.out.max_size_bytes // (2 * len(message))))
        messages = [message] * most
        for _ in range(n // most):
            self.out.put_many(messages, timeout=60)
        if n % most:
            self.out.put_many(messages[: n % most], timeout=60)

    def receive_many(self, n: int) -> int:
        got = records = 0
        while records < n:
            for message in self.back.get_many(max_messages_to_get=1000, timeout=60):
                got += len(message)
                records += 1
        return got

    def close(self) -> None:
        pass


def as_it_is(message: bytes) -> bytes:
    return bytes(message)


class Zmq(OneByOne):
    """pyzmq PUSH and PULL over ipc."""

    def __init__(self, control: Any, out: str, back: str) -> None:
        import zmq

        self.context = zmq.Context()
        self.push, self.pull = self.context.socket(zmq.PUSH), self.context.socket(zmq.PULL)
        self.pull.bind(back)
        self.push.connect(out)
        self.send, self.receive = self.push.send, self.pull.recv

    def close(self) -> None:
        self.context.destroy(linger=0)


class SocketPair(OneByOne):
    """A UNIX socket: messages of known length, received in place and copied out."""

    def __init__(self, control: Any, end: socket.socket, size: int) -> None:
        self.end = end
        place = bytearray(size)
        whole = memoryview(place)
        into = end.recv_into

        def receive() -> bytes:
            got = into(place)
            while got < size:
                got += into(whole[got:])
            return bytes(place)

        self.send, self.receive = end.sendall, receive

    def close(self) -> None:
        self.end.close()


def sockets(size: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    near, far = socket.socketpair()
    return (near, size), (far, size)


def crossed(one: Any, two: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Two one-way queues, as one end sees them and as the other does."""
    return (one, two), (two, one)


def fifos(size: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    from faster_fifo import Queue

    return crossed(
        *(Queue(max_size_bytes=max(PENDING * (size + 128), 1 << 20), loads=bytes, dumps=as_it_is) for _ in range(2))
    )


def addresses() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    folder = tempfile.mkdtemp(prefix="fastbuf-zmq-")
    return crossed(*(f"ipc://{folder}/{name}" for name in ("there", "back")))


#: way -> the class of both ends, and what makes their arguments from the size of a message
WAYS: dict[str, tuple[Callable[..., End], Callable[[int], tuple[tuple[Any, ...], tuple[Any, ...]]]]] = {
    "fastbuf tcp": (Fastbuf, lambda size: (("tcp",), ("tcp",))),
    "fastbuf memfd": (Fastbuf, lambda size: (("memfd",), ("memfd",))),
    "multiprocessing.Queue": (Queue, lambda size: crossed(CONTEXT.Queue(PENDING), CONTEXT.Queue(PENDING))),
    "multiprocessing.Pipe": (Pipe, lambda size: tuple((end,) for end in CONTEXT.Pipe())),
    "socketpair": (SocketPair, sockets),
}
if importlib.util.find_spec("faster_fifo"):
    WAYS["faster-fifo"] = (FasterFifo, fifos)
if importlib.util.find_spec("zmq"):
    WAYS["pyzmq ipc"] = (Zmq, lambda size: addresses())


def other_end(control: Any, kind: Callable[..., End], arguments: tuple[Any, ...], core: int | None) -> None:
    """What runs in the process of its own, until told to stop."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    end = kind(control, *arguments)
    control.send("ready")
    while (order := control.recv()) != "stop":
        what, n = order
        if what == "count":
            control.send(end.receive_many(n))
        else:
            for _ in range(n):
                end.send(end.receive())
    end.close()
    control.send("closed")


class Pair:
    """One end here, the other in a process of its own."""

    def __init__(self, way: str, size: int, timeout_s: float = 0.1, core: int | None = None) -> None:
        kind, make = WAYS[way]
        ours, theirs = make(size)
        if kind is Fastbuf:
            ours, theirs = (timeout_s, *ours), (timeout_s, *theirs)
        self.message = os.urandom(size)
        self.control, far = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=other_end, args=(far, kind, theirs, core), daemon=True)
        self.process.start()
        self.end = kind(self.control, *ours)
        assert self.control.recv() == "ready"

    def throughput(self, n: int) -> None:
        """Send n messages; ends when the other end has counted their bytes."""
        self.control.send(("count", n))
        self.end.send_many(self.message, n)
        assert self.control.recv() == n * len(self.message)

    def round_trips(self, n: int) -> list[float]:
        """Seconds of each of n messages there and back."""
        self.control.send(("echo", n))
        send, receive, message, clock = self.end.send, self.end.receive, self.message, time.perf_counter
        taken = []
        for _ in range(n):
            begin = clock()
            send(message)
            back = receive()
            taken.append(clock() - begin)
        assert back == message
        return taken

    def close(self) -> None:
        self.control.send("stop")
        assert self.control.recv() == "closed"
        self.end.close()
        self.process.join(10)

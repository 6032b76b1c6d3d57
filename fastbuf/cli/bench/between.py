"""The exchange: between two threads, and to another process that reads and counts."""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import queue
import secrets
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import fastbuf as fb
from fastbuf.cli.bench.inside import PICKLE, ROWS, batches, ipc, records_of
from fastbuf.cli.bench.measure import Case, Size, Suite, Way, need

CONTEXT = mp.get_context("spawn")
LIST = 1000  #: tuples that a peer pickles at once: one by one it would be many times slower
QUEUED = 16  #: size of a peer's bounded queue, in items
BYTES = fb.RowSerializer(fb.Schema.of(data="binary"))
TRANSPORTS = {"fastbuf, shared memory": "memfd", "fastbuf, TCP": "tcp"}
Counted = tuple[int, int]  #: number of items, and the sum of a field: nothing may be lost or left undecoded


def count_tuples(lists: Iterable[list[tuple[Any, ...]]]) -> Counted:
    n = total = 0
    for some in lists:
        for record in some:
            n += 1
            total += record[1]
    return n, total


def count_batches(batches: Iterable[Any]) -> Counted:
    import pyarrow.compute as pc

    n = total = 0
    for batch in batches:
        n += batch.num_rows
        total += pc.sum(batch["id"]).as_py() or 0
    return n, total


def count_bytes(messages: Iterable[bytes]) -> Counted:
    n = total = 0
    for message in messages:
        n += 1
        total += len(message)
    return n, total


def tuples_of(gate: fb.InputGate) -> Iterable[Any]:
    return iter(gate.poll, None)


def bytes_of(gate: fb.InputGate) -> Iterable[bytes]:
    return (data for (data,) in gate)


def ipc_batch(message: bytes) -> Any:
    import pyarrow as pa

    with pa.ipc.open_stream(message) as stream:
        return stream.read_next_batch()


# ---- code of the other process; None ends it


def read_gate(control: Any, transport: str, serializer: Any, items: Any, count: Any) -> None:
    """Makes a gate for each run, and sends its address, number and secret to the writer."""
    with fb.ShuffleEnvironment(segments=512, shared=transport == "memfd") as env:
        address = env.listen()
        while control.recv():
            secret = secrets.token_bytes(32)
            config = fb.ExchangeConfig(transport=transport)
            with env.create_input_gate(serializer, channels=1, secret=secret, config=config) as gate:
                control.send(((*address, gate.gate_id), secret))
                control.send(count(items(gate)))


def read_pipe(control: Any, pipe: Any, load: Any, count: Any) -> None:
    """Reads messages of bytes until an empty one."""
    while control.recv():
        messages = iter(pipe.recv_bytes, b"")
        control.send(count(map(load, messages) if load else messages))


def read_queue(control: Any, items: Any, count: Any) -> None:
    while control.recv():
        control.send(count(iter(items.get, None)))


def echo_gate(control: Any, transport: str) -> None:
    with fb.ShuffleEnvironment(segments=128, shared=transport == "memfd") as env:
        echo = Ends(env, control, transport)
        while (some := echo.gate.poll()) is not None:
            for record in some:
                echo.writer.emit(record)
            echo.writer.flush()
        echo.close()


def echo(control: Any, get: Any, put: Any) -> None:
    while (message := get()) != b"":
        put(message)


def _quietly(target: Callable[..., None], *arguments: Any) -> None:
    """In the other process: Ctrl-C is this one's to answer, which ends the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target(*arguments)


def _queue(size: int = 0) -> Any:
    """A queue that lets this process end when nobody reads it any more."""
    items = CONTEXT.Queue(size)
    items.cancel_join_thread()
    return items


class Ends:
    """A gate of this process fed by the peer, and a writer that feeds the peer's gate."""

    def __init__(self, env: fb.ShuffleEnvironment, control: Any, transport: str) -> None:
        secret, config = secrets.token_bytes(32), fb.ExchangeConfig(transport=transport)
        self.gate = env.create_input_gate(BYTES, channels=1, secret=secret, config=config)
        control.send(((*env.listen(), self.gate.gate_id), secret))
        target, secret = control.recv()
        self.writer = env.create_result_partition(BYTES, [target], secret=secret, selector=fb.forward(), config=config)

    def close(self) -> None:
        self.writer.close()
        if self.gate.poll() is not None:
            raise AssertionError("the peer sent more than it was asked for")
        self.gate.close()


# ---- this process


class Peer:
    """Another process that executes commands, run after run, and reports its counts."""

    def __init__(self, stack: ExitStack, target: Callable[..., None], *arguments: Any) -> None:
        self.control, far = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_quietly, args=(target, far, *arguments), daemon=True)
        self.process.start()
        stack.push(self.close)

    def way(self, send: Callable[[], None], expected: Counted) -> Way:
        def run() -> None:
            self.control.send(True)
            send()
            counts = self.control.recv()
            if counts != expected:
                raise AssertionError(f"the other process has counted {counts}, not {expected}")

        return run

    def close(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is None:
            self.control.send(None)
        else:  # it may be in the middle of a run that nobody will end
            self.process.terminate()
        self.process.join(10)


def _fastbuf(
    stack: ExitStack,
    serializer: Any,
    items: Any,
    count: Any,
    send: Callable[[fb.RecordWriter], None],
    expected: Counted,
) -> dict[str, Way]:
    """One way for each transport."""

    def way(transport: str) -> Way:
        env = stack.enter_context(fb.ShuffleEnvironment(segments=512, shared=transport == "memfd"))
        peer = Peer(stack, read_gate, transport, serializer, items, count)
        config = fb.ExchangeConfig(transport=transport)

        def all_of_it() -> None:
            target, secret = peer.control.recv()
            with env.create_result_partition(
                serializer, [target], secret=secret, selector=fb.forward(), config=config
            ) as writer:
                send(writer)

        return peer.way(all_of_it, expected)

    return {name: way(transport) for name, transport in TRANSPORTS.items()}


def _piped(stack: ExitStack, load: Any, count: Any, messages: Callable[[], Iterable[Any]], expected: Counted) -> Way:
    receive, out = CONTEXT.Pipe(duplex=False)
    peer = Peer(stack, read_pipe, receive, load, count)

    def send() -> None:
        for message in messages():
            out.send_bytes(message)
        out.send_bytes(b"")

    return peer.way(send, expected)


def _queued(stack: ExitStack, count: Any, make: Callable[[], Iterable[Any]], expected: Counted, most: int) -> Way:
    items = _queue(most)
    peer = Peer(stack, read_queue, items, count)

    def send() -> None:
        for item in make():
            items.put(item)
        items.put(None)

    return peer.way(send, expected)


@contextmanager
def tuples(size: Size) -> Iterator[Case]:
    n = 200_000 // size.divide
    records = records_of(n)
    expected = n, sum(record[1] for record in records)

    def lists() -> Iterator[list[Any]]:
        return (records[at : at + LIST] for at in range(0, n, LIST))

    with ExitStack() as stack:
        ways = _fastbuf(stack, ROWS, tuples_of, count_tuples, lambda writer: writer.emit_many(records), expected)
        ways["Pipe, pickled lists"] = _piped(
            stack, pickle.loads, count_tuples, lambda: (pickle.dumps(some, PICKLE) for some in lists()), expected
        )
        ways["multiprocessing.Queue of lists"] = _queued(stack, count_tuples, lists, expected, QUEUED)
        yield Case("tuples to another process", "row", n, ways)


@contextmanager
def record_batches(size: Size) -> Iterator[Case]:
    need("pyarrow", "exchange", "arrow")
    data = batches(10) * (10 // min(size.divide, 10))
    expected = count_batches(data)
    serializer = fb.ColumnarSerializer(data[0].schema)

    def send(writer: fb.RecordWriter) -> None:
        for batch in data:
            writer.emit_batch(batch)

    with ExitStack() as stack:
        ways = _fastbuf(stack, serializer, iter, count_batches, send, expected)
        ways["Pipe, Arrow IPC"] = _piped(stack, ipc_batch, count_batches, lambda: map(ipc, data), expected)
        ways["multiprocessing.Queue of batches"] = _queued(stack, count_batches, lambda: data, expected, QUEUED)
        yield Case("record batches to another process", "row", expected[0], ways)


@contextmanager
def messages(size: Size) -> Iterator[Case]:
    n = 20_000 // size.divide
    message = os.urandom(64)
    expected = n, n * len(message)

    def send(writer: fb.RecordWriter) -> None:
        emit = writer.emit
        for _ in range(n):
            emit((message,))

    def each() -> Iterator[bytes]:
        return (message for _ in range(n))

    with ExitStack() as stack:
        ways = _fastbuf(stack, BYTES, bytes_of, count_bytes, send, expected)
        ways["Pipe"] = _piped(stack, None, count_bytes, each, expected)
        ways["multiprocessing.Queue"] = _queued(stack, count_bytes, each, expected, 1000)
        yield Case("64 bytes to another process, one by one", "message", n, ways)


@contextmanager
def there_and_back(size: Size) -> Iterator[Case]:
    n = 500 // size.divide
    message = os.urandom(64)

    def trips(send: Callable[[bytes], None], receive: Callable[[], bytes]) -> Way:
        def run() -> None:
            for _ in range(n):
                send(message)
                if receive() != message:
                    raise AssertionError("another message came back")

        return run

    with ExitStack() as stack:

        def ours(transport: str) -> Way:
            env = stack.enter_context(fb.ShuffleEnvironment(segments=128, shared=transport == "memfd"))
            control, far = CONTEXT.Pipe()
            process = CONTEXT.Process(target=_quietly, args=(echo_gate, far, transport), daemon=True)
            process.start()
            stack.callback(process.join, 10)
            ends = Ends(env, control, transport)
            stack.callback(ends.close)

            def send(data: bytes) -> None:
                ends.writer.emit((data,))
                ends.writer.flush()

            def receive() -> bytes:
                ((data,),) = ends.gate.poll()
                return bytes(data)

            return trips(send, receive)

        def theirs(send: Callable[[bytes], None], receive: Callable[[], bytes], get: Any, put: Any) -> Way:
            process = CONTEXT.Process(target=_quietly, args=(echo, None, get, put), daemon=True)
            process.start()
            stack.callback(process.join, 10)
            stack.callback(send, b"")
            return trips(send, receive)

        ways = {name: ours(transport) for name, transport in TRANSPORTS.items()}
        here, there = CONTEXT.Pipe()
        ways["Pipe"] = theirs(here.send_bytes, here.recv_bytes, there.recv_bytes, there.send_bytes)
        out, back = _queue(), _queue()
        ways["multiprocessing.Queue"] = theirs(out.put, back.get, out.get, back.put)
        yield Case("64 bytes to another process and back", "round trip", n, ways)


@contextmanager
def threads(size: Size) -> Iterator[Case]:
    """Item by item: a queue passes a reference; fastbuf copies, into memory with a bound in bytes."""
    n = 20_000 // size.divide
    records = records_of(n)
    expected = count_tuples([records])

    def both(write: Callable[[], None], items: Callable[[], Iterable[Any]]) -> None:
        thread = threading.Thread(target=write, daemon=True)  # Ctrl-C must not wait for one that nobody reads
        thread.start()
        counts = count_tuples([items()])  # type: ignore[list-item]
        thread.join()
        if counts != expected:
            raise AssertionError(f"the reader has counted {counts}, not {expected}")

    with fb.ShuffleEnvironment(segments=128) as env:

        def ours() -> None:
            writer, (gate,) = env.exchange(serializer=ROWS, consumers=1)

            def write() -> None:
                with writer:
                    for record in records:
                        writer.emit(record)

            with gate:
                both(write, lambda: gate)

        def with_queue(items: Any) -> Way:
            def write() -> None:
                for record in records:
                    items.put(record)
                items.put(None)

            return lambda: both(write, lambda: iter(items.get, None))

        ways = {
            "fastbuf": ours,
            "queue.Queue": with_queue(queue.Queue(1000)),
            "queue.SimpleQueue, no bound": with_queue(queue.SimpleQueue()),
        }
        yield Case("tuples to another thread, one by one", "row", n, ways)


SUITES = (Suite("exchange", (threads, tuples, record_batches, messages, there_and_back), setup_s=10.0),)

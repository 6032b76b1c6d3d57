"""An input that ends without Spark's mark after its end is not all of it."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from fastbuf_spark.shipping import named
from fastbuf_spark.worker.task_input import InputGuard, InputLost, TaskInput

END_OF_STREAM = struct.pack("!i", -4)  # what Spark writes after the data
SCHEMA = pa.schema([("n", pa.int64())])


def batches(stream: Any) -> Iterator[pa.RecordBatch]:
    """As PySpark reads them."""
    yield from pa.ipc.open_stream(stream)


def written(count: int) -> bytes:
    """A stream of ``count`` batches, with its end."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        for n in range(count):
            writer.write_batch(pa.record_batch({"n": pa.array([n] * 100)}, schema=SCHEMA))
    return bytes(sink.getvalue())


END_OF_DATA = 8  # bytes, of an Arrow stream


@pytest.fixture
def spark() -> Iterator[tuple[socket.socket, Any]]:
    """Spark's end of a worker's connection, and the worker's."""
    ours, theirs = socket.socketpair()
    stream = os.fdopen(os.dup(theirs.fileno()), "rb", 65536)
    theirs.close()
    with ours, stream:
        yield ours, stream


def main(infile: Any, outfile: Any, call: Callable[[TaskInput], Any]) -> Any:
    """Calls from where PySpark's worker would."""
    return call(TaskInput.of_task())


def test_output_that_spark_does_not_read_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        jvm, _ = server.accept()
        stream = os.fdopen(os.dup(ours.fileno()), "rb", 65536)
        with jvm, stream:
            task_input = main(stream, None, lambda found: found)
            assert not task_input.unread
            ours.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    ours.send(b"x" * 65536)
            assert task_input.unread
            jvm.settimeout(5.0)
            while task_input.unread:
                jvm.recv(1 << 20)
    assert not task_input.unread  # closed
    assert not TaskInput(None).unread


def test_each_function_that_spark_calls_has_its_input_acknowledged_at_once() -> None:
    # Spark sends no second small piece before the first is acknowledged: a kernel that waits, waits 40 ms in each task
    acknowledged = []

    def call(source: Any) -> Iterator[Any]:
        acknowledged.append(ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))
        yield from source

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        jvm, _ = server.accept()
        stream = os.fdopen(os.dup(ours.fileno()), "rb", 65536)
        with jvm, stream:
            ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)  # as after some answers
            stage = named(call, "stage")
            assert main(stream, None, lambda _: list(stage(iter([1, 2])))) == [1, 2]
    assert acknowledged == [1]


def test_a_default_timeout_of_a_users_function_leaves_the_stream_as_it_is(spark: Any) -> None:
    _, stream = spark
    socket.setdefaulttimeout(10.0)
    try:
        TaskInput(stream).hurry()
    finally:
        socket.setdefaulttimeout(None)
    assert os.get_blocking(stream.fileno())


def test_all_of_it(spark: Any) -> None:
    jvm, stream = spark
    jvm.sendall(written(3) + END_OF_STREAM)

    def task(task_input: TaskInput) -> int:
        with task_input.reading():
            return len(list(task_input.whole(batches(stream))))

    assert main(stream, None, task) == 3


def test_all_of_it_though_nobody_waits_for_the_task_any_more(spark: Any) -> None:
    jvm, stream = spark
    jvm.sendall(written(3) + END_OF_STREAM)
    jvm.close()
    task_input = TaskInput(stream)
    assert len(list(task_input.whole(batches(stream)))) == 3
    task_input.check()
    assert task_input.hung_up


def test_an_end_between_two_batches_is_none(spark: Any) -> None:
    jvm, stream = spark
    jvm.sendall(written(3)[:-END_OF_DATA])
    jvm.close()
    got = []

    def task(task_input: TaskInput) -> None:
        with task_input.reading():
            got.extend(task_input.whole(batches(stream)))

    with pytest.raises(InputLost, match="before its end"):
        main(stream, None, task)
    assert len(got) == 3, "Arrow takes it for the end"


def test_an_end_within_a_batch(spark: Any) -> None:
    jvm, stream = spark
    jvm.sendall(written(3)[:-200])
    jvm.close()
    task_input = TaskInput(stream)
    with pytest.raises(InputLost) as caught, task_input.reading():
        list(task_input.whole(batches(stream)))
    assert "Expected to be able to read" in str(caught.value.__cause__)


def test_a_connection_that_was_reset(spark: Any) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    worker = socket.create_connection(server.getsockname())
    jvm, _ = server.accept()
    stream = os.fdopen(os.dup(worker.fileno()), "rb", 65536)
    with server, worker, stream:
        worker.sendall(b"rows that Spark does not read")
        jvm.sendall(written(2)[:-END_OF_DATA])
        jvm.close()  # with unread bytes: a reset
        task_input = TaskInput(stream)
        with pytest.raises(InputLost), task_input.reading():
            list(task_input.whole(batches(stream)))
        assert task_input.hung_up


def test_a_hang_up_is_seen_before_what_was_written_is_read(spark: Any) -> None:
    jvm, stream = spark
    task_input = TaskInput(stream)
    jvm.sendall(written(3) + END_OF_STREAM)
    task_input.look()
    jvm.close()
    assert task_input.hung_up
    assert len(list(task_input.whole(batches(stream)))) == 3
    with pytest.raises(InputLost):
        TaskInput(stream).look()


def test_a_function_that_catches_it_does_not_make_it_whole(spark: Any) -> None:
    jvm, stream = spark
    jvm.sendall(written(3)[:-END_OF_DATA])
    jvm.close()
    task_input = TaskInput(stream)

    def forgiving(source: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from source
        except Exception:
            return

    with pytest.raises(InputLost), task_input.reading():
        assert len(list(forgiving(task_input.whole(batches(stream))))) == 3


def test_a_function_that_wants_no_more(spark: Any) -> None:
    jvm, stream = spark
    jvm.sendall(written(3)[:-END_OF_DATA])  # more is to come, and nobody waits for it
    task_input = TaskInput(stream)
    with task_input.reading():
        assert next(task_input.whole(batches(stream))).num_rows == 100
    assert not task_input.hung_up


def test_an_error_of_its_own_stays_what_it_is(spark: Any) -> None:
    _, stream = spark
    with pytest.raises(ConnectionResetError, match="somebody else"), TaskInput(stream).reading():
        raise ConnectionResetError("somebody else hung up")


def test_outside_a_task_every_end_is_one() -> None:
    task_input = TaskInput.of_task()
    with task_input.reading():
        assert list(task_input.whole([1, 2])) == [1, 2]
    assert not task_input.hung_up


@pytest.mark.parametrize("error", [ValueError("no more"), SystemExit("no more")])
def test_what_a_function_was_given_is_raised_again(error: BaseException) -> None:
    def source() -> Iterator[int]:
        yield 1
        raise error

    guard = InputGuard()
    got = []
    with contextlib.suppress(BaseException):
        got.extend(guard.items(source()))
    with pytest.raises(type(error), match="no more"):
        guard.check()


def test_a_function_that_wants_no_more_of_what_it_is_given() -> None:
    guard = InputGuard()
    items = guard.items([1, 2])
    assert next(items) == 1
    items.close()  # type: ignore[attr-defined]
    guard.check()

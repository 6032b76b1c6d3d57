"""One test for each fault that was once found in the exchange or its transport: what happened, then what is due."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from left_behind import held, new_since

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(id="int64", name="string"))


@contextlib.contextmanager
def remote(
    config: fb.ExchangeConfig | None = None, channels: int | None = 1, serializer: Any = ROWS
) -> Iterator[tuple[fb.ShuffleEnvironment, Any, fb.GateAddress]]:
    """A gate behind a socket, and the environment to write to it from."""
    with fb.ShuffleEnvironment(segments=64) as here, fb.ShuffleEnvironment(segments=64) as there:
        gate = here.create_input_gate(serializer, channels=channels, config=config)
        here.listen()
        yield there, gate, gate.address


def until(got: Any, seconds: float = 20.0) -> bool:
    """Whether `got()` becomes true in time."""
    end = time.monotonic() + seconds
    while not got():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)  # a look at another thread's state, not a guess at its speed
    return True


def gather(gate: Any, got: list[Any]) -> list[Any]:
    """`got`, with what has arrived by now."""
    got += gate.poll(0) or []
    return got


# ---- gates


def test_a_writer_for_a_closed_gate_is_refused() -> None:
    """It followed a null pointer."""
    with fb.ShuffleEnvironment(segments=16) as env:
        gate = env.create_input_gate(ROWS, channels=1)
        gate.close()
        with pytest.raises(fb.errors.ExchangeClosed, match="closed"):
            env.create_result_partition(ROWS, [gate])


class _Unreadable:
    def __reduce__(self) -> tuple[Any, ...]:
        return (int, ("not a number",))


@pytest.mark.parametrize("local", [True, False])
def test_a_gate_that_could_not_read_on_does_not_read_on(local: bool) -> None:
    """After a record that cannot be decoded the next poll skipped what was taken, and ended as if all were well."""
    with remote(serializer=fb.PickledSerializer()) as (env, gate, address):
        writer = env.create_result_partition(gate.serializer, [gate if local else address])
        for record in (1, _Unreadable(), 3):
            writer.emit(record)
        writer.partition.flush()
        assert gate.poll(20) == [1]
        with pytest.raises(fb.errors.BlockCorrupt):
            gate.poll(20)
        with pytest.raises(fb.errors.ExchangeAborted, match="failed while reading: BlockCorrupt"):
            gate.poll(20)
        assert not gate.finished
        gate.close()
        writer.abort()


def test_a_local_producer_hears_why_its_consumer_failed() -> None:
    """It was told of a cancel, as if the consumer had had enough; one of another process was told the reason."""
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, (gate,) = env.exchange(ROWS)
        writer.emit((1, "a"))
        gate.abort("the disk is full")
        gate.close()
        with pytest.raises(fb.errors.ExchangeAborted, match="the disk is full"):
            writer.emit((2, "b"))
        writer.abort()


def test_polling_without_waiting_gets_half_full_local_buffers() -> None:
    """The buffer timeout of a local channel ran only while the gate slept, which a fused stage never does."""
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, (gate,) = env.exchange(ROWS, buffer_timeout_s=0.02)
        for i in range(3):
            writer.emit((i, "a"))
            got: list[Any] = []
            assert until(lambda got=got: gather(gate, got))
            assert got == [(i, "a")]
        writer.abort()


def test_no_limit_may_be_written_as_infinity() -> None:
    """Infinity could not be converted, and 1e12 s wrapped round to an immediate stall."""
    for limit in (float("inf"), 1e12):
        config = fb.ExchangeConfig(stall_timeout_s=limit)
        with fb.ShuffleEnvironment(segments=64) as env:
            writer, (gate,) = env.exchange(ROWS, config=config)
            threading.Timer(0.05, writer.close).start()
            assert gate.poll(limit) is None
            assert gate.finished


# ---- credit


def test_no_channel_goes_without_while_another_has_two() -> None:
    """With a pool of no more than its guarantee, the first channels took two segments each and the last had none."""
    with (
        fb.ShuffleEnvironment(segments=8, segment_size=512) as here,
        fb.ShuffleEnvironment(segments=200, segment_size=512) as there,
    ):
        gate, other = (here.create_input_gate(ROWS, channels=4) for _ in range(2))
        assert (gate.pool.limit, other.pool.limit) == (4, 4)
        here.listen()
        address = gate.address
        config = fb.ExchangeConfig(buffer_timeout_s=0)
        writers = [there.create_result_partition(ROWS, [address], channel=i, config=config) for i in range(4)]
        for writer in writers[2:]:
            writer.emit((7, "q"))
        got: list[Any] = []
        assert until(lambda: len(gather(gate, got)) == 2)
        gate.audit()
        for writer in writers:
            writer.abort()


def test_a_channel_that_comes_late_gets_a_segment_of_those_that_come_back() -> None:
    """In an open gate the first channel had every segment, and kept each exclusive one that came back."""
    with (
        fb.ShuffleEnvironment(segments=2, segment_size=512) as here,
        fb.ShuffleEnvironment(segments=200, segment_size=512) as there,
    ):
        config = fb.ExchangeConfig(buffer_timeout_s=0)
        gate = here.create_input_gate(ROWS, config=config)
        here.listen()
        address = gate.address
        early, late = (there.create_result_partition(ROWS, [address], channel=i, config=config) for i in range(2))
        late.emit((2, "late"))
        got: list[Any] = []
        for i in range(8):
            early.emit((1, "early"))
            assert until(lambda i=i: gather(gate, got).count((1, "early")) > i)
            gate.audit()
        assert until(lambda: (2, "late") in gather(gate, got))
        early.abort()
        late.abort()


def test_an_audit_while_buffers_come_and_go_is_of_one_moment() -> None:
    """It read the counters while the I/O thread changed them, and could find a fault that was not there."""
    with remote(fb.ExchangeConfig(exclusive=2, floating=4)) as (env, gate, address):
        writer = env.create_result_partition(ROWS, [address])
        thread = threading.Thread(
            target=lambda: (writer.emit_many((i, "x" * 900) for i in range(40_000)), writer.close())
        )
        thread.start()
        got = audits = 0
        while not gate.finished:
            got += len(gate.poll(0.01) or [])
            for _ in range(20):
                assert gate.audit()
                audits += gate.stats()["buffers"] > 0
        thread.join(10)
        assert got == 40_000
        assert audits > 100


# ---- writers


def test_what_is_tried_with_a_buffer_timeout_of_0_leaves_at_once() -> None:
    """Only `emit` flushed; the transport has no timer for a timeout of 0, so the record stayed."""
    config = fb.ExchangeConfig(buffer_timeout_s=0)
    with remote(config) as (env, gate, address):
        writer = env.create_result_partition(ROWS, [address], config=config)
        assert writer.try_emit((1, "x"))
        assert gate.poll(20) == [(1, "x")]
        writer.abort()


def test_a_record_that_is_too_long_but_fits_its_buffer_is_refused_by_the_writer() -> None:
    """The writer took it, and the consumer failed."""
    config = fb.ExchangeConfig(max_record_bytes=100)
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, (gate,) = env.exchange(ROWS, config=config)
        with pytest.raises(fb.errors.RecordTooLong):
            writer.emit((1, "x" * 500))
        writer.emit((2, "y"))
        writer.close()
        assert list(gate) == [(2, "y")]


def test_chunks_may_be_longer_than_the_longest_record() -> None:
    """The gate took a chunk of many rows for one record that was too long."""
    pa = pytest.importorskip("pyarrow", reason="columnar batches come from pyarrow")
    batch = pa.record_batch({"id": np.arange(1000)})
    with fb.ShuffleEnvironment(segments=64) as env:
        serializer = fb.ColumnarSerializer(batch.schema)
        writer, (gate,) = env.exchange(serializer, config=fb.ExchangeConfig(max_record_bytes=100))
        writer.emit_batch(batch)
        writer.close()
        assert sum(got.num_rows for got in gate) == 1000


def test_an_array_without_num_rows_is_a_batch_too() -> None:
    """The batch was begun before its missing attribute was asked for: the writer was stuck with it."""
    pa = pytest.importorskip("pyarrow", reason="columnar batches come from pyarrow")
    schema = pa.schema([("id", pa.int64())])
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, gates = env.exchange(fb.ColumnarSerializer(schema), consumers=2, selector=fb.hash_by("id"))
        writer.emit_batch(pa.StructArray.from_arrays([pa.array(np.arange(10))], fields=list(schema)))
        writer.emit_batch(pa.record_batch([pa.array(np.arange(5))], schema=schema))
        assert writer.records == 15
        writer.close()
        assert sum(got.num_rows for gate in gates for got in gate) == 15


def test_a_with_block_whose_close_fails_lets_go_of_its_segments() -> None:
    """They stayed out until the environment was closed."""
    config = fb.ExchangeConfig(stall_timeout_s=0.3, exclusive=1, floating=0)
    with remote(config) as (env, gate, address):
        writer = env.create_result_partition(ROWS, [address], config=config)

        def write() -> None:
            with writer:
                writer.emit_many([(1, "x" * 20_000)] * 4)

        with pytest.raises(fb.errors.StallTimeout):
            write()
        assert writer.closed
        assert env.pool.stats().in_use == 0
        gate.close()


# ---- environments


def test_closed_by_another_thread_in_the_middle_of_a_batch() -> None:
    """Segments went home, and their memory to the system, while the writer was writing into them: a crash."""
    pa = pytest.importorskip("pyarrow", reason="columnar batches come from pyarrow")
    batch = pa.record_batch({"id": np.arange(400_000)})
    serializer = fb.ColumnarSerializer(batch.schema)
    config = fb.ExchangeConfig(max_buffers_per_channel=1000, exclusive=700)
    for i in range(12):
        env = fb.ShuffleEnvironment(segments=300)
        gates = [env.create_input_gate(serializer, channels=1) for _ in range(2)]
        writer = env.create_result_partition(serializer, gates, selector=fb.hash_by("id"), config=config, maximum=250)

        def write(writer: Any = writer) -> None:
            with contextlib.suppress(fb.FastbufError):
                while True:
                    writer.emit_batch(batch)

        thread = threading.Thread(target=write)
        thread.start()
        until(lambda writer=writer, i=i: writer.partition.bytes_out > i << 16, 1.0)
        env.close()
        thread.join(10)
        assert not thread.is_alive()
        env.pool.audit()


def test_closed_by_the_code_of_a_record_that_is_being_written() -> None:
    """The same, by a signal handler or a record's own code: refused, and done by the next close."""
    env = fb.ShuffleEnvironment(segments=16)

    class Closes:
        def __reduce__(self) -> tuple[Any, ...]:
            env.close()
            return (int, ())

    writer, _ = env.exchange(fb.PickledSerializer())
    with pytest.raises(Exception, match="close it afterwards"):
        writer.emit(Closes())
    env.close()
    assert env.pool.stats().in_use == 0


def test_a_close_that_was_interrupted_is_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call did nothing, and what the first had not reached stayed open."""
    env = fb.ShuffleEnvironment(segments=64)
    writer, _ = env.exchange(ROWS)
    writer.emit((1, "x"))

    def interrupted() -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(env, "gates", interrupted)
        with pytest.raises(KeyboardInterrupt):
            env.close()
    with pytest.raises(fb.errors.ExchangeClosed):
        env.create_input_gate(ROWS)
    env.close()
    assert env.pool.stats().in_use == 0


def test_a_forgotten_environment_ends_before_its_parts_do() -> None:
    """The collector takes the parts of a cycle in any order, and the I/O thread points into some of them."""
    with remote(channels=None) as (_, gate, address):
        env = fb.ShuffleEnvironment(segments=64)
        writer = env.create_result_partition(ROWS, [address])
        writer.emit((1, "x"))
        del env, writer
        gc.collect()
        # The record may still come: it leaves by itself when all of this has taken the buffer timeout.
        with pytest.raises(fb.errors.ExchangeAborted, match=r"ShuffleEnvironment was closed|without close\(\)"):
            list(gate)


# ---- the transport


def test_a_shorter_buffer_timeout_beside_a_longer_one() -> None:
    """The loop's timer had been set for the longer one, and all waited for it."""
    with remote(channels=2) as (env, gate, address):
        slow, fast = (
            env.create_result_partition(
                ROWS, [address], channel=i, config=fb.ExchangeConfig(buffer_timeout_s=(30.0, 0.02)[i])
            )
            for i in range(2)
        )
        fast.emit((1, "x"))
        assert gate.poll(20) == [(1, "x")]
        slow.abort()
        fast.abort()


def test_the_end_of_a_partition_takes_no_credit() -> None:
    """The last buffer had left as a partial one; its empty slot waited for credit that only the consumer can give."""
    config = fb.ExchangeConfig(buffer_timeout_s=0, exclusive=1, floating=0)
    with remote(config) as (env, gate, address):
        writer = env.create_result_partition(ROWS, [address], config=config)
        writer.emit((1, "x"))
        assert until(lambda: writer.totals() == [1])
        writer.close(timeout=20)
        assert list(gate) == [(1, "x")]


def test_a_forked_child_keeps_no_connection_on_epoll() -> None:
    """With the child's duplicate of a descriptor, closing took nothing off epoll: reports of freed connections."""
    script = """
        import os, time
        import fastbuf as fb
        rows = fb.RowSerializer(fb.Schema.of(id="int64"))
        a, b = fb.ShuffleEnvironment(segments=32), fb.ShuffleEnvironment(segments=32)
        gate = a.create_input_gate(rows, channels=1)
        a.listen()
        writer = b.create_result_partition(rows, [gate.address])
        here, there = os.pipe()
        child = os.fork()
        if not child:
            os.close(there)
            os.read(here, 1)
            os._exit(0)
        writer.emit((1,))
        writer.close()
        assert list(gate) == [(1,)]
        gate.close()
        begin = time.process_time()
        time.sleep(0.3)  # a loop that is told of a freed connection spins, or crashes
        used = time.process_time() - begin
        os.close(there)
        os.waitpid(child, 0)
        b.close(), a.close()
        assert used < 0.1, used
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "MALLOC_PERTURB_": "165"})  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("local", [True, False])
def test_a_forked_child_has_no_part_in_its_parents_exchange(local: bool) -> None:
    """It wrote into queues that nobody drains, and hung when they were full; and read what was the parent's."""
    script = f"""
        import os, threading
        import fastbuf as fb
        rows = fb.RowSerializer(fb.Schema.of(id="int64"))
        a, b = fb.ShuffleEnvironment(segments=32), fb.ShuffleEnvironment(segments=32)
        gate = a.create_input_gate(rows, channels=1)
        a.listen()
        target = gate if {local} else gate.address
        writer = (a if {local} else b).create_result_partition(rows, [target])
        writer.emit((1,))
        writer.flush()
        child = os.fork()
        if not child:
            refused = 0
            for call in (lambda: writer.emit((2,)), writer.flush, writer.close, writer.try_close, gate.poll,
                         lambda: writer.emit_event(fb.Watermark(1)), lambda: next(gate), gate.arm_wake):
                try:
                    call()
                except fb.ExchangeClosed as error:
                    refused += "belongs to the parent" in str(error)
            for call in (writer.abort, gate.abort, gate.close, a.close, b.close):
                call()      # nothing to do: they end what is the parent's
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8
        writer.emit((3,))
        closer = threading.Thread(target=writer.close)
        closer.start()
        assert list(gate) == [(1,), (3,)]
        closer.join()
        gate.close(), a.close(), b.close()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_listener_without_descriptors_does_not_spin() -> None:
    """Each accept failed at once, and select reported the same caller at once again."""
    script = """
        import os, resource, socket, time
        import fastbuf as fb
        with fb.ShuffleEnvironment(segments=16) as env:
            address = env.listen()
            caller = socket.socket()
            resource.setrlimit(resource.RLIMIT_NOFILE, (caller.fileno() + 1, 4096))
            caller.connect(address)
            begin = time.process_time()
            time.sleep(0.3)  # what is measured is what is used meanwhile
            used = time.process_time() - begin
            resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
        assert used < 0.1, used
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]


def test_refused_connections_leave_no_descriptor() -> None:
    """Of every kind: unknown gate, wrong secret, a channel that is there, nobody there."""
    with remote(channels=4) as (env, gate, (host, port, gate_id, _)), socket.socket() as kept:
        kept.bind((host, 0))
        nobody = kept.getsockname()[1]
        writer = env.create_result_partition(ROWS, [gate.address], channel=0)
        before = held()
        for target, secret in (
            ((host, port, 999), b""),
            ((host, port, gate_id), b"wrong"),
            ((host, port, gate_id), b""),
            ((host, nobody, gate_id), b""),
        ):
            config = fb.ExchangeConfig(connect_timeout_s=0.5)
            with pytest.raises(fb.FastbufError):
                env.create_result_partition(ROWS, [target], channel=0, secret=secret, config=config)
        assert not new_since(before)
        writer.abort()
        gate.close()


@pytest.mark.parametrize("local", [True, False])
def test_a_nul_in_an_errors_text_does_not_end_it(local: bool) -> None:
    with remote() as (there, gate, address):
        writer = there.create_result_partition(ROWS, [gate if local else address])
        with pytest.raises(ValueError, match="missing"), writer:
            raise ValueError("key \0abc is missing")
        with pytest.raises(fb.ExchangeAborted, match=r"key \\x00abc is missing"):
            list(gate)
        gate.close()

"""What is forgotten is told and freed."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import pytest
from left_behind import held, new_since, nothing_left

import fastbuf as fb
from fastbuf.errors import ResourceError
from fastbuf.transports import handshake as hs

ROOT = Path(__file__).resolve().parents[3]
ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))


@pytest.mark.parametrize("shared", [False, True])
def test_an_environment_dropped_without_close_warns_and_ends_at_once(shared: bool) -> None:
    """Fifty dropped listeners left 96 threads and 350 descriptors; no collector is needed to end them."""
    fb.ShuffleEnvironment(segments=16, shared=shared).close()
    gc.collect()
    gc.disable()
    try:
        with nothing_left():
            for _ in range(50):
                env = fb.ShuffleEnvironment(segments=16, shared=shared)
                env.listen()
                with pytest.warns(ResourceWarning, match=r"was not closed.*call env.close\(\)"):
                    del env
    finally:
        gc.enable()


@pytest.mark.parametrize("transport", ["local", "tcp", "memfd", "watermark"])
def test_so_does_one_with_gates_and_writers(transport: str) -> None:
    """They know their environment, as it knows them: the collector finds it, with its threads and connections."""
    gc.collect()
    before = held()
    shared = transport == "memfd"

    def leave_it() -> None:
        far = fb.ShuffleEnvironment(segments=64, segment_size=4096, shared=shared)
        near = far if transport == "local" else fb.ShuffleEnvironment(segments=64, segment_size=4096, shared=shared)
        config = fb.ExchangeConfig(flow_control="watermark" if transport == "watermark" else "credit")
        gate = far.create_input_gate(ROWS, channels=1, config=config)
        target: object = gate
        if transport != "local":
            far.listen()
            target = gate.address
        writer = near.create_result_partition(ROWS, [target], secret=gate.secret, config=config)
        writer.emit((1,))
        writer.flush()
        assert gate.poll(20) == [(1,)]
        writer.emit((2,))

    with pytest.warns(ResourceWarning, match="was not closed: it is closed now") as told:  # noqa: PT031
        leave_it()
        deadline = time.monotonic() + 20
        while len(told) < (1 if transport == "local" else 2):
            assert time.monotonic() < deadline
            gc.collect()
            time.sleep(0.001)  # a thread of theirs may have been at work, and have held what it works on
    assert not new_since(before)


def test_one_that_is_closed_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with fb.ShuffleEnvironment(segments=16) as env:
            env.listen()
        del env
        gc.collect()


def test_a_gate_or_a_writer_keeps_its_environment() -> None:
    def make() -> tuple[fb.RecordWriter, fb.InputGate]:
        env = fb.ShuffleEnvironment(segments=16)
        gate = env.create_input_gate(ROWS, channels=1)
        return env.create_result_partition(ROWS, [gate]), gate

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        writer, gate = make()
        gc.collect()
        with writer:
            writer.emit((1,))
        assert list(gate) == [(1,)]
        gate.environment.close()


def test_the_listeners_thread_may_be_the_one_that_lets_go_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds the environment forgotten while it talks to a stranger, and ends it and itself."""
    with nothing_left():
        env = fb.ShuffleEnvironment(segments=16)
        address = env.listen()
        found, gone = threading.Event(), threading.Event()
        close, closers = fb.ShuffleEnvironment.close, []

        def gate(own: fb.ShuffleEnvironment, gate_id: int) -> None:
            found.set()
            assert gone.wait(20)

        def closing(own: fb.ShuffleEnvironment) -> None:
            closers.append(threading.current_thread().name)
            close(own)

        monkeypatch.setattr(fb.ShuffleEnvironment, "gate", gate)
        monkeypatch.setattr(fb.ShuffleEnvironment, "close", closing)
        with warnings.catch_warnings(), socket.create_connection(address, timeout=20) as sock:
            warnings.simplefilter("ignore")
            sock.sendall(hs.Hello(1, 0, 0, 0, 4096, bytes(32)).pack())
            assert found.wait(20)
            del env
            gone.set()
            assert sock.recv(100) in (b"", hs.pack_refusal(hs.REFUSED_GATE))
    assert closers == ["fastbuf-listener"]


# ---- exchange() that fails


@pytest.mark.parametrize("partition_type", ["pipelined", "blocking"])
@pytest.mark.parametrize(("producers", "consumers"), [(1, 1), (1, 7), (4, 1), (3, 5)])
def test_a_failed_exchange_leaves_nothing_and_names_the_number_that_is_enough(
    producers: int, consumers: int, partition_type: str
) -> None:
    """Its gates stayed, and every later one failed; the number took up to fifty tries to find."""
    enough = 0
    for before in range(2):
        for segments in (1, 2):
            with fb.ShuffleEnvironment(segments=segments, segment_size=4096) as env:
                if before:
                    env.create_input_gate(ROWS, channels=1)
                held_before = env.stats()
                with pytest.raises(ResourceError, match="make the ShuffleEnvironment with segments=") as told:
                    env.exchange(ROWS, consumers, fb.round_robin(), partition_type, producers=producers)
                assert env.stats() == held_before
            enough = int(str(told.value).rpartition("segments=")[2].split()[0])
        with fb.ShuffleEnvironment(segments=enough - 1, segment_size=4096) as env:
            if before:
                env.create_input_gate(ROWS, channels=1)
            with pytest.raises(ResourceError):
                env.exchange(ROWS, consumers, fb.round_robin(), partition_type, producers=producers)
        with fb.ShuffleEnvironment(segments=enough, segment_size=4096) as env:
            if before:
                env.create_input_gate(ROWS, channels=1)
            made, gates = env.exchange(ROWS, consumers, fb.round_robin(), partition_type, producers=producers)
            writers = made if producers > 1 else [made]
            threads = [threading.Thread(target=send, args=(writer,)) for writer in writers]
            got: list[list[object]] = [[] for _ in gates]
            threads += [threading.Thread(target=lambda g=g, o=o: o.extend(g)) for g, o in zip(gates, got, strict=True)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive(), "it was not enough"
            assert sum(map(len, got)) == 2000 * producers


def send(writer: fb.RecordWriter) -> None:
    with writer:
        writer.emit_many((n,) for n in range(2000))


def test_an_exchange_that_fails_for_another_reason_leaves_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        make, made = env.create_result_partition, 0

        def create(*arguments: object, **how: object) -> object:
            nonlocal made
            made += 1
            if made == 2:
                raise RuntimeError("no second writer")
            return make(*arguments, **how)  # type: ignore[arg-type]

        monkeypatch.setattr(env, "create_result_partition", create)
        before = env.stats()
        with pytest.raises(RuntimeError, match="no second writer"):
            env.exchange(ROWS, consumers=2, selector=fb.round_robin(), producers=2)
        assert env.stats() == before


# ---- the end of the interpreter

PROGRAM = """
import threading, time
import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))
env = fb.ShuffleEnvironment(segments=64, segment_size=4096, shared={shared})
other = fb.ShuffleEnvironment(segments=64, segment_size=4096, shared={shared})
env.listen()
gate = env.create_input_gate(ROWS, channels=2)
writer = other.create_result_partition(ROWS, [gate.address])
writer.emit((1,))
writer.flush()
assert gate.poll(20) == [(1,)]
waiting = threading.Event()
def read():
    waiting.set()
    try:
        list(gate)
    except fb.FastbufError:
        pass
threading.Thread(target=read, daemon=True).start()
waiting.wait()
class Cycle: pass
keep = Cycle(); keep.me = keep; keep.env = other
print(time.monotonic(), flush=True)
{end}
"""


@pytest.mark.parametrize("warned", ["default", "error"])
@pytest.mark.parametrize("end", ["", "import sys; sys.exit(0)", "del env, other, gate, writer"])
@pytest.mark.parametrize("shared", [False, True])
def test_the_interpreter_ends_without_crash_or_wait(shared: bool, end: str, warned: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-X",
            "dev",
            "-W",
            f"{warned}::ResourceWarning",
            "-c",
            textwrap.dedent(PROGRAM.format(shared=shared, end=end)),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = done.stderr.count("was not closed: it is closed now")
    assert told == (2 if warned == "default" else 1), done.stderr[-3000:]  # Python shows the last error of an exit
    assert warned == "error" or "Traceback" not in done.stderr
    assert time.monotonic() - float(done.stdout) < 4, "it waited for a thread that the interpreter had stopped"

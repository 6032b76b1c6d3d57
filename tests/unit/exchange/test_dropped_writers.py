"""A writer that is collected before it was closed fails its consumers, and what it held comes home."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.errors import ConfigError, ExchangeAborted

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))
SAYS = r"producer 0: its writer was dropped without close\(\); use 'with writer:'"


def environments(transport: str) -> tuple[fb.ShuffleEnvironment, fb.ShuffleEnvironment]:
    """The consumer's and the producer's."""
    shared = transport == "memfd"
    far = fb.ShuffleEnvironment(segments=64, segment_size=4096, shared=shared)
    if transport == "local":
        return far, far
    far.listen()
    return far, fb.ShuffleEnvironment(segments=64, segment_size=4096, shared=shared)


def nothing_written(writer: fb.RecordWriter) -> None:
    pass


def open_buffer(writer: fb.RecordWriter) -> None:
    writer.emit((1,))


def full_queue(writer: fb.RecordWriter) -> None:
    while writer.try_emit((1,)):
        pass


@pytest.mark.parametrize("write", [nothing_written, open_buffer, full_queue])
@pytest.mark.parametrize("transport", ["local", "tcp", "memfd"])
def test_consumers_are_told_and_segments_come_home(transport: str, write: Callable[[Any], None]) -> None:
    """They waited for ever, as long as the environment lived."""
    far, near = environments(transport)
    with far, near:
        gates = [far.create_input_gate(ROWS, channels=1) for _ in range(2)]
        told: list[str] = []

        def read(gate: fb.InputGate) -> None:
            with pytest.raises(ExchangeAborted) as failed:
                list(gate)
            told.append(str(failed.value))

        readers = [threading.Thread(target=read, args=(gate,)) for gate in gates]
        for reader in readers:
            reader.start()

        def produce() -> None:  # as a thread whose function raises
            writer = near.create_result_partition(
                ROWS, gates if transport == "local" else [gate.address for gate in gates], selector=fb.hash_by("n")
            )
            write(writer)

        produce()
        for reader in readers:
            reader.join(30)
        assert not any(reader.is_alive() for reader in readers)
        assert [text.count("was dropped without close()") for text in told] == [1, 1]
        for gate in gates:
            gate.close()
        near.create_input_gate(ROWS, channels=1).close()  # whatever is made next frees what was left
        assert near.stats()["writers"] == near.stats()["segments_in_use"] == far.stats()["segments_in_use"] == 0


def test_the_text_names_the_producer_and_what_to_do() -> None:
    with fb.ShuffleEnvironment(segments=16) as env:
        writer, (gate,) = env.exchange(ROWS)
        del writer
        with pytest.raises(ExchangeAborted, match=SAYS), gate:
            gate.poll()
        assert (env.stats()["writers"], env.stats()["segments_in_use"]) == (0, 0)


def test_a_writer_in_a_cycle_that_another_thread_collects() -> None:
    with fb.ShuffleEnvironment(segments=16) as env:
        writer, (gate,) = env.exchange(ROWS)
        writer.emit((1,))
        cycle: list[Any] = [writer]
        cycle.append(cycle)
        del writer, cycle
        collector = threading.Thread(target=gc.collect)
        collector.start()
        collector.join()
        with pytest.raises(ExchangeAborted, match=SAYS), gate:
            list(gate)
        assert env.stats()["segments_in_use"] == 0


@pytest.mark.parametrize("end", ["close", "abort", "finish"])
def test_one_that_has_ended_is_not_missed(end: str) -> None:
    with fb.ShuffleEnvironment(segments=16) as env:
        writer, (gate,) = env.exchange(ROWS)
        writer.emit((1,))
        getattr(writer, end)()
        del writer
        with gate:
            if end == "abort":
                with pytest.raises(ExchangeAborted, match="the producer gave up"):
                    list(gate)
            else:
                assert list(gate) == [(1,)]


def test_one_of_a_closed_environment_is_not_missed() -> None:
    with fb.ShuffleEnvironment(segments=16) as env:
        writer, (gate,) = env.exchange(ROWS)
    del writer
    assert env.dropped == []
    assert gate.closed


def test_one_that_could_not_be_made_keeps_its_own_error() -> None:
    with fb.ShuffleEnvironment(segments=16) as env:
        gate = env.create_input_gate(ROWS, channels=1)
        with pytest.raises(ConfigError, match=r"forward\(7\)"):
            env.create_result_partition(ROWS, [gate], selector=fb.forward(7))
        with pytest.raises(ExchangeAborted, match=r"could not be set up: forward\(7\)"), gate:
            list(gate)
    fb.RecordWriter.__new__(fb.RecordWriter)


def test_many_that_are_dropped_leave_room_for_others() -> None:
    with fb.ShuffleEnvironment(segments=16, segment_size=4096) as env:
        for _ in range(50):
            writer, (gate,) = env.exchange(ROWS)
            full_queue(writer)
            gate.close()
            del writer
        writer, (gate,) = env.exchange(ROWS)
        with writer:
            writer.emit((1,))
        assert list(gate) == [(1,)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork with threads
def test_the_copy_of_a_forked_child_says_nothing() -> None:
    with fb.ShuffleEnvironment(segments=16) as env:
        writer, (gate,) = env.exchange(ROWS)
        child = os.fork()
        if child == 0:
            del writer
            os._exit(len(env.dropped))
        assert os.waitpid(child, 0)[1] == 0
        with writer:
            writer.emit((1,))
        assert list(gate) == [(1,)]

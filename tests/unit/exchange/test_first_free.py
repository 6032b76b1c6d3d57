"""Selectors where nobody said one, and the one for work queues."""

from __future__ import annotations

import socket
import threading
import time
import types
from typing import Any

import numpy as np
import pytest

import fastbuf as fb
from fastbuf.errors import ConfigError, PeerLost

ROWS = fb.RowSerializer(fb.Schema.of(id="int64"))


def env(**more: Any) -> fb.ShuffleEnvironment:
    return fb.ShuffleEnvironment(segments=64, segment_size=4096, **more)


def test_without_a_selector_records_go_in_turn() -> None:
    """They all went to the first consumer, and nobody was told."""
    with env() as e:
        writer, gates = e.exchange(serializer=ROWS, consumers=3)
        writer.emit_many([(i,) for i in range(30)])
        writer.close()
        assert [len(list(gate)) for gate in gates] == [10, 10, 10]


def test_a_consumer_that_stands_still_gets_no_more_than_its_queue() -> None:
    """A work queue: one worker takes nothing; the other gets all that is beyond what the first has room for."""
    config = fb.ExchangeConfig(buffer_timeout_s=0, max_buffers_per_channel=4)
    tasks = 200
    with env() as e:
        writer, (still, quick) = e.exchange(
            serializer=fb.PickledSerializer(), consumers=2, selector=fb.first_free(), config=config
        )
        done: list[int] = []
        worker = threading.Thread(target=lambda: done.extend(quick))
        worker.start()
        for number in range(tasks):
            writer.emit(number)
        threading.Thread(target=writer.close).start()
        left = list(still)
        worker.join()
        assert sorted(done + left) == list(range(tasks))
        assert len(left) <= config.max_buffers_per_channel


@pytest.mark.parametrize("shared", [False, True], ids=["tcp", "memfd"])
def test_of_another_process_it_gets_no_more_than_its_credit_and_its_queue(shared: bool) -> None:
    config = fb.ExchangeConfig(
        buffer_timeout_s=0, exclusive=1, floating=0, max_buffers_per_channel=2, transport="memfd" if shared else "tcp"
    )
    tasks, secret = 100, b"a secret that is long enough"
    with env(shared=shared) as e, env(shared=shared) as other:
        address = other.listen()
        gates = [other.create_input_gate(ROWS, channels=1, secret=secret, config=config) for _ in range(2)]
        targets = [(*address, gate.gate_id) for gate in gates]
        writer = e.create_result_partition(ROWS, targets, secret=secret, selector=fb.first_free(), config=config)
        done: list[Any] = []
        worker = threading.Thread(target=lambda: done.extend(gates[1]))
        worker.start()
        for number in range(tasks):
            writer.emit((number,))
        closes = threading.Thread(target=writer.close)
        closes.start()
        left = list(gates[0])
        closes.join()
        worker.join()
        assert sorted(done + left) == [(i,) for i in range(tasks)]
        assert len(left) <= 3


def test_with_every_queue_full_the_first_that_takes_something_gets_the_next() -> None:
    config = fb.ExchangeConfig(buffer_timeout_s=0, max_buffers_per_channel=2)
    with env() as e:
        writer, gates = e.exchange(serializer=ROWS, consumers=3, selector=fb.first_free(), config=config)
        full = [(i,) for i in range(6)]
        writer.emit_many(full)
        waits = threading.Thread(target=writer.emit, args=((6,),))
        waits.start()
        taken: list[Any] = []
        while waits.is_alive() or (6,) not in taken:  # it has room when what was taken is let go of
            taken += gates[2].poll(0.01) or []
        closes = threading.Thread(target=writer.close)
        closes.start()
        rest = [sorted(record[0] for record in gate) for gate in gates]
        closes.join()
        assert sorted([*(i for (i,) in taken), *(i for queue in rest for i in queue)]) == list(range(7))


def test_a_consumer_that_has_cancelled_gets_nothing() -> None:
    with env() as e:
        writer, gates = e.exchange(serializer=ROWS, consumers=2, selector=fb.first_free())
        gates[0].close()
        writer.emit_many([(i,) for i in range(100)])
        writer.close()
        assert len(list(gates[1])) == 100


def test_a_batch_goes_to_one_consumer_as_a_whole() -> None:
    rows = np.zeros(10, dtype=[("id", np.int64)])
    columns = fb.ColumnarSerializer(fb.Schema.of(id="int64"))
    with env() as e:
        config = fb.ExchangeConfig(buffer_timeout_s=0)
        writer, gates = e.exchange(serializer=columns, consumers=2, selector=fb.first_free(), config=config)
        for _ in range(4):
            writer.emit_batch(rows)
        writer.close()
        assert [sum(batch.num_rows for batch in gate) for gate in gates] == [20, 20]


def test_of_a_blocking_partition_nobody_is_free() -> None:
    with env() as e, pytest.raises(ConfigError, match=r"round_robin"):
        e.exchange(serializer=ROWS, consumers=2, selector=fb.first_free(), partition_type="blocking")


def test_a_consumer_that_is_not_up_yet_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """``connect_timeout_s`` was the time of one try; a consumer that began a moment later was an error."""
    secret = b"a secret that is long enough"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        host, port = taken.getsockname()
    with env() as e, env() as other:
        gate = other.create_input_gate(ROWS, channels=1, secret=secret)
        made: list[fb.RecordWriter] = []
        producer = threading.Thread(
            target=lambda: made.append(e.create_result_partition(ROWS, [(host, port, gate.gate_id)], secret=secret))
        )
        refused = threading.Event()
        clock = types.SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: refused.set())
        monkeypatch.setattr("fastbuf.exchange.targets.time", clock)
        producer.start()
        assert refused.wait(10.0)
        other.listen(host, (port, port))
        producer.join()
        made[0].emit((1,))
        closes = threading.Thread(target=made[0].close)
        closes.start()
        assert list(gate) == [(1,)]
        closes.join()


def test_one_that_never_comes_up_is_an_error_that_names_the_setting() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        host, port = taken.getsockname()
    config = fb.ExchangeConfig(connect_timeout_s=0.1)
    with env() as e, pytest.raises(PeerLost, match=r"0\.1 s \(connect_timeout_s\)"):
        e.create_result_partition(ROWS, [(host, port, 1)], secret=b"a secret that is long enough", config=config)

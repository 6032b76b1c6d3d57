"""A writer that found its queue full goes on when it is half empty; what else it waits for, it hears of at once."""

from __future__ import annotations

import threading
from typing import Any

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(data="binary"))
WHOLE = bytes(4096 - 4 - 4)  # with its length and its end just one segment
SETTINGS = {"max_buffers_per_channel": 8, "batch_rows": 1}


def fill(writer: Any) -> int:
    """Emits until it is refused; -> how many were begun."""
    n = 1
    while writer.try_emit((WHOLE,)):
        n += 1
    return n


def test_a_full_queue_takes_no_more_until_it_is_half_empty() -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        writer, (gate,) = env.exchange(serializer=ROWS, config=fb.ExchangeConfig(floating=20, **SETTINGS))
        assert fill(writer) == 9
        for _ in range(3):
            assert gate.poll() == [(WHOLE,)]
            assert not writer.resume()
        gate.poll()
        assert writer.resume()
        # and from there it may be filled again
        assert fill(writer) == 4
        gate.close()
        writer.abort()
        assert env.pool.available == 64


def test_a_queue_of_one_is_no_lockstep_that_stops() -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        writer, (gate,) = env.exchange(serializer=ROWS, config=fb.ExchangeConfig(max_buffers_per_channel=1))
        thread = threading.Thread(target=lambda: (writer.emit_many([(WHOLE,)] * 200), writer.close()))
        thread.start()
        assert sum(1 for _ in gate) == 200
        thread.join(10)
        gate.close()
        assert env.pool.available == 64


def test_an_event_goes_in_beside_a_full_queue_and_a_cancel_frees_the_writer() -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        writer, (gate,) = env.exchange(serializer=ROWS, config=fb.ExchangeConfig(floating=20, **SETTINGS))
        assert fill(writer) == 9
        thread = threading.Thread(target=writer.emit_many, args=([(WHOLE,)] * 5,))
        thread.start()  # waits for room
        gate.close()
        thread.join(10)
        assert not thread.is_alive()
        assert writer.cancelled
        writer.close()
        assert env.pool.available == 64


def test_two_consumers_share_few_segments() -> None:
    """One is full and patient, the other one needs the segments that come back from it."""
    config = fb.ExchangeConfig(exclusive=1, floating=6, overdraft=0, **SETTINGS)
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        writer, gates = env.exchange(
            consumers=2, serializer=ROWS, selector=fb.custom(lambda record, n: len(record[0]) % 2), config=config
        )
        odd = WHOLE[:-1]
        while writer.try_emit((WHOLE,)):
            pass
        found: list[Any] = []
        reader = threading.Thread(target=lambda: found.extend(gates[1]))
        reader.start()
        emitter = threading.Thread(target=lambda: (writer.emit_many([(odd,)] * 100), writer.close()))
        emitter.start()
        even = sum(1 for _ in gates[0])
        emitter.join(20)
        reader.join(20)
        assert len(found) == 100
        assert even >= 7
        for gate in gates:
            gate.close()
        assert env.pool.available == 64

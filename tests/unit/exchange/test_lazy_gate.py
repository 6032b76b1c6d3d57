"""A lazy gate gives out views of records as they came: the same records, undecoded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.errors import ConfigError, RecordTooLong
from fastbuf.serializers import LazyRows

ROWS = fb.RowSerializer(fb.Schema.of(k="int64", name="string", x="float64?"))


def record(i: int) -> tuple[Any, ...]:
    return i, f"name {i}" * (i % 5), None if i % 3 else i / 2


def gate_and_writer(env: fb.ShuffleEnvironment, **settings: Any) -> tuple[Any, Any]:
    config = fb.ExchangeConfig(**settings)
    gate = env.create_input_gate(ROWS, channels=1, config=config, lazy=True)
    return gate, env.create_result_partition(ROWS, [gate], config=config)


@pytest.mark.parametrize("long", [0, 5000, 300_000])
def test_the_same_records_come_out(long: int) -> None:
    records = [record(i) for i in range(500)] + [(-1, "n" * long, 0.5)] + [record(i) for i in range(500)]
    with fb.ShuffleEnvironment(segments=1100, segment_size=4096) as env:
        gate, writer = gate_and_writer(env, max_buffers_per_channel=1000, floating=1000)
        with writer:
            writer.emit_many(records)
        views = list(gate)
        assert all(isinstance(view, LazyRows) for view in views)
        assert [tuple(row) for view in views for row in view] == records
        assert [k for view in views for k in view.array("k").tolist()] == [k for k, *_ in records]
        assert gate.records_in == len(records)
        gate.close()
        assert env.pool.available == 1100


def test_views_are_bounded_and_events_stand_between_them() -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
        gate, writer = gate_and_writer(env, batch_bytes=4096)
        with writer:
            writer.emit_many([(i, "n" * 90, None) for i in range(100)])
            writer.emit_event(fb.Watermark(7))
            writer.emit((100, "", None))
        found = list(gate)
        assert found.count(fb.Watermark(7)) == 1
        at = found.index(fb.Watermark(7))
        assert at >= 2
        assert [row[0] for view in found[:at] for row in view] == list(range(100))
        assert [row[0] for view in found[at + 1 :] for row in view] == [100]
        gate.close()


def test_a_view_outlives_its_gate() -> None:
    with fb.ShuffleEnvironment(segments=64) as env:
        gate, writer = gate_and_writer(env)
        with writer:
            writer.emit_many([record(i) for i in range(10)])
        (view,) = gate
        gate.close()
    assert [tuple(row) for row in view] == [record(i) for i in range(10)]


def test_in_an_event_loop() -> None:
    async def read(gate: Any) -> list[Any]:
        return [tuple(row) async for view in gate for row in view]

    with fb.ShuffleEnvironment(segments=64) as env:
        gate, writer = gate_and_writer(env)
        with writer:
            writer.emit_many([record(i) for i in range(100)])
        assert asyncio.run(read(gate)) == [record(i) for i in range(100)]
        gate.close()


def test_the_bound_of_a_record_holds() -> None:
    with fb.ShuffleEnvironment(segments=64) as env:
        gate = env.create_input_gate(ROWS, channels=1, config=fb.ExchangeConfig(max_record_bytes=100), lazy=True)
        writer = env.create_result_partition(ROWS, [gate], config=fb.ExchangeConfig(max_record_bytes=1000))
        writer.emit((1, "n" * 200, None))
        writer.finish()
        with pytest.raises(RecordTooLong):
            gate.poll()
        gate.close()
        writer.abort()


def test_rows_only() -> None:
    with (
        fb.ShuffleEnvironment(segments=64) as env,
        pytest.raises(ConfigError, match="lazy=True needs a RowSerializer, and the serializer is a PickledSerializer"),
    ):
        env.create_input_gate(fb.PickledSerializer(), channels=1, lazy=True)

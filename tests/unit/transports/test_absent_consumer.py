"""A consumer that is gone when a producer connects: an error, or, where the plan says so, one who had enough."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

import fastbuf as fb
from fastbuf.errors import PeerLost

SECRET = b"absent"
ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))


@pytest.fixture
def nobody() -> Iterator[tuple[str, int]]:
    """An address that nobody listens at, nor can."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()


def writer_to_both(
    near: fb.ShuffleEnvironment, far: fb.ShuffleEnvironment, nobody: tuple[str, int], loss: str
) -> tuple[fb.RecordWriter, fb.InputGate]:
    gate = far.create_input_gate(ROWS, channels=1, epoch=3, secret=SECRET)
    targets = [(*nobody, 7), (*far.listen(), gate.gate_id)]
    made = near.create_result_partition(
        ROWS,
        targets,
        channel=0,
        epoch=3,
        secret=SECRET,
        selector=fb.round_robin(),
        on_peer_loss=loss,
        config=fb.ExchangeConfig(connect_timeout_s=0.2),
    )
    return made, gate


def test_a_consumer_that_had_enough_is_cancelled_and_the_other_gets_all_of_its_own(nobody: tuple[str, int]) -> None:
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=4096) as near,
        fb.ShuffleEnvironment(segments=64, segment_size=4096) as far,
    ):
        writer, gate = writer_to_both(near, far, nobody, "cancel")
        for n in range(100):
            writer.emit((n,))
        assert not writer.cancelled, "one of two still listens"
        writer.close()
        received = [record[0] for record in gate]
        assert len(received) == 50
        assert len(set(received)) == 50
        assert writer.totals()[1] > 0
        near.pool.audit()
        far.pool.audit()


def test_otherwise_it_is_an_error_that_names_the_address(nobody: tuple[str, int]) -> None:
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=4096) as near,
        fb.ShuffleEnvironment(segments=64, segment_size=4096) as far,
        pytest.raises(PeerLost, match=r"127\.0\.0\.1:\d+"),
    ):
        writer_to_both(near, far, nobody, "error")

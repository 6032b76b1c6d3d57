"""Messages that name what can be done: lengths that no setting allows, numbers used twice, directories, totals."""

from __future__ import annotations

import logging
import tempfile
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.errors import ConfigError, ResourceError, SequenceError, StallTimeout, shorter_or_raise

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))


def test_a_record_longer_than_any_setting_allows() -> None:
    """It said "raise max_record_bytes", which cannot go above 2 GiB."""
    most = (1 << 31) - 1
    with pytest.raises(ConfigError, match=f"{most}"):
        fb.ExchangeConfig(max_record_bytes=most + 1)
    assert shorter_or_raise(most).startswith("raise max_record_bytes on both sides")
    assert shorter_or_raise(most + 1).startswith("max_record_bytes cannot be above 2,147,483,647 (2 GiB)")
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, (gate,) = env.exchange(fb.PickledSerializer(), config=fb.ExchangeConfig(max_record_bytes=1000))
        with pytest.raises(fb.RecordTooLong, match=r"more than max_record_bytes \(1000\): raise max_record_bytes"):
            writer.emit(b"x" * 5000)
        huge = bytearray(most + 1)  # zeros, which the system does not give until they are touched
        with pytest.raises(fb.RecordTooLong, match="cannot be above 2,147,483,647"):
            writer.emit(memoryview_of(huge))
        writer.abort()
        gate.close()


def memoryview_of(data: bytearray) -> Any:
    import pickle

    return pickle.PickleBuffer(data)


@pytest.mark.parametrize("transport", ["local", "tcp", "memfd"])
def test_one_number_of_two_producers_is_told_to_the_consumer_too(
    transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    shared = transport == "memfd"
    config = fb.ExchangeConfig(transport="auto" if transport == "local" else transport, stall_timeout_s=0.2)
    with (
        fb.ShuffleEnvironment(segments=64, shared=shared) as far,
        fb.ShuffleEnvironment(segments=64, shared=shared) as near,
    ):
        far.listen()
        gate = far.create_input_gate(ROWS, channels=2, config=config)
        target, env = (gate, far) if transport == "local" else (gate.address, near)
        first = env.create_result_partition(ROWS, [target], channel=7, config=config)
        with (
            caplog.at_level(logging.WARNING, "fastbuf"),
            pytest.raises(SequenceError, match=r"channel 7 is connected already.*number of its own"),
        ):
            env.create_result_partition(ROWS, [target], channel=7, config=config)
        said = "A second producer of channel 7, .*, was refused: the first is .*; give each a number of its own"
        assert transport == "local" or "second producer of channel 7" in caplog.text
        first.close()
        with gate, pytest.raises(StallTimeout, match=said):
            gate.poll(20)


def test_no_directory_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a root that cannot be written to: Python's own words did not say what to set."""

    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with fb.ShuffleEnvironment(segments=64) as env:
        gate = env.create_input_gate(ROWS, channels=1)
        with pytest.raises(ResourceError, match=r"No usable .*: set ExchangeConfig\(spill_directory=...\), or TMPDIR"):
            env.create_result_partition(ROWS, [gate], partition_type="blocking")
        gate.close()


def test_totals_fit_seal() -> None:
    with fb.ShuffleEnvironment(segments=64) as far, fb.ShuffleEnvironment(segments=64) as near:
        far.listen()
        gates = [far.create_input_gate(ROWS) for _ in range(2)]
        targets = [gate.address for gate in gates]
        writers = [near.create_result_partition(ROWS, targets, channel=channel) for channel in (4, 9)]
        for writer in writers:
            writer.emit_many([(n,) for n in range(100)])
            writer.close()
        assert len(writers[0].totals()) == 2
        assert writers[0].totals(1) == {4: writers[0].totals()[1]}
        for part, gate in enumerate(gates):
            with pytest.raises(ConfigError, match=r"totals is \[.*as writer.totals\(consumer\) gives it"):
                gate.seal(writers[0].totals())  # type: ignore[arg-type]
            gate.seal(writers[0].totals(part) | writers[1].totals(part))
            assert len(list(gate)) == 100
        for wrong in (2, -1, "0"):
            with pytest.raises(ConfigError, match=r"consumer is .*from 0 to 1"):
                writers[0].totals(wrong)

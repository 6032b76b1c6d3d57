"""Settings are checked where they are given: a wrong one is a ConfigError with its name, its value and the range."""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastbuf as fb
from fastbuf.errors import ConfigError, RecordError
from fastbuf.flow.flow_control import SendingEnd
from fastbuf.serializers import RandomPartitioner, RoundRobinPartitioner
from fastbuf.serializers.partition import HashPartitioner
from fastbuf_spark import ShuffleConf

ROWS = fb.RowSerializer(fb.Schema.of(id="int64"))
HUGE = 10**30
WRONG_WHOLE = (-1, HUGE, 1.5, math.nan, "3", True, None)


@pytest.mark.parametrize(
    "name",
    ["exclusive", "floating", "max_buffers_per_channel", "overdraft", "max_record_bytes", "batch_rows", "batch_bytes"],
)
@pytest.mark.parametrize("value", WRONG_WHOLE)
def test_counts_of_an_exchange(name: str, value: Any) -> None:
    words = rf"{name} is {re.escape(repr(value))}: it must be an integer from \d+ to \d+"
    with pytest.raises(ConfigError, match=words):
        fb.ExchangeConfig(**{name: value})


@pytest.mark.parametrize("name", ["buffer_timeout_s", "stall_timeout_s", "connect_timeout_s", "ping_interval_s"])
@pytest.mark.parametrize("value", [-0.5, -math.inf, math.nan, "3", b"3", True, [1]])
def test_times_of_an_exchange(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {re.escape(repr(value))}: it must be a number of seconds"):
        fb.ExchangeConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("connect_timeout_s", math.inf),
        ("checksum", "no"),
        ("checksum", 1),
        ("transport", "udp"),
        ("transport", None),
        ("flow_control", "hope"),
        ("flow_control", None),
        ("spill_directory", 3),
    ],
)
def test_other_settings_of_an_exchange(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {re.escape(repr(value))}"):
        fb.ExchangeConfig(**{name: value})


def test_where_spilled_bytes_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was looked at only when the first bytes were spilled."""
    file = tmp_path / "file"
    file.touch()
    sealed = tmp_path / "sealed"
    sealed.mkdir()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(sealed) and real(path, mode))  # as for non-root
    wrong = {"/nowhere": "there is no such directory", str(file): "that is no directory", str(sealed): "may not write"}
    for path, words in wrong.items():
        with pytest.raises(ConfigError, match=f"spill_directory is '{path}': .*{words}"):
            fb.ExchangeConfig(spill_directory=path)
        with pytest.raises(ConfigError, match=rf"spark\.fastbuf\.spillDirectory is '{path}': .*{words}"):
            ShuffleConf(spill_directory=path).checked_on("local[2]")
        # the directory is the executors', and the driver cannot look at it
        assert ShuffleConf(spill_directory=path).checked_on("yarn").spill_directory == path
    with pytest.raises(ConfigError, match="spill_directory is 'spills': it must be an absolute path"):
        ShuffleConf(spill_directory="spills")
    assert fb.ExchangeConfig(spill_directory=tmp_path).spill_directory == tmp_path
    assert ShuffleConf(spill_directory=str(tmp_path)).checked_on("local").spill_directory == str(tmp_path)
    assert ShuffleConf().checked_on("local").spill_directory == ""


def test_numbers_of_numpy_are_numbers() -> None:
    config = fb.ExchangeConfig(exclusive=np.int32(3), buffer_timeout_s=np.float32(0.5), checksum=np.True_)
    assert config == fb.ExchangeConfig(exclusive=3, buffer_timeout_s=0.5, checksum=True)
    assert [type(value) for value in (config.exclusive, config.buffer_timeout_s, config.checksum)] == [int, float, bool]


@pytest.mark.parametrize("size", [0, 8, 63, 100, 520, 1 << 31, -64, "big", 64.5, True, None, math.nan])
@pytest.mark.parametrize(
    "make",
    [
        lambda size: fb.Arena(2, size),
        lambda size: fb.NetworkBufferPool(2, size),
        lambda size: fb.ShuffleEnvironment(2, size),
        lambda size: ShuffleConf(memory_bytes=1 << 40, segment_size=size),
    ],
    ids=["Arena", "NetworkBufferPool", "ShuffleEnvironment", "ShuffleConf"],
)
def test_one_rule_for_the_size_of_a_segment(make: Callable[[Any], object], size: Any) -> None:
    """Arena, pool, environment and Spark's settings take and refuse the same sizes."""
    with pytest.raises(ConfigError, match="segment_size is"):
        make(size)


@pytest.mark.parametrize("name", ["memfd", "prefault", "huge_pages"])
def test_flags_of_an_arena(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 'no': it must be True or False"):
        fb.Arena(1, 64, **{name: "no"})


@pytest.mark.parametrize("value", WRONG_WHOLE[:-1])
@pytest.mark.parametrize("name", ["required", "maximum", "overdraft"])
def test_limits_of_a_local_pool(name: str, value: Any) -> None:
    with fb.NetworkBufferPool(4, 64) as pool, pytest.raises(ConfigError, match=f"{name} is {re.escape(repr(value))}"):
        pool.create_local_pool(**{"required": 1, name: value})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"segments": 0}, "segments is 0"),
        ({"segments": HUGE}, "segments is 1000000"),
        ({"segments": "8"}, "segments is '8'"),
        ({"shared": "yes"}, "shared is 'yes'"),
        ({"prefault": 1}, "prefault is 1"),
        ({"tls": "cert.pem"}, "tls is 'cert.pem'.* TlsConfig"),
    ],
)
def test_environments(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fb.ShuffleEnvironment(**given)


@pytest.fixture
def env() -> Any:
    with fb.ShuffleEnvironment(segments=32, segment_size=512) as env:
        yield env
        assert env.pool.stats().pools == 0  # what was refused has left nothing
        env.pool.audit()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"serializer": "rows"}, "serializer is 'rows'.* it must be Serializer"),
        ({"channels": 0}, "channels is 0: it must be an integer from 1 to"),
        ({"channels": HUGE}, "channels is 1000000"),
        ({"channels": "2"}, "channels is '2'"),
        ({"channels": True}, "channels is True"),
        ({"epoch": -1}, "epoch is -1"),
        ({"epoch": 1 << 64}, "epoch is 18446744073709551616"),
        ({"secret": "text"}, "secret is of type str: it must be bytes"),
        ({"config": {}}, "config is {}"),
        ({"maximum": 0}, "maximum is 0"),
        ({"lazy": "no"}, "lazy is 'no'"),
    ],
)
def test_gates(env: fb.ShuffleEnvironment, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        env.create_input_gate(**{"serializer": ROWS, "channels": 1, **given})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"serializer": None}, "serializer is None"),
        ({"targets": 5}, "targets is 5"),
        ({"targets": []}, "targets is empty"),
        (
            {"targets": [("127.0.0.1", 5000)]},
            r"target 0 is \('127.0.0.1', 5000\): it must be an InputGate, its address, or",
        ),
        ({"targets": ["127.0.0.1"]}, "target 0 is '127.0.0.1'"),
        ({"targets": [("", 5000, 1)]}, "target 0 is"),
        ({"targets": [("127.0.0.1", 65536, 1)]}, "port of target 0 is 65536: it must be an integer from 1 to 65535"),
        ({"targets": [("127.0.0.1", 0, 1)]}, "port of target 0 is 0"),
        ({"targets": [("127.0.0.1", "5000", 1)]}, "port of target 0 is '5000'"),
        ({"targets": [("127.0.0.1", 5000, -1)]}, "gate_id of target 0 is -1"),
        ({"channel": -1}, "channel is -1: it must be an integer from 0 to 4294967295"),
        ({"channel": 1 << 32}, "channel is 4294967296"),
        ({"channel": True}, "channel is True"),
        ({"epoch": "1"}, "epoch is '1'"),
        ({"secret": 3}, "secret is of type int"),
        ({"selector": "hash"}, "selector is 'hash'"),
        ({"config": "fast"}, "config is 'fast'"),
        ({"on_peer_loss": "shrug"}, "on_peer_loss is 'shrug': it must be one of error, cancel"),
        ({"maximum": -1}, "maximum is -1"),
        ({"partition_type": "async"}, "partition_type is 'async': it must be one of pipelined, blocking"),
    ],
)
def test_writers(env: fb.ShuffleEnvironment, given: dict[str, Any], words: str) -> None:
    gate = env.create_input_gate(ROWS, channels=1)
    with pytest.raises(ConfigError, match=words):
        env.create_result_partition(**{"serializer": ROWS, "targets": [gate], **given})
    gate.close()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"consumers": 0}, "consumers is 0"),
        ({"consumers": "2"}, "consumers is '2'"),
        ({"consumers": HUGE}, "consumers is 1000000"),
        ({"producers": -1}, "producers is -1"),
        ({"producers": True}, "producers is True"),
        ({"buffer_timeout_s": math.nan}, "buffer_timeout_s is nan"),
        ({"config": 3}, "config is 3"),
    ],
)
def test_exchanges(env: fb.ShuffleEnvironment, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        env.exchange(ROWS, **given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"host": 5}, "host is 5"),
        ({"ports": 5000}, "ports is 5000"),
        ({"ports": (5000,)}, "ports is"),
        ({"ports": (5000, 65536)}, "the last of ports is 65536: it must be an integer from 0 to 65535"),
        ({"ports": (-1, 0)}, "the first of ports is -1"),
        ({"ports": (6000, 5000)}, "the first must not be above the last"),
    ],
)
def test_listening(env: fb.ShuffleEnvironment, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        env.listen(**given)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fb.PickledSerializer(group=0), "group is 0"),
        (lambda: fb.PickledSerializer(group="8"), "group is '8'"),  # type: ignore[arg-type]
        (lambda: fb.PickledSerializer(checksum="no"), "checksum is 'no'"),  # type: ignore[arg-type]
        (lambda: fb.RowSerializer(fb.Schema.of(a="int64"), checksum="no"), "checksum is 'no'"),  # type: ignore[arg-type]
        (lambda: fb.ColumnarSerializer(checksum="no"), "checksum is 'no'"),  # type: ignore[arg-type]
        (lambda: fb.forward(-1), "to is -1"),
        (lambda: fb.forward("1"), "to is '1'"),
        (lambda: fb.round_robin(start=math.nan), "start is nan"),
        (lambda: fb.rescale(2, 2), "producer is 2"),
        (lambda: fb.rescale(0, 0), "producers is 0"),
        (lambda: fb.custom("func"), "func is 'func'"),
        (lambda: fb.hash_by(1.5), "hash_by.* key 1.5"),
        (lambda: fb.hash_by("a", None), "hash_by.* key None"),
        (lambda: fb.range_by(True, sample=[]), "range_by.* key True"),
        (lambda: fb.range_by("a", sample=[], ascending="no"), "ascending is 'no'"),
        (lambda: HashPartitioner("a", 0), "partitions is 0"),
        (lambda: HashPartitioner("a", "4"), "partitions is '4'"),  # type: ignore[arg-type]
        (lambda: RoundRobinPartitioner(True), "partitions is True"),
        (lambda: RoundRobinPartitioner(4, start=-1), "start is -1"),
        (lambda: RandomPartitioner(4, seed=math.nan), "seed is nan"),  # type: ignore[arg-type]
        (lambda: SendingEnd("watermark", 0), "segment_size is 0"),
        (lambda: SendingEnd("hope"), "flow_control is 'hope'"),
        (lambda: fb.Barrier(-1), "checkpoint is -1"),
        (lambda: fb.Barrier(1, timestamp_ms=1 << 63), "timestamp_ms is 9223372036854775808"),
        (lambda: fb.Watermark(math.nan), "time_ms is nan"),  # type: ignore[arg-type]
        (lambda: fb.CancelCheckpoint(-1), "checkpoint is -1"),
        (lambda: fb.WatermarkStatus("no"), "idle is 'no'"),  # type: ignore[arg-type]
        (lambda: fb.UserEvent("text"), "payload is 'text'"),  # type: ignore[arg-type]
        (lambda: fb.UserEvent(b"x" * 5000), "a user event of 5000 bytes: at most 4095"),
        (lambda: fb.TlsConfig(None, "key", "authority"), "certificate is None"),  # type: ignore[arg-type]
        (lambda: fb.TlsConfig("c", "k", "a", check_hostname="no"), "check_hostname is 'no'"),  # type: ignore[arg-type]
    ],
)
def test_serializers_selectors_and_the_rest(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize("value", WRONG_WHOLE)
def test_numbers_of_segments(value: Any) -> None:
    pool = fb.NetworkBufferPool(segments=4, segment_size=4096).create_local_pool(required=1)
    with pytest.raises(ConfigError, match=f"n is {re.escape(repr(value))}: it must be an integer from 0 to"):
        pool.request_many(value)


@pytest.mark.parametrize("dtype", [[], "S0", "V0", "O"])
def test_items_of_a_segment(dtype: Any) -> None:
    pool = fb.NetworkBufferPool(segments=4, segment_size=4096).create_local_pool(required=1)
    segment = pool.request()
    with pytest.raises(ConfigError, match="its items have no bytes, or are Python objects"):
        segment.array(dtype)
    segment.recycle()


@pytest.mark.parametrize("serializer", [ROWS, fb.PickledSerializer()])
@pytest.mark.parametrize("records", [3, None])
def test_records_that_are_no_list(serializer: Any, records: Any) -> None:
    env = fb.ShuffleEnvironment(segments=32)
    writer, _ = env.exchange(serializer)
    for call in (serializer.dumps, writer.emit_many):
        with pytest.raises(RecordError, match=rf"{records} \(\w+\): give records in a list"):
            call(records)
    env.close()


@pytest.mark.parametrize(("partitions", "only"), [(3, [None]), (3, [0.0]), (3, [True]), (True, [0]), (HUGE, [0])])
@pytest.mark.parametrize("selector", [lambda **named: fb.hash_by("id", **named), fb.round_robin])
def test_partitions_of_a_selector(
    env: fb.ShuffleEnvironment, selector: Callable[..., Any], partitions: Any, only: Any
) -> None:
    columns = fb.ColumnarSerializer(fb.Schema.of(id="int64"))
    with pytest.raises(ConfigError, match=r"partitions? (of only.* )?is .*: it must be an integer from"):
        env.exchange(columns, selector=selector(partitions=partitions, only=only))


def test_a_timeout_that_is_no_number(env: fb.ShuffleEnvironment) -> None:
    gate = env.create_input_gate(ROWS, channels=1)
    with pytest.raises(ConfigError, match="timeout is nan"):
        gate.poll(timeout=math.nan)
    writer = env.create_result_partition(ROWS, [gate])
    with pytest.raises(ConfigError, match="timeout is nan"):
        writer.close(timeout=math.nan)
    with pytest.raises(ConfigError, match="timeout is '1': it must be a number of seconds, or None"):
        gate.poll("1")  # type: ignore[arg-type]
    assert gate.poll(-0.5) is None  # what is left until a moment that has passed
    writer.close()
    assert list(gate) == []
    gate.close()


@pytest.mark.parametrize("seconds", [0, 0.2])
def test_a_close_has_its_time(env: fb.ShuffleEnvironment, seconds: float) -> None:
    """Also where a record was written in part, and nobody reads; the writer goes on afterwards."""
    config = fb.ExchangeConfig(stall_timeout_s=None)  # which was waited for, here without end
    writer, gates = env.exchange(ROWS, config=config)
    with pytest.raises(ConfigError, match="timeout is 'x'"):
        writer.close(timeout="x")
    sent = 0
    while writer.try_emit((sent,)):
        sent += 1
    other = threading.Event()
    beside = threading.Thread(target=other.wait)  # an only thread would be told that it waits for itself
    beside.start()
    with pytest.raises(TimeoutError, match=f"no consumer made room for its last record within {seconds} s"):
        writer.close(timeout=seconds)
    other.set()
    beside.join()
    closing = threading.Thread(target=writer.close)
    closing.start()
    with gates[0] as gate:
        found = [n for (n,) in gate]
    closing.join(20)
    assert writer.closed
    assert found in (list(range(sent)), list(range(sent + 1)))  # the last was written in part, or not at all


@pytest.mark.parametrize("host", ["", 5, "a" * 64 + ".org", "a..b"])
def test_names_of_hosts(env: fb.ShuffleEnvironment, host: Any) -> None:
    """An empty one listened on all addresses."""
    with pytest.raises(ConfigError, match="host is"):
        env.listen(host)
    with pytest.raises(ConfigError, match="host of target 0 is"):
        env.create_result_partition(ROWS, [(host, 1, 1)])


@pytest.mark.parametrize("channel", ["x", None, -1, HUGE << 20, [0]])
def test_a_channel_that_is_none(env: fb.ShuffleEnvironment, channel: object) -> None:
    gate = env.create_input_gate(ROWS, channels=1)
    for call in (gate.block, gate.unblock):
        with pytest.raises(ConfigError, match=r"channel is .*: it must be an integer from 0 to 4294967295"):
            call(channel)  # type: ignore[arg-type]
    gate.close()


def test_a_consumer_and_a_batch_that_are_none(env: fb.ShuffleEnvironment) -> None:
    with env.create_result_partition(ROWS, [None], partition_type="blocking") as writer:
        with pytest.raises(ConfigError, match="target 0 is None: it must be an InputGate, its address, or"):
            writer.attach(0, None)
        writer.attach(0, gate := env.create_input_gate(ROWS, channels=1))
    gate.close()
    for selector in (fb.round_robin(), fb.broadcast(), fb.hash_by("id"), fb.forward()):
        writer, gates = env.exchange(fb.ColumnarSerializer(ROWS.schema), consumers=2, selector=selector)
        for batch in (None, "rows", 3, [(1, "a")]):
            with pytest.raises(TypeError, match=r"batch is .*: it must be a record batch, a table"):
                writer.emit_batch(batch)
        writer.close()
        for gate in gates:
            gate.close()


WRONG = ("x", b"x", -1, HUGE, math.nan, 1.5, [None], object(), True, lambda: 0)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{wrong!r:.12}")
def test_what_is_of_another_kind_is_named(env: fb.ShuffleEnvironment, wrong: Any) -> None:
    """Errors of Python's own named neither the argument nor what it takes."""
    gate = env.create_input_gate(ROWS)
    with fb.Monitor() as monitor:
        for name, call in {
            "totals": lambda: gate.seal(wrong),
            "channel": lambda: gate.seal({wrong: 1}) if isinstance(wrong, float) else gate.block(wrong),
            "address": lambda: env.monitor.report_to(wrong),
            "port": lambda: fb.Monitor.listen(port=wrong),
            "only": lambda: env.exchange(ROWS, selector=fb.hash_by("id", partitions=4, only=wrong)),
            "fields": lambda: fb.Schema.of(wrong),
            "schema": lambda: fb.Schema.from_arrow(wrong),
            "serializer": lambda: env.exchange(wrong),
            "config": lambda: env.exchange(ROWS, config=wrong),
            "partitions": lambda: env.exchange(ROWS, selector=fb.hash_by("id", partitions=wrong)),
        }.items():
            if (name == "partitions" and wrong is True) or (name == "only" and wrong in ("x", [None])):
                continue  # True is 1, as there are consumers; the items of only are not looked at
            with pytest.raises((ConfigError, fb.SchemaError), match=name):
                call()
        monitor.close()
    gate.close()

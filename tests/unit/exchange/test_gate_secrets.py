"""A gate that other processes may reach has a secret that nobody guesses, and hands it over in its address."""

from __future__ import annotations

import multiprocessing as mp
import pickle
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.errors import AuthenticationError, ConfigError

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))
OBJECTS = fb.PickledSerializer()


def environment(**how: Any) -> fb.ShuffleEnvironment:
    return fb.ShuffleEnvironment(segments=64, segment_size=4096, **how)


def test_a_gate_gets_a_secret_of_its_own_when_none_is_given() -> None:
    with environment() as env:
        gates = [env.create_input_gate(ROWS, channels=1) for _ in range(3)]
        assert [len(gate.secret) for gate in gates] == [32] * 3
        assert len({gate.secret for gate in gates}) == 3


def produce(address: fb.GateAddress) -> None:
    with environment() as env, env.create_result_partition(OBJECTS, [address]) as writer:
        writer.emit({"from": "a child"})


def test_what_is_handed_over_is_the_address() -> None:
    """It is all that a producer needs, travels by pickle, and does not show its secret."""
    with environment() as env:
        gate = env.create_input_gate(OBJECTS, channels=1)
        with pytest.raises(ConfigError, match=r"does not listen; call env.listen\(\) first"):
            _ = gate.address
        host, port = env.listen()
        assert env.address == (host, port)
        address = gate.address
        assert address == (host, port, gate.gate_id, gate.secret)
        assert pickle.loads(pickle.dumps(address)) == address
        assert repr(address) == f"GateAddress('127.0.0.1', {port}, gate_id={gate.gate_id}, secret=<32 bytes>)"
        assert f"{address}" == str(address) == repr(address)
        assert repr(gate.secret) not in repr([address])
        assert address.at("localhost") == ("localhost", port, gate.gate_id, gate.secret)
        child = mp.get_context("spawn").Process(target=produce, args=(address.at("localhost"),))
        child.start()
        assert list(gate) == [{"from": "a child"}]
        child.join(20)


def test_what_a_producer_shows_does_not_show_the_secret() -> None:
    with (
        environment() as env,
        env.create_input_gate(ROWS, channels=1) as gate,
        env.create_result_partition(ROWS, [gate], secret=b"a secret of this test") as writer,
    ):
        assert writer.partition.credentials.secret == b"a secret of this test"
        assert "a secret" not in repr(writer.partition.credentials)


@pytest.mark.parametrize("transport", ["tcp", "memfd"])
def test_each_address_has_the_secret_of_its_gate(transport: str) -> None:
    config = fb.ExchangeConfig(transport=transport)
    with environment(shared=True) as near, environment(shared=True) as far:
        far.listen()
        gates = [far.create_input_gate(ROWS, channels=1, config=config) for _ in range(3)]
        targets: list[Any] = [gate.address for gate in gates]
        targets[2] = targets[2][:3]  # the old way: the secret beside it
        with near.create_result_partition(
            ROWS, targets, secret=gates[2].secret, selector=fb.round_robin(), config=config
        ) as writer:
            writer.emit_many((n,) for n in range(6))
            writer.flush()
            assert sorted(record for gate in gates for record in gate.poll(20)) == [(n,) for n in range(6)]
            for gate in gates:
                gate.close()


def test_who_has_the_number_alone_is_refused() -> None:
    with environment() as near, environment() as far:
        gate = far.create_input_gate(ROWS, channels=1)
        with pytest.raises(AuthenticationError, match=r"give the gate's address as the target, or secret=gate.secret"):
            near.create_result_partition(ROWS, [(*far.listen(), gate.gate_id)])


@pytest.mark.parametrize("secret", [b"", b"x" * 15])
@pytest.mark.parametrize(
    ("host", "serializer", "why"),
    [
        ("0.0.0.0", ROWS, "other hosts reach 0.0.0.0"),
        ("0.0.0.0", OBJECTS, "reading a pickle runs the sender's code"),
        ("127.0.0.1", OBJECTS, "reading a pickle runs the sender's code"),
        ("localhost", OBJECTS, "reading a pickle runs the sender's code"),
    ],
)
def test_a_secret_that_can_be_guessed_is_refused_whichever_comes_first(
    secret: bytes, host: str, serializer: Any, why: str
) -> None:
    text = f"has {len(secret)} bytes and must have at least 16: {why}"
    with environment() as env:
        gate = env.create_input_gate(serializer, channels=1, secret=secret)
        with pytest.raises(ConfigError, match=text):
            env.listen(host)
        assert env.address is None
        assert env.stats()["places"] == 0, "it listens"
        gate.close()
        env.listen(host)
        before = env.stats()["segments_guaranteed"]
        with pytest.raises(ConfigError, match=text):
            env.create_input_gate(serializer, channels=1, secret=secret)
        assert env.stats()["segments_guaranteed"] == before
        assert len(env.create_input_gate(serializer, channels=1, secret=b"y" * 16).secret) == 16


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "localhost"])
def test_on_a_loopback_address_rows_may_do_with_less(host: str) -> None:
    with environment() as near, environment() as far:
        gate = far.create_input_gate(ROWS, channels=1, secret=b"")
        target = (*far.listen(host), gate.gate_id)
        with near.create_result_partition(ROWS, [target]) as writer:
            writer.emit((1,))
            writer.flush()
            assert gate.poll(20) == [(1,)]
            gate.close()


def test_a_gate_of_this_process_alone_needs_none() -> None:
    with environment() as env:
        gate = env.create_input_gate(OBJECTS, channels=1, secret=b"")
        with env.create_result_partition(OBJECTS, [gate]) as writer:
            writer.emit("here")
        assert list(gate) == ["here"]

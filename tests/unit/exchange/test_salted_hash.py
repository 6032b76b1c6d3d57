"""Selectors that use Python's ``hash``, whose numbers for text differ between processes."""

from __future__ import annotations

import functools
import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.exchange.salted_hash import LOOKS
from fastbuf.serializers import portable_hash

OBJECTS = fb.PickledSerializer()
calls = 0


def by_hash(record: Any, n: int) -> int:
    return hash(record[0]) % n


def counted(record: Any, n: int) -> int:
    global calls
    calls += 1
    return hash(record[0]) % n


class Selects:
    def __call__(self, record: Any, n: int) -> int:
        return hash(record[0]) % n


@pytest.fixture(autouse=True)
def salted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)


@pytest.fixture
def sent() -> Iterator[Callable[..., list[str]]]:
    """Sends keys to two consumers of another environment; gives the warnings."""
    with fb.ShuffleEnvironment(256) as near, fb.ShuffleEnvironment(256) as far:
        far.listen()

        def send(func: Callable[[Any, int], int], *keys: Any, consumers: int = 2, local: bool = False) -> list[str]:
            env = near if local else far
            gates = [env.create_input_gate(OBJECTS, channels=1) for _ in range(consumers)]
            targets = gates if local else [gate.address for gate in gates]
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                with near.create_result_partition(OBJECTS, targets, selector=fb.custom(func)) as writer:
                    for key in keys:
                        writer.emit((key, None))
            found = [record for gate in gates for record in gate]
            assert sorted(map(repr, found)) == sorted(repr((key, None)) for key in keys)
            for gate in gates:
                gate.close()
            return [str(warning.message) for warning in told if warning.category is RuntimeWarning]

        yield send
        assert near.pool.available == far.pool.available == 256


@pytest.mark.parametrize("key", ["a", b"a", ("a", 1), (1, (2, "a")), frozenset({"a"}), date(2026, 1, 1)])
def test_text_is_told_of(sent: Callable[..., list[str]], key: Any) -> None:
    (told,) = sent(by_hash, 1, key, key, "b")
    assert f"custom(by_hash) hashes a {type(key).__name__} ({key!r})" in told
    assert "portable_hash" in told
    assert "PYTHONHASHSEED" in told


def test_what_is_the_same_everywhere_is_not_told_of(sent: Callable[..., list[str]], monkeypatch: Any) -> None:
    assert sent(by_hash, *range(2 * LOOKS), 1.5, True, (1, 2), frozenset({3})) == []
    assert sent(by_hash, *range(LOOKS), "after the looks") == []
    assert sent(by_hash, "a", local=True) == []
    assert sent(by_hash, "a", consumers=1) == []
    assert sent(lambda record, n: len(record[0]) % n, "a") == []
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert sent(by_hash, "a") == []
    assert sent(lambda record, n: portable_hash(record[0]) % n, "a") == []


@pytest.mark.parametrize("func", [Selects(), Selects().__call__, functools.partial(by_hash), counted])
def test_what_cannot_be_seen_is_told_of_at_once(sent: Callable[..., list[str]], func: Any) -> None:
    (told,) = sent(func, 1)
    assert "uses hash(), which of text is another number" in told


def test_the_function_is_called_once_for_each_record_and_sees_its_own_names(sent: Callable[..., list[str]]) -> None:
    before = calls
    sent(counted, *range(10))
    assert calls == before + 10
    seen: list[Any] = []

    def noted(record: Any, n: int, *, also: int = 3) -> int:
        seen.append((calls, also, [hash(x) for x in range(2)]))
        return hash(record[0]) % n

    assert sent(noted, *range(LOOKS + 5)) == []
    assert seen == [(calls, 3, [0, 1])] * (LOOKS + 5)


def produce(addresses: Any, keys: list[Any], out: Any) -> None:
    try:
        with (
            fb.ShuffleEnvironment(64) as env,
            env.create_result_partition(OBJECTS, addresses, selector=fb.custom(by_hash)) as writer,
        ):
            for key in keys:
                writer.emit((key, None))
        out.put("sent")
    except fb.ConfigError as error:
        out.put(str(error))


@pytest.mark.parametrize(
    ("method", "keys", "said"), [("spawn", ["a"], "hashes a str"), ("spawn", [1, 2], "sent"), ("fork", ["a"], "sent")]
)
def test_processes_of_multiprocessing(method: str, keys: list[Any], said: str) -> None:
    context = multiprocessing.get_context(method)
    out = context.Queue()
    with fb.ShuffleEnvironment(64) as env:
        env.listen()
        gates = [env.create_input_gate(OBJECTS, channels=1) for _ in range(2)]
        process = context.Process(target=produce, args=([gate.address for gate in gates], keys, out))
        process.start()
        assert said in out.get(timeout=60)
        process.join(60)
        assert process.exitcode == 0
        for gate in gates:
            gate.close()


def test_with_a_seed_a_program_of_its_own_agrees() -> None:
    code = "from fastbuf.serializers import portable_hash; print(hash('a'), portable_hash(('a', None)))"
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    runs = {subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout for _ in "ab"}
    assert len(runs) == 1

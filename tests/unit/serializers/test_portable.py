"""Hashes of Python objects against PySpark's own portable_hash, and as golden numbers without it."""

from __future__ import annotations

import collections
import math
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbuf.errors import RecordError

ROOT = Path(__file__).resolve().parents[3]
Point = collections.namedtuple("Point", "x y")
ATOMS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.fractions() | st.decimals()
    | st.dates() | st.frozensets(st.integers())
)  # fmt: skip
KEYS = st.recursive(ATOMS, lambda inner: st.lists(inner).map(tuple), max_leaves=12)


@pytest.fixture(autouse=True)
def _seed(monkeypatch: pytest.MonkeyPatch) -> None:
    if "PYTHONHASHSEED" not in os.environ:
        # Within one process any fixed seed will do: both sides hash as this process does.
        monkeypatch.setenv("PYTHONHASHSEED", "0")


@settings(max_examples=300, deadline=None)
@given(KEYS)
def test_as_pysparks(key: object) -> None:
    pyspark = pytest.importorskip("pyspark.rdd", reason="the original is pyspark's")
    from fastbuf.serializers import portable_hash

    try:
        expected = pyspark.portable_hash(key)
    except TypeError:  # a signalling NaN of decimal
        with pytest.raises(TypeError):
            portable_hash(key)
        return
    assert portable_hash(key) == expected


def test_partitions_as_pysparks() -> None:
    pyspark = pytest.importorskip("pyspark.rdd", reason="the original is pyspark's")
    from fastbuf.serializers import portable_partition

    rng = random.Random(2)
    keys = [
        rng.choice([None, rng.getrandbits(200) - 2**199, -1, -2, rng.random(), str(rng.random()), (rng.random(), None)])
        for _ in range(5000)
    ]
    for n in (1, 2, 7, 200, 1000, 2**31 - 1):
        found = portable_partition(iter(keys), n)
        assert found.dtype == np.int32
        assert found.tolist() == [pyspark.portable_hash(key) % n for key in keys]


GOLDEN = textwrap.dedent("""
    0 1 -1 -2 2**61-1 2**61 -2**61 10**30 -10**30 True None
    0.0 -0.0 1.5 -1e300 float('inf')
    '' 'a' 'ünï' '\U0001f600' b'' b'abc' (b'x'*100)
    () (1,) (None,1) (1,(2,('x',None),b'y')) ((),()) (-1,-2.5,'k')
""").split()


def test_golden_with_seed_0() -> None:
    # What pyspark 4.3's gives on CPython 3.11, 64 bits, PYTHONHASHSEED=0; text is SipHash-1-3 from 3.11 on.
    code = f"""
        import zlib
        from fastbuf.serializers import portable_hash
        keys = [eval(text) for text in {GOLDEN!r}]
        print(zlib.crc32(repr([portable_hash(key) for key in keys]).encode()))
        print(portable_hash((None, 1)) & 0xFFFFFFFF, portable_hash("a"), portable_hash((1, ("x", None))))
        """
    env = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, timeout=60, env=env
    ).stdout.split()
    assert out == ["2753656766", "219750521", "4644417185603328019", "3363667899212546124"]


def test_without_a_seed_it_says_what_to_set() -> None:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONHASHSEED"}
    code = "from fastbuf.serializers import portable_hash; portable_hash('a')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60,
        env={**env, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "ConfigError: PYTHONHASHSEED is not set" in done.stderr


def test_tuples_of_any_class_and_what_has_no_hash() -> None:
    from fastbuf.serializers import portable_hash, portable_partition

    assert portable_hash(Point(1, "a")) == portable_hash((1, "a"))
    assert portable_hash(math.inf) == hash(math.inf)
    for key in ([], (1, []), {}):
        with pytest.raises(TypeError, match="unhashable"):
            portable_hash(key)
    deep: tuple = ()
    for _ in range(600):
        deep = (deep,)
    with pytest.raises(RecordError, match="deeper than 500"):
        portable_hash(deep)
    for n in (0, -1, 2**31):
        with pytest.raises(ValueError, match="n is"):
            portable_partition([1], n)

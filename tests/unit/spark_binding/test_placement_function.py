"""Placement by PySpark's portable_hash is computed by fastbuf's; a function of the user's stays the user's."""

from __future__ import annotations

import random
from typing import Any

import pytest

portable_hash = pytest.importorskip("pyspark.core.rdd", reason="the binding is PySpark's").portable_hash

from pyspark import cloudpickle  # noqa: E402

from fastbuf.serializers import portable_hash as ours  # noqa: E402
from fastbuf_spark.stage import Placement, fastest, first_item  # noqa: E402


def key(r: random.Random, depth: int = 0) -> Any:
    kinds = [None, r.randrange(-(2**70), 2**70), r.randrange(9), f"k{r.random()}", r.random(), True, -1, b"x"]
    if depth < 3:
        kinds.append(tuple(key(r, depth + 1) for _ in range(r.randrange(4))))
    return r.choice(kinds)


def test_pysparks_own_is_replaced_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert fastest(None) is ours
    assert fastest(portable_hash) is ours
    assert fastest(hash) is hash
    r = random.Random(5)
    records = [(key(r), i) for i in range(5000)]
    shipped = cloudpickle.loads(cloudpickle.dumps(Placement(7, fastest(None), first_item)))
    assert [shipped(record) for record in records] == [portable_hash(k) % 7 for k, _ in records]

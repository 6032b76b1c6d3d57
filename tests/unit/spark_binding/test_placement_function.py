"""Placement by PySpark's portable_hash is computed by fastbuf's; a function of the user's stays the user's."""

from __future__ import annotations

import random
from itertools import chain
from typing import Any

import pytest

portable_hash = pytest.importorskip("pyspark.core.rdd", reason="the binding is PySpark's").portable_hash

from pyspark import cloudpickle  # noqa: E402

from fastbuf_spark.codec import RecordCodec, own_partition_func  # noqa: E402


def key(r: random.Random, depth: int = 0) -> Any:
    kinds = [None, r.randrange(-(2**70), 2**70), r.randrange(9), f"k{r.random()}", r.random(), True, -1, b"x"]
    if depth < 3:
        kinds.append(tuple(key(r, depth + 1) for _ in range(r.randrange(4))))
    return r.choice(kinds)


@pytest.mark.parametrize("plain", [True, False])
def test_pysparks_own_is_replaced_and_no_other(monkeypatch: pytest.MonkeyPatch, plain: bool) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert own_partition_func(None) is None
    assert own_partition_func(portable_hash) is None
    assert own_partition_func(hash) is hash
    r = random.Random(5)
    records = [(r.randrange(-99, 99) if plain else key(r), i) for i in range(5000)]
    shipped = cloudpickle.loads(cloudpickle.dumps(RecordCodec(7)))
    items = list(shipped.sender(7, range(7), 0).items(records))
    assert {type(group) for _, group in items} == ({bytes} if plain else {list})
    assert sum(map(shipped.count, items)) == 5000
    for partition in range(7):
        found = list(chain.from_iterable(shipped.opened([item for item in items if item[0] == partition])))
        assert found == [record for record in records if portable_hash(record[0]) % 7 == partition]

"""PySpark's serializer protocol: objects, batches and streams there and back, the JVM's plain pickles too."""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="the binding's serializer is one of PySpark's")
from pyspark.serializers import AutoBatchedSerializer, BatchedSerializer, Serializer, write_int

from fastbuf.errors import RecordError
from fastbuf_spark import ObjectSerializer

RECORDS: list[Any] = [1, "two", (3, None), {"x": [4.5]}, b"5" * 10_000]


@pytest.mark.parametrize("batched", [None, 1, 3, "auto"])
def test_streams(batched: Any) -> None:
    serializer: Serializer = ObjectSerializer()
    if batched == "auto":
        serializer = AutoBatchedSerializer(serializer)
    elif batched:
        serializer = BatchedSerializer(serializer, batched)
    stream = io.BytesIO()
    serializer.dump_stream(iter(RECORDS), stream)
    write_int(-1, stream)
    stream.seek(0)
    assert list(serializer.load_stream(stream)) == RECORDS


def test_arrays_stay_out_of_the_pickle() -> None:
    serializer = ObjectSerializer()
    array = np.arange(100_000)
    payload = serializer.dumps(("key", array))
    assert len(payload) < array.nbytes + 500
    assert int.from_bytes(payload[8:16], "little") < 300
    key, found = serializer.loads(payload)
    assert key == "key"
    assert np.array_equal(found, array)


def test_lambdas_plain_pickles_and_what_nobody_can() -> None:
    serializer = ObjectSerializer()
    assert serializer.loads(serializer.dumps(lambda x: x + 1))(1) == 2
    for protocol in (2, 4, 5):
        assert serializer.loads(pickle.dumps(RECORDS, protocol)) == RECORDS
    with pytest.raises(RecordError, match="generator"):
        serializer.dumps(i for i in range(3))


def test_what_lives_in_main_goes_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with PySpark's own serializer: ``__main__`` of a worker is another one."""
    main = sys.modules["__main__"]
    kind = type("Kind", (), {"__module__": "__main__"})
    monkeypatch.setattr(main, "Kind", kind, raising=False)
    payload = ObjectSerializer().dumps([kind(), "a"])
    assert type(ObjectSerializer().loads(payload)[0]) is kind  # which PySpark's tracker knows
    monkeypatch.delattr(main, "Kind")
    assert type(ObjectSerializer().loads(payload)[0]).__name__ == "Kind"


def test_it_travels_and_equals_its_like() -> None:
    serializer = ObjectSerializer()
    copy = pickle.loads(pickle.dumps(serializer))
    assert copy == serializer
    assert repr(copy) == "ObjectSerializer()"
    assert copy.loads(serializer.dumps(RECORDS)) == RECORDS

"""A function as a sink: a commit that comes again finds its rows, until no checkpoint that is kept names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fastbuf_spark.streams.function import to_function
from fastbuf_spark.streams.sink import CommitFailed, SinkContext

SCHEMA = pa.schema([("v", pa.int64())])


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], SCHEMA)


def test_a_commit_again_after_a_restart(tmp_path: Path) -> None:
    calls: list[tuple[list[int], int]] = []
    sink = to_function(lambda table, number: calls.append((table["v"].to_pylist(), number)))
    context = SinkContext("job", 0, 1, SCHEMA, str(tmp_path), True)
    writer: Any = sink.writer(context)
    writer.write(batch(1, 2))
    first = writer.prepare(5)
    writer.write(batch(3))
    second = writer.prepare(6)
    writer.write(batch(4))  # of no checkpoint
    writer.commit(5, first)
    writer.close()
    sink.restore(context, [*first, *second])
    again: Any = sink.writer(SinkContext("job", 0, 2, SCHEMA, str(tmp_path), True))
    again.commit(5, first)
    again.commit(6, second)
    assert [values for values, _ in calls] == [[1, 2], [1, 2], [3]]
    assert calls[0] == calls[1]  # with the same number
    assert len(list(tmp_path.iterdir())) == 2
    again.forget([*first, *second])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CommitFailed, match="2 rows of a complete checkpoint are at risk"):
        again.commit(5, first)
    again.close()

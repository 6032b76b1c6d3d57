"""The driver's memory as a sink."""

from __future__ import annotations

import secrets
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: install fastbuf[spark]")

from fastbuf_spark.streams.memory import MemorySink
from fastbuf_spark.streams.sink import SinkContext


def test_rows_that_wait_have_the_columns_of_the_program_that_wrote_them(tmp_path: Path) -> None:
    """What they have not is null in the table of a program with one column more."""
    narrow = pa.schema([("n", pa.int64())])
    wide = narrow.append(pa.field("m", pa.string()))
    sink = MemorySink()
    sink.check(wide, exactly_once=True)
    job, waiting = secrets.token_hex(16), []
    for generation, schema in enumerate((narrow, wide)):
        writer = sink.writer(SinkContext(job, 0, generation, schema, str(tmp_path), True))
        writer.collect = sink.collected  # type: ignore[attr-defined]
        writer.commit(1, waiting)
        writer.write(pa.RecordBatch.from_pylist([{"n": generation, "m": "x"}], schema))
        waiting = writer.prepare(1)
        if generation:
            writer.commit(2, waiting)
        writer.close()
    assert sink.table().to_pylist() == [{"n": 0, "m": None}, {"n": 1, "m": "x"}]

"""Directories named by values, as one worker writes them and the driver of another job reads them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyspark.sql import types as T

from fastbuf.errors import SchemaError
from fastbuf_spark.driver.directory_names import partition_types
from fastbuf_spark.driver.files import File
from fastbuf_spark.driver.splits import fragments
from fastbuf_spark.formats.parquet import Parquet
from fastbuf_spark.worker.writing import folder_of


def test_decimals_have_no_exponents() -> None:
    """As Spark writes them; a reader that infers types takes the others for text, or refuses them."""
    values = [Decimal("0E-10"), Decimal("0.0000001"), Decimal("-12.50"), Decimal(7)]
    names = [folder_of([("d", value)]) for value in values]
    assert names == ["d=0.0000000000/", "d=0.0000001/", "d=-12.50/", "d=7/"]
    texts = [name.removeprefix("d=").rstrip("/") for name in names]
    files = [File(name, 1, 0, (("d", text),)) for name, text in zip(names, texts, strict=True)]
    assert partition_types(files, True, {}) == {"d": T.DoubleType()}


def read(folder: Path, kind: pa.DataType) -> list[object]:
    """The values of ``t`` that a reader with this type finds."""
    paths = sorted(folder.rglob("*.parquet"))
    files = [File(str(p), 1, 0, (("t", p.parent.name.removeprefix("t=").replace("%3A", ":")),)) for p in paths]
    found = fragments(fs.LocalFileSystem(), files, Parquet(), {"t": kind})
    schema = pa.schema([("n", pa.int64()), ("t", kind)])
    tables = [ds.Scanner.from_fragment(fragment, schema=schema).to_table() for _, fragment in found]
    return list(pa.concat_tables(tables)["t"].to_pylist())


def test_instants_come_back_by_the_type_that_is_given(tmp_path: Path) -> None:
    """In the session's zone, in which they were written; a refusal names this type, and the value that is none."""
    at = dt.datetime(2020, 1, 1, 10, 0, 0, 500)
    folder = tmp_path / folder_of([("t", at)])
    folder.mkdir()
    pq.write_table(pa.table({"n": [1]}), folder / "a.parquet")
    assert read(tmp_path, pa.timestamp("us")) == [at]
    (zoned,) = read(tmp_path, pa.timestamp("us", "America/New_York"))
    assert isinstance(zoned, dt.datetime)
    assert zoned.astimezone(dt.UTC).replace(tzinfo=None) == at + dt.timedelta(hours=5)
    with pytest.raises(SchemaError, match=r"has the value '2020-01-01 10:00:00\.0005', which is no int64"):
        read(tmp_path, pa.int64())

"""Commits to Iceberg tables: by processes that are killed at every step, and statistics that hold for every row."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from killed_steps import lines_of

pytest.importorskip("pyiceberg", reason="pip install 'fastbuf[iceberg]'")
pytest.importorskip("sqlalchemy", reason="pip install 'pyiceberg[sql-sqlite]'")
pytest.importorskip("pyspark", reason="pip install 'fastbuf[spark]'")

from fastbuf_spark.driver.iceberg_files import data_file
from fastbuf_spark.worker.iceberg import text_of, value_of


@pytest.mark.parametrize(
    ("mode", "old", "new"),
    [
        ("append", [1, 2], [1, 2, 3]),
        pytest.param("overwrite", [1, 2], [3], marks=pytest.mark.nightly),
        pytest.param("create", [], [3], marks=pytest.mark.nightly),
    ],
)
def test_a_commit_that_is_killed(tmp_path: Path, mode: str, old: list[int], new: list[int]) -> None:
    """Is seen whole or not at all, whichever of its files was the last one; the next one is as ever."""
    seen = lines_of("iceberg_killed.py", str(tmp_path), mode)
    assert all(later == [*rows, 4] for rows, later in seen)
    first = [rows for rows, _ in seen].index(new)
    assert [rows for rows, _ in seen] == [old] * first + [new] * (len(seen) - first)
    assert first >= 5, "before and behind its files"
    assert len(seen) - first == 2, "behind the transaction, and not at all"


def test_bounds_hold_for_every_row(tmp_path: Path) -> None:
    """A row group without bounds has values all the same; years that Python does not have."""
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.schema import assign_fresh_schema_ids
    from pyiceberg.table.metadata import new_table_metadata
    from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

    table = pa.table({
        "long": ["a", "x" * 9000],
        "nan": [1.0, float("nan")],
        "null": pa.array([3, None]),
        "day": pa.array([0, 2**30], pa.int32()).cast(pa.date32()),
        "t": pa.array([dt.datetime(2020, 1, 1), None], pa.timestamp("us")),
        "x": [2, 1],
    })  # fmt: skip
    schema = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(table.schema))
    metadata = new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, str(tmp_path))
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=1)
    row = SimpleNamespace(attempt="1", path="f.parquet", bytes=1)
    file = data_file(metadata, str(tmp_path), row, pq.read_metadata(tmp_path / "f.parquet"))
    ids = {field.name: field.field_id for field in schema.fields}
    assert {name for name, number in ids.items() if number in file.lower_bounds} == {"null", "t", "x"}
    assert set(file.upper_bounds) == set(file.lower_bounds)
    assert file.null_value_counts[ids["null"]] == 1
    assert file.record_count == 2


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "string"),
        ("", "string"),
        ("null", "string"),
        ("'null", "string"),
        ("a/b%=é", "string"),
        (b"", "binary"),
        (b"\0\xff", "binary"),
        (-3, "int"),
        (2**62, "long"),
        (True, "boolean"),
        (False, "boolean"),
        (1e-7, "double"),
        (float("inf"), "float"),
    ],
)
def test_values_of_partitions(value: Any, kind: str) -> None:
    assert value_of(text_of(value), kind) == value

"""What a filter rules out by bounds: never a row that it keeps, NaN included, and as much as Arrow can tell."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fastbuf_spark.expressions import MOST_FLOATS, Skipping, used
from fastbuf_spark.formats.parquet import Parquet
from fastbuf_spark.worker.reading import Piece, Read

NAN = float("nan")
X, Y, N = pc.field("x"), pc.field("y"), pc.field("n")
TABLE = pa.table({"x": [5.0, 6.0, NAN, 1.0, 1.0, 2.0], "y": [1.0, None, 3.0, NAN, NAN, 4.0], "n": range(6)})


def groups(folder: Path, filter: Any, table: pa.Table = TABLE, rows: int = 3) -> list[int]:
    """The row groups that may have rows which match."""
    pq.write_table(table, folder / "a.parquet", row_group_size=rows)
    fragment = Parquet().fragment(str(folder / "a.parquet"), pa.fs.LocalFileSystem())
    parts = Parquet().split(fragment, 0, table.schema, Skipping(filter, table.schema))
    return [part.row_groups[0].id for part, _, _ in parts]


@pytest.mark.parametrize(
    ("filter", "kept"),
    [
        (X > 3, [0]),
        (~(X > 3), [0, 1]),
        (~(X > 3) & (N > 4), [1]),
        (X.is_valid() & (N > 4), [1]),
        ((X != 5) & (N < 3), [0]),
        ((X > 9) | (N == 1), [0]),
        (X.isin([NAN]) & (N < 3), [0]),
        (~(Y > 9) & ~(X > 9) & (N > 9), []),
        (X.cast(pa.int32()) > 9, [0, 1]),
    ],
)
def test_row_groups_that_a_filter_leaves(tmp_path: Path, filter: Any, kept: list[int]) -> None:
    assert groups(tmp_path, filter) == kept


@pytest.mark.parametrize("seed", range(40))
def test_no_row_is_lost(tmp_path: Path, seed: int) -> None:
    """Of random rows and filters, whether the bounds are a file's or a log's."""
    rng = random.Random(seed)
    values = [None, NAN, *range(6)]
    columns = {name: [rng.choice(values) for _ in range(24)] for name in "xy"} | {
        "n": [rng.randrange(6) for _ in range(24)]
    }
    table = pa.table(columns, pa.schema({"x": pa.float64(), "y": pa.float32(), "n": pa.int64()}))

    def random_filter(depth: int) -> Any:
        if depth and rng.random() < 0.7:
            one, other = random_filter(depth - 1), random_filter(depth - 1)
            return rng.choice([one & other, one | other, ~one])
        field, value = pc.field(rng.choice("xyn")), rng.randrange(6)
        return rng.choice(
            [field > value, field <= value, field == value, field != value, field.is_null(), field.is_valid(),
             field.isin([value, 9]), field > pc.field("n")]
        )  # fmt: skip

    filter = random_filter(3)
    want = table.filter(filter)["n"].to_pylist()
    kept = [table.slice(4 * group, 4) for group in groups(tmp_path, filter, table, 4)]
    assert [n for part in kept for n in part.filter(filter)["n"].to_pylist()] == want
    for group in range(6):
        part = table.slice(4 * group, 4)
        bounds = {}
        for name in table.schema.names:
            sure = part[name].drop_null()
            sure = sure.filter(pc.invert(pc.is_nan(sure))) if pa.types.is_floating(sure.type) else sure
            if len(sure):
                field, (low, high) = pc.field(name), (pc.min(sure), pc.max(sure))
                bounds[name] = ((field >= low) | field.is_null()) & ((field <= high) | field.is_null())
        if Skipping(filter, table.schema).skips(pc.scalar(True), bounds):
            assert part.filter(filter).num_rows == 0, (filter, part.to_pylist())


def test_columns_of_a_filter() -> None:
    schema = pa.schema({"a.b": pa.int64(), "s": pa.struct({"x": pa.float64()}), "n": pa.int64()})
    assert used(pc.field("n") > 1, schema) == ["n"]
    assert used((pc.field("a.b") > 1) & pc.field("s").is_null(), schema) == ["a.b", "s"]
    assert used(pc.field("s", "x") > 1, schema) == ["s"]
    assert Skipping(pc.field("s", "x") > 1, schema).cases == []
    many = pa.schema({f"x{i}": pa.float64() for i in range(MOST_FLOATS + 1)})
    filter = pc.field("x0") > 1
    for name in many.names[1:]:
        filter = filter & (pc.field(name) > 1)
    assert Skipping(filter, many).cases == []


@pytest.mark.parametrize("name", ["x", "X"])
def test_a_file_that_the_driver_has_not_split(tmp_path: Path, name: str) -> None:
    """The task leaves row groups out then, but by a filter whose names are not those of the file."""
    pq.write_table(TABLE.rename_columns([name, "y", "n"]), tmp_path / "a.parquet", row_group_size=3)
    format = Parquet()
    fragment = format.fragment(str(tmp_path / "a.parquet"), pa.fs.LocalFileSystem())
    shown = pa.schema({"n": pa.int64()})
    files = pa.schema({"x": pa.float64(), "n": pa.int64()})
    for filter, rows in ((X > 3, [0, 1]), (~(X > 3), [2, 3, 4, 5]), (X > 9, [])):
        read = Read((), files, shown, filter, any_case=True)
        made = pa.Table.from_batches(read.rows_of(Piece(format, fragment, 0, 0)), shown)
        assert made["n"].to_pylist() == rows, filter

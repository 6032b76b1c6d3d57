"""Small results of functions of pandas, converted together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="the binding converts with PySpark")

from pyspark.sql.types import ArrayType, DecimalType, LongType, MapType, StructType

from fastbuf_spark.schema import arrow_schema
from fastbuf_spark.worker.pandas_verbs import PandasRules, Results

pytestmark = pytest.mark.filterwarnings("ignore:The copy keyword is deprecated")


def results(schema: StructType | None = None) -> Results:
    schema = schema or StructType().add("n", "long").add("s", "string")
    return Results(PandasRules(schema, arrow_schema(schema, "UTC"), True, "UTC", True, False, False, False), print)


def columns(made: Results, frames: Iterator[pd.DataFrame]) -> dict[str, list[object]]:
    tables = [table for frame in frames for table in made.add(frame)]
    return pa.concat_tables([*tables, *made.rest()]).to_pydict()


@pytest.mark.parametrize("frame", [7, pd.DataFrame({"z": [1]}), pd.DataFrame({"n": ["a"], "s": ["b"]})])
def test_sparks_own_error_has_a_note_which_function_it_is_of(frame: Any) -> None:
    with pytest.raises(Exception, match=r"pandas.DataFrame|Missing: n, s|the column 'n'") as error:
        columns(results(), iter([frame]))
    assert error.value.__notes__ == ["the function 'print' gave this"]


def test_small_results_with_texts_are_converted_together() -> None:
    made = results()
    for i in range(10):
        assert not made.add(pd.DataFrame({"n": [i], "s": [f"s{i}"]}))
    (table,) = made.rest()
    assert table.to_pydict() == {"n": list(range(10)), "s": [f"s{i}" for i in range(10)]}


@pytest.mark.parametrize("rows", [2, 5_000])
def test_texts_in_several_chunks(rows: int) -> None:
    """As ``pandas.concat`` gives them; the function's frame stays as it is."""
    half = pd.DataFrame({"n": range(rows), "s": [f"s{i}" for i in range(rows)]})
    frame = pd.concat([half, half], ignore_index=True)
    array = frame["s"].array
    assert columns(results(), iter([frame])) == {"n": [*range(rows)] * 2, "s": half["s"].tolist() * 2}
    assert frame["s"].array is array or getattr(frame["s"].array, "_pa_array", 0) is getattr(array, "_pa_array", 1)


def in_place() -> Iterator[pd.DataFrame]:
    frame = pd.DataFrame({"n": [0, 7], "s": ["a", "b"]})
    for i in range(3):
        yield frame
        frame.loc[0, "n"] += 1
        frame.loc[0, "s"] = f"c{i}"


def behind() -> Iterator[pd.DataFrame]:
    numbers = np.array([[0, 7]])
    frame = pd.DataFrame(numbers.T, columns=["n"], copy=False).assign(s=["a", "b"])
    for i in range(3):
        yield frame
        numbers[0, 0] += 1
        frame["s"] = [f"c{i}", "b"]


@pytest.mark.parametrize("frames", [in_place, behind])
def test_a_function_may_write_on_to_its_frame(frames: Callable[[], Iterator[pd.DataFrame]]) -> None:
    want = {"n": [0, 7, 1, 7, 2, 7], "s": ["a", "b", "c0", "b", "c1", "b"]}
    assert columns(results(), frames()) == want


@pytest.mark.parametrize("cell", [[0, 7], np.array([0, 7]), {0: 0, 1: 7}])
def test_a_function_may_write_on_to_what_is_in_a_cell(cell: Any) -> None:
    """A copy of the frame has the same list, and so had all frames that were kept."""

    def frames() -> Iterator[pd.DataFrame]:
        for i in range(3):
            cell[0] = i
            yield pd.DataFrame({"c": [cell]})

    kind = MapType(LongType(), LongType()) if isinstance(cell, dict) else ArrayType(LongType())
    made = columns(results(StructType().add("c", kind)), frames())["c"]
    assert made == [[(0, i), (1, 7)] if isinstance(cell, dict) else [i, 7] for i in range(3)]


def test_what_cannot_change_is_converted_together() -> None:
    made = results(StructType().add("c", "binary").add("d", DecimalType(10, 2)))
    for i in range(10):
        assert not made.add(pd.DataFrame({"c": [b"x", None], "d": [Decimal(i), None]}))
    (table,) = made.rest()
    assert table.num_rows == 20
    assert len(list(made.add(pd.DataFrame({"c": [bytearray(b"x")], "d": [Decimal(1)]})))) == 1


def test_small_slices_do_not_keep_their_frames() -> None:
    """The first rows of many frames, of numbers and of texts."""
    before, most = pa.total_allocated_bytes(), 0

    def frames() -> Iterator[pd.DataFrame]:
        nonlocal most
        texts = pa.array(["x" * 1000])
        for i in range(100):
            copied = pa.concat_arrays([texts] * (1 << 10))
            frame = pd.DataFrame({"n": i, "s": pd.Series(copied, dtype=pd.ArrowDtype(pa.string()))})
            del copied
            yield frame.iloc[:1]
            del frame
            most = max(most, pa.total_allocated_bytes() - before)

    assert columns(results(), frames()) == {"n": list(range(100)), "s": ["x" * 1000] * 100}
    assert most < 48 << 20

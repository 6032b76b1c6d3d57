"""What a user's function may give, and how errors name it."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, LongType, MapType, StructField, StructType

pytest.importorskip("pyspark", reason="the binding is PySpark's")

from fastbuf.errors import SchemaMismatch
from fastbuf_spark.results import Checked, about
from fastbuf_spark.schema import cast, conform, required, without_nulls
from fastbuf_spark.worker.chains import Link
from fastbuf_spark.worker.pandas_verbs import PandasRules
from fastbuf_spark.worker.steps import PandasMap
from fastbuf_spark.worker.verbs import ArrowVerb

SCHEMA = pa.schema([("k", pa.int64())])
BATCH = pa.record_batch({"k": [1]})
FRAME = pd.DataFrame({"k": [1]})
ARROW = "it must give an iterator of pyarrow.RecordBatch"


def gives(made: Any) -> Callable[..., Any]:
    def function(batches: Iterator[Any]) -> Any:
        return made

    return function


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, "gave None"),
        (3, "gave a int"),
        (FRAME, "gave a pandas.DataFrame"),
        (pa.table({"k": [1]}), "gave a pyarrow.Table"),
        (BATCH, "gave a pyarrow.RecordBatch"),
        ([FRAME], "gave an iterator with a pandas.DataFrame"),
        (iter([BATCH, None]), "gave an iterator with None"),
        (iter([[1]]), "gave an iterator with a list"),
    ],
)
def test_what_is_no_iterator_of_batches(made: Any, said: str) -> None:
    func = gives(made)
    for called in (Checked(func), Link(func, SCHEMA)):
        with pytest.raises(SchemaMismatch) as error:
            list(called(iter([])))
        assert str(error.value) == f"[UDF_RETURN_TYPE] {about(func)} {said}: {ARROW}"
        if isinstance(made, Iterator):
            break  # it is used up


def columns(text: str) -> StructType:
    """A schema from its text, without a session of Spark."""
    made = StructType()
    for field in text.split(", "):
        name, kind, *rest = field.split()
        made.add(name, kind, nullable=not rest)
    return made


def test_a_batch_with_too_few_columns() -> None:
    func = gives([BATCH])
    with pytest.raises(SchemaMismatch) as error:
        list(Checked(func, columns("k long, n long"))(iter([])))
    said = f"{about(func)} gave columns ['k']; its schema has ['k', 'n']"
    assert str(error.value) == f"[RESULT_COLUMN_SCHEMA_MISMATCH] {said}"


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("k string, n string", "gave column 'k' as int64; its schema has string"),
        ("k integer, n string", "gave column 'k' as int64; its schema has int"),
        ("n string, k long", r"gave column 'n' as int64; .* it gave \['k', 'n'\], and the schema has \['n', 'k'\]"),
        ("k long, n string not null", "gave nulls in column 'n', which its schema says has none"),
        ("k long, n double", ""),  # it has nulls alone
        ("k timestamp, n string", ""),  # Spark reads microseconds
    ],
)
def test_a_column_of_another_type(schema: str, said: str) -> None:
    """Spark's own error has the name of a method of its own, and neither function nor column."""
    batch = pa.record_batch({"k": [1], "n": pa.array([None], pa.string())})
    checked = Checked(gives([batch.slice(0, 0), batch, batch]), columns(schema))
    if said:
        with pytest.raises(SchemaMismatch, match=said):
            list(checked(iter([])))
    else:
        assert list(checked(iter([]))) == [batch.slice(0, 0), batch, batch]


def nested(kind: str) -> tuple[pa.Array, Any, pa.DataType, str]:
    """Values with a null inside, Spark's type that has none there, the same of Arrow's, and the path to the null."""
    long, whole = pa.int64(), pa.field("x", pa.int64(), False)
    if kind == "struct":
        within = StructType([StructField("x", LongType(), False)])
        return pa.array([{"x": 1}, {"x": None}], pa.struct([("x", long)])), within, pa.struct([whole]), "v.x"
    if kind == "list":
        return (
            pa.array([[1], [2, None]]),
            ArrayType(LongType(), False),
            pa.list_(whole.with_name("element")),
            "v.element",
        )
    values = pa.array([[(1, 1)], [(2, None)]], pa.map_(long, long))
    return values, MapType(LongType(), LongType(), False), pa.map_(long, whole.with_name("value")), "v.value"


@pytest.mark.parametrize("kind", ["struct", "list", "map"])
def test_values_without_nulls_are_of_a_type_that_allows_none(kind: str) -> None:
    """pyarrow 18 casts no struct whose fields may be null to one whose fields may not, so none were given."""
    values, _, within, _ = nested(kind)
    wide = pa.list_(pa.struct([("s", values.type)]))
    column = pa.array([[{"s": each}] for each in values.slice(0, 1).to_pylist()], wide)
    narrow = pa.list_(pa.field("element", pa.struct([pa.field("s", within, False)]), False))
    for given, wanted in ((values.slice(0, 1), within), (column, narrow)):
        made = conform(pa.record_batch({"v": given}), pa.schema([("v", wanted)]), "x")
        assert made.column(0).type == wanted
        assert made.column(0).to_pylist() == given.to_pylist()
        assert cast(pa.chunked_array([given, given]), wanted).to_pylist() == given.to_pylist() * 2


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_struct_that_is_null_has_no_values(rows: int) -> None:
    """What lies below it is null in frames of polars, and was refused as a null in a column that has none."""
    inner = pa.StructArray.from_arrays([pa.array([None, 2, None])], ["x"], mask=pa.array([True, False, True]))
    outer = pa.StructArray.from_arrays([inner], ["s"], mask=pa.array([True, False, True])).slice(0, rows)
    wanted = pa.struct([pa.field("s", pa.struct([pa.field("x", pa.int32(), False)]), False)])
    for given in (outer, outer.slice(rows // 2)):
        column = conform(pa.record_batch({"v": given}), pa.schema([("v", wanted)]), "x").column(0)
        column.validate(full=True)
        assert column.type == wanted
        assert column.to_pylist() == given.to_pylist()
    some = pa.array([{"s": {"x": 1}}, {"s": {"x": None}}, None])
    with pytest.raises(SchemaMismatch, match=r"x gave column v as .*null"):
        conform(pa.record_batch({"v": some}), pa.schema([("v", wanted)]), "x")


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("kind", ["struct", "list", "map"])
def test_nulls_within_values_are_found(kind: str, chunked: bool) -> None:
    """Spark's own error, if any, names neither function nor column; in front of a shuffle nobody would look."""
    values, spark_type, arrow_type, path = nested(kind)
    batch = pa.record_batch({"v": values})
    said = re.escape(f"gave nulls in column '{path}', which its schema says has none")
    for whole in (False, True):
        given = batch.slice(0, 1) if whole else batch
        checked = Checked(gives([given]), StructType([StructField("v", spark_type)]))
        # As made by a function that has the types of its schema, which Arrow does not compare with the values
        made = pa.Table.from_batches([given]) if chunked else given
        columns = required(pa.schema([("v", arrow_type)]))
        with contextlib.nullcontext() if whole else pytest.raises(SchemaMismatch, match=said):
            list(checked(iter([])))
        with contextlib.nullcontext() if whole else pytest.raises(SchemaMismatch, match=said):
            without_nulls(made, columns, "x")
    hidden = pa.array([values[0].as_py(), None], values.type)  # what is below a null is no value
    assert without_nulls(pa.record_batch({"v": hidden}), required(pa.schema([("v", arrow_type)])), "x")


def test_nulls_of_a_batch_that_has_the_declared_schema() -> None:
    schema = pa.schema([pa.field("k", pa.int64(), False)])
    batch = pa.record_batch([pa.array([1, None])], schema=schema)
    func = gives([batch])
    with pytest.raises(SchemaMismatch) as error:
        list(Link(func, schema)(iter([])))
    assert str(error.value).startswith(f"{about(func)} gave nulls in column 'k', which its schema says has none")


def test_names_that_come_twice_are_changed_as_columns_go_by_position() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["k", "k"])
    (made,) = Checked(gives([batch]), columns("k long, n long"))(iter([]))
    assert made.to_pydict() == {"0": [1], "1": [2]}


def test_categories_and_large_lists_become_what_spark_reads() -> None:
    """What pandas and polars give: Spark said that it cannot call ``getUTF8String``."""
    batch = pa.record_batch(
        {"t": pa.array(["a", None, "a"]).dictionary_encode(), "n": pa.array([[1], None, []], pa.large_list(pa.int64()))}
    )
    (made,) = Checked(gives([batch]), columns("t string").add("n", ArrayType(LongType())))(iter([]))
    assert made.schema.types == [pa.string(), pa.list_(pa.int64())]
    assert made.to_pylist() == batch.to_pylist()
    pairs = pa.DictionaryArray.from_arrays(pa.array([0, None]), pa.array([{"a": 1}]))
    (made,) = Checked(gives([pa.record_batch({"p": pairs})]))(iter([]))
    assert made.to_pylist() == [{"p": {"a": 1}}, {"p": None}]
    counts = pa.record_batch({"t": pa.array([1]).dictionary_encode(), "n": pa.array([[1]])})
    with pytest.raises(SchemaMismatch, match="gave column 't' as int64; its schema has string"):
        list(Checked(gives([counts]), columns("t string").add("n", ArrayType(LongType())))(iter([])))


def test_a_stop_iteration_that_leaves_a_function_has_its_line() -> None:
    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        next(iter(()))

    with pytest.raises(RuntimeError, match="generator raised StopIteration") as caught:
        list(Checked(function)(iter([BATCH])))
    # Without its cause, as Spark shows it
    shown = "".join(traceback.format_exception(caught.value, chain=False))
    assert "next(iter(()))" in shown
    assert shown.count("in each") == 1


def test_batches_in_a_list_and_without_rows_are_fine() -> None:
    empty = pa.record_batch({"z": pa.array([], pa.string())})
    assert list(Link(gives([BATCH, empty]), SCHEMA)(iter([]))) == [BATCH]


@pytest.mark.parametrize(
    ("made", "said"),
    [(None, "gave None"), ([FRAME], "gave a list"), (iter([BATCH]), "gave an iterator with a pyarrow.RecordBatch")],
)
def test_what_is_no_iterator_of_frames(made: Any, said: str) -> None:
    from pyspark.sql.types import StructType

    rules = PandasRules(StructType().add("k", "long"), SCHEMA, True, "UTC", True, False, False, False, Iterator)
    with pytest.raises(SchemaMismatch, match=f"{said}: it must give an iterator of pandas.DataFrame"):
        list(PandasMap(gives(made), rules)(iter([])))


@pytest.mark.parametrize(("made", "said"), [(None, "gave None"), ([BATCH], "gave a list")])
def test_what_is_no_iterator_of_a_groups_batches(made: Any, said: str) -> None:
    class Group:
        def batches(self) -> Iterator[pa.RecordBatch]:
            return iter([BATCH])

    call = ArrowVerb(gives(made), False, True, SCHEMA, True).caller()
    with pytest.raises(SchemaMismatch, match=f"{said}: {ARROW}$"):
        list(call(Group()))  # type: ignore[arg-type]


def test_functions_are_named_with_the_line_of_their_definition() -> None:
    def plain(batches: Any) -> Any: ...

    @wraps(plain)
    def around(batches: Any) -> Any: ...

    class Called:
        def __call__(self, batches: Any) -> Any: ...

        def method(self, batches: Any) -> Any: ...

    line = plain.__code__.co_firstlineno
    for func in (plain, around, partial(plain, 1), Checked(plain), Checked(partial(around))):  # type: ignore[arg-type]
        assert about(func) == f"the function 'plain' ({__file__}:{line})"
    assert about(Called()) == f"the function 'Called' ({__file__}:{line + 6})"
    assert about(Called().method) == f"the function 'method' ({__file__}:{line + 8})"
    assert about(len) == "the function 'len'"

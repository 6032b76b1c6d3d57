"""What the functions for DataFrames are given by mistake, and the schemas that batches are held against."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fastbuf_spark.driver.staged import Renamed
from fastbuf_spark.worker.chains import Called, Chain

pytest.importorskip("pyspark", reason="the binding is PySpark's")

from fastbuf.errors import ConfigError, RecordTooLong, SchemaMismatch
from fastbuf.event_time.aggregates import wide
from fastbuf_spark.codec import BatchCodec
from fastbuf_spark.driver import checks
from fastbuf_spark.driver.checks import (
    check_conf,
    check_dataframe,
    check_function,
    check_mode,
    partition_count,
    remedy,
)
from fastbuf_spark.driver.cluster import either
from fastbuf_spark.results import Checked
from fastbuf_spark.schema import conform, within_precision
from fastbuf_spark.worker.aggregates import Aggregation
from fastbuf_spark.worker.blocks import Staging


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        ("pandas.core.frame", "DataFrame", r"a pandas.core.frame.DataFrame, .* spark.createDataFrame\(df\)"),
        ("pandas", "DataFrame", r"spark.createDataFrame\(df\)"),
        ("polars.dataframe.frame", "DataFrame", r"spark.createDataFrame\(df.to_arrow\(\)\)"),
        ("polars.lazyframe.frame", "LazyFrame", r"df.collect\(\).to_arrow\(\)"),
        ("pyspark.pandas.frame", "DataFrame", r"df.to_spark\(\)"),
        ("pyspark.core.rdd", "RDD", "fastbuf_spark.partition_by"),
        ("pyspark.sql.group", "GroupedData", "give a pyspark.sql.DataFrame"),
        ("elsewhere", "Mine", "elsewhere.Mine: give a pyspark.sql.DataFrame"),
    ],
)
def test_what_is_no_dataframe_of_sparks(module: str, name: str, words: str) -> None:
    kind = type(name, (), {"__module__": module})
    with pytest.raises(ConfigError, match=words):
        check_dataframe(kind())
    with pytest.raises(ConfigError, match=r"df is a users\.Derived"):
        check_dataframe(type("Derived", (kind,), {"__module__": "users"})())


def test_numbers_of_partitions() -> None:
    for given in (8, np.int8(8), np.uint64(8)):
        assert partition_count(given) == 8
        assert type(partition_count(given)) is int
    assert partition_count(2**30) == 2**30
    for wrong in (True, np.True_, 8.0, "8", None, [8]):
        with pytest.raises(ConfigError, match="never guessed; it stands before the keys"):
            partition_count(wrong)
    for wrong in (0, -8, 2**30 + 1, 2**31, 2**80):
        with pytest.raises(ConfigError, match=rf"num_partitions is {wrong}: .*1073741824 \(2\*\*30\) at most"):
            partition_count(wrong)


def test_functions_modes_and_settings() -> None:
    check_function("func", iter)
    with pytest.raises(ConfigError, match=r"before is \[1\] \(list\): give a function"):
        check_function("before", [1])
    for wrong in (None, 3, ["auto"], "Auto"):
        with pytest.raises(ConfigError, match="it must be one of auto, blocking"):
            check_mode(wrong, ("auto", "blocking"))
    check_conf(None)
    for wrong, words in [({}, "conf is a dict"), ("64m", "conf is a str"), (3, "conf is a int")]:
        with pytest.raises(ConfigError, match=words):
            check_conf(wrong)


TWICE = pa.schema([("k", pa.int64()), ("k", pa.string())])


def test_batches_are_held_against_a_schema_by_position() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1], pa.int32()), pa.array(["a"])], names=["k", "k"])
    assert conform(batch, TWICE, "x").schema.equals(TWICE)
    once = pa.schema([("k", pa.int64()), ("v", pa.string())])
    for names in (["K", "V"], ["v", "k"], ["some", "other"]):
        made = conform(batch.rename_columns(names), once, "x")
        assert made.schema.equals(once)
        assert made.to_pylist() == [{"k": 1, "v": "a"}]
    with pytest.raises(SchemaMismatch, match="x gave columns"):
        conform(batch.select([0]), TWICE, "x")
    with pytest.raises(SchemaMismatch, match="x gave column k as string; its schema has int64"):
        conform(batch.select([1, 0]), once, "x")
    # Texts that read as numbers were cast, and each column got the other's values
    digits = pa.record_batch({"v": ["7"], "k": [1]})
    for texts in (digits, digits.set_column(0, "v", digits["v"].dictionary_encode())):
        with pytest.raises(SchemaMismatch, match=r"by position: it gave \['v', 'k'\], not \['k', 'v'\]"):
            conform(texts, once, "x")
    assert conform(digits.rename_columns(["k", "v"]), once, "x").to_pylist() == [{"k": 7, "v": "1"}]


def two(first: str, second: str, number: pa.DataType) -> pa.DataType:
    return pa.struct([(first, number), (second, pa.string())])


@pytest.mark.parametrize(
    ("of", "values"),
    [
        (lambda kind: kind, [(1, "a"), None, (None, None)]),
        (lambda kind: pa.list_(kind), [[(1, "a")], [], None, [None]]),
        (lambda kind: pa.list_(kind, 2), [[(1, "a"), (2, "b")], None, [None, (3, None)]]),
        (lambda kind: pa.large_list(kind), [[(1, "a")], [], None]),
        (lambda kind: pa.map_(pa.string(), kind), [[("a", (1, "a"))], None, []]),
        (lambda kind: pa.struct([("inner", kind)]), [((1, "a"),), (None,), None]),
    ],
)
def test_so_are_the_fields_within_columns(of: Callable[[pa.DataType], pa.DataType], values: list[Any]) -> None:
    """Arrow's own cast looks them up by name: these became null."""
    given, wanted = of(two("q", "r", pa.int32())), of(two("p", "o", pa.int64()))
    schema = pa.schema([("k", wanted)])
    column = pa.array([*values, *values], given).slice(1, len(values))
    made = conform(pa.record_batch([column], names=["k"]), schema, "x")
    assert made.schema.equals(schema)
    assert made.column(0).to_pylist() == pa.array([*values[1:], values[0]], wanted).to_pylist()


def test_fields_that_are_missing_are_no_nulls() -> None:
    schema = pa.schema([("k", pa.struct([("a", pa.int64()), ("b", pa.int64())]))])
    batch = pa.record_batch([pa.array([{"a": 1}])], names=["k"])
    with pytest.raises(SchemaMismatch, match="1 fields instead of 2"):
        conform(batch, schema, "x")


def test_sums_of_decimals_are_wide_enough_in_any_decimal_context() -> None:
    """A user's function may have left one with few digits, or one that raises."""
    column = pa.chunked_array([pa.array([Decimal("-" + "4" * 38), Decimal(1)])])
    with decimal.localcontext(prec=1) as context:
        context.traps[decimal.Inexact] = True
        assert wide(column).type == pa.decimal128(38, 0)
        assert wide(pa.chunked_array([*column.chunks, *column.chunks])).type == pa.decimal256(76, 0)


def test_sums_of_decimals_are_of_one_type_whatever_they_come_to() -> None:
    """Partial results meet in one table, and the sums of pyarrow 18 had the column's type, which was too short."""
    plan = Aggregation(1, ("sum",))
    for column in ([Decimal("99.99")] * 100, [Decimal("0.01")], [None]):
        batch = pa.record_batch({"k": [7] * len(column), "v": pa.array(column, pa.decimal128(4, 2))})
        (sums,) = plan.first(batch).column("v0").chunks
        assert wide(pa.chunked_array([batch["v"]])).type == sums.type == pa.decimal128(38, 2)
        sums.validate(full=True)
        assert sums.to_pylist() == [sum(column) if column[0] else None]


NOON = pa.array([dt.datetime(2020, 1, 1, 12)])


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.array([1e300]), pa.float32()),  # infinite
        (pa.array([1.239]), pa.decimal128(10, 2)),  # 1.24
        (pa.array([Decimal("0.1234567890123456789")]), pa.float64()),
        (pa.array([0.5]), pa.bool_()),  # true
        (pa.array([7]), pa.timestamp("us", "UTC")),  # 1970
        (NOON, pa.date32()),  # without the time
        (NOON.cast(pa.date32()), pa.timestamp("us", "UTC")),
        (pa.array([0.1]).dictionary_encode(), pa.float32()),
        (NOON, pa.string()),  # in UTC, whatever the session's zone
        (NOON.cast(pa.timestamp("us", "UTC")), pa.large_string()),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_cast_that_may_alter_values_is_refused(given: pa.Array, wanted: pa.DataType, nested: bool) -> None:
    """Arrow calls these safe."""
    if nested:
        given, wanted = pa.StructArray.from_arrays([given], ["x"]), pa.struct([("x", wanted)])
        given, wanted = pa.ListArray.from_arrays([0, 1], given), pa.list_(wanted)
    with pytest.raises(SchemaMismatch, match="a cast may alter values"):
        conform(pa.record_batch([given], names=["k"]), pa.schema([("k", wanted)]), "x")


VIEWS = [
    (pa.list_view(pa.int64()), [[1, 2], None, [3], []]),
    (pa.large_list_view(pa.int64()), [[1, 2], None, [3], []]),
    (pa.list_view(pa.list_view(pa.int64())), [[[1]], None, [], [[2, 3], None]]),
    (pa.list_view(pa.struct([("x", pa.list_view(pa.int32()))])), [[{"x": [1]}], [{"x": None}, None], []]),
    (pa.struct([("x", pa.list_view(pa.int64()))]), [{"x": [1, 2]}, None, {"x": []}]),
]


def lists_of(kind: pa.DataType) -> pa.DataType:
    """A type with lists for list views, and other names of fields."""
    if pa.types.is_struct(kind):
        return pa.struct([("y", lists_of(kind.field(0).type))])
    return pa.list_(pa.field("element", lists_of(kind.value_type))) if kind.num_fields else pa.int64()


@pytest.mark.parametrize(("kind", "values"), VIEWS, ids=lambda value: str(value)[:30])
def test_list_views_are_read(kind: pa.DataType, values: list[Any]) -> None:
    """Spark reads them; Arrow's own cast gives other values, in silence."""
    given = pa.array([*values, *values], kind)
    for column in (given, given.slice(1, len(values))):
        made = conform(pa.record_batch({"v": column}), pa.schema([("v", lists_of(kind))]), "x")
        made.validate(full=True)
        assert repr(made["v"].to_pylist()) == repr(column.to_pylist()).replace("'x'", "'y'")


def test_list_views_that_are_not_read_are_refused() -> None:
    column = pa.array([[[1]]], pa.list_(pa.list_view(pa.int64())))
    with pytest.raises(SchemaMismatch, match=r"x gave column v as list.*list views are not read within lists"):
        conform(pa.record_batch({"v": column}), pa.schema([("v", pa.list_(pa.list_(pa.int64())))]), "x")


@pytest.mark.parametrize(
    "of",
    [
        lambda numbers: numbers,
        lambda numbers: pa.StructArray.from_arrays([numbers, numbers], ["a", "b"]),
        lambda numbers: pa.ListArray.from_arrays([0, 1, 3], numbers),
        lambda numbers: pa.MapArray.from_arrays([0, 1, 3], pa.array(["x", "y", "z"]), numbers),
        lambda numbers: pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 3], numbers)], ["a"]),
        lambda numbers: pa.ListArray.from_arrays([0, 2, 3], numbers).slice(1),
        lambda numbers: pa.MapArray.from_arrays([0, 2, 3], pa.array(["x", "y", "z"]), numbers).slice(1),
    ],
)
def test_a_decimal_has_no_more_digits_than_its_type(of: Callable[[pa.Array], pa.Array]) -> None:
    """Arrow lets it be made; Parquet would keep another number."""
    wide = pa.array([None, Decimal("-99999999.99"), Decimal("12345678901234567890.12")], pa.decimal128(30, 2))
    schema = pa.schema([("n", pa.int64()), ("v", of(wide.cast(pa.decimal128(10, 2), safe=False)).type)])
    for numbers, fits in ((wide, False), (wide.slice(1), False), (pa.array([None, 1, 0], wide.type), True)):
        column = of(
            pa.concat_arrays([pa.nulls(3 - len(numbers), wide.type), numbers]).cast(pa.decimal128(10, 2), safe=False)
        )
        batch = pa.record_batch([pa.array(range(len(column))), column], schema=schema)
        if fits:
            assert within_precision(batch, "x") is batch
        else:
            with pytest.raises(SchemaMismatch, match=r"x gave 12345678901234567890.12 in column v.* ends at 10 digits"):
                within_precision(batch, "x")


def test_what_spark_knows_by_its_metadata_is_put_back() -> None:
    """Variants and geometries: what travels has no metadata."""

    def variant(metadata: dict[bytes, bytes] | None) -> pa.DataType:
        fields = [pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False, metadata)]
        return pa.list_(pa.struct([("v", pa.struct(fields))]))

    values = [[{"v": {"value": b"1", "metadata": b"2"}}, None], None]
    wanted = pa.schema([("k", variant({b"variant": b"true"}))])
    made = conform(pa.record_batch([pa.array(values, variant(None))], names=["k"]), wanted, "x")
    assert made.schema.equals(wanted, check_metadata=True)
    assert made.column(0).type.equals(wanted.field(0).type, check_metadata=True)
    assert made.to_pylist() == [{"k": value} for value in values]


def test_columns_that_are_keys_alone_are_not_shown() -> None:
    wire = pa.schema([("c0", pa.int64()), ("c1", pa.string()), ("c2", pa.int32())])
    codec = BatchCodec(wire, (2,), shown=TWICE)
    batch = pa.record_batch([pa.array([1]), pa.array(["a"]), pa.array([7], pa.int32())], schema=wire)
    (seen,) = codec.opened(next(codec.items(iter([batch]))))
    assert seen.schema.equals(TWICE)
    assert codec.bare() == pa.schema([("c0", pa.int64()), ("c1", pa.string())])


def test_the_function_before_gets_and_gives_the_names_it_should() -> None:
    def before(batches: Any) -> Any:
        for batch in batches:
            assert batch.schema.names == ["a.b", "a.b"]
            yield batch.slice(0, 0).select([0])  # nobody looks at the schema of no rows
            yield batch.rename_columns(["k", "k"])
            yield [1]

    wire = pa.schema([("c0", pa.int64()), ("c1", pa.string())])
    chain = Chain((Renamed(["a.b", "a.b"]), Checked(before)))
    codec = BatchCodec(wire, (0,), Called(chain).chained, TWICE)
    batch = pa.record_batch([pa.array([1]), pa.array(["a"])], names=["x", "y"])
    items = codec.items(iter([batch]))
    assert next(items).schema.equals(wire)
    with pytest.raises(
        SchemaMismatch, match=r"the function 'before' \(.*test_arguments.py:\d+\) gave an iterator with a list"
    ):
        next(items)


def test_a_record_that_is_too_long_for_a_block() -> None:
    batch = pa.record_batch({"k": [1, 2], "s": ["x", "x" * 50_000]})
    blocks: list[tuple[int, int]] = []
    sink = SimpleNamespace(write=lambda partition, block: blocks.append((partition, len(block))))
    codec = BatchCodec(batch.schema, (0,))
    staging = Staging(codec, 2, sink, 1 << 20, 40_000)  # type: ignore[arg-type]
    with pytest.raises(RecordTooLong, match=r"of 500\d\d bytes is longer than max_record_bytes \(40000\).*maxRecord"):
        staging.add(batch)
    small = pa.record_batch({"k": [1], "s": ["x" * 5000]})
    with pytest.raises(RecordTooLong, match=r"longer than max_record_bytes \(4096\)"):
        Staging(codec, 2, sink, 1 << 20, 4096).add(small)  # type: ignore[arg-type]


def test_staging_buffers_of_few_rows_are_small_and_grow_before_a_block_is_cut() -> None:
    batch = pa.record_batch({"k": list(range(1000)), "s": ["x" * 100] * 1000})
    blocks: list[int] = []
    sink = SimpleNamespace(write=lambda partition, block: blocks.append(len(block)))
    staging = Staging(BatchCodec(batch.schema, (0,)), 64, sink, 64 << 20, 40_000)  # type: ignore[arg-type]
    staging.add(batch)
    assert staging._buffers.nbytes <= 1 << 20
    for _ in range(99):
        staging.add(batch)
    assert min(blocks) > 39_000  # and not of 16 KiB, as the buffers were at first
    staging.close()
    assert staging.totals.sum() == staging.records == 100_000
    assert sum(blocks) > 100_000 * 108


@pytest.mark.parametrize(
    ("master", "cpus", "want"),
    [
        ("local[4]", "1", "local[3]"),
        ("local[4]", "2", "local[6] (a task takes 2: spark.task.cpus)"),
        ("local-cluster[2,2,1024]", "2", "local-cluster with 6 cores in all (a task takes 2: spark.task.cpus)"),
        ("yarn", "4", "executors with 12 cores in all (a task takes 4: spark.task.cpus)"),
        ("local[4]", "3", ""),  # nine tasks of Python at once on two cores
        ("local-cluster[2,2,1024]", "3", ""),
        ("local[*]", "2", "local[6] (a task takes 2: spark.task.cpus)"),
    ],
)
def test_slots_are_told_as_the_cores_that_they_take(
    master: str, cpus: str, want: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two cores to a task, local[3] would have one slot, fewer than local[4] has."""
    monkeypatch.setattr(checks, "machine_cores", lambda: 2)
    assert remedy(SimpleNamespace(master=master, _conf={"spark.task.cpus": cpus}), 3) == want


def test_ways_out_are_listed_without_those_that_are_none() -> None:
    assert either("local[5]", "num_partitions=3", "mode='blocking'") == "local[5], num_partitions=3, or mode='blocking'"
    assert either("", "num_partitions=3", "mode='blocking'") == "num_partitions=3 or mode='blocking'"
    assert either("", "", "mode='blocking'") == "mode='blocking'"

"""Groups as pandas frames, beside Spark's own ``applyInPandas``: the same frames, keys, results and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from conftest import failure
from nights import nightly
from test_groups import KEYS, frame, listed, same

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, SchemaError
from fastbuf_spark.pyspark_private import no_converters

pytestmark = pytest.mark.spark
MODES = ["blocking", "pipelined"]
COLUMNS = {
    "b": "if(id % 11 = 0, null, id % 2 = 0)",
    "i": "if(id % 5 = 0, null, cast(id as int))",
    "x": "id * 0.5D",
    "s": "if(id % 6 = 0, null, concat('user-', id))",
    "d": "date_add(date'2024-01-01', cast(id as int))",
    "t": "timestamp_micros(id * 86400123456)",
    "m": "cast(id * 1.25 as decimal(20, 2))",
    "a": "if(id % 3 = 0, null, array(id, null))",
    "st": "named_struct('x', id, 'y', array('z'))",
    "y": "cast(cast(id as string) as binary)",
}


def everything(spark: Any) -> Any:
    return spark.range(0, 80, 1, 2).selectExpr("id % 7 as k", *(f"{made} as {name}" for name, made in COLUMNS.items()))


def seen(key: Any, pdf: pd.DataFrame) -> pd.DataFrame:
    """All that a function can see of its frame."""
    words = [f"{key!r} {type(key[0]).__name__}", repr(pdf.index), pdf.dtypes.to_string()]
    # Spark's rows of a group come in any order
    words.append(str(sorted(repr([(type(value).__name__, value) for value in row]) for row in pdf.to_numpy(object))))
    return pd.DataFrame({"k": [str(words)], "n": [len(pdf)]})


@nightly(mode="blocking")
@pytest.mark.parametrize("mode", MODES)
def test_frames_are_sparks(spark: Any, mode: str) -> None:
    """Types, values and index of every column, null or not."""
    df = everything(spark)
    some = df.select("k", "x", "s", "t", "m")  # converted together with the rows of other groups
    for of in (df, some, df.drop("i", "b", "a", "st")):
        made = fbs.group_by(of, "k", num_partitions=2, mode=mode).apply_in_pandas(seen, "k string, n long")
        assert same(made, of.groupBy("k").applyInPandas(seen, "k string, n long")) == 7


@pytest.mark.parametrize("kind", ["int", "double", "struct", "timestamp", "boolean"])
def test_keys_are_sparks(spark: Any, kind: str) -> None:
    df = frame(spark, KEYS[kind])

    def keyed(key: Any, pdf: pd.DataFrame) -> pd.DataFrame:
        value = key[0] + 0.0 if kind == "double" else key[0]
        return pd.DataFrame({"k": [f"{value!r} {type(value).__name__}"], "n": [pdf["n"].sum()]})

    want = listed(df.repartition(2, "k").groupBy("k").applyInPandas(keyed, "k string, n long"))
    made = fbs.group_by(df, "k", num_partitions=2, mode="pipelined").apply_in_pandas(keyed, "k string, n long")
    assert listed(made) == want


def written(pdf: pd.DataFrame) -> pd.DataFrame:
    """Writes to its frame."""
    pdf.loc[pdf["x"] > 20, "x"] = -1.0
    pdf["x"] *= 2
    pdf["k"] += 1
    return pdf[["x", "k"]]


def streamed(pdfs: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for pdf in pdfs:
        yield pdf[["k", "x"]]


def streamed_key(key: tuple[Any, ...], pdfs: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield pd.DataFrame({"k": key, "x": [float(sum(map(len, pdfs)))]})


def unread(key: tuple[Any, ...], pdfs: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield pd.DataFrame({"k": key, "x": [0.0]})


def by_position(pdf: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame([[1, 2.5], [2, 3.5]])


def nothing(pdf: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame() if pdf["k"].iloc[0] % 2 else pd.DataFrame({"k": [], "x": []})


def of_many_types(pdf: pd.DataFrame) -> pd.DataFrame:
    """Whole numbers that no float holds beside floats, and columns in any order."""
    k = int(pdf["k"].iloc[0])
    long: Any = 2**53 + 1 if k % 2 else float(k)
    made = pd.DataFrame({"x": [k if k % 3 else k / 2], "k": [long]})
    return made if k % 2 else made[["k", "x"]]


FORMS = [written, streamed, streamed_key, unread, by_position, nothing, of_many_types]


@pytest.mark.parametrize("func", FORMS, ids=lambda func: func.__name__)
def test_every_form_of_function(spark: Any, func: Callable[..., Any]) -> None:
    df = everything(spark).select("k", "x")
    want = df.groupBy("k").applyInPandas(func, "k long, x double")
    for mode in MODES:
        made = fbs.group_by(df, "k", num_partitions=2, mode=mode).apply_in_pandas(func, "k long, x double")
        assert same(made, want) >= (0 if func is nothing else 7)


def results(pdf: pd.DataFrame) -> pd.DataFrame:
    return pdf


@nightly(mode="pipelined")
@pytest.mark.parametrize("mode", MODES)
def test_results_of_every_type_and_many_groups(spark: Any, mode: str) -> None:
    """Small results are converted together; a group of a batch's size by itself."""
    df = everything(spark)
    for of, key in ((df, "k"), (df.drop("a", "st"), "x")):
        made = fbs.group_by(of, key, num_partitions=2, mode=mode).apply_in_pandas(results, of.schema)
        assert same(made, of.groupBy(key).applyInPandas(results, of.schema)) == 80
    many = spark.range(0, 1800, 1, 2).selectExpr("if(id < 1200, -1, id) as k", "if(id % 9 = 0, null, id) as n")
    made = fbs.group_by(many, "k", num_partitions=2, mode=mode).apply_in_pandas(results, many.schema)
    assert same(made, many.groupBy("k").applyInPandas(results, many.schema)) == 1800


def wrong_names(pdf: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"k": [1], "z": [2.0]})


def wrong_type(pdf: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"k": ["a"], "x": [2.0]})


def no_frame(pdf: pd.DataFrame) -> Any:
    return 7


def fails(pdf: pd.DataFrame) -> pd.DataFrame:
    raise KeyError("of the user's own")


@pytest.mark.parametrize("func", [wrong_names, wrong_type, no_frame, fails], ids=lambda func: func.__name__)
def test_errors_are_sparks(spark: Any, func: Callable[..., Any]) -> None:
    """The same last line of the traceback, and which function it is of."""
    df = everything(spark).select("k", "x")
    said = failure(fbs.group_by(df, "k", num_partitions=2, mode="blocking").apply_in_pandas(func, df.schema).collect)
    spark_said = failure(df.groupBy("k").applyInPandas(func, df.schema).collect)
    assert error_of(said) == error_of(spark_said) != []
    if no_converters():  # Spark 4.1 calls them itself
        return
    assert func is fails or f"the function '{func.__name__}' ({__file__}:" in said


def without_all_hints(key, pdfs: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:  # type: ignore[no-untyped-def]
    yield from pdfs


def test_a_generator_whose_hints_do_not_say_so(spark: Any) -> None:
    """Spark says what it is, and not what lacks."""
    made = fbs.group_by(spark.range(3), "id", num_partitions=1).apply_in_pandas(without_all_hints, "id long")
    said = failure(made.collect)
    if why := no_converters():
        pytest.skip(why)  # Spark 4.1 calls them itself, and says less
    assert "'without_all_hints' (" in said
    assert "all parameters, the key too, and the result have hints then" in said


def error_of(said: str) -> list[str]:
    return [line for line in said.splitlines() if "Error: " in line and "File" not in line][:1]


def test_sparks_settings_are_read(spark: Any) -> None:
    """Columns by position, safe casts, and types of whole numbers that know null."""
    df = everything(spark).select("k", "i", "x")
    settings = {
        "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": "false",
        "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": "true",
        "spark.sql.session.timeZone": "America/New_York",
    }

    def positions(key: Any, pdf: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"z": [repr(key)], "k": [f"{pdf.dtypes.to_string()}"]})

    def halves(pdf: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"k": pdf["x"]})

    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        for of in (df, everything(spark).select("k", "t")):
            made = fbs.group_by(of, "k", num_partitions=2).apply_in_pandas(positions, "k string, d string")
            assert same(made, of.groupBy("k").applyInPandas(positions, "k string, d string")) == 7
        spark.conf.set("spark.sql.execution.pandas.convertToArrowArraySafely", "false")
        made = fbs.group_by(df, "k", num_partitions=2).apply_in_pandas(halves, "k long")
        assert same(made, df.groupBy("k").applyInPandas(halves, "k long")) == 80
        spark.conf.set("spark.sql.execution.pandas.convertToArrowArraySafely", "true")
        made = fbs.group_by(df, "k", num_partitions=2).apply_in_pandas(halves, "k long")
        assert "Failed to convert the value of the column 'k'" in failure(made.collect)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        for name in [*list(settings)[:2], "spark.sql.execution.pandas.convertToArrowArraySafely"]:
            spark.conf.unset(name)


def test_a_spark_without_the_converters(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own applyInPandas serves then; pipelined says why it cannot."""
    assert no_converters() == ""
    monkeypatch.setattr("fastbuf_spark.api.functions.no_converters", lambda: "this Spark has no converters")
    df = everything(spark).select("k", "x")
    made = fbs.group_by(df, "k", num_partitions=2, sort_by="x").apply_in_pandas(results, df.schema)
    assert same(made, df) == 80
    with pytest.raises(SchemaError, match="mode='pipelined' cannot run: this Spark has no converters"):
        fbs.group_by(df, "k", num_partitions=2, mode="pipelined").apply_in_pandas(results, df.schema)
    with pytest.raises(ConfigError, match="functions of pandas cannot run: this Spark has no converters; use map_in_a"):
        fbs.pipeline(df).map_in_pandas(lambda frames: frames, df.schema)

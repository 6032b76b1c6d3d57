"""Spark's logs of its Python workers name the functions of users, as they do where Spark itself calls them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import fastbuf_spark as fbs

pytestmark = pytest.mark.spark
BATCHES = {("a batch", "Logs", "logs_batches"), ("printed", "Logs", "logs_batches")}


def told(spark: Any, name: str, df: Callable[[Any], Any]) -> set[tuple[str, ...]]:
    """Message and context (names of a class and a function) of what this logger logged for the frame."""
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        df(spark.range(0, 8, 1, 2)).collect()
        logs = spark.tvf.python_worker_logs().where(f"logger = '{name}' or msg = '{name}'")
        return {(row.msg.replace(name, "printed"), *sorted(row.context.values())) for row in logs.collect()}
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")


def mapped(name: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    class Logs:
        def logs_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                said(name)
                print(name)
                yield batch

    return Logs().logs_batches


def said(name: str) -> None:
    logging.getLogger(name).warning("a batch")


def groups(name: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def logs_groups(rows: pd.DataFrame) -> pd.DataFrame:
        logging.getLogger(name).warning("a group")
        return rows

    return logs_groups


@pytest.mark.parametrize("mode", ["pipelined", "blocking"])
def test_batches(spark: Any, mode: str) -> None:
    ours, theirs = f"our {mode}", f"their {mode}"

    def shuffled(df: Any) -> Any:
        return fbs.map_in_arrow(df, mapped(ours), "id long", keys="id", num_partitions=2, mode=mode)

    assert told(spark, ours, shuffled) == BATCHES
    assert told(spark, theirs, lambda df: df.mapInArrow(mapped(theirs), "id long")) == BATCHES


@pytest.mark.parametrize("mode", ["pipelined", "blocking"])
def test_groups_and_what_stands_before_them(spark: Any, mode: str) -> None:
    ours, theirs = f"our groups, {mode}", f"their groups, {mode}"

    def both(df: Any) -> Any:
        keyed = fbs.group_by(df, "id", num_partitions=2, mode=mode, before=mapped(ours), before_schema="id long")
        return keyed.apply_in_pandas(groups(ours), "id long")

    of_groups = {("a group", "logs_groups")}
    assert told(spark, ours, both) == BATCHES | of_groups
    assert told(spark, theirs, lambda df: df.groupBy("id").applyInPandas(groups(theirs), "id long")) == of_groups

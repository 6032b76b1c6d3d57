"""PySpark's own tests, with Spark's verbs replaced by fastbuf's: ``pyspark_suites.py MODE RESULT [MODULE ...]``.

They are in the wheel (``pyspark/python/lib/pyspark.zip``), and run from a copy of the installed package that
:func:`unpacked` makes; nothing of them is kept.  MODE is ``spark`` for Spark's own verbs, or fastbuf's mode.  For each
test RESULT gets a line of JSON: its name, and what it failed with, or ``""``; tests that PySpark skips are left out.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import shutil
import sys
import unittest
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

MODULES = {
    **{
        f"pyspark.sql.tests.{kind}.test_{kind}_{verb}": ""
        for kind in ("arrow", "pandas")
        for verb in ("map", "grouped_map", "cogrouped_map", "cogrouped_map_misc")
    },
    "pyspark.tests.test_join": "",
    # Those of pairs
    "pyspark.tests.test_rdd": (
        "by_key ByKey group_jobs closure union_pair null_in overwritten stopiteration distinct repartition_no "
        "multiple_python"
    ),
}
SLOW = ("batch_slicing",)  #: batches of 4 KiB of wide rows: minutes of Spark's own
PARTITIONS = 2
MASTER = "local[5]"  # two exchanges of two partitions and a producer at the same time
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.python.daemon.module": "warm_daemon",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
}


def unpacked(place: Path) -> Path:
    """A copy of the installed PySpark with its tests, to be put on PYTHONPATH, and as SPARK_HOME below it."""
    import pyspark

    installed, copy = Path(pyspark.__path__[0]), place / "pyspark"
    copy.mkdir(parents=True)
    for entry in installed.iterdir():
        if entry.name in ("jars", "bin", "sbin", "data", "python"):  # large, or run as they are
            (copy / entry.name).symlink_to(entry)
        elif entry.is_dir():
            shutil.copytree(entry, copy / entry.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(entry, copy)
    with zipfile.ZipFile(installed / "python" / "lib" / "pyspark.zip") as archive:
        archive.extractall(place)
    return copy


def from_fastbuf() -> bool:
    """Whether a verb is called by fastbuf itself, which is built on Spark's own."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("fastbuf_spark"):
            return True
        frame = frame.f_back
    return False


def replace(home: type, name: str, ours: Callable[..., Any]) -> None:
    """Have a method of Spark's be ours, whoever calls it but fastbuf."""
    theirs = getattr(home, name)

    @functools.wraps(theirs)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (theirs if from_fastbuf() else ours)(self, *args, **kwargs)

    setattr(home, name, method)


def replace_frames(mode: str) -> None:
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.group import GroupedData
    from pyspark.sql.pandas.group_ops import PandasCogroupedOps

    import fastbuf_spark as fbs

    def arrow(df: Any, func: Any, schema: Any, barrier: bool = False, profile: Any = None) -> Any:
        return fbs.map_in_arrow(
            df, func, schema, keys=(), num_partitions=PARTITIONS, mode=mode, **asked(barrier, profile)
        )

    def pandas(df: Any, func: Any, schema: Any, barrier: bool = False, profile: Any = None) -> Any:
        moved = fbs.pipeline(df).rebalance(PARTITIONS, mode=mode)
        return moved.map_in_pandas(func, schema, **asked(barrier, profile)).to_df()

    def asked(barrier: bool, profile: Any) -> dict[str, Any]:
        given = {"barrier": barrier, "profile": profile}
        return {name: value for name, value in given.items() if value}

    theirs = DataFrame.groupBy

    def group_by(df: Any, *cols: Any) -> Any:
        made = theirs(df, *cols)
        made.given = df, cols[0] if len(cols) == 1 and isinstance(cols[0], list) else cols
        return made

    def groups(data: Any) -> Any:
        df, cols = data.given
        return fbs.group_by(df, *cols, num_partitions=PARTITIONS, mode=mode)

    def both(pair: Any) -> Any:
        return groups(pair._gd1).cogroup(groups(pair._gd2))

    replace(DataFrame, "mapInArrow", arrow)
    replace(DataFrame, "mapInPandas", pandas)
    DataFrame.groupBy = DataFrame.groupby = group_by
    replace(GroupedData, "applyInArrow", lambda data, func, schema: groups(data).apply_in_arrow(func, schema))
    replace(GroupedData, "applyInPandas", lambda data, func, schema: groups(data).apply_in_pandas(func, schema))
    replace(PandasCogroupedOps, "applyInArrow", lambda pair, func, schema: both(pair).apply_in_arrow(func, schema))
    replace(PandasCogroupedOps, "applyInPandas", lambda pair, func, schema: both(pair).apply_in_pandas(func, schema))


def replace_pairs(mode: str) -> None:
    from pyspark.core.rdd import RDD

    import fastbuf_spark as fbs

    def verb(name: str, ours: Callable[..., Any], inputs: int, **more: Any) -> None:
        """A verb that takes so many RDDs or functions, then a number of partitions and a function of keys."""

        def call(rdd: Any, *args: Any, **kwargs: Any) -> Any:
            given, (count, by, *_) = args[:inputs], (*args[inputs:], None, None)
            named = {"partition_func": kwargs.pop("partitionFunc", by)}
            count = kwargs.pop("numPartitions", count) or rdd._defaultReducePartitions()
            return ours(rdd, *given, *kwargs.values(), num_partitions=count, mode=mode, **named, **more)

        replace(RDD, name, call)

    verb("partitionBy", fbs.partition_by, 0)
    verb("groupByKey", fbs.group_by_key, 0)
    verb("reduceByKey", fbs.reduce_by_key, 1)
    verb("combineByKey", fbs.combine_by_key, 3)
    verb("cogroup", fbs.co_group, 1)
    for name, how in (
        ("join", "inner"),
        ("leftOuterJoin", "left"),
        ("rightOuterJoin", "right"),
        ("fullOuterJoin", "outer"),
    ):
        verb(name, fbs.join, 1, how=how)


def tests_of(suite: Any) -> Iterator[unittest.TestCase]:
    for part in suite:
        if isinstance(part, unittest.TestCase):
            yield part
        else:
            yield from tests_of(part)


class InAnyOrder(unittest.TestCase):
    """What a test compares: rows behind a shuffle have no order of their own."""

    theirs = unittest.TestCase.assertEqual

    def assertEqual(self, first: Any, second: Any, msg: Any = None) -> None:
        from pyspark.sql import Row

        if all(isinstance(side, list) and all(isinstance(row, Row) for row in side) for side in (first, second)):
            first, second = sorted(first, key=repr), sorted(second, key=repr)
        InAnyOrder.theirs(self, first, second, msg)


class Outcomes(unittest.TestResult):
    """Writes a line of JSON for each test: its name, and what it failed with; of several parts, the first of them."""

    def __init__(self, lines: TextIO) -> None:
        super().__init__()
        self._lines = lines
        self._why: str | None = None

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self._why = ""

    def stopTest(self, test: Any) -> None:
        super().stopTest(test)
        if self._why is not None:
            print(json.dumps([test.id().removeprefix("pyspark."), self._why]), file=self._lines, flush=True)

    def _failed(self, test: Any, error: Any) -> None:
        self._why = self._why or f"{error[0].__name__}: {error[1]}"

    addError = addFailure = _failed

    def addSubTest(self, test: Any, subtest: Any, error: Any) -> None:
        if error is not None:
            self._failed(test, error)

    def addSkip(self, test: Any, reason: str) -> None:
        self._why = None


def main(mode: str, result: str, *modules: str) -> None:
    from pyspark import SparkConf
    from pyspark.testing.utils import ReusedPySparkTestCase

    ReusedPySparkTestCase.master = classmethod(lambda cls: MASTER)
    ReusedPySparkTestCase.conf = classmethod(lambda cls: SparkConf().setAll(CONF.items()))
    if mode != "spark":
        replace_frames(mode)
        replace_pairs(mode)
        unittest.TestCase.assertEqual = InAnyOrder.assertEqual
    suite = unittest.TestSuite()
    for name, words in MODULES.items():
        if modules and name.rpartition(".")[2] not in modules:
            continue
        loader = unittest.TestLoader()
        loader.testNamePatterns = [f"*{word}*" for word in words.split()] or None
        suite.addTests(loader.loadTestsFromModule(importlib.import_module(name)))
    for test in tests_of(suite):
        if test.id().endswith(SLOW):
            setattr(test, test._testMethodName, functools.partial(test.skipTest, "slow"))
    with open(result, "w") as lines:
        suite.run(Outcomes(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)

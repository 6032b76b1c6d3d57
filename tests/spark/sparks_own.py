"""Runs PySpark's own tests, which are in its wheel, with Spark's verbs replaced by ours.

    python sparks_own.py MODULE MODE OUT

``MODULE``: as ``pyspark.sql.tests.arrow.test_arrow_map``; ``MODE``: "spark" (nothing is replaced), "blocking" or
"pipelined".  ``OUT`` gets a JSON object: for each test "passed", "skipped", or the last line of its error.
"""

from __future__ import annotations

import json
import sys
import tempfile
import unittest
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

PARTITIONS = 2


class Groups:
    """What ``groupBy`` gives: Spark's own, but for the verbs that we have."""

    def __init__(self, df: Any, keys: tuple[Any, ...], mode: str) -> None:
        import fastbuf_spark as fbs

        self._spark = type(df)._sparks_group_by(df, *keys)
        self._df, self._keys = df, keys
        flat = [key for one in keys for key in (one if isinstance(one, (list, tuple)) else (one,))]
        self._ours = lambda: fbs.group_by(df, *flat, num_partitions=PARTITIONS, mode=mode)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def applyInArrow(self, func: Any, schema: Any) -> Any:
        return self._ours().apply_in_arrow(func, schema) if self._keys else self._spark.applyInArrow(func, schema)

    def applyInPandas(self, func: Any, schema: Any) -> Any:
        return self._ours().apply_in_pandas(func, schema) if self._keys else self._spark.applyInPandas(func, schema)

    def cogroup(self, other: Any) -> Any:
        if not (self._keys and isinstance(other, Groups) and other._keys):
            return self._spark.cogroup(other._spark if isinstance(other, Groups) else other)
        return Cogroups(self._ours().cogroup(other._ours()))


class Cogroups:
    def __init__(self, ours: Any) -> None:
        self._ours = ours

    def applyInArrow(self, func: Any, schema: Any) -> Any:
        return self._ours.apply_in_arrow(func, schema)

    def applyInPandas(self, func: Any, schema: Any) -> Any:
        return self._ours.apply_in_pandas(func, schema)


def put(owner: type, name: str, verb: Callable[..., Any]) -> None:
    """Our verb in the place of Spark's, for all but ourselves and Spark."""
    sparks = getattr(owner, name)

    def either(self: Any, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals["__name__"]
        theirs = caller.startswith(("fastbuf", "pyspark.")) and ".tests." not in caller
        return (sparks if theirs else verb)(self, *args, **kwargs)

    setattr(owner, name, either)


def replace(mode: str) -> None:
    """From now on frames and RDDs have our verbs."""
    from pyspark import RDD
    from pyspark.sql.classic.dataframe import DataFrame

    import fastbuf_spark as fbs

    def moved(df: Any) -> Any:
        return fbs.pipeline(df).rebalance(partitions=1, mode=mode)

    def map_in_arrow(self: Any, func: Any, schema: Any, barrier: bool = False, profile: Any = None) -> Any:
        return moved(self).map_in_arrow(func, schema, barrier=barrier, profile=profile).to_df()

    def map_in_pandas(self: Any, func: Any, schema: Any, barrier: bool = False, profile: Any = None) -> Any:
        return moved(self).map_in_pandas(func, schema, barrier=barrier, profile=profile).to_df()

    DataFrame._sparks_group_by = DataFrame.groupBy
    put(DataFrame, "mapInArrow", map_in_arrow)
    put(DataFrame, "mapInPandas", map_in_pandas)
    for name in ("groupBy", "groupby"):
        put(DataFrame, name, lambda self, *keys: Groups(self, keys, mode))

    def partitions(rdd: Any, number: Any) -> int:
        return number or rdd._defaultReducePartitions()

    verbs: dict[str, Callable[..., Any]] = {
        "reduceByKey": lambda rdd, func, n=None: fbs.reduce_by_key(rdd, func, partitions(rdd, n), mode=mode),
        "groupByKey": lambda rdd, n=None: fbs.group_by_key(rdd, partitions(rdd, n), mode=mode),
        "join": lambda rdd, other, n=None: fbs.join(rdd, other, partitions(rdd, n), mode=mode),
        "leftOuterJoin": lambda rdd, o, n=None: fbs.join(rdd, o, partitions(rdd, n), how="left", mode=mode),
        "rightOuterJoin": lambda rdd, o, n=None: fbs.join(rdd, o, partitions(rdd, n), how="right", mode=mode),
        "fullOuterJoin": lambda rdd, o, n=None: fbs.join(rdd, o, partitions(rdd, n), how="full", mode=mode),
        "cogroup": lambda rdd, other, n=None: fbs.co_group(rdd, other, partitions(rdd, n), mode=mode),
    }
    for name, verb in verbs.items():
        put(RDD, name, verb)


def run(module: str, mode: str) -> dict[str, str]:
    """What each test of a module came to."""
    import pyspark
    import pyspark.sql

    here = tempfile.mkdtemp()
    with zipfile.ZipFile(Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip") as archive:
        archive.extractall(here, [name for name in archive.namelist() if "/tests/" in name])
    pyspark.__path__.append(f"{here}/pyspark")
    pyspark.sql.__path__.append(f"{here}/pyspark/sql")
    tests = import_module(module)
    if mode != "spark":
        replace(mode)
    suite = unittest.TestLoader().loadTestsFromModule(tests)
    result = unittest.TextTestRunner(stream=sys.stderr, verbosity=2).run(suite)
    every: dict[str, str] = {}
    for test in result.successes if hasattr(result, "successes") else ():
        every[test.id().rpartition(".")[2]] = "passed"
    for test, _ in result.skipped:
        every[test.id().rpartition(".")[2]] = "skipped"
    for test, text in (*result.failures, *result.errors):
        case = getattr(test, "test_case", test)
        lines = [line for line in text.strip().splitlines() if line and not line.startswith(" ")]
        every[case.id().rpartition(".")[2]] = lines[-1][:200]
    return every


class Result(unittest.TextTestResult):
    """Keeps what passed, too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.successes: list[unittest.TestCase] = []

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.successes.append(test)


if __name__ == "__main__":
    unittest.TextTestRunner.resultclass = Result
    Path(sys.argv[3]).write_text(json.dumps(run(*sys.argv[1:3]), indent=1, sort_keys=True))

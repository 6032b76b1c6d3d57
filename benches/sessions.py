"""The Spark sessions of benches."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def session(name: str, memory: str = "3g", master: str = "local[4]", **settings: str) -> Iterator[Any]:
    """A quiet session on this machine, whose workers can import the functions of the benches' files.

    Parameters
    ----------
    settings
        More settings of Spark, ``_`` for ``.`` in their names: ``spark_sql_shuffle_partitions="2"``.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    was, here = os.environ.get("PYTHONPATH"), str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, was]))
    builder = SparkSession.builder.master(master).appName(f"fastbuf bench {name}")
    for key, value in settings.items():
        builder = builder.config(key.replace("_", "."), value)
    made = (
        builder.config("spark.driver.memory", memory)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    try:
        yield made
    finally:
        made.stop()
        os.environ["PYTHONPATH"] = was or ""

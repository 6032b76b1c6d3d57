"""Shuffles between the Python stages of a PySpark job, through fastbuf.

>>> import fastbuf_spark as fbs
>>> result = fbs.map_in_arrow(df, func, schema, keys=["user_id"], num_partitions=8)   # doctest: +SKIP

Importing this starts nothing and imports neither pyspark nor pyarrow; each name brings what it needs when it is
first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastbuf_spark.api.cogroups import Cogrouped
    from fastbuf_spark.api.dataframe import map_in_arrow, repartition
    from fastbuf_spark.api.groups import Grouped, group_by
    from fastbuf_spark.api.progress import ProgressBar
    from fastbuf_spark.api.rdds import partition_by
    from fastbuf_spark.conf import ShuffleConf
    from fastbuf_spark.driver.checks import Preflight, preflight
    from fastbuf_spark.driver.exchanges import last_run, progress
    from fastbuf_spark.driver.page import ui
    from fastbuf_spark.driver.summary import RunSummary
    from fastbuf_spark.schema import schema_of, struct_type_of
    from fastbuf_spark.serializer import ObjectSerializer
    from fastbuf_spark.worker.stage import ShuffleStage

__all__ = [
    "Cogrouped",
    "Grouped",
    "ObjectSerializer",
    "Preflight",
    "ProgressBar",
    "RunSummary",
    "ShuffleConf",
    "ShuffleStage",
    "group_by",
    "last_run",
    "map_in_arrow",
    "partition_by",
    "preflight",
    "progress",
    "repartition",
    "schema_of",
    "struct_type_of",
    "ui",
]

_HOMES = {
    "Cogrouped": "api.cogroups",
    "Grouped": "api.groups",
    "ObjectSerializer": "serializer",
    "Preflight": "driver.checks",
    "ProgressBar": "api.progress",
    "RunSummary": "driver.summary",
    "ShuffleConf": "conf",
    "ShuffleStage": "worker.stage",
    "group_by": "api.groups",
    "last_run": "driver.exchanges",
    "map_in_arrow": "api.dataframe",
    "partition_by": "api.rdds",
    "preflight": "driver.checks",
    "progress": "driver.exchanges",
    "repartition": "api.dataframe",
    "schema_of": "schema",
    "struct_type_of": "schema",
    "ui": "driver.page",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__

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
    from fastbuf_spark.api.dataframe import group_by, map_in_arrow, repartition
    from fastbuf_spark.api.groups import Grouped
    from fastbuf_spark.api.iceberg import read_iceberg, write_iceberg
    from fastbuf_spark.api.pipelines import Pipeline, PipelineCogroups, PipelineGroups, pipeline
    from fastbuf_spark.api.progress import ProgressBar
    from fastbuf_spark.api.rdds import (
        co_group,
        combine_by_key,
        group_by_key,
        group_with,
        join,
        partition_by,
        reduce_by_key,
    )
    from fastbuf_spark.api.sinks import Written, write_ipc, write_parquet
    from fastbuf_spark.api.sources import (
        read_avro,
        read_csv,
        read_delta,
        read_ipc,
        read_json,
        read_orc,
        read_parquet,
        scan,
    )
    from fastbuf_spark.api.tables import write_delta
    from fastbuf_spark.conf import ShuffleConf
    from fastbuf_spark.driver.checks import preflight
    from fastbuf_spark.driver.cluster import Cluster, Preflight
    from fastbuf_spark.driver.estimate import Estimate, Rates, estimate
    from fastbuf_spark.driver.exchanges import last_run, progress
    from fastbuf_spark.driver.page import ui
    from fastbuf_spark.driver.summary import RunSummary
    from fastbuf_spark.schema import schema_of, struct_type_of
    from fastbuf_spark.serializer import ObjectSerializer
    from fastbuf_spark.streams.delta import to_delta
    from fastbuf_spark.streams.entry import stream, stream_files, stream_kafka, stream_rate
    from fastbuf_spark.streams.function import to_function
    from fastbuf_spark.streams.groups import StreamGroups
    from fastbuf_spark.streams.kafka_sink import to_kafka
    from fastbuf_spark.streams.memory import to_memory
    from fastbuf_spark.streams.parquet import to_parquet
    from fastbuf_spark.streams.postgres import to_postgres
    from fastbuf_spark.streams.query import StreamFailed, StreamingQuery
    from fastbuf_spark.streams.sink import to
    from fastbuf_spark.streams.state_files import read_state
    from fastbuf_spark.streams.stream import Stream
    from fastbuf_spark.streams.stream_windows import StreamWindows
    from fastbuf_spark.worker.stage import ShuffleStage

__all__ = [
    "Cluster",
    "Cogrouped",
    "Estimate",
    "Grouped",
    "ObjectSerializer",
    "Pipeline",
    "PipelineCogroups",
    "PipelineGroups",
    "Preflight",
    "ProgressBar",
    "Rates",
    "RunSummary",
    "ShuffleConf",
    "ShuffleStage",
    "Stream",
    "StreamFailed",
    "StreamGroups",
    "StreamWindows",
    "StreamingQuery",
    "Written",
    "co_group",
    "combine_by_key",
    "estimate",
    "group_by",
    "group_by_key",
    "group_with",
    "join",
    "last_run",
    "map_in_arrow",
    "partition_by",
    "pipeline",
    "preflight",
    "progress",
    "read_avro",
    "read_csv",
    "read_delta",
    "read_iceberg",
    "read_ipc",
    "read_json",
    "read_orc",
    "read_parquet",
    "read_state",
    "reduce_by_key",
    "repartition",
    "scan",
    "schema_of",
    "stream",
    "stream_files",
    "stream_kafka",
    "stream_rate",
    "struct_type_of",
    "to",
    "to_delta",
    "to_function",
    "to_kafka",
    "to_memory",
    "to_parquet",
    "to_postgres",
    "ui",
    "write_delta",
    "write_iceberg",
    "write_ipc",
    "write_parquet",
]

_HOMES = {
    "Cluster": "driver.cluster",
    "Cogrouped": "api.cogroups",
    "Estimate": "driver.estimate",
    "Grouped": "api.groups",
    "ObjectSerializer": "serializer",
    "Pipeline": "api.pipelines",
    "PipelineCogroups": "api.pipelines",
    "PipelineGroups": "api.pipelines",
    "Preflight": "driver.cluster",
    "ProgressBar": "api.progress",
    "Rates": "driver.estimate",
    "RunSummary": "driver.summary",
    "ShuffleConf": "conf",
    "ShuffleStage": "worker.stage",
    "Stream": "streams.stream",
    "StreamFailed": "streams.query",
    "StreamGroups": "streams.groups",
    "StreamWindows": "streams.stream_windows",
    "StreamingQuery": "streams.query",
    "read_state": "streams.state_files",
    "stream": "streams.entry",
    "stream_files": "streams.entry",
    "stream_kafka": "streams.entry",
    "stream_rate": "streams.entry",
    "to": "streams.sink",
    "to_function": "streams.function",
    "to_kafka": "streams.kafka_sink",
    "to_delta": "streams.delta",
    "to_memory": "streams.memory",
    "to_parquet": "streams.parquet",
    "to_postgres": "streams.postgres",
    "Written": "api.sinks",
    "co_group": "api.rdds",
    "combine_by_key": "api.rdds",
    "estimate": "driver.estimate",
    "group_by": "api.dataframe",
    "group_by_key": "api.rdds",
    "group_with": "api.rdds",
    "join": "api.rdds",
    "last_run": "driver.exchanges",
    "map_in_arrow": "api.dataframe",
    "partition_by": "api.rdds",
    "pipeline": "api.pipelines",
    "preflight": "driver.checks",
    "progress": "driver.exchanges",
    "read_avro": "api.sources",
    "read_csv": "api.sources",
    "read_delta": "api.sources",
    "read_iceberg": "api.iceberg",
    "read_ipc": "api.sources",
    "read_json": "api.sources",
    "read_orc": "api.sources",
    "read_parquet": "api.sources",
    "reduce_by_key": "api.rdds",
    "repartition": "api.dataframe",
    "scan": "api.sources",
    "schema_of": "schema",
    "struct_type_of": "schema",
    "ui": "driver.page",
    "write_delta": "api.tables",
    "write_iceberg": "api.iceberg",
    "write_ipc": "api.sinks",
    "write_parquet": "api.sinks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

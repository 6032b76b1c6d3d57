"""Each sink of a stream of numbers, with what a test reads its rows by."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from real_parts import committed_records

COLUMNS = ("k", "v", "n", "total", "rising")


@dataclass
class Target:
    """A sink; its rows; whether those of a key come in the order in which they were made."""

    sink: Any
    table: Callable[[], pa.Table]
    ordered: bool = True


def parquet(folder: Path, server: Any) -> Target:
    import fastbuf_spark as fbs

    return Target(fbs.to_parquet(folder / "out"), lambda: pq.read_table(folder / "out", partitioning=None), False)


def delta(folder: Path, server: Any) -> Target:
    import fastbuf_spark as fbs

    deltalake = pytest.importorskip("deltalake", reason="pip install 'fastbuf[delta]'")
    read = lambda: deltalake.DeltaTable(folder / "out").to_pyarrow_table()  # noqa: E731
    return Target(fbs.to_delta(folder / "out"), read, False)


def delta_upsert(folder: Path, server: Any) -> Target:
    import fastbuf_spark as fbs

    return Target(fbs.to_delta(folder / "out", keys="v"), delta(folder, server).table, False)


def memory(folder: Path, server: Any) -> Target:
    import fastbuf_spark as fbs

    sink = fbs.to_memory()
    return Target(sink, sink.table)


def function(folder: Path, server: Any) -> Target:
    """A function that can be called twice with the same rows: its files have the number of the batch."""
    import fastbuf_spark as fbs

    out = folder / "out"
    out.mkdir(exist_ok=True)

    def write(table: pa.Table, batch_id: int) -> None:
        # At least once there are no numbers
        name = f"{batch_id:020}" if batch_id >= 0 else f"{len(list(out.glob('*.parquet'))):020}-{secrets.token_hex(4)}"
        draft = out / f"{name}.{secrets.token_hex(4)}"
        pq.write_table(table, draft)
        os.replace(draft, out / f"{name}.parquet")

    def read() -> pa.Table:
        return pa.concat_tables([pq.read_table(path) for path in sorted(out.glob("*.parquet"))])

    return Target(fbs.to_function(write), read)


def postgres(folder: Path, server: Any) -> Target:
    import fastbuf_spark as fbs

    name = server.table("k bigint, v bigint, n bigint, total bigint, rising boolean, place bigserial")

    def rows() -> pa.Table:
        found = server.query(f"SELECT {', '.join(COLUMNS)} FROM {name} ORDER BY place")
        return pa.Table.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in found])

    return Target(fbs.to_postgres(server.dsn(), name), rows)


def kafka(folder: Path, server: Any) -> Target:
    import fastbuf_spark as fbs

    topic = server.topic(1)

    def rows() -> pa.Table:
        records = server.records(topic)
        if records and records[0].headers():  # of an attempt: exactly once
            records = committed_records(server, topic)
        return pa.Table.from_pylist([json.loads(record.value()) for record in records])

    return Target(fbs.to_kafka(server.servers, topic), rows)


SINKS: dict[str, Callable[[Path, Any], Target]] = {
    each.__name__: each for each in (parquet, delta, delta_upsert, memory, function, postgres, kafka)
}

"""A stream in small: one task that writes rising numbers to a sink, in processes that are killed.

What the runtime does around a sink, in its order: restore, commit what the checkpoint has; then write, prepare,
complete the checkpoint, commit.  A generation goes on from the last complete checkpoint, and its task has another
number.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from fastbuf_spark.streams import staged
from fastbuf_spark.streams.sink import Sink, SinkContext, StagedRows

SCHEMA = pa.schema([("n", pa.int64())])
ROWS = 40  #: of a checkpoint


def a_sink(kind: str, where: list[str]) -> Sink:
    if kind == "postgres":
        from fastbuf_spark.streams.postgres import to_postgres

        return to_postgres(*where)
    if kind == "kafka":
        from fastbuf_spark.streams.kafka import to_kafka

        return to_kafka(*where)
    from fastbuf_spark.streams.function import to_function

    return to_function(Insert(where[0]))


class Insert:
    """A user's function that can be called again: a transaction has the batch's number."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, table: pa.Table, batch_id: int) -> None:
        with closing(sqlite3.connect(self.path, timeout=30)) as database, database:
            database.execute("BEGIN IMMEDIATE")
            if database.execute("INSERT OR IGNORE INTO batches VALUES (?)", (batch_id,)).rowcount:
                database.executemany("INSERT INTO rows VALUES (?)", zip(table.column("n").to_pylist(), strict=True))
                self.within()

    def within(self) -> None:
        """In the middle of the transaction."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(kind: str, point: str, times: int) -> None:
    """Have this process killed at a point of the protocol, the `times`-th time that it comes there."""
    if kind == "kafka":
        import confluent_kafka

        from fastbuf_spark.streams.kafka_commits import Transactions as Commits
        from fastbuf_spark.streams.kafka_sink import KafkaSink

        class Dying(confluent_kafka.Producer):
            """Methods of the client's own class cannot be replaced."""

            def commit_transaction(self, *arguments: Any) -> None:
                self.flush(30)
                if point == "before the transaction's end":
                    arrive()
                super().commit_transaction(*arguments)

        confluent_kafka.Producer = Dying
        within = (KafkaSink, "produce", "after")
        before_end = (None, "", "")
    elif kind == "postgres":
        from fastbuf_spark.streams import postgres
        from fastbuf_spark.streams.postgres import PostgresRows as Commits

        within = (postgres, "copy_csv", "after")
        before_end = (Commits, "_write", "after")
    else:
        from fastbuf_spark.streams.function import Calls as Commits

        within = before_end = (Insert, "within", "after")
    arrivals = 0

    def arrive() -> None:
        nonlocal arrivals
        arrivals += 1
        if arrivals == times:
            die()

    owner, name, when = {
        "before prepare": (StagedRows, "prepare", "before"),
        "prepared": (StagedRows, "prepare", "after"),
        "complete": (Stream, "complete", "after"),
        "within the transaction": within,
        "before the transaction's end": before_end,
        "committed": (Commits, "commit", "after"),
        "files removed": (StagedRows, "remove", "after"),
        "restored": (Stream, "restored", "after"),
    }[point]
    if owner is None:
        return
    method = getattr(owner, name)

    def dying(*arguments: Any, **named: Any) -> Any:
        if when == "before":
            arrive()
        given = method(*arguments, **named)
        if when == "after":
            arrive()
        return given

    setattr(owner, name, staticmethod(dying) if name == "remove" else dying)


class Stream:
    """The checkpoints of a stream, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = folder / "rows"
        self.rows.mkdir(exist_ok=True)
        self.checkpoint, self.next, self.committables = 0, 0, []
        if self.path.exists():
            self.checkpoint, self.next, self.committables = json.loads(self.path.read_text())

    @property
    def path(self) -> Path:
        return self.folder / "checkpoint.json"

    def complete(self, checkpoint: int, following: int, committables: list[Any]) -> None:
        made = self.folder / "checkpoint.tmp"
        made.write_text(json.dumps([checkpoint, following, committables]))
        made.replace(self.path)
        self.checkpoint, self.next = checkpoint, following

    def restored(self) -> None:
        pass


def run(
    kind: str,
    where: list[str],
    folder: str,
    job: str,
    generation: int,
    checkpoints: int,
    point: str = "",
    times: int = 1,
    begins: Any = None,
) -> None:
    """A generation, to the end of the stream; says when it begins."""
    if begins is not None:
        begins.send(generation)
    staged.WAITS_S = (0.05, 0.1, 0.5, 1, 2, 5)
    if point:
        die_at(kind, point, times)
    stream = Stream(Path(folder))
    context = SinkContext(job, generation % 3, generation, SCHEMA, str(stream.rows), True)
    sink = a_sink(kind, where)
    sink.restore(context, stream.committables)
    stream.restored()
    writer = sink.writer(context)
    before = stream.committables
    writer.commit(stream.checkpoint, before)
    while stream.checkpoint < checkpoints:
        following = stream.next + ROWS
        for begin in range(stream.next, following, ROWS // 2):
            writer.write(pa.record_batch({"n": pa.array(range(begin, begin + ROWS // 2), pa.int64())}))
        made = writer.prepare(stream.checkpoint + 1)
        stream.complete(stream.checkpoint + 1, following, made)
        writer.commit(stream.checkpoint, made)
        writer.forget(before)  # no checkpoint names them any more
        before = made
    writer.close()

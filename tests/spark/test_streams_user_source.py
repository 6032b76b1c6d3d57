"""Sources of users' own whose reads wait: for a message, a lock, a server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from test_streams_ends import seen, until

import fastbuf_spark as fbs

MESSAGES = 20


class Inbox:
    """Messages in a directory, by number; a read waits for the next one as a client of a queue does."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def splits(self) -> list[str]:
        return ["first", "second"]

    def read(self, split: str, offset: int | None) -> Any:
        at = offset or 0
        while True:
            message = Path(self.folder, f"{split}-{at}")
            while not message.exists():
                time.sleep(0.01)  # what is tested: a read that waits
            at += 1
            yield pa.record_batch({"split": [split], "v": [int(message.read_text())]}), at


def put(folder: Path, split: str, numbers: range) -> None:
    for number in numbers:
        path = folder / f"{split}-{number}"
        path.with_suffix(".new").write_text(str(number))
        path.with_suffix(".new").rename(path)


def counted(sink: Any) -> dict[str, list[int]]:
    table = sink.table()
    values: dict[str, list[int]] = {"first": [], "second": []}
    for split, v in zip(table["split"].to_pylist(), table["v"].to_pylist(), strict=True):
        values[split].append(v)
    return values


def test_a_read_that_waits_holds_up_neither_checkpoints_nor_the_end(spark: Any, tmp_path: Path) -> None:
    folder, sink = tmp_path / "inbox", fbs.to_memory()
    folder.mkdir()

    def started() -> Any:
        stream = fbs.stream(spark, Inbox(folder), "split string, v long", tasks=1)
        return stream.shuffle("v", partitions=1).write_stream(sink, tmp_path / "chk", every=0.1)

    query = started()
    put(folder, "first", range(MESSAGES))  # the other split waits for its first
    until(lambda: counted(sink)["first"] == list(range(MESSAGES)), 30)
    before = seen(query)
    until(lambda: seen(query) >= before + 5, 30)
    begin = time.monotonic()
    query.stop()
    assert time.monotonic() - begin < 20
    assert query.status["restarts"] == 0
    put(folder, "second", range(MESSAGES))
    query = started()
    try:
        until(lambda: counted(sink)["second"] == list(range(MESSAGES)), 60)
    finally:
        query.stop(drain=True)
    assert query.exception() is None
    assert counted(sink) == {"first": list(range(MESSAGES)), "second": list(range(MESSAGES))}

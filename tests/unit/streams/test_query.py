"""A run of a query that cannot begin: whether the query waits for its directory, or ends."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from fastbuf.checkpoint.store import CheckpointStore
from fastbuf_spark.streams.query import StreamFailed, StreamingQuery


def stale(*args: Any, **named: Any) -> Any:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


@pytest.fixture
def query(tmp_path: Path) -> StreamingQuery:
    """A query without its thread."""
    query = StreamingQuery.__new__(StreamingQuery)
    query._store = CheckpointStore(tmp_path / "chk")
    query._gone_since = None
    return query


def test_a_stale_mount_is_waited_for(query: StreamingQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as one that is away: it may come back within GONE_S."""
    monkeypatch.setattr(os, "listdir", stale)
    monkeypatch.setattr(os, "stat", stale)
    outcome = query._execute()
    assert (outcome.kind, outcome.by_task) == ("failed", False)
    assert "Stale file handle" in outcome.reason
    assert query._gone_since is not None
    monkeypatch.setattr("fastbuf_spark.streams.query.GONE_S", 0.0)
    with pytest.raises(StreamFailed, match=r"in .*chk are gone, or cannot be read \(.*Stale file handle\)"):
        query._execute()


def test_a_full_disk_does_not_count_as_gone(query: StreamingQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it is full."""

    def full() -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(query, "_prepare", full)
    monkeypatch.setattr("fastbuf_spark.streams.query.GONE_S", 0.0)
    query._gone_since = 1.0  # it was away before
    assert "No space" in query._execute().reason
    assert query._gone_since is None


def test_the_last_look_before_a_run_may_fail(query: StreamingQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not end the query, as the looks before it do not."""
    monkeypatch.setattr(CheckpointStore, "last", stale)
    assert "Stale file handle" in query._execute().reason

"""Verbs of pipelines that streams lack: the error says what to write instead."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the binding is PySpark's")

import fastbuf_spark as fbs
from fastbuf_spark.streams.absent import OF_GROUPS, OF_STREAMS

STREAM = fbs.Stream(None, ())
GROUPS = fbs.StreamGroups(STREAM, ("k",), None)


@pytest.mark.parametrize(
    ("owner", "names"), [(STREAM, OF_STREAMS), (GROUPS, OF_GROUPS)], ids=lambda value: type(value).__name__
)
def test_what_is_lacking_is_said_with_what_to_write_instead(owner: Any, names: dict[str, str]) -> None:
    for name, instead in names.items():
        with pytest.raises(AttributeError, match=re.escape(f"no {name}: {instead}")):
            getattr(owner, name)
        for verb in re.findall(r"(?<![\w.])\.?([a-z_]+)\(|fbs\.([a-z_]+)", instead):
            assert any(hasattr(place, next(filter(None, verb))) for place in (fbs, STREAM, GROUPS)), verb


@pytest.mark.parametrize(
    ("theirs", "ours", "names"),
    [(fbs.Pipeline, fbs.Stream, OF_STREAMS), (fbs.PipelineGroups, fbs.StreamGroups, OF_GROUPS)],
    ids=["pipelines", "groups"],
)
def test_verbs_of_batches_are_there_or_said(theirs: type, ours: type, names: dict[str, str]) -> None:
    """A verb that a pipeline gets later needs its words, or its like on streams."""
    missing = {name for name in dir(theirs) if not name.startswith("_")} - set(dir(ours))
    assert missing == set(names) - {"foreachBatch", "writeStream"}  # which are Spark's
    assert not set(names) & set(dir(ours))


def test_other_names_are_as_ever() -> None:
    with pytest.raises(AttributeError, match="StreamGroups has no attribute 'widnow'"):
        _ = GROUPS.widnow  # type: ignore[attr-defined]
    assert not hasattr(STREAM, "__len__")
    assert copy.copy(GROUPS) == GROUPS

"""The reference of streams has every name that a user may call, and what `progress()` gives."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import fastbuf_spark as fbs

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "reference" / "streams.md").read_text()
NAMED = re.findall(r"^::: (\S+)$", PAGE, re.MULTILINE)


def test_each_name_of_the_page_is_there() -> None:
    for name in NAMED:
        module, _, last = name.rpartition(".")
        assert getattr(importlib.import_module(module), last).__doc__, name


def test_each_public_name_of_streams_is_on_the_page() -> None:
    public = {name for name, home in fbs._HOMES.items() if home.startswith("streams.")}
    assert {f"fastbuf_spark.{name}" for name in public} - set(NAMED) == set()

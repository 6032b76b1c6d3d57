"""Lazy rows are ordered, compared and hashed as they lie in their block: no value of theirs becomes an object."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from fastbuf.serializers import RowSerializer, Schema

LONG = 1 << 20
ROWS = RowSerializer(Schema.of(id="int64", text="string", raw="binary?", big="decimal128(38,2)"))
BLOCK = ROWS.dumps([(i // 2, "x" * LONG, b"y" * LONG, i) for i in range(4)])


def peak(work: Callable[[], Any]) -> int:
    """Bytes that were allocated at most while it ran."""
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("key", [None, "text", "raw", ("text", "raw", "id", "big")])
def test_of_a_megabyte_a_field_not_a_kilobyte_is_allocated(key: Any) -> None:
    rows = list(ROWS.view(BLOCK, key))
    for work in (
        lambda: [hash(row) for row in rows],
        lambda: [a < b or a == b for a in rows for b in rows],
        lambda: sorted(rows, reverse=True),
        lambda: {row: 1 for row in rows},
    ):
        assert peak(work) < 4096
    assert peak(lambda: rows[0].text) > LONG  # the measure sees what it looks for


def test_a_field_is_read_without_the_others() -> None:
    view = ROWS.view(BLOCK)
    assert peak(lambda: view.array("id")) < 4096
    assert peak(lambda: view.values("big")) < 4096
    assert peak(lambda: [row.id for row in view]) < 4096

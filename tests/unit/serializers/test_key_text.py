"""Keys in words."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from fastbuf.serializers.key_text import key_rows, key_text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (("LAX",), "'LAX'"),
        ((7,), "7"),
        ((None,), "null"),
        (("LAX", None, Decimal("1.50")), "('LAX', null, 1.50)"),
        ((datetime.date(2024, 2, 29),), "2024-02-29"),
        (("x" * 100,), "'" + "x" * 40 + "'…"),
        ((b"\x00\xff",), r"b'\x00\xff'"),
        (("a\nb\u202ec\x1b[31m",), r"'a\nb\u202ec\x1b[31m'"),
        (([1, 2],), "[1, 2]"),
    ],
    ids=str,
)
def test_a_key_is_one_line_that_can_be_read(values: tuple[Any, ...], text: str) -> None:
    assert key_text(values) == text
    assert key_text(values).isprintable()


class Odd:
    def __init__(self, text: str | None) -> None:
        self.text = text

    def __str__(self) -> str:
        if self.text is None:
            raise OSError("no")
        return self.text


def test_no_key_breaks_the_line_or_the_task() -> None:
    assert key_text((Odd("a\nb"),)) == r"a\nb"
    assert key_text((Odd(None),)) == "<no text: OSError>"
    assert len(key_text(tuple("y" * 60 for _ in range(9)))) <= 81
    early = pa.record_batch({"t": pa.array([-(10**18)], pa.timestamp("s"))})  # no date that Python has
    assert key_rows(early, ["t"], [0]) == []


def test_the_rows_that_are_asked_for() -> None:
    batch = pa.record_batch({"a": [1, 2, 3], "b": ["x", "y", None]})
    assert key_rows(batch, ["b", 0], [2, 0]) == [(None, 3), ("x", 1)]

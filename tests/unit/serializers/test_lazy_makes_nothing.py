"""Lazy rows are ordered, compared and hashed as they lie in their block: no value of theirs becomes an object."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from fastbuf.errors import SegmentStateError
from fastbuf.serializers import RowSerializer, Schema

LONG = 1 << 20
ROWS = RowSerializer(Schema.of(id="int64", text="string", raw="binary?", big="decimal128(38,2)"))
BLOCK = ROWS.dumps([(i // 2, "x" * LONG, b"y" * LONG, i) for i in range(4)])


def peak(work: Callable[[Any], Any], make: Callable[[], Any]) -> int:
    """Bytes that were allocated at most while it ran, on what had been made for it.

    The least of five times, each on something new: what other threads of the process allocate meanwhile counts too.
    """
    return min(_peak(work, make()) for _ in range(5))


def _peak(work: Callable[[Any], Any], given: Any) -> int:
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        work(given)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("key", [None, "text", "raw", ("text", "raw", "id", "big")])
def test_of_a_megabyte_a_field_not_a_kilobyte_is_allocated(key: Any) -> None:
    def make() -> list[Any]:
        return list(ROWS.view(BLOCK, key))

    works: tuple[Callable[[list[Any]], Any], ...] = (
        lambda rows: [hash(row) for row in rows],
        lambda rows: [a < b or a == b for a in rows for b in rows],
        lambda rows: sorted(rows, reverse=True),
        lambda rows: {row: 1 for row in rows},
    )
    for work in works:
        assert peak(work, make) < 4096
    assert peak(lambda rows: rows[0].text, make) > LONG  # the measure sees what it looks for


def test_a_field_is_read_without_the_others() -> None:
    def make() -> Any:
        return ROWS.view(BLOCK)

    assert peak(lambda view: view.array("id"), make) < 4096
    assert peak(lambda view: view.values("big"), make) < 4096
    assert peak(lambda view: [row.id for row in view], make) < 4096


def test_attributes_are_fields_but_for_the_names_of_methods() -> None:
    rows = RowSerializer(Schema.of({"a": "int64", "key": "string", "as_tuple": "float64", "b c": "bool?"}))
    view = rows.view(rows.dumps([(1, "k", 0.5, None)]))
    row = view[0]
    assert (row.a, getattr(row, "b c")) == (1, None)
    assert row.as_tuple() == row.key == (1, "k", 0.5, None)
    assert (row["key"], row["as_tuple"]) == ("k", 0.5)
    assert getattr(row, "missing", 7) == 7
    with pytest.raises(AttributeError, match=r"'a', 'key', 'as_tuple', 'b c'\) has no 'missing'"):
        _ = row.missing
    with pytest.raises(AttributeError):
        row.a = 5  # type: ignore[attr-defined]
    view.release()
    with pytest.raises(SegmentStateError, match="released"):
        _ = row.a
    assert type(row).__new__(type(row)).__class__ is type(row)  # an empty one has no fields, and does no harm

"""What users see of fastbuf's own frames in a traceback."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the binding is PySpark's")

from fastbuf_spark import tracebacks
from fastbuf_spark.pyspark_private import guarded
from fastbuf_spark.results import each
from fastbuf_spark.tracebacks import Folded, folded

OTHERS = {"u": "/home/u/job.py", "c": "fastbuf/serializers/pair_table.pyx"}


def stack(kinds: str) -> TracebackType | None:
    """A traceback of frames of these files: fastbuf's, Spark's, a user's, Cython's."""
    paths = {"f": tracebacks._OURS[1] + "x.py", "s": tracebacks._SPARK + "util.py", **OTHERS}
    scope: dict[str, Any] = {}
    for kind in reversed(kinds):
        scope = {"inner": scope.get("call")}
        exec(compile("def call(): inner()" if scope["inner"] else "def call(): 1 / 0", paths[kind], "exec"), scope)
    try:
        scope["call"]()
    except ZeroDivisionError as error:
        frames = error.__traceback__
        assert frames is not None
        return frames.tb_next
    return None


@pytest.mark.parametrize(
    ("kinds", "shown"),
    [
        ("fffu", "fu"),
        ("ssfffu", "ssfu"),  # Spark's own stay where they stand before
        ("ffsu", "fu"),
        ("ffsfsfu", "fu"),
        ("fffucufffuu", "fucufuu"),  # a function reads what another one gives
        ("fcfcu", "cu"),
        ("uu", "uu"),
        ("fff", "f"),
        ("ffss", "fss"),  # where Spark's own code raised
    ],
)
def test_a_run_of_frames_is_folded_to_its_last(kinds: str, shown: str) -> None:
    letters = {path: letter for letter, path in OTHERS.items()}

    def said(frames: TracebackType | None) -> str:
        paths = [frame.filename for frame in traceback.extract_tb(frames)]
        return "".join(letters.get(path, "s" if path.startswith(tracebacks._SPARK) else "f") for path in paths)

    whole = stack(kinds)
    assert said(whole) == kinds
    assert said(folded(whole)) == shown


def test_errors_of_a_task_have_one_frame_of_ours() -> None:
    def users(batches: Iterator[int]) -> Iterator[int]:
        yield next(batches)
        raise KeyError("of the user's own")

    def task(source: Any) -> Iterator[int]:
        yield from each(users, guarded(users)(source), int)

    items = Folded(lambda source: each(users, each(users, task(source), int), int))(iter([1, 2]))
    assert next(items) == 1
    with pytest.raises(KeyError) as caught:
        next(items)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_errors_of_a_task_have_one_frame_of_ours", "each", "task", "each", "users"]


def test_lists_of_records_are_flattened_and_errors_folded() -> None:
    def lists(source: Any) -> Iterator[list[int]]:
        yield [1, 2]
        yield from each(lists, source, list)

    assert list(Folded(lists, flat=True)([[3]])) == [1, 2, 3]
    items = Folded(lists, flat=True)(iter(range(1)))
    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(Exception, match="gave an iterator with a int"):
        next(items)


@pytest.mark.parametrize("flat", [False, True])
def test_an_error_whose_text_is_not_unicode_can_be_sent(flat: bool) -> None:
    """Spark's worker failed to encode it, said nothing, and its task never ended."""

    class Half(ValueError):
        def __str__(self) -> str:
            return "half of a pair: \ud800"

    def fails(source: Any) -> Iterator[Any]:
        yield from source
        raise Half

    with pytest.raises(RuntimeError) as raised:
        list(Folded(fails, flat)([[1]]))
    sent = "".join(traceback.format_exception(raised.value)).encode().decode()
    assert "Half: half of a pair: \\ud800" in sent
    assert "in fails" in sent


def test_a_cause_whose_text_is_not_unicode_can_be_sent_too() -> None:
    def fails(source: Any) -> Iterator[Any]:
        yield from source
        raise KeyError("outer") from ValueError("\udfff")

    with pytest.raises(RuntimeError, match="outer") as raised:
        list(Folded(fails)([1]))
    "".join(traceback.format_exception(raised.value)).encode()


def test_a_closed_function_and_other_errors_are_as_they_were() -> None:
    def fails(source: Any) -> Iterator[Any]:
        yield from source
        raise KeyError("ü ☃")

    items = Folded(fails)([1, 2])
    assert next(items) == 1
    items.close()  # type: ignore[attr-defined]
    with pytest.raises(KeyError, match="☃"):
        list(Folded(fails)([1]))

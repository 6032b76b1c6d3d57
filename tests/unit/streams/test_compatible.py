"""Which source of a stream goes on from which offsets of a checkpoint."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: install fastbuf[spark]")

from fastbuf.errors import ConfigError
from fastbuf_spark.streams.compatible import _names_of_sources as names_of_sources
from fastbuf_spark.streams.compatible import fit, operators_of, source_of
from fastbuf_spark.streams.running import RunningSpec
from fastbuf_spark.streams.spec import StreamStage
from fastbuf_spark.streams.user_source import UserSource


def files(name: str) -> dict[str, str]:
    return {"kind": "FilesSource", "name": name}


def own(name: str) -> dict[str, str]:
    return {"kind": name, "name": name}


def kept(*sources: dict[str, str], halfway: bool = True) -> dict[str, Any]:
    labels = ["source", *(f"source ({number})" for number in range(2, 9))]
    return {name: {"open": {"s": 1} if halfway else {}, "of": of} for name, of in zip(labels, sources, strict=False)}


def stages(*sources: dict[str, str]) -> dict[str, dict[str, str]]:
    return {name: entry["of"] for name, entry in kept(*sources).items()}


def test_each_has_its_place_by_its_name() -> None:
    a, b, c = files("a"), files("b"), own("c")
    before = kept(a, b)
    assert names_of_sources(stages(a, b), before) == {"source": "source", "source (2)": "source (2)"}
    assert names_of_sources(stages(b, a), before) == {"source": "source (2)", "source (2)": "source"}
    # One that is new has a place of its own, wherever it stands
    new = {"source": "source (3)", "source (2)": "source", "source (3)": "source (2)"}
    assert names_of_sources(stages(c, a, b), before) == new


def test_another_path_or_rate_is_the_same_source() -> None:
    a, b, moved = files("a"), files("b"), files("moved")
    assert names_of_sources(stages(moved), kept(a)) == {"source": "source"}
    assert names_of_sources(stages(b, moved), kept(a, b)) == {"source": "source (2)", "source (2)": "source"}
    twins = kept(own("x"), own("x"))
    assert names_of_sources(stages(own("x"), own("x")), twins) == {"source": "source", "source (2)": "source (2)"}


def test_offsets_are_not_taken_for_those_of_another_kind(caplog: pytest.LogCaptureFixture) -> None:
    a, c, d = files("a"), own("c"), own("d")
    for now, before in ((c, a), (a, c), (d, c)):
        with pytest.raises(ConfigError, match=f"amid the rows of ..{before['name']}.*has ..{now['name']}.. instead"):
            names_of_sources(stages(now), kept(before))
    ended = kept(a, halfway=False)  # history from files, then what comes
    assert names_of_sources(stages(c), ended) == {"source": "source (2)"}
    with caplog.at_level(logging.WARNING):
        assert names_of_sources(stages(a), kept(a, c)) == {"source": "source"}
    assert "does not read c any more" in caplog.text


def test_checkpoints_of_versions_without_names_go_by_places() -> None:
    assert names_of_sources(stages(files("a")), {"source": {"open": {"s": 1}, "state": None}}) == {}


def test_half_read_files_are_read_with_their_own_columns() -> None:
    """With those of another program each row was of nulls."""
    old, new = ({**files(name), "columns": f"parquet struct<{name}:bigint>"} for name in "vw")
    with pytest.raises(ConfigError, match=r"amid the rows of ..v.*has ..w.. instead"):
        names_of_sources(stages(new), kept(old))
    assert names_of_sources(stages(new), kept(old, halfway=False)) == {"source": "source"}
    moved = {**old, "name": "moved"}
    assert names_of_sources(stages(moved), kept(old)) == {"source": "source"}
    wider = {**old, "columns": "parquet struct<v:bigint,w:bigint>"}  # of the same path
    assert names_of_sources(stages(wider), kept(old)) == {"source": "source"}
    assert names_of_sources(stages(moved), kept(files("v"))) == {"source": "source"}, "a version before wrote none"


class Numbers:
    def __init__(self, name: str) -> None:
        self.name = name

    def splits(self) -> list[str]:
        return ["s"]

    def read(self, split: str, offset: Any) -> Any:
        return iter(())


LONGS = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def sums(*sources: str) -> tuple[StreamStage, ...]:
    """A union of sums, each of a source of its own."""
    spec = RunningSpec(("k",), LONGS, (("v", "sum"),), None)  # type: ignore[arg-type]
    made: list[StreamStage] = []
    for number, name in enumerate(sources):
        label = "" if number == 0 else f" ({number + 1})"
        source = UserSource(Numbers(name), LONGS)  # type: ignore[arg-type]
        made.append(StreamStage(f"source{label}", 1, LONGS, LONGS, source))
        made.append(StreamStage(f"all rows by k{label}", 1, LONGS, LONGS, None, (2 * number,), spec))
    return (*made, StreamStage("union", 1, LONGS, LONGS, None, tuple(range(1, len(made), 2))))


def checkpoint(stages: tuple[StreamStage, ...]) -> dict[str, Any]:
    operators = {name: {"pieces": {"0": {}}, **each} for name, each in operators_of(stages).items()}
    halfway = {stage.name: {"open": {"s": 1}, "of": source_of(stage.source)} for stage in stages if stage.source}
    return {"operators": operators, "sources": halfway}


def test_sides_of_a_union_that_change_places_keep_their_state() -> None:
    """Stages without a name are numbered by their places: each went on with the other's sums."""
    before = checkpoint(sums("a", "b", "c"))
    for order in ("abc", "cab", "cba", "xcab", "axbc", "cbxa"):
        stages = fit(sums(*order), before)
        now = {source_of(stages[n].source)["name"]: stages[n + 1].name for n in range(0, len(stages) - 1, 2)}
        new = {"x": "all rows by k (4)"} if "x" in order else {}
        assert now == {"a": "all rows by k", "b": "all rows by k (2)", "c": "all rows by k (3)", **new}, order
    with pytest.raises(ConfigError, match=r"state of \['all rows by k'\]"):
        fit(sums("b", "c"), before)
    older = {
        **before,
        "operators": {name: {"pieces": {}, "of": each["of"]} for name, each in before["operators"].items()},
    }
    assert [stage.name for stage in fit(sums("a", "b", "c"), older)] == [stage.name for stage in sums("a", "b", "c")]

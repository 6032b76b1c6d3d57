"""Whether a stream fits the checkpoints that it goes on from: its sources by their names, its state by what it is of.

State is Arrow's columns without a word on what they mean: a sum read as a greatest value, or a window of a minute as
one of an hour, would give wrong rows and no error.  So a checkpoint keeps a description of each operator, and a stream
with another one is refused.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf_spark.streams.user_source import UserSource

if TYPE_CHECKING:
    from fastbuf_spark.streams.source import StreamSource
    from fastbuf_spark.streams.spec import Output, StreamStage

log = logging.getLogger("fastbuf_spark")


def operator_of(stage: StreamStage) -> dict[str, Any]:
    """What the state of a stage is of, as a checkpoint keeps it."""
    description: dict[str, Any] = stage.operator.description()  # type: ignore[union-attr]
    return description


def operators_of(stages: Sequence[StreamStage]) -> dict[str, dict[str, Any]]:
    """Of each stage with state what a checkpoint keeps of it, and of which sources its rows are."""
    return {
        stage.name: {"of": operator_of(stage), "sources": _sources_before(stages, number)}
        for number, stage in enumerate(stages)
        if stage.operator is not None
    }


def source_of(source: StreamSource) -> dict[str, str]:
    """What a source's offsets are of, as a checkpoint keeps it; those of another kind mean something else."""
    kind = source.name if isinstance(source, UserSource) else type(source).__name__
    files = getattr(source, "format", None)  # one that is half read must be read as it was begun
    columns = "" if files is None else f"{files.name} {source.schema.simpleString()}"
    return {"kind": kind, "name": source.name, "columns": columns}


def sink_of(sink: Any) -> str:
    """What the rows are of that wait in front of a sink, as a checkpoint keeps it; those of users are one kind."""
    kind = type(sink)
    if not kind.__module__.startswith("fastbuf_spark."):
        return "a sink of your own"
    return str(getattr(sink, "kind", kind.__name__))


def rows_of(output: Output, checkpoint: Mapping[str, Any]) -> list[Any]:
    """What a checkpoint names for an output's sink, by checkpoint: nothing if it is for another kind of sink."""
    sinks = checkpoint.get("sinks", {})
    rows: list[Any] = checkpoint["rows"].get(output.name, [])
    return rows if sinks.get(output.name) in (None, sink_of(output.sink)) else []


def waiting_rows_of(output: Output, checkpoint: Mapping[str, Any]) -> list[Any]:
    """What of it is not known to be committed."""
    return [] if checkpoint.get("committed") else rows_of(output, checkpoint)


def committed_rows_of(output: Output, checkpoints: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """For each checkpoint, the oldest first: rows in front of a sink that the one before it names, and it does not.

    They were committed in between, and so was what a checkpoint names that says so itself.  Their files stay as long as
    a checkpoint is there that names them.
    """
    committed: list[list[Any]] = []
    before: list[Any] = []
    for checkpoint in checkpoints:
        now = [each for _, some in rows_of(output, checkpoint) for each in some]
        left = [each for each in before if each not in now]
        done = bool(checkpoint.get("committed"))
        committed.append([checkpoint["checkpoint"], left + now * done])
        before = [] if done else now
    return committed


def check_sinks(outputs: Iterable[Output], restored: Mapping[str, Any]) -> None:
    """Rows that a checkpoint has for a sink are not left to another one, or to none.

    Raises
    ------
    ConfigError
        They would be.
    """
    if restored.get("committed"):
        return
    sinks = {output.name: sink_of(output.sink) for output in outputs}
    for name, rows in restored["rows"].items():
        before, now = restored.get("sinks", {}).get(name), sinks.get(name)
        if before not in (None, now) and any(committables for _, committables in rows):
            raise ConfigError(
                f"{name} of the newest checkpoint may wait to be committed by {before}, and "
                f"{'there is no sink for them' if now is None else f'the sink is {now}'}: start the stream as it was, "
                "take a savepoint(), stop it, and begin with another directory and restore_from="
            )


def fit(stages: tuple[StreamStage, ...], restored: Mapping[str, Any]) -> tuple[StreamStage, ...]:
    """The stages, those of sources by the names that the checkpoint has for them.

    Raises
    ------
    ConfigError
        State or offsets would be lost, or be taken for something else.
    """
    sources = {stage.name: stage.source for stage in stages if stage.source is not None}
    names = _names_of_sources({name: source_of(source) for name, source in sources.items()}, restored["sources"])
    stages = _renamed(stages, names)
    stages = _renamed(stages, _names_of_operators(stages, restored["operators"]))
    _check_operators({stage.name: stage for stage in stages if stage.operator is not None}, restored["operators"])
    return stages


def _renamed(stages: tuple[StreamStage, ...], names: Mapping[str, str]) -> tuple[StreamStage, ...]:
    return tuple(dataclasses.replace(stage, name=names.get(stage.name, stage.name)) for stage in stages)


def _sources_before(stages: Sequence[StreamStage], number: int) -> list[str]:
    """Names of the sources whose rows come to a stage."""
    if stages[number].source is not None:
        return [stages[number].name]
    return sorted({name for each in stages[number].inputs for name in _sources_before(stages, each)})


def _names_of_operators(stages: Sequence[StreamStage], before: Mapping[str, Any]) -> dict[str, str]:
    """The checkpoint's name for each stage with state.

    Stages of one label are numbered by their places, which may change: each gets the name of the one that had its
    sources.  A stage with another source takes a name that is left over, and a new one gets a name of its own.
    """
    names: dict[str, str] = {}
    alike: dict[str, dict[str, list[str]]] = {}
    for name, each in operators_of(stages).items():
        alike.setdefault(_label(name), {})[name] = each["sources"]
    for label, now in alike.items():
        in_order = sorted((name for name in before if _label(name) == label), key=lambda name: (len(name), name))
        left = {name: before[name].get("sources") for name in in_order}
        if None in left.values():  # of a version that did not write them
            continue
        fits = {name: name for name, sources in now.items() if left.get(name) == sources}
        for old in fits.values():
            del left[old]
        for name, sources in now.items():
            same = [old for old, of in left.items() if of == sources]
            if name not in fits and same:
                fits[name] = same[0]
                del left[same[0]]
        rest = [name for name in now if name not in fits]
        fits.update(zip(rest, left, strict=False))
        taken = {*before, *fits.values()}
        free = (f"{label} ({number})" if number > 1 else label for number in itertools.count(1))
        fresh = (name for name in free if name not in taken)
        fits.update((name, next(fresh)) for name in rest[len(left) :])
        names.update(fits)
    return names


def _label(name: str) -> str:
    """Of a stage, without its number among those of the same one."""
    return re.sub(r" \(\d+\)$", "", name)


def _check_operators(stages: Mapping[str, StreamStage], operators: Mapping[str, Any]) -> None:
    """State of an operator that the stream does not have any more is never dropped in silence."""
    descriptions = {name: operator.get("of") for name, operator in operators.items() if operator["pieces"]}
    lost = [name for name in descriptions if name not in stages]
    if lost:
        raise ConfigError(
            f"the checkpoints have state of {lost}, and the stream's stages with state are {sorted(stages)}: give "
            "them their old names (name= of the verb), or begin with another directory"
        )
    for name, before in descriptions.items():
        now = operator_of(stages[name])
        changes = [  # a version of before wrote none
            f"{each}: {was}, now {now.get(each)}" for each, was in (before or {}).items() if was != now.get(each)
        ]
        if not changes:
            continue
        raise ConfigError(
            f"the state of {name!r} in the checkpoints would be taken for something else ({'; '.join(changes)}): leave "
            "these as they were, or begin with another directory"
        )


def _same_columns(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether a half-read split of a source that has another name now is read as it was begun."""
    return before.get("columns", now.get("columns")) == now.get("columns")  # a version of before wrote none


def _names_of_sources(now: Mapping[str, dict[str, str]], before: Mapping[str, Any]) -> dict[str, str]:
    """The checkpoint's name for each source's stage: that of the same source, wherever it stands now."""
    left = {name: entry["of"] for name, entry in before.items() if "of" in entry}
    if len(left) < len(before):  # of a version that wrote only their places
        return {}
    names: dict[str, str] = {}
    for same in (("kind", "name"), ("kind",)):  # a path or a rate may be another one
        for stage, source in now.items():
            fits = [
                name
                for name, entry in left.items()
                if all(entry[each] == source[each] for each in same)
                and ("name" in same or not before[name]["open"] or _same_columns(entry, source))
            ]
            if fits and stage not in names:
                names[stage] = stage if stage in fits else fits[0]
                del left[names[stage]]
    fresh = [stage for stage in now if stage not in names]
    halfway = [name for name in left if before[name]["open"]]
    if fresh and halfway:
        raise ConfigError(
            f"the checkpoints stand amid the rows of {[left[name]['name'] for name in halfway]}, and the stream has "
            f"{[now[stage]['name'] for stage in fresh]} instead: if a source of your own is the same under another "
            "name, give it name= its old one; else begin with another directory"
        )
    for name in halfway:
        log.warning("the stream does not read %s any more, of which not all rows were read", left[name]["name"])
    for stage in fresh:
        free = (f"source ({number})" if number > 1 else "source" for number in range(1, len(before) + len(now) + 1))
        names[stage] = next(name for name in free if name not in before and name not in names.values())
    return names

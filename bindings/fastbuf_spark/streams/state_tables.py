"""Tables of state with names that a reader understands, for the columns by which windows and joins know them.

What they are of stands in the checkpoint (``of``, an operator's description); one of a version that wrote none is given
as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastbuf.event_time.aggregates import COUNT, partial_results
from fastbuf.event_time.arrow_rows import int64s, words_of
from fastbuf.event_time.joins import MATCHED
from fastbuf.event_time.session import END, SHELL
from fastbuf.event_time.spill import LABEL
from fastbuf_spark.streams.running import TOUCHED

if TYPE_CHECKING:
    import pyarrow as pa

SIDES = ("left", "right")  #: the variables of a join
NEW_ROWS, FIRED, JOINED, TOUCHED_MS = "new_rows", "fired", "matched", "touched_ms"
_ALIGNED = re.compile(r"(Tumbling|Sliding)\(size=(\d+), slide=(\d+), offset=(-?\d+), zone=(?:None|Zone\('([^']*)'\))\)")


def is_join(of: Mapping[str, Any] | None, table: pa.Table) -> bool:
    """Whether a piece has two tables, of the left side and of the right."""
    return of["verb"] == "join" if of else {LABEL, MATCHED} <= set(table.schema.names)


def readable(of: Mapping[str, Any] | None, variable: str, table: pa.Table) -> pa.Table:
    """The table of an operator, by what it is of; those of processors have their names already."""
    verb = of["verb"] if of else ""
    if verb == "windows":
        return _of_windows(of or {}, table)
    if verb == "join":
        return _of_join(of or {}, variable, table)
    if verb == "running agg_arrow":
        names = _parts((of or {})["aggregates"])
        return _named([(names.get(name, name), table.column(name)) for name in table.schema.names])
    if TOUCHED in table.schema.names:
        return _named([(TOUCHED_MS if n == TOUCHED else n, table.column(n)) for n in table.schema.names])
    return table


def _of_windows(of: Mapping[str, Any], table: pa.Table) -> pa.Table:
    columns = []
    for at, word in enumerate(of["keys"]):
        column = table.column(f"k{at}")
        columns.append((word.removesuffix(words_of([table.schema.field(f"k{at}").with_name("")])[0]), column))
    keys = [name for name, _ in columns]
    columns += _times(of["windows"], table)
    parts = _parts(of["aggregates"])
    for name in table.schema.names[1 + len(keys) + (END in table.schema.names[:2]) :]:
        if name in (COUNT, SHELL):
            columns.append((NEW_ROWS if name == COUNT else FIRED, table.column(name)))
        elif name[:1] == "r" and name[1:] not in keys:  # rows, or the row that they have become
            columns.append((name[1:], table.column(name)))
        elif name[:1] != "r":
            columns.append((parts.get(name, name), table.column(name)))
    return _named(columns)


def _of_join(of: Mapping[str, Any], variable: str, table: pa.Table) -> pa.Table:
    keys = of[f"side {1 + SIDES.index(variable)}"]["keys"]
    others = [name[1:] for name in table.schema.names if name[:1] == "r" and name[1:] not in keys]
    columns = [(name, table.column(f"r{name}")) for name in keys]
    for windows in of["windows"]:
        columns += _times(windows, table)
    if not of["windows"] and of["how"] in (variable, "full"):  # others do not keep it up
        columns.append((JOINED, table.column(MATCHED)))
    return _named([*columns, *((name, table.column(f"r{name}")) for name in others)])


def _times(windows: str, table: pa.Table) -> list[tuple[str, Any]]:
    """When the windows of rows begin and end: instants in UTC."""
    import pyarrow as pa

    from fastbuf.event_time.windows import Sliding, Tumbling

    labels = int64s(table.column(LABEL))
    names = ["window_start", "window_end"]
    if END in table.schema.names[:2]:
        bounds = [labels, int64s(table.column(END))]
    elif match := _ALIGNED.fullmatch(windows):
        size, slide, offset = map(int, match.groups()[1:4])
        if match[1] == "Tumbling":
            aligned: Any = Tumbling(size, offset, match[5])
        else:
            aligned = Sliding(size, slide, offset, match[5])
            names = ["pane_start", "pane_end"]
        bounds = [aligned.starts(labels), aligned.starts(labels + aligned.pane)]
    else:  # one window for all
        return []
    return [(name, pa.array(at).cast(pa.timestamp("us", "UTC"))) for name, at in zip(names, bounds, strict=True)]


def _parts(aggregates: Sequence[str]) -> dict[str, str]:
    """What the columns of partial results are: ``v_sum``, and of a mean the sum and the count."""
    pairs = [(column, function) for column, _, function in (text.rpartition(" ") for text in aggregates)]
    parts = list(partial_results(pairs))
    names = {}
    for at, (source, call) in enumerate(parts):
        twice = source[:1] == "f" and (f"r{source[1:]}", call) in parts  # sums of whole numbers, and those of a mean
        names[f"p{at}"] = "_".join([*filter(None, (source[1:], call)), *(["double"] if twice else [])])
    return names


def _named(columns: Iterable[tuple[str, Any]]) -> pa.Table:
    """A table; of names that come twice the later ones end with an underscore."""
    import pyarrow as pa

    names: list[str] = []
    arrays = []
    for name, column in columns:
        while name in names:
            name += "_"
        names.append(name)
        arrays.append(column)
    return pa.table(arrays, names=names)

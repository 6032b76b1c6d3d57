"""Dates and times in a pattern of Java's (``dd/MM/yyyy``), rewritten as ISO's."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from fastbuf.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

_RUN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|.", re.DOTALL)
#: What a letter of a pattern is, by how often it is repeated; a fraction may be shorter, as in Java
_PARTS = {
    "yyyy": r"(?P<year>\d{4})",
    "MM": r"(?P<month>\d{2})",
    "M": r"(?P<month>\d{1,2})",
    "dd": r"(?P<day>\d{2})",
    "d": r"(?P<day>\d{1,2})",
    "HH": r"(?P<hour>\d{2})",
    "H": r"(?P<hour>\d{1,2})",
    "mm": r"(?P<minute>\d{2})",
    "m": r"(?P<minute>\d{1,2})",
    "ss": r"(?P<second>\d{2})",
    "s": r"(?P<second>\d{1,2})",
    "X": r"(?P<offset>Z|[+-]\d{2}(?:\d{2})?)",
    "XX": r"(?P<offset>Z|[+-]\d{4})",
    "X" * 3: r"(?P<offset>Z|[+-]\d{2}:\d{2})",
    **{"S" * n: rf"(?P<fraction>\d{{1,{n}}})" for n in range(1, 10)},
}
_NAMES = ("year", "month", "day", "hour", "minute", "second", "fraction", "offset")


@cache
def form_of(pattern: str, day: bool) -> str:
    """The regular expression of a pattern's texts, whose groups are the parts of a time.

    Raises
    ------
    ConfigError
        It has letters other than those above, a part twice, no year, month and day, or more than these if it is one of
        days.
    """
    form, names = "", []
    for run in _RUN.finditer(pattern):
        text = run[0]
        if run[1] is not None:
            form += re.escape(run[1].replace("''", "'") or "'")
        elif not run[2]:
            if text in "[]{}#'":
                raise _refusal(pattern, text)
            form += re.escape(text)
        elif text in _PARTS:
            form += _PARTS[text]
            names.append(_PARTS[text].partition("<")[2].partition(">")[0])
        else:
            raise _refusal(pattern, text)
    if len(set(names)) < len(names) or not {"year", "month", "day"} <= set(names):
        raise ConfigError(f"the pattern {pattern!r} has not year, month and day, each part once: use spark.read")
    if day and len(names) > 3:
        raise ConfigError(f"the pattern {pattern!r} of dates has a time: read a timestamp, or use spark.read")
    return f"^{form}$"


def _refusal(pattern: str, text: str) -> ConfigError:
    return ConfigError(
        f"the pattern {pattern!r} has {text!r}: those of numbers alone (yyyy, MM, M, dd, d, HH, H, mm, m, ss, s, S, up "
        "to three X, and text in quotes) are read here; use spark.read"
    )


def iso(texts: pa.Array, pattern: str, day: bool) -> pa.Array:
    """Texts of a pattern as ISO's.

    Parameters
    ----------
    day
        Without the time, as a date has none.

    Raises
    ------
    pyarrow.ArrowInvalid
        A text is not in the pattern.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = pc.extract_regex(texts, form_of(pattern, day))
    odd = texts.filter(pc.and_(parts.is_null(), texts.is_valid()))
    if len(odd):
        raise pa.ArrowInvalid(f"{odd[0].as_py()!r:.100} is not in the pattern {pattern!r}")
    fields = {name: parts.field(name) for name in _NAMES if parts.type.get_field_index(name) >= 0}
    year, month, date = (pc.utf8_lpad(fields[name], 2, "0") for name in _NAMES[:3])
    text = pc.binary_join_element_wise(year, month, date, "-")
    if not day:
        time = [pc.utf8_lpad(fields[name], 2, "0") if name in fields else "00" for name in _NAMES[3:6]]
        second = pc.binary_join_element_wise(text, pc.binary_join_element_wise(*time, ":"), " ")
        end = [pc.utf8_slice_codeunits(fields["fraction"], 0, 6)] if "fraction" in fields else []
        text = pc.binary_join_element_wise(second, *end, ".")
        if "offset" in fields:
            text = pc.binary_join_element_wise(text, fields["offset"], "")
    return pc.if_else(texts.is_valid(), text, pa.scalar(None, text.type))

"""Texts as the values that Spark has for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbuf.errors import SchemaMismatch
from fastbuf_spark.worker.patterns import iso
from fastbuf_spark.worker.zones import instants

if TYPE_CHECKING:
    import pyarrow as pa

_WHOLE = (b"0123456789-", r"^[+-]?\d+$")
_EXACT = (b"0123456789+-.eE", r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")
_REAL = (_EXACT[0], rf"{_EXACT[1]}|^(NaN|-?Inf|[+-]?Infinity)$")
_DATE = (b"", r"^\d{4}-\d{2}-\d{2}$")
_INSTANT = (
    b"",
    r"^\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?(Z|[+-](0\d|1[0-7])(:?\d{2})?|[+-]18(:?00)?)?)?)?$",
)


def of_text(texts: pa.Array, kind: pa.DataType, zone: str, name: str, pattern: str = "") -> pa.Array:
    """Texts as values of a type, as Spark converts them; an instant without a zone is in ``zone``.

    Parameters
    ----------
    pattern
        Java's, of dates and times; empty: as Spark writes them.

    Raises
    ------
    SchemaMismatch
        A text is not one of the type (Spark returns null), or is in an hour skipped by daylight saving (Spark shifts
        it).
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    try:
        if pattern:
            texts = iso(texts, pattern, types.is_date(kind))
        if types.is_boolean(kind):
            low = pc.utf8_lower(texts)
            _check(low, (b"", "^(true|false)$"))
            return pc.equal(low, "true")
        if types.is_timestamp(kind):
            _check(texts, _INSTANT)
            return _instants(texts, kind, zone)
        numbers = ((types.is_integer, _WHOLE), (types.is_floating, _REAL), (types.is_decimal, _EXACT))
        for fits, form in (*numbers, (types.is_date, _DATE)):
            if fits(kind):
                _check(texts, form)
        if types.is_integer(kind) and pc.any(pc.starts_with(texts, "+")).as_py():
            texts = pc.utf8_ltrim(texts, "+")  # Java reads a plus before a whole number, and Arrow does not
        return texts.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        hour = f", or an hour that does not exist in {zone}" if types.is_timestamp(kind) else ""
        raise SchemaMismatch(
            f"column {name} has a text that is no {kind} as Spark writes it{hour}: {error}; read it as a string, and "
            "convert it in a function of your own"
        ) from error


def _check(texts: pa.Array, form: tuple[bytes, str]) -> None:
    """ArrowInvalid unless all texts have the form, a regular expression, or nothing but these bytes."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    plain = np.zeros(256, bool)
    plain[list(form[0])] = True
    data = texts.buffers()[2]
    if data is None or (form[0] and plain[np.frombuffer(data, np.uint8)].all()):
        return
    odd = texts.filter(pc.invert(pc.match_substring_regex(texts, form[1])))
    if len(odd):
        raise pa.ArrowInvalid(f"{odd[0].as_py()!r:.100}")


def _instants(texts: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind.tz is None:
        return texts.cast(kind)
    with_zone = pc.match_substring_regex(texts, r"(Z|[+-]\d{2}(:?\d{2})?)$")
    # A date without time ends like an offset
    with_zone = pc.and_(with_zone, pc.match_substring_regex(texts, r"\d:\d{2}"))
    nothing = pa.scalar(None, texts.type)
    zoned = pc.if_else(with_zone, texts, nothing).cast(pa.timestamp("us", tz="UTC")).cast(kind)
    local = pc.if_else(with_zone, nothing, texts).cast(pa.timestamp("us"))
    return pc.coalesce(zoned, instants(local, zone).cast(kind))

"""Keys as text, for users who ask for the most frequent keys."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

log = logging.getLogger("fastbuf")

MOST_CHARACTERS = 40


def key_rows(batch: Any, keys: Sequence[str | int], rows: Sequence[int]) -> list[tuple[Any, ...]]:
    """The keys of some rows of a batch, as Python values; empty if they cannot be converted."""
    try:
        if getattr(batch, "dtype", None) is not None and batch.dtype.names is not None:
            names = [batch.dtype.names[key] if isinstance(key, int) else key for key in keys]
            return [tuple(batch[name][row].item() for name in names) for row in rows]
        if not hasattr(batch, "column"):
            import pyarrow as pa

            batch = pa.record_batch(batch)
        columns = [batch.column(key) for key in keys]
        return [tuple(column[row].as_py() for column in columns) for row in rows]
    except Exception as error:  # e.g. a time before the year 1: a figure must not end the job
        log.debug("the keys of some rows are not known: %s", error)
        return []


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, str | bytes):
        short = value[:MOST_CHARACTERS]
        return repr(short) + ("…" if len(value) > len(short) else "")
    text = repr(value) if isinstance(value, list | tuple | dict) else str(value)
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…"


def key_text(values: Sequence[Any]) -> str:
    """A key as one short line of printable characters: ``'LAX'``, or ``('LAX', 7)``."""
    try:
        texts = [_text(value) for value in values]
        text = texts[0] if len(texts) == 1 else f"({', '.join(texts)})"
    except Exception as error:
        return f"<no text: {type(error).__name__}>"
    text = text if len(text) <= 2 * MOST_CHARACTERS else text[: 2 * MOST_CHARACTERS] + "…"
    return text if text.isprintable() else ascii(text)[1:-1]

"""How the arguments of a stream's verbs are read."""

from __future__ import annotations

import pytest

from fastbuf.errors import ConfigError
from fastbuf_spark.streams.drafts import micros_of, millis_of, seconds_of


@pytest.mark.parametrize(
    ("value", "seconds"), [(0, 0.0), (1.5, 1.5), ("250 ms", 0.25), ("2 minutes", 120.0), ("1 hour", 3600.0)]
)
def test_intervals(value: float | str, seconds: float) -> None:
    """In each unit the same."""
    assert seconds_of("every", value) == seconds
    assert millis_of("every", value) == seconds * 1000
    assert micros_of("every", value) == seconds * 1_000_000


@pytest.mark.parametrize("value", [-1, True, None, "soon"])
def test_what_is_no_interval(value: object) -> None:
    for read in (seconds_of, millis_of, micros_of):
        with pytest.raises(ConfigError, match="every is"):
            read("every", value)  # type: ignore[arg-type,operator]

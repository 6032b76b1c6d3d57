"""The pictures of the page on event time are those that the code draws."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "explanation" / "event-time"


def test_pictures_are_what_the_code_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benches"))
    import plot_event_time

    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(plot_event_time.PICTURES)
    page = FOLDER.with_suffix(".md").read_text()
    for name, drawn in plot_event_time.PICTURES.items():
        ElementTree.fromstring(drawn())
        assert (FOLDER / name).read_text() == drawn(), "run benches/plot_event_time.py docs/explanation/event-time"
        assert f"(event-time/{name})" in page

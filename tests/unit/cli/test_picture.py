"""The demo's picture says what it was given, as well-formed SVG."""

from __future__ import annotations

from xml.etree import ElementTree

from fastbuf.cli.picture import COLOURS, PALE, WIDTH, Row, draw
from fastbuf.cli.ways import Span

SVG = "{http://www.w3.org/2000/svg}"


def spans(*begins_and_ends: tuple[float, float, float]) -> list[Span]:
    return [Span(f"stage <{i}>", *times) for i, times in enumerate(begins_and_ends)]


def test_bars_are_where_the_stages_ran() -> None:
    rows = [
        Row("Spark's own & slow", 8.0, spans((0, 0, 3), (3, 3, 5), (5, 5, 8)), "8.00 s"),
        Row("fastbuf", 2.0, spans((0, 0, 1), (0, 1, 1.5), (0, 1, 2)), "2.00 s, 4.0 times as fast"),
    ]
    root = ElementTree.fromstring(draw("title", "below", rows, ["foot <1>"]))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"title", "below", "foot <1>", "stage <2>", "8 s", *(row.way for row in rows)} <= set(texts)
    bars = [bar for bar in root.iter(f"{SVG}rect") if bar.get("fill") != "#fff"]
    solid = [(float(bar.get("x", 0)), float(bar.get("width", 0))) for bar in bars if bar.get("fill") in COLOURS]
    pale = [(float(bar.get("x", 0)), float(bar.get("width", 0))) for bar in bars if bar.get("fill") in PALE]
    assert len(solid) == len(pale) == 6
    assert all(begin + wide <= WIDTH for begin, wide in solid + pale)
    second = (solid[0][1]) / 3
    ours = solid[3:]
    assert abs(ours[1][1] - 0.5 * second) < 0.3
    assert abs(ours[1][0] - solid[0][0] - second) < 0.3
    assert abs(pale[4][1] - 1.5 * second) < 0.3


def test_a_stage_that_never_had_rows_is_pale() -> None:
    drawn = draw("t", "b", [Row("fastbuf", 1.0, spans((0, 1, 1)), "")], [])
    assert PALE[0] in drawn
    assert COLOURS[0] not in drawn

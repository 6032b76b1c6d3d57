"""The table by which Flink's users find the task to blame."""

from __future__ import annotations

import pytest

from fastbuf.monitor.pools import read_pools


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"in_pool": 0.1, "out_pool": 0.1}, "ok"),
        ({"in_pool": 0.1, "out_pool": 0.9}, "held back"),
        ({"in_pool": 0.9, "out_pool": 0.9}, "held back, and holds back"),
        ({"in_pool": 0.9, "out_pool": 0.1, "upstream_out": 0.9}, "cause"),
        ({"in_pool": 0.9, "out_pool": None, "upstream_out": 0.9}, "cause"),
        ({"in_pool": 0.9, "out_pool": 0.1, "upstream_out": 0.1}, "may become the cause"),
        ({"in_pool": 0.4, "floating": 1.0, "exclusive": 0.2, "upstream_out": 0.9}, "cause for some"),
        ({"in_pool": 0.4, "floating": 1.0, "exclusive": 0.8, "upstream_out": 0.9}, "cause"),
    ],
)
def test_what_the_table_says(figures: dict[str, float], said: str) -> None:
    assert read_pools(**figures) == said

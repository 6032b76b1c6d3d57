from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbuf.memory.redistribution import redistribute


@pytest.mark.parametrize(
    ("total", "pools", "limits"),
    [
        (10, [], []),
        (10, [(2, 10)], [10]),
        (10, [(2, 5)], [5]),
        (10, [(5, 5), (5, 5)], [5, 5]),
        (10, [(5, 10), (5, 10)], [5, 5]),
        (20, [(2, 6), (2, 14), (4, 8)], [4, 9, 7]),  # 12 shared in the proportion 4 : 12 : 4
        (10, [(0, 1_000_000), (0, 10)], [5, 5]),  # room counts up to what there is to share
        (7, [(1, 7), (1, 7), (1, 7)], [2, 2, 3]),  # the rest of the rounding is not lost
        (10, [(0, 3), (0, 0), (0, 3)], [3, 0, 3]),
        # products beyond 64 bits
        (2_000_000_003, [(0, 2_000_000_003)] * 5, [400_000_000, 400_000_001, 400_000_000, 400_000_001, 400_000_001]),
    ],
)
def test_shares(total: int, pools: list[tuple[int, int]], limits: list[int]) -> None:
    assert redistribute(total, pools) == limits


def test_more_required_than_there_is() -> None:
    with pytest.raises(ValueError, match="11 of 10"):
        redistribute(10, [(6, 6), (5, 5)])


@given(
    pools=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 100)).map(lambda p: (p[0], p[0] + p[1])), max_size=20),
    spare=st.integers(0, 1000),
)
def test_rules(pools: list[tuple[int, int]], spare: int) -> None:
    total = sum(required for required, _ in pools) + spare
    limits = redistribute(total, pools)
    assert all(required <= limit <= maximum for (required, maximum), limit in zip(pools, limits, strict=True))
    assert sum(limits) <= total
    if any(limit < maximum for (_, maximum), limit in zip(pools, limits, strict=True)):
        assert sum(limits) == total, "segments were left over although a pool could take them"
    # In proportion: within one segment of the exact share.
    room = [min(spare, maximum - required) for required, maximum in pools]
    share = min(spare, sum(room))
    for (required, _), part, limit in zip(pools, room, limits, strict=True):
        if part:
            assert abs(limit - required - share * part / sum(room)) < 1

"""What the debug build finds, and that the other build spends nothing on it: each test holds in both."""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Iterator

import pytest

from fastbuf.errors import FastbufError, SegmentStateError
from fastbuf.memory import Arena, LocalBufferPool, NetworkBufferPool
from fastbuf.memory._testing import DEBUG_BUILD, recycle_behind, write_beyond


@pytest.fixture
def network() -> Iterator[NetworkBufferPool]:
    with NetworkBufferPool(4, 128) as pool:
        yield pool
    pool.audit()


@pytest.fixture
def local(network: NetworkBufferPool) -> LocalBufferPool:
    return network.create_local_pool(4)


def here(lines_above: int = 0) -> str:
    """This file and the caller's line, as a pattern; nothing in a build that does not know lines."""
    line = sys._getframe(1).f_lineno - lines_above
    return f"at {re.escape(__file__)}:{line}" if DEBUG_BUILD else ""


@pytest.mark.parametrize("many", [False, True])
def test_a_double_recycle_names_the_first(local: LocalBufferPool, many: bool) -> None:
    segment = local.request().retain()
    segment.recycle()  # not the last reference
    if many:
        local.recycle_many([segment])
        first = here(1)
    else:
        segment.recycle()
        first = here(1)
    for use in (segment.recycle, segment.view, segment.retain, lambda: local.recycle_many([segment])):
        with pytest.raises(SegmentStateError, match=f"through this handle already ?{first}"):
            use()


def test_a_stolen_reference_names_the_last_recycle(local: LocalBufferPool) -> None:
    segment = local.request()
    recycle_behind(segment)
    other = local.request()
    assert other.index == segment.index
    other.recycle()
    last = here(1)
    with pytest.raises(SegmentStateError, match=f"not his.*{last}"):
        segment.view()
    with pytest.warns(ResourceWarning):
        del segment


def test_a_write_after_the_recycle_is_found_by_the_next_request(
    network: NetworkBufferPool, local: LocalBufferPool
) -> None:
    segment = local.request()
    memory = network.arena.array[segment.index]
    segment.recycle()
    ended = here(1)
    memory[127] = 1
    if DEBUG_BUILD:
        with pytest.raises(FastbufError, match=f"audit.*segment {segment.index} was written to after it was recycled"):
            network.audit()
        with pytest.raises(SegmentStateError, match=f"written to after it was recycled {ended}"):
            local.request()
        memory[0] = 1
        with pytest.raises(SegmentStateError, match="written to after it was recycled"):
            local.request_many(4)
    assert local.in_use == 0
    local.recycle_many(local.request_many(4))


def test_a_write_beyond_the_end_is_found_by_the_recycle(network: NetworkBufferPool, local: LocalBufferPool) -> None:
    one, two = sorted(local.request_many(2), key=lambda segment: segment.index)
    two.view()[:] = bytes(128)
    write_beyond(one)
    if DEBUG_BUILD:
        assert two.view()[0] == 0, "the guard took it"
        with pytest.raises(FastbufError, match=f"segment {one.index} was written to beyond its end"):
            network.audit()
        for recycle in (one.recycle, lambda: local.recycle_many([two, one])):
            with pytest.raises(SegmentStateError, match=f"segment {one.index}.*beyond its end.*{__file__}"):
                recycle()
            write_beyond(one)
        assert local.in_use == 2
        with pytest.raises(SegmentStateError):
            one.recycle()
    else:
        assert two.view()[0] == 1, "they touch"
    local.recycle_many([one, two])


def test_only_a_debug_build_keeps_segments_apart() -> None:
    arena = Arena(4, 128)
    assert arena.array.strides == (192 if DEBUG_BUILD else 128, 1)
    assert bytes(arena) == bytes(512)
    if DEBUG_BUILD:
        with pytest.raises(BufferError, match="lie apart"):
            zlib.crc32(arena)
    else:
        assert zlib.crc32(arena) == zlib.crc32(bytes(512))

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

from fastbuf.errors import SegmentExported, SegmentStateError
from fastbuf.memory import LocalBufferPool, MemorySegment, NetworkBufferPool
from fastbuf.memory._testing import DEBUG_BUILD


@pytest.fixture
def network() -> Iterator[NetworkBufferPool]:
    with NetworkBufferPool(4, 1024) as pool:
        yield pool


@pytest.fixture
def local(network: NetworkBufferPool) -> LocalBufferPool:
    return network.create_local_pool(4)


def test_only_a_pool_makes_segments() -> None:
    with pytest.raises(TypeError, match="LocalBufferPool"):
        MemorySegment()
    with pytest.raises(TypeError, match="NetworkBufferPool"):
        LocalBufferPool()


def test_view_is_the_arena(network: NetworkBufferPool, local: LocalBufferPool) -> None:
    segment = local.request()
    view = segment.view()
    assert (view.format, view.ndim, view.nbytes, view.readonly, len(segment)) == ("B", 1, 1024, False, 1024)
    view[5] = 77
    assert network.arena.array[segment.index, 5] == 77
    del view
    segment.recycle()


@pytest.mark.parametrize(("dtype", "items"), [("uint8", 1024), ("int64", 128), (np.float32, 256), ("S3", 341)])
def test_array_in_place(local: LocalBufferPool, dtype: object, items: int) -> None:
    segment = local.request()
    array = segment.array(dtype)
    assert (array.shape, array.flags.writeable) == ((items,), True)
    part = array[1:]
    del array
    with pytest.raises(SegmentExported):
        segment.recycle()
    del part
    segment.recycle()


def test_any_buffer_consumer_counts_as_a_view(local: LocalBufferPool) -> None:
    segment = local.request()
    assert len(bytes(segment)) == 1024
    held = np.frombuffer(segment, "uint8")
    with pytest.raises(SegmentExported, match="1 views"):
        segment.recycle()
    del held
    segment.recycle()
    with pytest.raises(SegmentStateError):
        bytes(segment)


def test_views_do_not_stop_a_recycle_that_is_not_the_last(local: LocalBufferPool) -> None:
    segment = local.request().retain()
    view = segment.view()
    segment.recycle()
    view[0] = 1
    with pytest.raises(SegmentExported):
        segment.recycle()
    view.release()
    segment.recycle()


def test_a_view_outlives_the_names_of_segment_and_pools() -> None:
    network = NetworkBufferPool(2, 64)
    segment = network.create_local_pool(1).request()
    view = segment.view()
    del network, segment
    gc.collect()
    view[63] = 3
    assert view[63] == 3
    with pytest.warns(ResourceWarning, match="dropped"):
        del view


def test_a_dropped_segment_comes_home_with_a_warning(local: LocalBufferPool) -> None:
    segment = local.request()
    segment.retain()
    with pytest.warns(ResourceWarning, match="not recycled"):
        del segment
    assert local.in_use == 0


def test_a_dropped_segment_comes_home_when_warnings_are_errors(local: LocalBufferPool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        local.request()
    assert local.in_use == 0


def test_states_are_readable(local: LocalBufferPool) -> None:
    segment = local.request()
    assert "1024 bytes, 1 references" in repr(segment)
    segment.recycle()
    assert (segment.refcount, segment.size) == (0, 1024)
    assert "recycled" in repr(segment)


def test_only_a_debug_build_poisons_what_is_recycled(network: NetworkBufferPool, local: LocalBufferPool) -> None:
    segment = local.request()
    segment.array()[:] = 17
    segment.recycle()
    assert set(network.arena.array[segment.index].tolist()) == {0xDB if DEBUG_BUILD else 17}


def test_handles_of_one_slot_do_not_touch_each_other(local: LocalBufferPool) -> None:
    first = local.request()
    first.recycle()
    second = local.request()
    assert second.index == first.index
    with pytest.raises(SegmentStateError, match=f"segment {first.index}"):
        first.recycle()
    assert second.refcount == 1
    second.recycle()

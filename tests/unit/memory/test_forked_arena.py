"""A forked child costs its parent no memory, and reads what is the parent's in no way but a view that was held."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from fastbuf.errors import FastbufError
from fastbuf.memory import NetworkBufferPool

BYTES = 16 << 20


def mapped(pid: int, address: int) -> int:
    """Resident bytes of the mapping of that process that holds this address."""
    text = Path(f"/proc/{pid}/smaps").read_text()
    for match in re.finditer(r"^([0-9a-f]+)-([0-9a-f]+) .*\n((?:[A-Z]\w+:.*\n)*)", text, re.M):
        if int(match[1], 16) <= address < int(match[2], 16):
            found = re.search(r"^Rss:\s+(\d+) kB", match[3], re.M)
            assert found is not None
            return int(found[1]) * 1024
    return 0


def idle_child() -> int:
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(1)
    return child


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def in_a_child(work: Callable[[], bool]) -> None:
    child = os.fork()
    if child == 0:
        result = 1
        try:
            result = 7 if work() else 2
        finally:
            os._exit(result)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_an_idle_child_holds_no_copy_of_the_arena() -> None:
    """It made the kernel copy each page that the parent went on to use: twice the memory."""
    with NetworkBufferPool(BYTES // 32768, 32768) as network:
        memory = network.arena.array
        memory[:] = 1
        address = int(memory.ctypes.data)
        del memory
        assert mapped(os.getpid(), address) >= BYTES
        child = idle_child()
        try:
            assert mapped(child, address) == 0
        finally:
            end(child)
        assert int(network.arena.array.sum()) == BYTES  # the parent's memory is as it was


@pytest.mark.parametrize("of", ["segment", "arena"])
def test_a_view_that_is_held_at_the_fork_stays_as_it_was(of: str) -> None:
    with NetworkBufferPool(4, 64) as network:
        local = network.create_local_pool(2)
        with local.request() as segment:
            segment.view()[:5] = b"hello"
            held = segment.view() if of == "segment" else memoryview(network.arena.array[segment.index])
            in_a_child(lambda: bytes(held[:5]) == b"hello")
            held.release()

            def refused() -> bool:
                for read in (segment.view, segment.array, lambda: network.arena.array, lambda: bytes(network.arena)):
                    with pytest.raises(FastbufError, match="fork"):
                        read()
                return True

            in_a_child(refused)


def test_a_child_of_a_child_and_a_pool_of_its_own() -> None:
    with NetworkBufferPool(4, 64) as network:
        local = network.create_local_pool(2)

        def grandchild() -> bool:
            with NetworkBufferPool(4, 64) as own, own.create_local_pool(1).request() as segment:
                segment.view()[:2] = b"ab"
                held = segment.view()
                in_a_child(lambda: bytes(held[:2]) == b"ab")
                held.release()
            return True

        in_a_child(grandchild)
        local.request().recycle()

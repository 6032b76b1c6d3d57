from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from left_behind import held

from fastbuf.errors import ConfigError, FastbufError, SegmentExported, SegmentStateError
from fastbuf.memory import Borrower, Lender, LocalBufferPool, NetworkBufferPool

LENT_PUT, BACK_PUT, LOANS = 64, 192, 448  # offsets of lending.pxd


@pytest.fixture
def network() -> Iterator[NetworkBufferPool]:
    with NetworkBufferPool(4, 128, memfd=True) as pool:
        yield pool
    pool.audit()


@pytest.fixture
def local(network: NetworkBufferPool) -> LocalBufferPool:
    return network.create_local_pool(4)


@pytest.fixture
def mortal() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for the borrower, so that this one can play its part and yet let it die."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(30)


def test_there_and_back(network: NetworkBufferPool, local: LocalBufferPool) -> None:
    lender = Lender(network, os.getpid(), capacity=2)
    borrower = Borrower(network.arena.fileno(), lender.fileno())
    assert borrower.take() is None
    for round_ in range(10):  # several times round the rings
        one, two, three = local.request_many(3)
        one.array()[:] = round_
        assert [lender.lend(segment) for segment in (one, two, three)] == [True, True, False]
        assert (one.refcount, lender.lent) == (2, 2)
        numbers = [one.index, two.index]
        local.recycle_many([one, two, three])
        assert local.in_use == 2
        first, second = borrower.take(), borrower.take()
        assert first is not None
        assert second is not None
        assert borrower.take() is None
        assert [first.index, second.index] == numbers
        assert (set(first.array().tolist()), len(first), first.size) == ({round_}, 128, 128)
        second.give_back()
        assert lender.collect() == 1
        first.give_back()
        assert (lender.collect(), lender.collect(), lender.lent, local.in_use) == (1, 0, 0, 0)
    assert lender.refused == 0


def test_another_process_reads_and_writes_in_place(network: NetworkBufferPool, local: LocalBufferPool) -> None:
    code = """
import sys
from fastbuf.memory import Borrower
parent, arena = sys.argv[1:]
rings = int(input())
borrower = Borrower(f"/proc/{parent}/fd/{arena}", f"/proc/{parent}/fd/{rings}", writable=True)
loan = borrower.take()
loan.array("int64")[:] += 1
loan.give_back()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(os.getpid()), str(network.arena.fileno())], stdin=subprocess.PIPE
    ) as process:
        lender = Lender(network, process.pid)
        segment = local.request()
        segment.array("int64")[:] = np.arange(16)
        lender.lend(segment)
        process.communicate(f"{lender.fileno()}\n".encode(), timeout=60)
    assert process.returncode == 0
    assert lender.collect() == 1
    assert segment.array("int64").tolist() == list(range(1, 17))
    segment.recycle()


def test_a_dead_borrowers_loans_are_taken_back_once(
    network: NetworkBufferPool, local: LocalBufferPool, mortal: subprocess.Popen[bytes]
) -> None:
    lender = Lender(network, mortal.pid)
    borrower = Borrower(network.arena.fileno(), lender.fileno())
    out = local.request_many(4)
    for segment in out:
        lender.lend(segment)
    local.recycle_many(out)
    returned, kept = borrower.take(), borrower.take()
    assert returned is not None
    returned.give_back()
    assert lender.borrower_lives
    with pytest.raises(FastbufError, match="lives"):
        lender.take_back()
    end(mortal)
    assert not lender.borrower_lives
    assert (lender.take_back(), lender.take_back(), local.in_use) == (4, 0, 0)
    assert (lender.collect(), lender.refused) == (0, 1)  # it came late: its loan has ended
    del kept
    assert (lender.collect(), lender.refused) == (0, 2)


def test_a_fork_of_either_side_gives_nothing_back(network: NetworkBufferPool, local: LocalBufferPool) -> None:
    """The copies that a fork has of loans end in its own memory: the rings are the two processes' alone."""
    lender = Lender(network, os.getpid())
    borrower = Borrower(network.arena.fileno(), lender.fileno())
    segments = local.request_many(2)
    for segment in segments:
        lender.lend(segment)
    local.recycle_many(segments)
    loan = borrower.take()
    assert loan is not None
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (loan.give_back, borrower.take, lender.collect, lender.take_back, lambda: lender.lend(segments[0])):
            try:
                call()
            except FastbufError as error:
                refused += "fork" in str(error)
        del loan, call
        gc.collect()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert (lender.collect(), lender.lent, local.in_use) == (0, 2, 2)
    loan.give_back()
    other = borrower.take()
    assert other is not None
    other.give_back()
    assert (lender.collect(), lender.refused, local.in_use) == (2, 0, 0)


def test_each_sleeps_until_the_other_has_something(network: NetworkBufferPool, local: LocalBufferPool) -> None:
    """Across a fork: what wakes is in the memory they share."""
    lender_is_there, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            rings = int.from_bytes(os.read(lender_is_there, 4), "little")
            borrower = Borrower(network.arena.fileno(), f"/proc/{os.getppid()}/fd/{rings}")
            while borrower.wait(60):
                loan = borrower.take()
                if loan is None or loan.view()[0] == 255:
                    os._exit(0)
                loan.give_back()
        finally:
            os._exit(1)
    lender = Lender(network, child)
    os.write(tell, lender.fileno().to_bytes(4, "little"))
    try:
        assert not lender.wait(0.01)
        for number in range(100):
            segment = local.request()
            segment.view()[0] = number
            lender.lend(segment)
            segment.recycle()
            assert lender.wait(60)
            assert lender.collect() == 1
        segment = local.request()
        segment.view()[0] = 255
        lender.lend(segment)
        segment.recycle()
        began = time.monotonic()
        assert not lender.wait(60)  # it ended with the loan in its hand
        assert time.monotonic() - began < 30
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert lender.take_back() == 1
    finally:
        os.close(lender_is_there)
        os.close(tell)


def test_a_wait_has_an_end(network: NetworkBufferPool, local: LocalBufferPool) -> None:
    lender = Lender(network, os.getpid())
    borrower = Borrower(network.arena.fileno(), lender.fileno())
    assert not borrower.wait(0)
    assert not borrower.wait(0.02)
    with pytest.raises(ConfigError, match="timeout"):
        borrower.wait(-1)
    timer = threading.Timer(0.02, lambda: lender.lend(local.request()))
    timer.start()
    assert borrower.wait()
    timer.join()
    loan = borrower.take()
    assert loan is not None
    assert not lender.wait(0.01)
    loan.give_back()
    assert lender.wait()
    lender.collect()


def test_a_lender_that_is_dropped(
    network: NetworkBufferPool, local: LocalBufferPool, mortal: subprocess.Popen[bytes]
) -> None:
    segment = local.request()
    lender = Lender(network, mortal.pid)
    lender.lend(segment)
    segment.recycle()
    its = [os.readlink(f"/proc/self/fd/{fd}") for fd in (lender.fileno(), lender.sentinel)]
    before = held()
    end(mortal)
    del lender
    gc.collect()
    assert local.in_use == 0
    gone = before - held()
    assert [gone[name] for name in its] == [1, 1]


def test_what_cannot_be_lent(network: NetworkBufferPool, local: LocalBufferPool) -> None:
    lender = Lender(network, os.getpid())
    borrower = Borrower(network.arena.fileno(), lender.fileno())
    segment = local.request()
    lender.lend(segment)
    with pytest.raises(SegmentStateError, match="lent already"):
        lender.lend(segment)
    with NetworkBufferPool(1, 128) as other:
        strange = other.create_local_pool(1).request()
        with pytest.raises(SegmentStateError, match="another pool"):
            lender.lend(strange)
        with pytest.raises(FastbufError, match="memfd=True"):
            Lender(other, os.getpid())
        strange.recycle()
    segment.recycle()
    with pytest.raises(SegmentStateError, match="recycled"):
        lender.lend(segment)
    loan = borrower.take()
    assert loan is not None
    view = loan.view()
    with pytest.raises(SegmentExported):
        loan.give_back()
    with pytest.raises(SegmentExported):
        borrower.arena.close()
    with pytest.raises(TypeError):
        view[0] = 1  # borrowed for reading
    view.release()
    loan.give_back()
    for use in (loan.give_back, loan.view):
        with pytest.raises(SegmentStateError, match="given back"):
            use()
    assert lender.collect() == 1


@pytest.mark.parametrize("capacity", [0, -1, 1 << 21, 2.5])
def test_numbers_out_of_range(network: NetworkBufferPool, capacity: int) -> None:
    with pytest.raises(ConfigError):
        Lender(network, os.getpid(), capacity)
    with pytest.raises(ProcessLookupError):
        Lender(network, 1 << 22)


def test_a_faulty_borrower_ends_no_loan_but_its_own(network: NetworkBufferPool, local: LocalBufferPool) -> None:
    lender = Lender(network, os.getpid(), capacity=8)
    borrower = Borrower(network.arena.fileno(), lender.fileno())
    segment = local.request()
    lender.lend(segment)
    segment.recycle()
    loan = borrower.take()
    assert loan is not None
    with mmap.mmap(lender.fileno(), 0) as rings:
        words = np.frombuffer(rings, np.uint64)
        back = LOANS // 8 + 8
        number = int(words[LOANS // 8]) >> 32
        nonsense = [0, number << 32 | 99, (number + 1) << 32 | loan.index, 0xFFFFFFFFFFFFFFFF, loan.index]
        words[back : back + len(nonsense)] = nonsense
        words[BACK_PUT // 8] = len(nonsense)
        assert (lender.collect(), lender.refused, lender.lent, local.in_use) == (0, len(nonsense), 1, 1)
        loan.give_back()
        assert (lender.collect(), lender.lent, local.in_use) == (1, 0, 0)
        words[BACK_PUT // 8] += 9
        with pytest.raises(FastbufError, match="end it"):
            lender.collect()
        words[LENT_PUT // 8] += 1
        words[LOANS // 8 + 1] = 1 << 32 | 99
        with pytest.raises(FastbufError, match="segment 99"):
            borrower.take()
        words[0] = 5
        del words
        with pytest.raises(ConfigError, match="no rings"):
            Borrower(network.arena.fileno(), lender.fileno())


def test_what_are_no_rings(network: NetworkBufferPool, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    with pytest.raises(ConfigError, match="sealed"):
        Borrower(network.arena.fileno(), tmp_path / "file")
    with pytest.raises(ConfigError, match="no rings"):
        Borrower(network.arena.fileno(), network.arena.fileno())

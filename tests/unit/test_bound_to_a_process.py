"""What belongs to its process cannot be pickled, as a function's closure would be, nor copied; it says what to do."""

from __future__ import annotations

import copy
import os
import pickle

import pyarrow as pa
import pytest

import fastbuf as fb
from fastbuf.memory import MemorySegment


def refused(thing: object, remedy: str) -> None:
    words = f"an? {type(thing).__name__} belongs to its process and cannot be copied: .*{remedy}"
    for make in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=words):
            make(thing)


def test_pools_and_what_comes_of_them() -> None:
    with fb.NetworkBufferPool(8, 64) as network:
        local = network.create_local_pool(2)
        refused(network, "in each process")
        refused(local, "in each process")
        refused(network.arena, "in each process")
        with local.request() as segment:
            assert isinstance(segment, MemorySegment)
            refused(segment, r"bytes\(segment.view\(\)\)")


def test_the_ends_of_an_exchange() -> None:
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, (gate,) = env.exchange(serializer=fb.PickledSerializer())
        refused(env, "in each process")
        refused(gate, "gate.address")
        refused(writer, "gate.address")
        writer.close()
        assert list(gate) == []


def test_a_lender_and_its_borrower() -> None:
    with fb.NetworkBufferPool(8, 64, memfd=True) as network:
        local = network.create_local_pool(2)
        lender = fb.Lender(network, os.getpid())
        borrower = fb.Borrower(network.arena.fileno(), lender.fileno())
        with local.request() as segment:
            assert lender.lend(segment)
        loan = borrower.take()
        assert loan is not None
        refused(lender, r"lender.fileno\(\)")
        refused(borrower, "in each process")
        refused(loan, r"bytes\(loan.view\(\)\)")
        loan.give_back()
        assert lender.collect() == 1


def test_a_monitor() -> None:
    refused(fb.Monitor(), "monitor.address")


def test_rows_and_iterators_that_read_a_block_in_place() -> None:
    """Cython would copy the address of a row's bytes as text: a crash at the copy's first field."""
    rows = fb.RowSerializer(fb.Schema.of(n="int64"))
    block = rows.dumps([(1,), (2,)])
    batch = pa.RecordBatch.from_pydict({"n": [1]})
    columns = fb.ColumnarSerializer(batch.schema)
    objects = fb.PickledSerializer()
    found = (
        rows.view(block)[0],
        iter(rows.view(block)),
        rows.iter(block),
        columns.iter(columns.dumps([batch])),
        objects.iter(objects.dumps([1])),
    )
    for thing in found:
        for make in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match=f"cannot pickle '.*{type(thing).__name__}' object"):
                make(thing)

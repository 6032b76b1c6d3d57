"""What few use, or what is hard to read, beside what would do instead.

The tables of *what stays* (``docs/explanation/what-stays.md``) that need no second tree.  In one process CPU seconds
count, so that others who use the machine do not; between two processes it is the time.

Shapes: 1,000 rows of (int64, int64, float64, string); a million rows put into the order of a key, in batches of 10,000;
200,000 pairs of 100,003 keys through both ends of a shuffle, as Spark's pickled lists; frames of 64 B to 1 MiB that one
process writes and another one sums up.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fastbuf as fb

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
CONTEXT = mp.get_context("spawn")
ROUNDS = 3 if SMOKE else 15
ROWS = fb.RowSerializer(fb.Schema.of(id="int64", key="int64", value="float64", name="string"))
RECORDS = [(i, i * 7919 % 53, i * 0.5, f"user-{i * 7919 % 1009}") for i in range(1000)]


def cpu_of(work: Callable[[], Any], result: Any, times: int = 1) -> Callable[[], float]:
    """CPU seconds of one of ``times`` calls, each of which gives the result."""

    def run() -> float:
        began = time.process_time()
        for _ in range(1 if SMOKE else times):
            found = work()
        seconds = time.process_time() - began
        assert found == result
        return seconds / (1 if SMOKE else times)

    return run


def ways(makes: dict[str, Callable[[], Any]], times: int = 1) -> dict[str, Callable[[], float]]:
    """Each gives what the first one gives."""
    result = next(iter(makes.values()))()
    return {name: cpu_of(work, result, times) for name, work in makes.items()}


# ---- lazy rows

BLOCK = ROWS.dumps(RECORDS)


def grouped(items: Any) -> dict[Any, float]:
    totals: dict[Any, float] = {}
    for key, value in items:
        totals[key] = totals.get(key, 0.0) + value
    return totals


def column_order(view: Any, *names: str) -> list[Any]:
    """The rows' ids in the order of these columns."""
    ids = view.values("id")
    return [ids[i] for *_, i in sorted(zip(*map(view.values, names), range(len(view)), strict=True))]


LAZY: dict[str, dict[str, Callable[[], Any]]] = {
    "one field": {
        "lazy rows": lambda: [row[1] for row in ROWS.view(BLOCK)],
        "its column": lambda: ROWS.view(BLOCK).values("key"),
        "decoded": lambda: [record[1] for record in ROWS.loads(BLOCK)],
    },
    "one row of them": {
        "lazy rows": lambda: ROWS.view(BLOCK)[700].as_tuple(),
        "decoded": lambda: ROWS.loads(BLOCK)[700],
    },
    "rows of one key": {
        "lazy rows": lambda: [row.as_tuple() for row in ROWS.view(BLOCK) if row[1] == 7],
        "decoded": lambda: [record for record in ROWS.loads(BLOCK) if record[1] == 7],
    },
    "sums by a number": {
        "lazy rows": lambda: {
            row[1]: total for row, total in grouped((row, row[2]) for row in ROWS.view(BLOCK, key="key")).items()
        },
        "its column": lambda: (lambda view: grouped(zip(view.values("key"), view.values("value"), strict=True)))(
            ROWS.view(BLOCK)
        ),
        "decoded": lambda: grouped((record[1], record[2]) for record in ROWS.loads(BLOCK)),
    },
    "in the order of three fields": {
        "lazy rows": lambda: [row[0] for row in sorted(ROWS.view(BLOCK, key=("key", "name", "id")))],
        "its column": lambda: column_order(ROWS.view(BLOCK), "key", "name", "id"),
        "decoded": lambda: [record[0] for record in sorted(ROWS.loads(BLOCK), key=itemgetter(1, 3, 0))],
    },
}


@pytest.mark.parametrize("what", LAZY)
def test_lazy_rows(in_turn: Any, benchmark: Any, what: str) -> None:
    benchmark.group = f"1,000 rows of four fields: {what}"
    in_turn(ways(LAZY[what], 50), rounds=ROUNDS, baselines=("lazy rows",))


# ---- rows put into order


def batches_of(kind: str, keys: int) -> list[pa.RecordBatch]:
    random, made = np.random.default_rng(1), []
    for _ in range(2 if SMOKE else 100):
        columns: dict[str, Any] = {"k": random.integers(0, keys, 10_000), "v": random.random(10_000)}
        if kind == "with text":
            columns["s"] = pa.array([f"user-{k}" for k in random.integers(0, 10_000_000, 10_000)])
        made.append(pa.record_batch(columns))
    return made


def by_arrow(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """All of them in one, from which the rows are taken."""
    from fastbuf_spark.worker.order import codes_by, sorting

    order = sorting(*codes_by(batches, (0,)))
    whole = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    return whole.take(pa.array(order))


@pytest.mark.parametrize("keys", [10, 10_000, 1_000_000])
@pytest.mark.parametrize("kind", ["two numbers", "with text"])
def test_rows_in_order(in_turn: Any, benchmark: Any, kind: str, keys: int) -> None:
    from fastbuf_spark.worker.order import codes_by, placing
    from fastbuf_spark.worker.placing import permute

    batches = batches_of(kind, keys)
    benchmark.group = f"a million rows, {kind}, in the order of {keys:,} keys"
    in_turn(
        ways(
            {
                "placed": lambda: permute(list(batches), placing(*codes_by(batches, (0,)))),
                "taken by Arrow": lambda: by_arrow(list(batches)),
            }
        ),
        rounds=min(ROUNDS, 7),
        baselines=("placed",),
    )


# ---- pairs

KINDS = {"int": lambda i: i, "str": lambda i: f"user-{i}"}
VERBS: dict[str, tuple[Any, bool]] = {
    "partition_by": (None, False),
    "reduce_by_key": (lambda a, b: a + b, False),
    "group_by_key": (None, True),
}


def both_ends(pickles: list[bytes], verb: str, how: str) -> int:
    """Lists of pickled pairs to elements and from these to what the user's function gets; the sum of the values."""
    from fastbuf_spark.codec import GROUP_BYTES, Reading, RecordCodec, loaded, unpacked
    from fastbuf_spark.worker.pairs import Combine, MergeStage

    merge, groups = VERBS[verb]
    combine = None if merge is None else Combine(None, merge, 64 << 20)
    codec = RecordCodec(2, combine=combine, packed=True, pickled=how != "loaded, then packed")
    reading = Reading(codec, None, GROUP_BYTES)
    if how == "objects":
        reading._parts = reading._sums = None
    source = loaded(iter(pickles)) if how == "loaded, then packed" else iter(pickles)
    serializer, parts = codec.serializer(False), ([], [])  # type: ignore[var-annotated]
    for partition, group in reading.items(source):
        parts[partition].append(serializer.encode(group))
    total = 0
    for elements in parts:
        received = map(serializer.decode, elements)
        if not (merge or groups):
            total += sum(sum(map(itemgetter(1), unpacked(group))) for group in received)
            continue
        stage = MergeStage(merge, 0, None, 256 << 20, "/tmp")
        if how == "objects":
            object.__setattr__(stage, "_plain", lambda: None)
        for pairs in stage(received):
            values = map(itemgetter(1), pairs)
            total += sum(map(sum, values)) if groups else sum(values)
    return total


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", VERBS)
def test_pairs(in_turn: Any, benchmark: Any, verb: str, kind: str) -> None:
    if os.environ.get("PYTHONHASHSEED") != "0":
        pytest.skip("keys are placed by Python's hash: PYTHONHASHSEED=0 pytest ...")
    count = 5_000 if SMOKE else 200_000
    pairs = [(KINDS[kind](i * 7919 % 100_003), i) for i in range(count)]
    pickles = [pickle.dumps(pairs[i : i + 1024], 5) for i in range(0, count, 1024)]
    benchmark.group = f"{verb} of {count:,} pairs ({kind}, int)"
    hows = ("plain values", "loaded, then packed", "objects")
    in_turn(
        ways({how: lambda how=how: both_ends(pickles, verb, how) for how in hows}),  # type: ignore[misc]
        rounds=ROUNDS,
        baselines=("plain values",),
    )


# ---- frames that are lent

QUEUED = 16
BYTES = fb.RowSerializer(fb.Schema.of(frame="binary"))


def sum_up(control: Any) -> None:
    """The other process: sums up the frames that it is sent, or lent, until it is told None."""
    with fb.ShuffleEnvironment(segments=512, shared=True) as env:
        env.listen()
        while (task := control.recv()) is not None:
            kind, *arguments = task
            if kind == "lend":
                arena, rings = arguments
                borrower = fb.Borrower(arena, rings)
            elif kind == "by number":
                n, numbers = arguments
                array, total = fb.Arena.attach(arena).array, 0
                for _ in range(n):
                    number = numbers.recv(4)
                    total += int(array[int.from_bytes(number, "little")].view(np.int64).sum())
                    numbers.send(number)
                control.send(total)
            elif kind == "lent":
                total = 0
                for _ in range(arguments[0]):
                    while (loan := borrower.take()) is None:
                        borrower.wait()
                    total += int(loan.array("int64").sum())
                    loan.give_back()
                control.send(total)
            else:
                config = fb.ExchangeConfig(transport="memfd", floating=62, max_buffers_per_channel=64)
                with env.create_input_gate(BYTES, channels=1, config=config) as gate:
                    control.send(gate.address)
                    control.send(sum(int(np.frombuffer(frame, np.int64).sum()) for (frame,) in gate))


class Frames:
    """A process that sums up, and what brings frames to it."""

    def __init__(self, stack: ExitStack, size: int) -> None:
        self.frame = np.arange(size // 8, dtype=np.int64)
        self.control, far = CONTEXT.Pipe()
        process = CONTEXT.Process(target=sum_up, args=(far,), daemon=True)
        process.start()
        stack.callback(process.join, 10)
        stack.callback(self.control.send, None)
        self.env = stack.enter_context(fb.ShuffleEnvironment(segments=512, shared=True))
        self.network = stack.enter_context(fb.NetworkBufferPool(QUEUED, size, memfd=True))
        self.pool = stack.enter_context(self.network.create_local_pool(QUEUED))
        self.lender = fb.Lender(self.network, process.pid, capacity=QUEUED)
        arena, rings = (f"/proc/{os.getpid()}/fd/{end.fileno()}" for end in (self.network.arena, self.lender))
        self.control.send(("lend", arena, rings))

    def lent(self, n: int) -> None:
        self.control.send(("lent", n))
        for _ in range(n):
            while (segment := self.pool.try_request()) is None:
                self.lender.wait()
                self.lender.collect()
            segment.array("int64")[:] = self.frame
            self.lender.lend(segment)
            segment.recycle()
        assert self.control.recv() == n * int(self.frame.sum())
        self.lender.collect()

    def by_number(self, n: int) -> None:
        """Numbers of segments through a socket, there and back."""
        numbers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.send(("by number", n, theirs))
        out: dict[bytes, fb.MemorySegment] = {}
        for _ in range(n):
            while (segment := self.pool.try_request()) is None:
                out.pop(numbers.recv(4)).recycle()
            segment.array("int64")[:] = self.frame
            number = segment.index.to_bytes(4, "little")
            out[number] = segment
            numbers.send(number)
        while out:
            out.pop(numbers.recv(4)).recycle()
        assert self.control.recv() == n * int(self.frame.sum())
        numbers.close()
        theirs.close()

    def sent(self, n: int) -> None:
        self.control.send(("sent",))
        config = fb.ExchangeConfig(transport="memfd", floating=62, max_buffers_per_channel=64)
        frame = self.frame
        with self.env.create_result_partition(BYTES, [self.control.recv()], config=config) as writer:
            emit = writer.emit
            for _ in range(n):
                emit((frame.tobytes(),))
        assert self.control.recv() == n * int(self.frame.sum())


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", [64, 32 * 1024, 256 * 1024, 1 << 20])
def test_frames(in_turn: Any, benchmark: Any, stack: ExitStack, size: int) -> None:
    n = 100 if SMOKE else {64: 50_000, 32 * 1024: 20_000, 256 * 1024: 4_000, 1 << 20: 1_000}[size]
    frames = Frames(stack, size)
    benchmark.group = f"{n:,} frames of {size:,} B to another process, which sums them up"
    in_turn(
        {
            "lent": lambda: frames.lent(n),
            "by number, through a socket": lambda: frames.by_number(n),
            "through an exchange, memfd": lambda: frames.sent(n),
        },
        rounds=ROUNDS,
        baselines=("lent",),
        rows=n,
    )

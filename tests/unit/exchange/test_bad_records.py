"""A record that cannot be decoded: what came before it is given out first; then the error, or it is left out."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.errors import BlockCorrupt, ConfigError, ExchangeAborted

OBJECTS = fb.PickledSerializer()
SCHEMA = fb.Schema.of(n="int64", data="binary")
LONG = b"x" * 9000  # spans several segments, and is a tail


class _Refuses:
    """It can be pickled, and not loaded."""

    def __init__(self, ballast: bytes = b"") -> None:
        self.ballast = ballast

    def __reduce__(self) -> tuple[Any, ...]:
        return (_load, (self.ballast,))


def _load(_ballast: bytes) -> Any:
    raise ValueError("no such model")


class _Picky(ValueError):
    pass


def _picky(n: int, data: bytes) -> tuple[int, bytes]:
    if n % 10 == 5:
        raise _Picky(f"{n} is refused")
    return n, data


# serializer, the good records, a bad one, the error, its text
CASES = {
    "pickles": (OBJECTS, [*range(5)], _Refuses(), BlockCorrupt, "no such model"),
    "long pickles": (OBJECTS, [LONG] * 5, _Refuses(LONG), BlockCorrupt, "no such model"),
    "rows": (
        fb.RowSerializer(SCHEMA, record=_picky), [(n, b"a") for n in range(5)], (5, b"b"), _Picky, "5 is refused"
    ),
    "rows with tails": (
        fb.RowSerializer(SCHEMA, record=_picky), [(n, LONG) for n in range(5)], (5, LONG), _Picky, "5 is refused"
    ),
}  # fmt: skip


class _Ends:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.stack = contextlib.ExitStack()
        self.far = self.stack.enter_context(self.environment())
        self.near = self.far if kind in ("local", "blocking") else self.stack.enter_context(self.environment())
        if self.near is not self.far:
            self.far.listen()

    def environment(self) -> fb.ShuffleEnvironment:
        return fb.ShuffleEnvironment(segments=64, segment_size=2048, shared=self.kind == "memfd")

    def make(self, serializer: Any, **of_gate: Any) -> tuple[fb.RecordWriter, fb.InputGate]:
        config = fb.ExchangeConfig(transport=self.kind if self.near is not self.far else "auto", buffer_timeout_s=0)
        gate = self.far.create_input_gate(serializer, channels=1, config=config, **of_gate)
        target = gate if self.near is self.far else gate.address
        kind = "blocking" if self.kind == "blocking" else "pipelined"
        return self.near.create_result_partition(serializer, [target], 3, config=config, partition_type=kind), gate


@pytest.fixture(params=["local", "tcp", "memfd", "blocking"])
def ends(request: pytest.FixtureRequest) -> Iterator[_Ends]:
    made = _Ends(request.param)
    yield made
    made.stack.close()
    for env in {made.near, made.far}:
        env.pool.audit()
        assert env.pool.available == env.pool.total


@contextlib.contextmanager
def written(writer: fb.RecordWriter, records: list[Any]) -> Iterator[None]:
    """What writes them in a thread, which ends as the gate does."""

    def write() -> None:
        with contextlib.suppress(fb.FastbufError), writer:
            writer.emit_many(records)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        thread.join(20)
        assert not thread.is_alive()


def by_poll(gate: fb.InputGate) -> Iterator[Any]:
    while (got := gate.poll(20)) is not None:
        yield from got


def by_async(gate: fb.InputGate) -> Iterator[Any]:
    stream = gate.__aiter__()
    with asyncio.Runner() as runner:
        while True:
            try:
                yield runner.run(stream.__anext__())
            except StopAsyncIteration:
                return


WAYS = {"poll": by_poll, "for": iter, "async for": by_async}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", WAYS)
def test_what_was_decoded_is_given_out_before_the_error(ends: _Ends, case: str, way: str) -> None:
    serializer, good, bad, kind, text = CASES[case]
    writer, gate = ends.make(serializer)
    with written(writer, [*good, bad, good[0]]), gate:
        got: list[Any] = []
        with pytest.raises(kind, match=text) as told:
            got.extend(WAYS[way](gate))
        assert got == good
        told_all = str(told.value) + "".join(getattr(told.value, "__notes__", ()))
        assert "record 5 of channel 3 (producer " in told_all
        where = "in this process" if ends.near is ends.far else "127.0.0.1" if ends.kind == "tcp" else "process"
        assert where in told_all
        with pytest.raises(ExchangeAborted, match=f"failed while reading: .*{text}"):
            gate.poll(20)
    assert not gate.finished


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["skip", "function"])
def test_they_can_be_left_out(ends: _Ends, case: str, way: str, how: str) -> None:
    serializer, good, bad, kind, _ = CASES[case]
    told: list[Exception] = []
    writer, gate = ends.make(serializer, on_error="skip" if how == "skip" else told.append)
    with written(writer, [bad, *good, bad, bad, *good, bad]), gate:
        assert list(WAYS[way](gate)) == good * 2
        assert gate.stats()["skipped"] == 4
        assert gate.stats()["records"] == 10
    assert gate.stats()["skipped"] == 4
    if how == "function":
        assert [type(error) for error in told] == [kind] * 4
        for error, number in zip(told, (0, 6, 7, 13), strict=True):
            assert f"record {number} of channel 3" in str(error) + "".join(getattr(error, "__notes__", ()))


def test_a_function_that_raises_ends_it(ends: _Ends) -> None:
    def too_many(error: Exception) -> None:
        if next(count) == 2:
            raise RuntimeError("too many") from error

    count = itertools.count()
    writer, gate = ends.make(OBJECTS, on_error=too_many)
    with written(writer, [1, _Refuses(), 2, _Refuses(), 3, _Refuses(), 4]), gate:
        got: list[Any] = []
        with pytest.raises(RuntimeError, match="too many"):
            got.extend(gate)
        assert got == [1, 2, 3]
        assert gate.stats()["skipped"] == 2


def test_in_a_list_of_many_the_record_is_found() -> None:
    """The 616 rows before it in its list were lost, and the error named none."""
    rows = fb.RowSerializer(SCHEMA, record=lambda n, data: (n, data) if n != 17_000 else 1 // 0)
    with fb.ShuffleEnvironment(segments=64) as env:
        gate = env.create_input_gate(rows, channels=1)
        writer = env.create_result_partition(rows, [gate])
        with written(writer, [(n, b"") for n in range(20_000)]), gate:
            got: list[Any] = []
            with pytest.raises(ZeroDivisionError) as told:
                got.extend(gate)
            assert [record[0] for record in got] == [*range(17_000)]
            assert "record 17,000 of channel 0 (producer in this process)" in told.value.__notes__[0]


def test_an_event_before_it_is_given_out_first(ends: _Ends) -> None:
    writer, gate = ends.make(OBJECTS)

    def write() -> None:
        with contextlib.suppress(fb.FastbufError), writer:
            writer.emit(1)
            writer.emit_event(fb.Watermark(7))
            writer.emit(_Refuses())

    thread = threading.Thread(target=write)
    thread.start()
    with gate:
        assert gate.poll(20) == [1]
        assert gate.poll(20) == fb.Watermark(7, channel=3)
        with pytest.raises(BlockCorrupt, match="record 1 of channel 3"):
            gate.poll(20)
    thread.join(20)


def test_code_of_a_record_that_raises_what_ends_loops() -> None:
    def stops(n: int, data: bytes) -> Any:
        if n == 3:
            raise StopIteration("as a loop's end")
        return n

    for on_error, wanted in (("raise", [0, 1, 2]), ("skip", [0, 1, 2, 4])):
        rows = fb.RowSerializer(SCHEMA, record=stops)
        with fb.ShuffleEnvironment(segments=64) as env:
            gate = env.create_input_gate(rows, channels=1, on_error=on_error)
            with env.create_result_partition(rows, [gate]) as writer:
                writer.emit_many([(n, b"") for n in range(5)])
            got = []
            with contextlib.ExitStack() as stack:
                if on_error == "raise":
                    stack.enter_context(pytest.raises(RuntimeError, match="code of a record raised StopIteration"))
                for record in gate:
                    got.append(record)
            assert got == wanted


def test_rows_in_columns_that_wait_are_given_out_before_a_producers_failure() -> None:
    pa = pytest.importorskip("pyarrow", reason="pip install pyarrow")
    columns = fb.ColumnarSerializer(pa.schema([("n", pa.int64())]))
    config = fb.ExchangeConfig(buffer_timeout_s=60)
    with fb.ShuffleEnvironment(segments=64, segment_size=2048) as env:
        gate = env.create_input_gate(columns, channels=1, config=config)
        writer = env.create_result_partition(columns, [gate], config=config)
        writer.emit_batch(pa.record_batch([pa.array(range(1000))], ["n"]))
        assert gate.poll(0) is None  # the rows of full buffers are taken in, and wait for more
        writer.abort("the disk is full")
        with gate:
            rows = gate.poll(20).num_rows
            assert rows > 0
            with pytest.raises(ExchangeAborted, match="the disk is full"):
                gate.poll(20)


@pytest.mark.parametrize("serializer", ["columns", "lazy"])
def test_on_error_is_refused_where_no_single_record_is_decoded(serializer: str) -> None:
    pa = pytest.importorskip("pyarrow", reason="pip install pyarrow")
    columns = fb.ColumnarSerializer(pa.schema([("n", pa.int64())]))
    with fb.ShuffleEnvironment(segments=64) as env:
        lazy = serializer == "lazy"
        of = fb.RowSerializer(SCHEMA) if lazy else columns
        with pytest.raises(ConfigError, match="on_error is 'skip': this gate decodes no single records"):
            env.create_input_gate(of, channels=1, lazy=lazy, on_error="skip")
        for wrong in ("drop", None, 1):
            with pytest.raises(ConfigError, match=r"on_error is .*raise, skip"):
                env.create_input_gate(OBJECTS, channels=1, on_error=wrong)


# ---- blocks


def test_blocks_are_read_on_behind_a_bad_record() -> None:
    for serializer, good, bad, kind, text in CASES.values():
        block = serializer.dumps(iter([*good, bad, *good]))
        records: Iterator[Any] = serializer.iter(block)
        got, told = [], []
        while True:
            try:
                got.append(next(records))
            except StopIteration:
                break
            except kind as error:
                told.append(str(error) + "".join(getattr(error, "__notes__", ())))
        assert got == good * 2
        assert len(told) == 1
        assert text in told[0]
        assert "record 5" in told[0]
        with pytest.raises(kind, match=text) as refused:
            serializer.loads(block)
        assert "record 5" in str(refused.value) + "".join(getattr(refused.value, "__notes__", ()))


def test_a_group_of_pickles_is_named_as_one() -> None:
    objects = fb.PickledSerializer(group=4)
    block = objects.dumps([*range(13), _Refuses(), *range(20)])
    records = objects.iter(block)
    got, refused = [], []
    while True:
        try:
            got.append(next(records))
        except StopIteration:
            break
        except BlockCorrupt as error:
            refused.append(str(error))
    assert len(refused) == 1
    assert "record 13, with which others are in one pickle (group=1" in refused[0]
    assert got == [*range(13), *range(3, 20)]

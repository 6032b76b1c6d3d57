"""What a newcomer sees of the objects: their texts, signatures, ``with``, the names of threads."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import pickle
import pydoc
import time
from pathlib import Path

import pytest

import fastbuf as fb
import fastbuf.serializers
from fastbuf import errors

ROWS = fb.RowSerializer(fb.Schema.of(id="int64", name="string?"))
CLASSES = [
    thing
    for module in (fb, fastbuf.serializers)
    for thing in (getattr(module, name) for name in module.__all__)
    if inspect.isclass(thing) and not issubclass(thing, Exception)
]


def test_each_error_is_at_the_top() -> None:
    """What a message names can be caught as ``fb.<name>``."""
    named = {name for name, found in vars(errors).items() if inspect.isclass(found)}
    assert len(named) > 20
    assert named <= set(fb.__all__)
    assert all(getattr(fb, name) is getattr(errors, name) for name in named)


@pytest.mark.parametrize("made", CLASSES, ids=lambda made: made.__name__)
def test_signatures_of_classes_and_methods(made: type) -> None:
    """``inspect.signature`` and ``help`` tell the arguments of compiled classes, with no marks of how that is done."""
    assert inspect.signature(made) is not None
    for name, method in inspect.getmembers(made, callable):
        if not name.startswith("_"):
            assert inspect.signature(method) is not None, name
    assert "\n--\n" not in (made.__doc__ or "")
    assert made.__name__ in pydoc.render_doc(made)


def test_signatures_say_what_the_class_takes() -> None:
    assert str(inspect.signature(fb.Arena)) == (
        "(segments, segment_size, *, memfd=False, prefault=False, huge_pages=True)"
    )
    for made, arguments in (
        (fb.NetworkBufferPool, {}),
        (fb.RowSerializer, {"schema": fb.Schema.of(a="int64")}),
        (fb.ColumnarSerializer, {}),
        (fb.PickledSerializer, {}),
    ):
        bound = inspect.signature(made).bind(**arguments)
        bound.apply_defaults()
        assert repr(made(*bound.args, **bound.kwargs)) == repr(
            made(**arguments)
        )  # the defaults told are those there are


def test_texts_of_serializers_and_selectors() -> None:
    schema = fb.Schema.of(id="int64", name="string?")
    for thing in (
        fb.RowSerializer(schema),
        fb.ColumnarSerializer(schema),
        fb.ColumnarSerializer(schema, checksum=True),
        fb.ColumnarSerializer(),
        fb.PickledSerializer(group=8),
        fb.forward(1),
        fb.round_robin(),
        fb.hash_by("id", "name"),
        fb.hash_by("id", partitions=4, only=[1, 3]),
        fb.rescale(0, 2),
        fb.broadcast(),
        fb.first_free(),
        fb.shuffle(seed=3),
    ):
        again = eval(repr(thing), {**vars(fb)})  # our own text
        assert repr(again) == repr(thing)
        assert type(again) is type(thing)
    assert repr(fb.custom(test_texts_of_serializers_and_selectors)) == (
        "custom(test_texts_of_serializers_and_selectors)"
    )
    assert repr(fb.range_by("id", sample=[], ascending=False)) == "range_by('id', sample=..., ascending=False)"


def test_texts_of_an_exchange() -> None:
    """Environment, writer and gate say in one line what state they are in, with their figures."""
    with fb.ShuffleEnvironment(segments=16, segment_size=4096) as env:
        writer, (gate,) = env.exchange(ROWS)
        assert repr(env) == "<ShuffleEnvironment: open, 1 gates, 1 writers, 0 of 16 segments of 4096 bytes in use>"
        writer.emit_many((i, None) for i in range(5))
        assert repr(writer) == "<RecordWriter of producer 0: open, 1 consumers, 5 records, 1 of 10 segments in use>"
        assert repr(gate) == "<InputGate 1: open, 1 of 1 channels, 0 records, 0 of 10 segments in use>"
        writer.close()
        assert len(list(gate)) == 5
        assert repr(writer) == "<RecordWriter of producer 0: closed, 1 consumers, 5 records, 0 of 10 segments in use>"
        assert repr(gate) == "<InputGate 1: finished, 1 of 1 channels, 5 records, 0 of 10 segments in use>"
        gate.close()
        assert repr(gate) == "<InputGate 1: closed, 1 of 1 channels, 5 records, 0 of 10 segments in use>"
        listening = env.create_input_gate(ROWS)
        assert repr(listening) == "<InputGate 2: open, 0 of any number of channels, 0 records, 0 of 16 segments in use>"
        listening.abort("no more")
        assert "failed" in repr(listening)
    assert repr(env) == "<ShuffleEnvironment: closed, 0 gates, 0 writers, 0 of 16 segments of 4096 bytes in use>"
    assert repr(fb.InputGate.__new__(fb.InputGate)) == "<InputGate: not made>"
    arena = fb.Arena(2, 64)
    assert repr(arena) == "<Arena: 2 segments of 64 bytes, private memory>"
    arena.close()
    assert repr(arena) == "<Arena: 2 segments of 64 bytes, closed>"


def test_a_segment_goes_home_at_the_end_of_its_block() -> None:
    with fb.NetworkBufferPool(4, 64) as network, network.create_local_pool(required=1) as pool:
        with pool.request() as segment:
            segment.array()[:] = 7
            assert pool.in_use == 1
        assert pool.in_use == 0
        with pool.request() as segment:
            segment.recycle()  # before the end: nothing is left to do there
        with pool.request() as segment:
            segment.retain()
        assert pool.in_use == 1  # what was retained is the caller's
        segment.recycle()
        with pytest.raises(KeyError), pool.request():
            raise KeyError
        with pytest.raises(fb.FastbufError, match="1 views still held"), pool.request() as segment:
            view = segment.view()
        view.release()
        segment.recycle()
        kept = []

        def fail() -> None:
            with pool.request() as segment:
                kept.extend([segment.view(), segment])
                raise KeyError

        with pytest.raises(KeyError):  # the user's error, not that of the view
            fail()
        kept[0].release()
        kept[1].recycle()
        assert pool.in_use == 0
        network.audit()


def test_a_gate_is_closed_at_the_end_of_its_async_block() -> None:
    async def main() -> None:
        writer, (gate,) = env.exchange(ROWS)
        writer.emit((1, None))
        writer.close()
        async with gate as entered:
            assert entered is gate
            assert [record async for record in gate] == [(1, None)]
        assert gate.closed
        writer, (gate,) = env.exchange(ROWS)
        with pytest.raises(KeyError):
            async with gate:
                raise KeyError("why")
        assert gate.closed
        with pytest.raises(fb.ExchangeAborted, match="why"):
            writer.emit_many((i, None) for i in range(10_000))
        writer.abort()

    with fb.ShuffleEnvironment(segments=32, segment_size=4096) as env:
        asyncio.run(main())
        assert env.pool.stats().in_use == 0


def names_of_threads() -> set[str]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            found.add((task / "comm").read_text().strip())
    return found


def test_the_kernel_knows_the_threads_by_name() -> None:
    """``top -H``, ``gdb`` and ``perf`` tell the I/O thread and the others apart from the program's own."""
    before = names_of_threads()  # of tests of before: a rendezvous lives as long as its driver
    with fb.ShuffleEnvironment(segments=16, segment_size=4096, shared=True) as env:
        env.listen()
        until = time.monotonic() + 10  # the I/O thread gives itself its name when it first runs
        while not {"fastbuf-io", "fastbuf-listene", "fastbuf-memfd"} <= names_of_threads():
            assert time.monotonic() < until, names_of_threads()
    until = time.monotonic() + 10  # a thread that was joined is still in the kernel for a moment
    while any(name.startswith("fastbuf") for name in names_of_threads() - before):
        assert time.monotonic() < until, names_of_threads()


def test_what_cannot_leave_its_process_says_what_to_do() -> None:
    """Arguments of a spawned process are pickled; a copy of an environment closed the original when it was freed."""
    with fb.ShuffleEnvironment(segments=8) as env:
        writer, (gate,) = env.exchange(serializer=ROWS)
        for thing, says in ((gate, "give gate.address"), (writer, "gate.address"), (env, "one in each process")):
            for copied in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match=says):
                    copied(thing)
        writer.emit((1, "a"))
        writer.close()
        assert list(gate) == [(1, "a")]

"""Blocking partitions: stored as they are written, read when they are finished, and no trace afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.errors import (
    BlockCorrupt,
    ConfigError,
    ExchangeAborted,
    ExchangeClosed,
    FastbufError,
    ResourceError,
)

SEGMENT = 4096
SECRET = b"blocking"
ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string?"))


class Rig:
    """Gates and writers of one exchange, read in place or over TCP."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.directory = directory
        self.stack = contextlib.ExitStack()
        self.near = self.stack.enter_context(fb.ShuffleEnvironment(segments=256, segment_size=SEGMENT))
        self.far = self.near
        if kind == "tcp":
            self.far = self.stack.enter_context(fb.ShuffleEnvironment(segments=256, segment_size=SEGMENT))
            self.address = self.far.listen()

    def target(self, gate: fb.InputGate) -> Any:
        return (*self.address, gate.gate_id) if self.kind == "tcp" else gate

    def gate(self, producers: int = 1, serializer: Any = ROWS, **config: Any) -> fb.InputGate:
        return self.far.create_input_gate(
            serializer, channels=producers, secret=SECRET, config=fb.ExchangeConfig(**config)
        )

    def writer(self, targets: list[Any], serializer: Any = ROWS, channel: int = 0, **more: Any) -> fb.RecordWriter:
        selector = more.pop("selector", None)
        config = fb.ExchangeConfig(spill_directory=str(self.directory), **more)
        return self.near.create_result_partition(
            serializer, targets, channel, secret=SECRET, selector=selector, config=config, partition_type="blocking"
        )

    def make(self, consumers: int = 1, **more: Any) -> tuple[fb.RecordWriter, list[fb.InputGate]]:
        gates = [self.gate() for _ in range(consumers)]
        return self.writer([self.target(g) for g in gates], **more), gates


@pytest.fixture(params=["local", "tcp"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    files = open_files(tmp_path)
    rig = Rig(request.param, tmp_path)
    with rig.stack:
        yield rig
    for env in (rig.near, rig.far):
        assert env.pool.stats().in_use == 0
        env.pool.audit()
    assert files == open_files(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def open_files(directory: Path) -> list[str]:
    """Paths that lead to what this process has open there, unlinked files too."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith(str(directory)):
                found.append(f"/proc/self/fd/{fd}")
    return found


def in_thread(func: Callable[[], Any]) -> Callable[[], Any]:
    """Runs func; call what is returned for its result, or its exception."""
    out: list[Any] = []

    def run() -> None:
        try:
            out.append(func())
        except BaseException as error:
            out.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def join() -> Any:
        thread.join(60)
        assert not thread.is_alive()
        return out[0]

    return join


def by_number(record: tuple[int, str], n: int) -> int:
    return record[0] % n


# ---- what is written is read


def test_order_and_nothing_lost_with_more_than_memory_holds(rig: Rig) -> None:
    """12 MB through pools of 14 segments of 4 KiB, from two producers to three consumers."""
    gates = [rig.gate(producers=2) for _ in range(3)]
    writers = [rig.writer([rig.target(g) for g in gates], channel=i, selector=fb.custom(by_number)) for i in range(2)]
    for i, writer in enumerate(writers):
        writer.emit_many((k, f"{i}" + "x" * (k % 220)) for k in range(50_000))
    assert all(gate.poll(0) is None for gate in gates), "read before it was finished"
    readers = [in_thread(lambda g=g: list(g)) for g in gates]
    for writer in writers:
        writer.close()
        assert writer.stats()["peak_segments"] <= writer.stats()["segments"] == 14
    for part, join in enumerate(readers):
        records = join()
        for i in range(2):
            mine = [(n, text) for n, text in records if text.startswith(f"{i}")]
            assert mine == [(k, f"{i}" + "x" * (k % 220)) for k in range(part, 50_000, 3)]
    assert sum(sum(w.totals()) for w in writers) == sum(g.stats()["buffers"] for g in gates)


def test_one_thread_may_write_all_and_then_read_all(tmp_path: Path) -> None:
    """A pipelined writer would wait for its consumer."""
    config = fb.ExchangeConfig(spill_directory=str(tmp_path))
    with fb.ShuffleEnvironment(segments=24, segment_size=SEGMENT) as env:
        writer, gates = env.exchange(ROWS, 2, fb.custom(by_number), partition_type="blocking", config=config)
        writer.emit_many((k, "y" * 100) for k in range(20_000))
        writer.close()
        assert [[n for n, _ in gate] for gate in gates] == [list(range(i, 20_000, 2)) for i in range(2)]
        assert env.pool.stats().in_use == 0
        assert open_files(tmp_path) == []  # consumed: nothing waits for the end of the environment


def test_a_broadcast_is_stored_once(rig: Rig) -> None:
    writer, gates = rig.make(consumers=3, selector=fb.broadcast())
    records = [(k, "b" * (k % 300)) for k in range(8000)]
    writer.emit_many(records[:4000])
    writer.emit_event(fb.Barrier(1))
    writer.emit_many(records[4000:])
    readers = [in_thread(lambda g=g: list(g)) for g in gates]
    writer.finish()
    stored = writer.partition.spilled_bytes
    writer.close()
    for join in readers:
        assert join() == [*records[:4000], fb.Barrier(1), *records[4000:]]
    assert stored < writer.stats()["bytes"] / 2.9


def test_events_keep_their_place(rig: Rig) -> None:
    writer, gates = rig.make(consumers=2, selector=fb.custom(by_number))
    for k in range(3000):
        writer.emit((k, "e" * (k % 90)))
        if k % 100 == 99:
            writer.emit_event(fb.Watermark(k))
    for k in range(60):  # more than there are places for, one behind the other
        writer.emit_event(fb.UserEvent(bytes([k]) * 500))
    readers = [in_thread(lambda g=g: list(g)) for g in gates]
    writer.close()
    for part, join in enumerate(readers):
        expected: list[Any] = []
        for k in range(0, 3000, 100):
            expected += [(n, "e" * (n % 90)) for n in range(k + part, k + 100, 2)] + [fb.Watermark(k + 99)]
        assert join() == expected + [fb.UserEvent(bytes([k]) * 500) for k in range(60)]


def test_records_longer_than_the_pool_and_empty_subpartitions(rig: Rig) -> None:
    writer, gates = rig.make(consumers=3, selector=fb.custom(lambda r, n: 1))
    records = [(i, "z" * n) for i, n in enumerate((0, SEGMENT * 100, 5, SEGMENT - 30, SEGMENT * 31))]
    writer.emit_many(records)
    readers = [in_thread(lambda g=g: list(g)) for g in gates]
    writer.close()
    assert [join() for join in readers] == [[], records, []]
    assert writer.stats()["peak_segments"] <= writer.stats()["segments"]


def test_batches(rig: Rig) -> None:
    pa = pytest.importorskip("pyarrow", reason="columnar batches come from pyarrow")
    batch = pa.record_batch({"k": pa.array(range(20_000)), "s": pa.array([f"name-{i}" for i in range(20_000)])})
    serializer = fb.ColumnarSerializer(batch.schema)
    gates = [rig.gate(serializer=serializer) for _ in range(2)]
    writer = rig.writer([rig.target(g) for g in gates], serializer, selector=fb.hash_by("k"))
    for _ in range(5):
        writer.emit_batch(batch)
    readers = [in_thread(lambda g=g: pa.Table.from_batches(list(g))) for g in gates]
    writer.close()
    table = pa.concat_tables([join() for join in readers])
    assert table.sort_by("k") == pa.Table.from_batches([batch] * 5).sort_by("k")


def test_consumers_may_come_when_the_producer_has_finished(rig: Rig) -> None:
    writer = rig.writer([None, None], selector=fb.custom(by_number))
    writer.emit_many((k, "a" * 50) for k in range(10_000))
    with pytest.raises(ConfigError, match="index is 2: it must be an integer from 0 to 1"):
        writer.attach(2, None)
    early = rig.gate()
    writer.attach(0, rig.target(early))
    writer.finish()
    with pytest.raises(ConfigError, match="consumer already"):
        writer.attach(0, rig.target(early))
    late = rig.gate()
    writer.attach(1, rig.target(late))
    readers = [in_thread(lambda g=g: [n for n, _ in g]) for g in (early, late)]
    writer.close()
    assert [join() for join in readers] == [list(range(i, 10_000, 2)) for i in range(2)]


def test_who_never_came_is_not_waited_for(rig: Rig) -> None:
    writer, (gate,) = rig.make()
    taken = rig.gate()
    other = rig.writer([rig.target(taken), None], selector=fb.custom(by_number))
    for w in (writer, other):
        w.emit_many((k, "a" * 50) for k in range(1000))
    readers = [in_thread(lambda g=g: len(list(g))) for g in (gate, taken)]
    writer.close()
    other.close()
    assert [join() for join in readers] == [1000, 500]


def test_nothing_is_written_behind_the_end(rig: Rig) -> None:
    writer, (gate,) = rig.make()
    writer.emit((1, "x"))
    writer.finish()
    writer.finish()
    for call in (lambda: writer.emit((2, "y")), lambda: writer.try_emit((2, "y")),
                 lambda: writer.emit_event(fb.Watermark(1))):  # fmt: skip
        with pytest.raises(ExchangeClosed, match="end of partition"):
            call()
    writer.flush()
    reader = in_thread(lambda: list(gate))
    writer.close()
    assert reader() == [(1, "x")]


def test_a_fused_stage_never_waits(rig: Rig) -> None:
    """One thread writes, then reads and closes in turn."""
    writer, (gate,) = rig.make()
    for k in range(20_000):
        assert writer.try_emit((k, "f" * 60))
    got: list[Any] = []
    deadline = time.monotonic() + 60
    while not (writer.try_close() and gate.finished):
        got += gate.poll(0.01) or []
        assert time.monotonic() < deadline
    assert got == [(k, "f" * 60) for k in range(20_000)]


def test_a_producer_that_goes_on_is_no_stall(tmp_path: Path) -> None:
    """A consumer that waits in the same process sees it write, and does not give up."""
    config = fb.ExchangeConfig(spill_directory=str(tmp_path), stall_timeout_s=0.1)
    with fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT) as env:
        writer, gates = env.exchange(ROWS, partition_type="blocking", config=config)
        reader = in_thread(lambda: len(list(gates[0])))
        for k in range(3):
            writer.emit((k, "slow"))
            time.sleep(
                0.4
            )  # the producer's own pace: slower than the stall timeout, and what is written is not seen yet
        writer.close()
        assert reader() == 3


# ---- ends


def test_a_consumer_that_has_enough(rig: Rig) -> None:
    writer, gates = rig.make(consumers=3, selector=fb.custom(by_number))
    writer.emit_many((k, "c" * 80) for k in range(6000))
    gates[0].close()  # before there is anything to read
    writer.emit_many((k, "c" * 80) for k in range(6000, 12_000))
    closer = in_thread(writer.close)
    assert next(iter(gates[1])) == (1, "c" * 80)
    gates[1].close()  # in the middle
    assert [n for n, _ in gates[2]] == list(range(2, 12_000, 3))
    assert closer() is None


def test_a_consumer_that_goes_while_it_is_sent_to(tmp_path: Path) -> None:
    """What was just being loaded for it stayed out, until the partition itself was collected.

    Segments of a mebibyte, so that loading one takes long enough to be met in the middle.
    """
    objects = fb.PickledSerializer()
    with (
        fb.ShuffleEnvironment(segments=24, segment_size=1 << 20) as near,
        fb.ShuffleEnvironment(segments=24, segment_size=1 << 20) as far,
    ):
        far.listen()
        config = fb.ExchangeConfig(spill_directory=str(tmp_path), max_record_bytes=1 << 24)
        for i in range(16):
            gate = far.create_input_gate(objects, channels=1, config=config)
            writer = near.create_result_partition(objects, [gate.address], config=config, partition_type="blocking")
            for _ in range(3):
                writer.emit(b"g" * (4 << 20))
            writer.finish()
            closer = in_thread(writer.close)
            time.sleep(0.0002 * i)  # somewhere within; the outcome is the same wherever it is
            gate.close() if i % 2 else writer.abort("enough")
            assert closer() is None or isinstance(closer(), fb.ExchangeError)
            gate.close()
            assert near.pool.stats().in_use == 0, i


def test_when_nobody_wants_it_nothing_is_stored(rig: Rig) -> None:
    writer, gates = rig.make(consumers=2, selector=fb.round_robin())
    for gate in gates:
        gate.close()
    deadline = time.monotonic() + 60
    while not writer.cancelled and time.monotonic() < deadline:
        writer.emit((1, "nobody"))
        time.sleep(0.01)  # what it writes before it hears of it is stored
    writer.emit_many((k, "nobody" * 20) for k in range(20_000))
    writer.finish()
    assert writer.partition.spilled_bytes < 100 * SEGMENT
    writer.close()


def test_an_abort_of_the_producer_reaches_who_waits(rig: Rig) -> None:
    writer, (gate,) = rig.make()
    reader = in_thread(lambda: list(gate))
    writer.emit_many((k, "x" * 90) for k in range(5000))
    writer.abort("disk on fire")
    error = reader()
    assert isinstance(error, ExchangeAborted)
    assert "disk on fire" in str(error)


def test_an_abort_between_finish_and_close(rig: Rig) -> None:
    writer, (gate,) = rig.make()
    writer.emit_many((k, "x" * 90) for k in range(40_000))
    writer.finish()
    if rig.kind == "local":
        assert next(iter(gate)) == (0, "x" * 90)
    writer.abort("second thoughts")
    with pytest.raises(ExchangeAborted, match="second thoughts"):
        list(gate)


def test_an_abort_of_the_consumer_reaches_the_producer(rig: Rig) -> None:
    writer, (gate,) = rig.make()
    writer.emit_many((k, "x" * 90) for k in range(20_000))
    gate.abort("model exploded")
    gate.close()
    error = in_thread(writer.close)()
    assert isinstance(error, ExchangeAborted)
    assert "model exploded" in str(error)
    writer.abort("over")


@pytest.mark.parametrize("moment", ["writing", "finished", "reading", "closed"])
def test_the_environment_is_closed_at_any_moment(tmp_path: Path, moment: str) -> None:
    config = fb.ExchangeConfig(spill_directory=str(tmp_path))
    env = fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT)
    writer, gates = env.exchange(ROWS, 2, fb.custom(by_number), partition_type="blocking", config=config)
    writer.emit_many((k, "x" * 90) for k in range(5000))
    if moment != "writing":
        writer.finish()
    if moment in ("reading", "closed"):
        assert next(iter(gates[1])) == (1, "x" * 90)
    if moment == "closed":
        writer.close()
        assert len(open_files(tmp_path)) == 1
    env.close()
    assert env.pool.stats().in_use == 0
    env.pool.audit()
    assert open_files(tmp_path) == []
    with pytest.raises(ExchangeClosed):
        gates[0].poll(0)


def test_an_environment_closed_by_another_thread_while_it_is_stored_and_read(tmp_path: Path) -> None:
    config = fb.ExchangeConfig(spill_directory=str(tmp_path))
    for i in range(8):
        env = fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT)
        stored, gates = env.exchange(ROWS, 2, fb.custom(by_number), partition_type="blocking", config=config)
        stored.emit_many((k, "x" * 90) for k in range(20_000))
        stored.close()
        writer, _ = env.exchange(ROWS, partition_type="blocking", config=config)
        threads = [
            in_thread(lambda w=writer: w.emit_many((k, "x" * 3000) for k in range(1 << 40))),
            *(in_thread(lambda g=g: sum(1 for _ in g)) for g in gates),
        ]
        time.sleep(0.002 * i)  # somewhere within; the outcome is the same wherever it is
        env.close()
        for join in threads:
            assert join() == 10_000 or isinstance(join(), fb.ExchangeError)
        env.pool.audit()
        assert open_files(tmp_path) == []


# ---- the disk


def run(script: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, **options
    )


def test_a_full_disk_says_so_to_all(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands for the full disk: the same path with another errno."""
    done = run(
        f"""
        import resource
        import fastbuf as fb
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        rows = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
        config = fb.ExchangeConfig(spill_directory={str(tmp_path)!r})
        with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
            writer, gates = env.exchange(rows, 2, fb.round_robin(), partition_type="blocking", config=config)
            records = ((k, "x" * 100) for k in range(100_000))
            for call, kind in ((lambda: writer.emit_many(records), fb.errors.ResourceError),
                               (writer.finish, fb.errors.ResourceError),
                               (lambda: list(gates[0]), fb.ExchangeAborted)):
                try:
                    call()
                except kind as error:
                    assert "File too large, after 10" in str(error), error
                    assert "spill_directory" in str(error), error
                    assert {str(tmp_path)!r} in str(error), error
                else:
                    raise SystemExit("no error")
            writer.abort()
        env.pool.audit()
        """
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    with pytest.raises(ConfigError, match=r"spill_directory is '.*absent': there is no such directory"):
        fb.ExchangeConfig(spill_directory=absent)
    absent.mkdir()
    config = fb.ExchangeConfig(spill_directory=str(absent))
    absent.rmdir()  # after it was checked
    with fb.ShuffleEnvironment(segments=64) as env:
        gate = env.create_input_gate(ROWS, channels=1)
        with pytest.raises(ResourceError, match=r"absent.*No such file.*spill_directory"):
            env.create_result_partition(ROWS, [gate], config=config, partition_type="blocking")
        assert env.pool.stats().in_use == 0
        with pytest.raises(ConfigError, match="partition_type is 'hybrid'"):
            env.create_result_partition(ROWS, [gate], partition_type="hybrid")
        with pytest.raises(ConfigError, match="needs all targets when it is made"):
            env.create_result_partition(ROWS, [None])


@pytest.mark.parametrize("nameless", [True, False])
def test_killed_in_the_middle_it_leaves_no_file(tmp_path: Path, nameless: bool) -> None:
    """With O_TMPFILE, and where the file system does not know it."""
    script = f"""
        import errno, os, sys
        import fastbuf as fb
        opened = os.open
        def refuse(path, flags, *more, **named):
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "Operation not supported")
            return opened(path, flags, *more, **named)
        if not {nameless}:
            os.open = refuse
        rows = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
        config = fb.ExchangeConfig(spill_directory={str(tmp_path)!r})
        with fb.ShuffleEnvironment(segments=64, segment_size=4096) as env:
            writer, _ = env.exchange(rows, 2, fb.round_robin(), partition_type="blocking", config=config)
            writer.emit_many((k, "x" * 100) for k in range(20_000))
            print("stored", flush=True)
            writer.emit_many((k, "x" * 100) for k in range(1 << 40) if sys.stdout.fileno())
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "stored\n"
        held = [os.stat(f"/proc/{process.pid}/fd/{fd}").st_size for fd in os.listdir(f"/proc/{process.pid}/fd")]
        assert max(held) > 1 << 20, "it stores nothing"
        assert list(tmp_path.iterdir()) == []
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("checksum", [False, True])
def test_a_file_that_was_cut_is_noticed(tmp_path: Path, checksum: bool) -> None:
    config = fb.ExchangeConfig(spill_directory=str(tmp_path), checksum=checksum)
    with fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT) as env:
        writer, (gate,) = env.exchange(ROWS, partition_type="blocking", config=config)
        writer.emit_many((k, "x" * 90) for k in range(5000))
        writer.finish()
        for path in open_files(tmp_path):
            os.truncate(path, 100_000)
        with pytest.raises(ResourceError, match="ends before"):
            list(gate)
        writer.abort()


@pytest.mark.parametrize("broadcast", [False, True])
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_with_checksums_a_file_that_was_altered_is_noticed(rig: Rig, place: float, broadcast: bool) -> None:
    selector = fb.broadcast() if broadcast else fb.round_robin()
    writer, gates = rig.make(2, checksum=True, selector=selector)
    writer.emit_many((k, "x" * 90) for k in range(3000))
    writer.emit_event(fb.UserEvent(b"in between"))
    writer.emit_many((k, "y" * 90) for k in range(3000))
    writer.finish()
    (path,) = open_files(rig.directory)
    with open(path, "r+b") as file:
        where = int((os.fstat(file.fileno()).st_size - 1) * place)
        file.seek(where)
        byte = file.read(1)
        file.seek(where)
        file.write(bytes([byte[0] ^ 1]))
    errors: list[Exception] = []

    def read(gate: fb.InputGate) -> None:
        try:
            list(gate)
        except FastbufError as error:
            errors.append(error)

    readers = [threading.Thread(target=read, args=(gate,)) for gate in gates]
    for reader in readers:
        reader.start()
    with contextlib.suppress(FastbufError):
        writer.close()
    for reader in readers:
        reader.join(60)
        assert not reader.is_alive()
    assert errors
    assert all("CRC32C" in str(error) for error in errors)
    with pytest.raises(BlockCorrupt, match="CRC32C"):
        writer.partition.check()


@pytest.mark.parametrize("broadcast", [False, True])
def test_with_checksums_all_of_it_is_read(rig: Rig, broadcast: bool) -> None:
    writer, gates = rig.make(2, checksum=True, selector=fb.broadcast() if broadcast else fb.forward(0))
    got: list[list[Any]] = [[], []]
    records = [(k, "x" * (k % 300)) for k in range(5000)]
    readers = [threading.Thread(target=lambda i=i: got[i].extend(gates[i])) for i in range(2)]
    for reader in readers:
        reader.start()
    writer.emit_many(records)
    writer.close()
    for reader in readers:
        reader.join(60)
    assert got == [records, records if broadcast else []]


def test_a_forked_child_has_no_part_in_it(tmp_path: Path) -> None:
    done = run(
        f"""
        import os
        import fastbuf as fb
        rows = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
        config = fb.ExchangeConfig(spill_directory={str(tmp_path)!r})
        env = fb.ShuffleEnvironment(segments=64, segment_size=4096)
        writer, (gate,) = env.exchange(rows, partition_type="blocking", config=config)
        records = [(k, "x" * 100) for k in range(2000)]
        writer.emit_many(records)
        child = os.fork()
        if not child:
            refused = 0
            for call in (lambda: writer.emit((1, "")), writer.finish, lambda: writer.attach(0, gate), gate.poll):
                try:
                    call()
                except fb.ExchangeClosed as error:
                    refused += "parent" in str(error)
            writer.abort(), gate.close(), env.close()
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        writer.close()
        assert list(gate) == records
        env.close()
        """
    )
    assert done.returncode == 0, done.stderr[-2000:]

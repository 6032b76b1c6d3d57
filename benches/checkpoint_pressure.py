"""How back pressure lengthens a checkpoint: start delay and alignment against the rate of a slow consumer.

Without Spark: two sources in this process offer 3 and 1 MB/s to one consumer in another, which aligns their barriers
and takes so many MB/s.  A checkpoint is triggered when the one before it is complete, half a second later at least; a
source sends its barrier once it is back from ``emit``, as a task does.  Under credit the consumer blocks a channel
behind its barrier (exactly once); under watermarks it cannot, for a channel that is not read stops its connection, so
there it reads on (at least once).  ``--spark`` does it with a stream on Spark: a source as fast as it goes, a stage
with state in Python that takes so many rows a second, and what ``query.progress()`` tells of its checkpoints.

``python benches/checkpoint_pressure.py [--spark] [--quick] [--to FILE]``
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import compare

import fastbuf as fb

OFFERED = (3.0, 1.0)  #: MB/s of each source
RATES = (8.0, 2.0, 1.0, 0.5)  #: MB/s that the consumer takes; 8: as much as comes
WAYS = ("credit", "watermark")
CHECKPOINTS, LEAST_S, MOST_S, WARM_S = 5, 0.5, 40.0, 4.0


# ---- the consumer's process


def consume(control: Any) -> None:
    """One story after the other, until it is told None."""
    with fb.ShuffleEnvironment(segments=1024, segment_size=compare.SEGMENT_BYTES) as env:
        env.listen()
        while (task := control.recv()) is not None:
            way, rate = task
            gate = env.create_input_gate(compare.ROWS, channels=len(OFFERED), config=compare.settings(way))
            control.send(gate.address)
            reader = compare.started(take, gate, rate, way == "credit", control)
            control.recv()  # it is over
            gate.close()
            reader.join()
            control.send(None)


def take(gate: fb.InputGate, rate: float, blocks: bool, control: Any) -> None:
    """Read so fast, and tell when the first and the last barrier of each checkpoint came."""
    alignment = fb.checkpoint.Alignment(range(len(OFFERED)), exactly_once=blocks)
    free = moved = 0.0
    first: dict[int, float] = {}
    try:
        for item in gate:
            now = time.monotonic()
            if isinstance(item, fb.Barrier):
                first.setdefault(item.checkpoint, now)
                step = alignment.barrier(item.channel, item.checkpoint, now)
                for channel in step.block:
                    gate.block(channel)
                if step.snapshot is not None:
                    control.send((item.checkpoint, first[item.checkpoint], now, moved))
                for channel in step.unblock:
                    gate.unblock(channel)
                continue
            moved += compare.RECORD_BYTES
            free = max(free, now - compare.TICK_S) + compare.RECORD_BYTES / (rate * compare.MB)
            if free > now + 0.001:
                time.sleep(free - now)
    except fb.errors.ExchangeClosed:
        pass


# ---- the sources' process


class Sources:
    """A thread for each source; ``trigger`` has them send a barrier when they are back from ``emit``."""

    def __init__(self, writers: list[fb.RecordWriter]) -> None:
        self.sent = [0] * len(writers)
        self._wanted = 0
        self._over = False
        self._threads = [compare.started(self._offer, i, writer) for i, writer in enumerate(writers)]

    def trigger(self, checkpoint: int) -> None:
        self._wanted = checkpoint

    def end(self) -> None:
        self._over = True
        for thread in self._threads:
            thread.join()

    def _offer(self, i: int, writer: fb.RecordWriter) -> None:
        text = "x" * (compare.RECORD_BYTES - 20)
        told, owed, due = 0, 0.0, time.monotonic()
        while not self._over and not writer.cancelled:
            owed += OFFERED[i] * compare.MB * compare.TICK_S / compare.RECORD_BYTES
            while owed >= 1 and not self._over:
                if self._wanted > told:
                    told = self._wanted
                    writer.emit_event(fb.Barrier(told, timestamp_ms=0))
                writer.emit((time.monotonic_ns(), text))
                self.sent[i] += compare.RECORD_BYTES
                owed -= 1
            due = max(due + compare.TICK_S, time.monotonic() - compare.TICK_S)
            time.sleep(max(0.0, due - time.monotonic()))
        writer.close()


def story(control: Any, way: str, rate: float, checkpoints: int, warm_s: float) -> dict[str, Any]:
    """What the checkpoints took under a flow control, with a consumer of a rate."""
    config = compare.settings(way)
    with fb.ShuffleEnvironment(segments=1024, segment_size=compare.SEGMENT_BYTES) as env:
        control.send((way, rate))
        target = control.recv()
        writers = [env.create_result_partition(compare.ROWS, [target], channel=i, config=config) for i in (0, 1)]
        sources = Sources(writers)
        time.sleep(warm_s)  # what piles up has piled up
        taken, end = [], time.monotonic() + MOST_S
        for checkpoint in range(1, checkpoints + 1):
            began, sent = time.monotonic(), sum(sources.sent)
            sources.trigger(checkpoint)
            if not control.poll(max(0.0, end - time.monotonic())):
                break
            _, first, last, moved = control.recv()
            taken.append((first - began, last - first, sent - moved))
            time.sleep(max(0.0, began + LEAST_S - time.monotonic()))
        control.send(None)
        while control.recv() is not None:  # one that came late
            pass
        sources.end()
    made = {"way": way, "rate": rate, "complete": len(taken), "of": checkpoints}
    for place, name in enumerate(("start_delay_s", "alignment_s")):
        values = [each[place] for each in taken]
        made[name] = {"median": statistics.median(values), "most": max(values)} if values else None
    made["total_s"] = max(each[0] + each[1] for each in taken) if taken else None
    return made


def core(quick: bool) -> list[dict[str, Any]]:
    """Each rate under each flow control."""
    control, theirs = mp.get_context("spawn").Pipe()
    process = mp.get_context("spawn").Process(target=consume, args=(theirs,), daemon=True)
    process.start()
    made = []
    for rate in RATES[:1] if quick else RATES:
        for way in WAYS:
            made.append(story(control, way, rate, 2 if quick else CHECKPOINTS, 0.3 if quick else WARM_S))
            print(json.dumps(made[-1]), flush=True)
    control.send(None)
    process.join(10)
    return made


# ---- the same with a stream on Spark


class Slow:
    """State by key, and so many seconds for a row of some keys; rows go on, or end here."""

    def __init__(self, row_s: float, keys: range, last: bool) -> None:
        self.row_s, self.keys, self.last = row_s, keys, last

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
        (n,) = self._count.get() or (0,)
        for batch in rows:
            n += batch.num_rows
            time.sleep(self.row_s * batch.num_rows if key[0] in self.keys else 0.0)  # stands for work
            if not self.last:
                yield batch
        self._count.update((n,))

    def handleExpiredTimer(self, key: Any, times: Any, info: Any) -> Any:
        return ()

    def close(self) -> None:
        pass


def keyed(batches: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in batches:
        values = batch.column("value")
        yield pa.RecordBatch.from_arrays([pc.bit_wise_and(values, KEYS - 1), values], names=["k", "v"])


KEYS = 8
#: What the slow stage takes in a second (None: all that comes), and the keys for which it is slow, its tasks
SCENES = ((None, KEYS, 1), (100_000, KEYS, 1), (20_000, KEYS, 1), (5_000, KEYS, 1), (5_000, 1, 2))


def spark(quick: bool) -> list[dict[str, Any]]:
    """Checkpoints of a stream of two sources each second, by the rows that its stage with state takes in a second."""
    from pyspark.sql import SparkSession

    import fastbuf_spark as fbs

    session = SparkSession.builder.master("local[5]").config("spark.ui.enabled", "false").getOrCreate()
    conf = fbs.ShuffleConf(memory_bytes="4m", batch_bytes="32k", buffer_timeout=0.005)
    made = []
    for rate, keys, tasks in SCENES[:1] if quick else SCENES:
        row_s = 0.0 if rate is None else 1 / rate
        offered = 20_000.0 if rate is None else 0.0
        with tempfile.TemporaryDirectory() as folder:
            stream = fbs.stream_rate(session, offered, splits=2, tasks=2, conf=conf).map_in_arrow(
                keyed, "k long, v long"
            )
            for name, partitions, slow_s in (("slow", tasks, row_s), ("behind", 1, 0.0)):
                stage = Slow(slow_s, range(keys), name == "behind")
                stream = stream.group_by("k", partitions=partitions).transform_with_state(
                    stage, "k long, v long", arrow=True, name=name
                )
            query = stream.write_stream(fbs.to_memory(), f"{folder}/chk", every=1.0)
            wanted = 2 if quick else 8

            def complete(query: Any = query) -> list[Any]:
                return [each for each in query.progress().get("checkpoints", ()) if each["state"] == "completed"]

            end = time.monotonic() + 120
            while len(complete()) < wanted and time.monotonic() < end:
                query.await_termination(0.2)
            told = complete()[2 if not quick else 0 :]  # the first ones stand before the backlog
            query.stop()
        made.append({"rate": rate, "keys": keys, "complete": len(told)})
        for name in ("duration_s", "start_delay_s", "alignment_s", "sync_s", "async_s"):
            made[-1][name] = statistics.median([each[name] for each in told]) if told else None
        print(json.dumps(made[-1]), flush=True)
    session.stop()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--spark", action="store_true", help="with a stream on Spark")
    parser.add_argument("--quick", action="store_true", help="does it run, not what comes out")
    parser.add_argument("--to", type=Path, default=None, help="also write the figures there, as JSON")
    options = parser.parse_args()
    figures = spark(options.quick) if options.spark else core(options.quick)
    if options.to is not None:
        options.to.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""The same stream as others run it: number n of N has the key ``n * 2654435761 % KEYS``; a running sum of each key.

Each prints the seconds that the job took; a peer whose packages do not go together with Spark's runs in a Python of its
own, as ``python stream_peers.py NAME ROWS FOLDER``:

- ``flink-process``, ``flink-thread``: PyFlink, by ``KeyedProcessFunction``; ``FASTBUF_PYFLINK`` names a Python that has
  ``apache-flink``.  Rows made and discarded by Flink's own Java; state on the heap, checkpoints into files.
- ``flink-process-window``, ``-sliding``, and the same with ``thread``: the sums of event-time windows, by Flink's
  ``AggregateFunction`` in Python.
- ``bytewax``: ``stateful_map``, one worker; ``FASTBUF_BYTEWAX`` names a Python that has it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KEYS, FACTOR = 1_000_000, 2_654_435_761
US_PER_ROW = 10  #: of event time: 100,000 rows in a second
PYTHONS = {"flink": "FASTBUF_PYFLINK", "bytewax": "FASTBUF_BYTEWAX"}


def python_of(peer: str) -> str | None:
    """Which Python runs a peer; None: nobody has said, and this one has it not."""
    return os.environ.get(PYTHONS[peer.partition("-")[0]])


def seconds_of(peer: str, rows: int, folder: Path) -> float:
    """What a peer's job of so many rows took, its start left out where the peer tells it."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME")}
    command = [str(python_of(peer)), __file__, peer, str(rows), str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder, timeout=600)
    if run.returncode:
        raise RuntimeError(f"{peer} failed: {run.stderr[-2000:]}")
    return float(run.stdout.split()[-1])


def flink_job(way: str, rows: int, folder: str) -> float:
    """By the DataStream API."""
    from pyflink.common import Configuration, Duration, Time, Types, WatermarkStrategy
    from pyflink.common.watermark_strategy import TimestampAssigner
    from pyflink.datastream import AggregateFunction, KeyedProcessFunction, StreamExecutionEnvironment
    from pyflink.datastream.connectors.base import Sink
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource
    from pyflink.datastream.state import ValueStateDescriptor
    from pyflink.datastream.window import SlidingEventTimeWindows, TumblingEventTimeWindows
    from pyflink.java_gateway import get_gateway

    # The interpreter inside the Java process of thread mode knows nothing of a virtual environment
    os.environ["PYTHONPATH"] = sysconfig.get_path("purelib")
    mode, _, shape = way.partition("-")
    settings = Configuration()
    settings.set_string("restart-strategy.type", "none")  # by default it tries again for ever, without a word
    settings.set_string("python.execution-mode", mode)
    settings.set_string("python.executable", sys.executable)
    settings.set_string("execution.checkpointing.interval", "1 s")
    settings.set_string("execution.checkpointing.dir", f"file://{folder}/flink-checkpoints")
    settings.set_string("taskmanager.memory.process.size", "3g")
    env = StreamExecutionEnvironment.get_execution_environment(settings)
    env.set_parallelism(1)
    pair = Types.TUPLE([Types.LONG(), Types.LONG()])

    class RunningSum(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

        def process_element(self, value: int, ctx: Any) -> Iterator[tuple[int, int]]:
            total = (self.total.value() or 0) + value
            self.total.update(total)
            yield value * FACTOR % KEYS, total

    class Total(AggregateFunction):
        def create_accumulator(self) -> int:
            return 0

        def add(self, value: int, accumulator: int) -> int:
            return accumulator + value

        def get_result(self, accumulator: int) -> int:
            return accumulator

        def merge(self, a: int, b: int) -> int:
            return a + b

    class Times(TimestampAssigner):
        def extract_timestamp(self, value: int, record_timestamp: int) -> int:
            return value * US_PER_ROW // 1000

    numbers = env.from_source(
        NumberSequenceSource(0, rows - 1), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    )
    if shape:
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(1))
        numbers = numbers.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(Times()))
    keyed = numbers.key_by(lambda value: value * FACTOR % KEYS, Types.LONG())
    if shape == "window":
        out = keyed.window(TumblingEventTimeWindows.of(Time.seconds(10))).aggregate(
            Total(), accumulator_type=Types.LONG(), output_type=Types.LONG()
        )
    elif shape == "sliding":
        windows = SlidingEventTimeWindows.of(Time.seconds(60), Time.seconds(10))
        out = keyed.window(windows).aggregate(Total(), accumulator_type=Types.LONG(), output_type=Types.LONG())
    else:
        out = keyed.process(RunningSum(), pair)
    discarding = get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink
    out.sink_to(Sink(discarding()))
    return float(env.execute("running sum").get_net_runtime()) / 1000


def bytewax_job(mode: str, rows: int, folder: str) -> float:
    """By its own operators; keys must be strings."""
    from datetime import timedelta

    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.outputs import DynamicSink, StatelessSinkPartition
    from bytewax.recovery import RecoveryConfig, init_db_dir
    from bytewax.testing import run_main

    class Numbers(StatefulSourcePartition):
        def __init__(self, first: int) -> None:
            self.first = first

        def next_batch(self) -> list[tuple[str, int]]:
            if self.first >= rows:
                raise StopIteration
            values = range(self.first, min(self.first + 10_000, rows))
            self.first = values.stop
            return [(str(value * FACTOR % KEYS), value) for value in values]

        def snapshot(self) -> int:
            return self.first

    class Source(FixedPartitionedSource):
        def list_parts(self) -> list[str]:
            return ["numbers"]

        def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Numbers:
            return Numbers(resume_state or 0)

    class Discard(StatelessSinkPartition):
        def write_batch(self, items: list[Any]) -> None:
            pass

    class Sink(DynamicSink):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Discard:
            return Discard()

    def running(state: int | None, value: int) -> tuple[int, int]:
        total = (state or 0) + value
        return total, total

    flow = Dataflow("running_sum")
    op.output("out", op.stateful_map("sum", op.input("in", flow, Source()), running), Sink())
    recovery = Path(folder, "bytewax")
    recovery.mkdir(exist_ok=True)
    for old in recovery.iterdir():
        old.unlink()
    init_db_dir(recovery, 1)
    begin = time.perf_counter()
    run_main(flow, epoch_interval=timedelta(seconds=1), recovery_config=RecoveryConfig(recovery))
    return time.perf_counter() - begin


JOBS: dict[str, Callable[[str, int, str], float]] = {"flink": flink_job, "bytewax": bytewax_job}

if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    peer, _, way = sys.argv[1].partition("-")
    print(JOBS[peer](way, int(sys.argv[2]), sys.argv[3]))

"""How fast this machine is at what an estimate counts: measured in a second or two, by the code that tasks run."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator

from fastbuf_spark.codec import BatchCodec
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver import talk
from fastbuf_spark.driver.estimate import Rates
from fastbuf_spark.driver.reported import Reported
from fastbuf_spark.messages import Unpacker, compact
from fastbuf_spark.protocol import FromWorker, Seal
from fastbuf_spark.spec import ExchangeSpec
from fastbuf_spark.worker.blocks import ReduceSide, Staging
from fastbuf_spark.worker.fetching import Fetcher
from fastbuf_spark.worker.held import HeldFile, WrittenFile

BATCH_ROWS = 10_000
LEAST_S = 0.5  #: of each measurement
MOST_PARTITIONS = 1_000  #: more change nothing but the time that this takes
REPORTS = 2_000
CHANNELS = 100_000
NETWORK_BYTES_S = 10e9 / 8  #: assumed: 10 Gbit/s


def measured(row_bytes: int, partitions: int, network_bytes_s: float = NETWORK_BYTES_S) -> Rates:
    """Rates of a core of this machine, for rows of (long, long, double, text) of about so many bytes."""
    write, read = _rows(max(28, row_bytes), min(partitions, MOST_PARTITIONS))
    return Rates(write, read, network_bytes_s, _message_s(), _channel_s())


def _rows(row_bytes: int, partitions: int) -> tuple[float, float]:
    import numpy as np
    import pyarrow as pa

    numbers = np.arange(BATCH_ROWS)
    text = pa.array(["x" * (row_bytes - 24)] * BATCH_ROWS)
    batch = pa.record_batch([numbers * 7_919, numbers, numbers / 3, text], names=["k", "a", "b", "t"])
    codec, conf = BatchCodec(batch.schema, (0,)), ShuffleConf()
    spec = ExchangeSpec(talk.EXCHANGE, "calibration", partitions, conf, codec)
    digest, nbytes = b"\0" * 8, 0
    with tempfile.TemporaryDirectory(prefix="fastbuf-plan-") as root:
        file = HeldFile(root, spec.sections, talk.RUN, 0)
        staging = Staging(codec, partitions, file, conf.memory_bytes, conf.max_record_bytes)
        staging.add(batch)  # the first one touches the buffers' pages
        begin = time.thread_time()
        while time.thread_time() - begin < LEAST_S:
            staging.add(batch)
            nbytes += batch.nbytes
        staging.close()
        for _ in file.close(digest):
            pass
        write_s, rows = time.thread_time() - begin, 0
        path = os.path.join(root, str(talk.RUN), f"0-{digest.hex()}")
        side = ReduceSide(spec, iter)
        begin = time.thread_time()
        with WrittenFile(path) as written, Fetcher(spec, 0) as fetcher:

            def blocks() -> Iterator[memoryview]:
                for partition in range(partitions):
                    yield from written.blocks(partition, digest)

            for each in side.decoded(blocks(), {"records": 0, "bytes": 0}, fetcher):
                rows += each.num_rows
        read_s = time.thread_time() - begin
    return nbytes / write_s, rows * (batch.nbytes / BATCH_ROWS) / read_s


def _message_s() -> float:
    """CPU seconds of the driver for a report, and its answer."""
    runs, unpacker = Reported(talk.EXCHANGE, "calibration", "blocking", [], lambda stage: None), Unpacker(FromWorker)
    tasks = [talk.map_task(number, 100) for number in range(REPORTS)]
    unpacker.limit = 1 << 20
    frames = [b"".join(message.encode() for message in messages) for messages, _ in tasks]
    begin = time.thread_time()
    for number, (frame, (_, answers)) in enumerate(zip(frames, tasks, strict=True)):
        unpacker.feed(frame)
        while (message := unpacker.next()) is not None:
            runs.tells(number, message.side, message.partition, message.stage, 0, message.stats, 0.0)  # type: ignore[attr-defined]
        for answer in answers:
            answer.encode()
    return (time.thread_time() - begin) / sum(map(len, (part for task in tasks for part in task)))


def _channel_s() -> float:
    """CPU seconds of the driver for the buffers of a channel, from the producer's message to the consumer's."""
    (*_, done), _ = talk.producer(0, CHANNELS)
    unpacker, frame = Unpacker(FromWorker), done.encode()
    unpacker.limit = len(frame)
    begin = time.thread_time()
    unpacker.feed(frame)
    totals = compact(unpacker.next().totals)  # type: ignore[union-attr]
    Seal(dict(zip(range(CHANNELS), totals, strict=True))).encode()
    return (time.thread_time() - begin) / CHANNELS

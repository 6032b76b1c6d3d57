"""What a shuffle takes on a cluster: mode, memory, files, connections, messages, seconds, and what breaks first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from fastbuf.errors import ConfigError, ProtocolError
from fastbuf.json_frames import FRAME_BYTES
from fastbuf_spark import protocol
from fastbuf_spark.conf import MODES, ShuffleConf
from fastbuf_spark.driver import talk
from fastbuf_spark.driver.checks import check_mode, partition_count
from fastbuf_spark.driver.cluster import SPARE_DESCRIPTORS, Cluster, judged
from fastbuf_spark.driver.mode import choose
from fastbuf_spark.driver.summary import TASK_S, too_many
from fastbuf_spark.driver.talk import GREETING, Talk
from fastbuf_spark.messages import compact
from fastbuf_spark.worker.blocks import LEAST_BLOCK_BYTES, staging_bytes
from fastbuf_spark.worker.fetching import MOST_CONNECTIONS
from fastbuf_spark.worker.held import DESCRIPTION_BYTES

ROW_BYTES = 40  #: of which cores are measured
AROUND_BYTES = 28  #: of Spark's own form of a description beside it: a bitmap, two fields, and the row's length
SERVER_BYTES = 60 << 20  #: memory of a file server
#: Memory that the driver keeps for each task, by mode; as measured by ``benches/simulate_cluster.py``
TASK_BYTES = {"blocking": 1_500, "pipelined": 9_000}
SMALL_BLOCK_BYTES = 1024  #: shorter blocks are mostly headers and questions


@dataclass(frozen=True)
class Rates:
    """How fast a core and a host are; :func:`fastbuf_spark.driver.calibration.measured` measures some.

    Attributes
    ----------
    write_bytes_s, read_bytes_s
        Bytes of rows that a core places and encodes, and decodes, in a second; the user's functions come on top.
    network_bytes_s
        Bytes in a second that a host sends, and gets.
    message_s, channel_s
        CPU seconds of the driver for a message, and for each number of buffers that a producer has sent to a consumer.
    """

    write_bytes_s: float
    read_bytes_s: float
    network_bytes_s: float
    message_s: float
    channel_s: float


@dataclass(frozen=True)
class Limit:
    """Something that a shuffle has so much of: ``share`` is what it takes of that, above 1 it breaks.

    ``remedy``: what to set.
    """

    name: str
    takes: float
    has: float
    remedy: str

    @property
    def share(self) -> float:
        """What is taken of what there is."""
        return self.takes / self.has if self.has else math.inf

    def __str__(self) -> str:
        return f"{self.name}: {_figure(self.takes)} of {_figure(self.has)}; {self.remedy}"


@dataclass(frozen=True)
class Estimate:
    """What a shuffle takes.

    Attributes
    ----------
    mode
        ``"blocking"`` or ``"pipelined"``.
    problems
        Why it cannot run, as :func:`preflight` has it, with the settings to change.
    slots
        Tasks that run at once.
    task_memory_bytes, executor_memory_bytes, host_memory_bytes, driver_memory_bytes
        Memory of fastbuf's: of a task at most, of an executor's tasks and file server, of a host's executors, of the
        driver beside what Spark needs.
    files
        Files in which map tasks hold their rows.
    connections
        Connections between workers at once, or to file servers.
    control_connections
        Connections to the driver at once.
    messages, message_bytes
        To and from the driver, if each task tells once what it does; longer ones tell every second.
    description_bytes
        Through Spark's shuffle, before it compresses them.
    seconds
        By what they are for: ``start`` of Python's tasks, ``write``, ``network``, ``read``; ``driver``: of its thread,
        beside the others.
    limits
        What it takes of what there is, the nearest limit first.
    """

    mode: str
    problems: tuple[str, ...]
    slots: int
    task_memory_bytes: int
    executor_memory_bytes: int
    host_memory_bytes: int
    driver_memory_bytes: int
    files: int
    connections: int
    control_connections: int
    messages: int
    message_bytes: int
    description_bytes: int
    seconds: dict[str, float]
    limits: tuple[Limit, ...]
    advice: str = ""  #: that partitions cost more than they bring

    @property
    def tasks_s(self) -> float:
        """Seconds of the tasks; stages of a pipelined exchange run at the same time."""
        parts = [self.seconds[name] for name in ("write", "network", "read")]
        return self.seconds["start"] + (max(parts) if self.mode == "pipelined" else sum(parts))

    @property
    def total_s(self) -> float:
        """Seconds from the first row read to the last one given out."""
        return max(self.tasks_s, self.seconds["driver"])

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        limits = [{**asdict(each), "share": each.share} for each in self.limits]
        return {**asdict(self), "total_s": self.total_s, "limits": limits}


def estimate(
    cluster: Cluster,
    nbytes: int,
    map_tasks: int,
    num_partitions: int,
    rates: Rates | None = None,
    mode: str = "auto",
    conf: ShuffleConf | None = None,
    executor_memory_bytes: int | None = None,
    driver_memory_bytes: int | None = None,
) -> Estimate:
    """What a shuffle would take on a cluster, by the functions that the driver itself uses.

    Parameters
    ----------
    cluster
        Made by hand, with its executors and cores.
    nbytes
        Bytes of all rows.
    map_tasks
        Tasks in front of the shuffle.
    num_partitions
        Partitions behind it.
    rates
        How fast cores and hosts are; None: cores as one of this machine, which takes some seconds to measure, and a
        network of 10 Gbit/s.
    mode
        ``"auto"``, ``"pipelined"`` or ``"blocking"``.
    conf
        Settings of the shuffle.
    executor_memory_bytes, driver_memory_bytes
        Memory for the Python workers of an executor, and for the driver's Python; None: not looked at.

    Raises
    ------
    ConfigError
        A number below 1, or another mode.
    """
    check_mode(mode, MODES)
    partitions, maps = partition_count(num_partitions), partition_count(map_tasks, "map_tasks")
    if nbytes < 1:
        raise ConfigError(f"nbytes is {nbytes}: give the bytes of all rows, from 1 up")
    if cluster.executors is None or cluster.now is None or cluster.tasks is None:
        raise ConfigError("give a Cluster of executors and cores: fbs.Cluster(executors=100, cores=16)")
    if rates is None:
        from fastbuf_spark.driver.calibration import measured

        rates = measured(ROW_BYTES, partitions)
    conf = conf or ShuffleConf()
    mode = choose(mode, conf.mode, tuple)
    stopped = judged(cluster, partitions, mode, conf)
    slots, hosts = cluster.now, -(-cluster.executors // cluster.executors_per_host)
    away = nbytes * (1 - 1 / hosts)
    network_s = away / hosts / rates.network_bytes_s
    if mode == "blocking":
        buffers = partitions * staging_bytes(partitions, conf.memory_bytes, conf.max_record_bytes)
        task_bytes = max(buffers, min(conf.memory_bytes, 2 * conf.batch_bytes))
        write_s = -(-maps // slots) * nbytes / maps / rates.write_bytes_s
        read_s = -(-partitions // slots) * nbytes / partitions / rates.read_bytes_s
        connections = min(slots, partitions) * min(MOST_CONNECTIONS + 1, cluster.executors - 1)
        control = min(slots, max(maps, partitions)) + cluster.executors
        channels, channel_bytes, described = 0, 0, maps * partitions * (DESCRIPTION_BYTES + AROUND_BYTES)
    else:
        senders = max(1, min(maps, slots - partitions))
        task_bytes = conf.memory_bytes
        write_s = -(-maps // senders) * nbytes / maps / rates.write_bytes_s
        read_s = nbytes / partitions / rates.read_bytes_s
        connections, control = senders * partitions, min(slots, partitions + senders)
        channels, described = maps * partitions, 0
        channel_bytes = compact((nbytes // maps // partitions // conf.segment_size + 1,)).itemsize
    count, size, longest = _talked(mode, maps, partitions, cluster.executors)
    executor = cluster.tasks * task_bytes + SERVER_BYTES * (mode == "blocking" and cluster.executors > 1)
    driver_bytes = (maps + partitions) * TASK_BYTES[mode] + channels * channel_bytes
    seconds = {
        "start": (maps + partitions) * TASK_S / min(slots, maps + partitions),
        "write": write_s,
        "network": network_s,
        "read": read_s,
        "driver": count * rates.message_s + channels * rates.channel_s,
    }
    plan = Estimate(
        mode,
        stopped.problems,
        slots,
        task_bytes,
        executor,
        executor * cluster.executors_per_host,
        driver_bytes,
        maps if mode == "blocking" else 0,
        connections,
        control,
        count,
        size,
        described,
        seconds,
        (),
        too_many("it", partitions, slots, nbytes, conf.memory_bytes),
    )
    limits = [
        *_limits_of_tasks(plan, cluster, maps, partitions, nbytes, conf),
        *_limits_of_driver(plan, cluster, longest, driver_memory_bytes),
    ]
    if executor_memory_bytes is not None:
        ways = "fewer cores for each executor, a lower spark.fastbuf.memoryBytes, or spark.executor.memoryOverhead"
        limits.append(Limit("bytes of an executor's Python workers", executor, executor_memory_bytes, ways))
    ordered = sorted(limits, key=lambda limit: limit.share, reverse=True)
    return replace(plan, limits=tuple(ordered))


def _limits_of_tasks(
    plan: Estimate, cluster: Cluster, maps: int, partitions: int, nbytes: int, conf: ShuffleConf
) -> Iterator[Limit]:
    assert cluster.tasks is not None
    listening = cluster.executors_per_host * (1 if plan.mode == "blocking" else cluster.tasks)
    if conf.port_max:
        ways = "widen spark.fastbuf.portMin to portMax"
        yield Limit("ports of a host", listening, conf.port_max - conf.port_min + 1, ways)
    if plan.mode == "pipelined":
        ways = "executors with more cores in all, fewer partitions, or mode='blocking'"
        yield Limit("slots", partitions + 1, plan.slots, ways)
        ways = "spark.fastbuf.memoryBytes, or a lower spark.fastbuf.segmentSize"
        yield Limit("segments of a producer", partitions + 1, conf.segments, ways)
        own = max(partitions, plan.connections // partitions) + SPARE_DESCRIPTORS
    else:
        ways = "spark.fastbuf.memoryBytes, or fewer partitions"
        least = partitions * LEAST_BLOCK_BYTES
        yield Limit("bytes of a map task's buffers", least, conf.memory_bytes, ways)
        ways = "fewer partitions, or fewer map tasks (spark.sql.files.maxPartitionBytes)"
        yield Limit(f"blocks of {SMALL_BLOCK_BYTES} bytes", maps * partitions, nbytes / SMALL_BLOCK_BYTES, ways)
        # Of a file server, which has a connection and a file for each reader
        own = 2 * min(plan.connections // cluster.executors + 1, plan.slots) + SPARE_DESCRIPTORS  # type: ignore[operator]
    if cluster.descriptors is not None:
        ways = "raise the executors' limit (ulimit -n), or fewer partitions"
        yield Limit("descriptors of a worker's process", own, cluster.descriptors, ways)


def _limits_of_driver(plan: Estimate, cluster: Cluster, longest: int, memory: int | None) -> Iterator[Limit]:
    ways = "raise the driver's limit (ulimit -n), or fewer cores"
    yield Limit("descriptors of the driver", plan.control_connections + SPARE_DESCRIPTORS, cluster.driver_limit, ways)
    ways = "fewer map tasks, partitions or executors"
    yield Limit("bytes of the longest control message", longest, FRAME_BYTES, ways)
    yield Limit("seconds of the driver's thread", plan.seconds["driver"], plan.tasks_s, ways)
    if memory is not None:
        ways = "a driver with more memory, fewer map tasks or partitions"
        yield Limit("bytes of the driver's Python", plan.driver_memory_bytes, memory, ways)


def _talked(mode: str, maps: int, partitions: int, executors: int) -> tuple[int, int, int]:
    """Messages, their bytes, and those of the longest."""
    asks: Talk = ([protocol.Where(talk.RUN)], [talk.files(maps, executors)])
    ask = [GREETING, asks] if executors > 1 else []  # on one host tasks see each other's files
    serves: Talk = ([talk.serves(0)], [protocol.Heard(), protocol.Remove(f"{talk.EXCHANGE}/{talk.RUN}")])
    parts = {
        "blocking": [
            (maps, [GREETING, talk.map_task(maps - 1, executors)]),
            (partitions, [GREETING, talk.reduce_task(partitions - 1), *ask]),
            (executors if ask else 0, [GREETING, serves]),
        ],
        "pipelined": [
            (partitions, [GREETING, talk.consumer(partitions - 1, maps)]),
            (maps, [GREETING, talk.producer(maps - 1, partitions)]),
        ],
    }[mode]
    count = size = longest = 0
    for times, talks in parts:
        for message in (message for each in talks for side in each for message in side):
            try:
                length = len(message.encode())
            except ProtocolError:
                length = FRAME_BYTES + 1
            count, size, longest = count + times, size + times * length, max(longest, length if times else 0)
    return count, size, longest


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2g}"

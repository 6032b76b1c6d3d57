"""What the tasks of an exchange and its driver say to each other, message by message, when all goes well.

Of an estimate (:mod:`.estimate`), and of the simulation of a cluster (``benches/simulate_cluster.py``).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from fastbuf_spark import protocol
from fastbuf_spark.protocol import Figures, FromDriver, FromWorker

EXCHANGE = "0123456789abcdef" * 2
RUN = 1  #: number of the action
MAP, REDUCE = 1, 2  #: stages
PROOF = "0" * 64
#: Figures as long as most are: a report has 2,048 bytes at most
SENT: Figures = {
    **dict.fromkeys(("records", "bytes", "rows", "buffers", "digest"), 1 << 40),
    **dict.fromkeys(("peak_segments", "segments", "outputQueueLength", "looks"), 100),
    **dict.fromkeys(("wait_s", "outPoolUsage"), 0.125),
    "seconds": dict.fromkeys(("credit", "link", "segment", "engine_in", "engine_out", "codec", "user"), 1.125),
    "blocked": {str(partition): 1.125 for partition in range(1_000, 1_008)},
}
READ: Figures = {name: value for name, value in SENT.items() if name not in ("rows", "digest", "blocked")}

Talk = tuple[list[FromWorker[Any]], list[FromDriver]]
GREETING: Talk = (
    [protocol.Proof(EXCHANGE, PROOF[:32], PROOF)],
    [protocol.Hello(1, PROOF[:32]), protocol.Welcome(PROOF)],
)


def map_figures(host: int, ended: bool) -> Figures:
    """What a map task tells when its file is open, and at its end."""
    folder = f"/data/{host % 8}/spark/blockmgr-{host:036x}/fastbuf-held/{EXCHANGE}/{RUN}"
    figures: Figures = {"records": 1_000_000, "bytes": 64_000_000, "run": RUN, "folder": folder}
    return {**figures, "server": f"{host:016x}", "digest": f"{host:016x}"} if ended else {**figures, "state": "runs"}


def serves(host: int) -> protocol.Serves:
    """What a file server says."""
    roots = tuple(f"/data/{disk}/spark/blockmgr-{host:036x}/fastbuf-held" for disk in range(4))
    return protocol.Serves(f"{host:016x}", f"10.{host >> 16}.{host >> 8 & 255}.{host & 255}", 40_000, roots)


def files(map_tasks: int, hosts: int) -> protocol.Files:
    """Where all files are."""
    servers = tuple((each.host, each.port, each.roots) for each in map(serves, range(hosts)))
    return protocol.Files(servers, tuple(number % hosts for number in range(map_tasks)))


def map_task(number: int, hosts: int) -> Talk:
    """A map task of a blocking exchange."""
    opened, ended = (map_figures(number % hosts, each) for each in (False, True))
    report = partial(protocol.Report, "producer", number, MAP, number)
    return [report(opened), report(ended, asks=True)], [protocol.Heard()]


def reduce_task(number: int) -> Talk:
    """A reduce task of a blocking exchange, beside its question where files are, which has its own connection."""
    live, last = {"records": 1, "bytes": 1, "state": "runs"}, {"records": 1, "bytes": 1, "elapsed": 2.0}
    return [protocol.Report("consumer", number, REDUCE, number, each) for each in (live, last)], []


def consumer(number: int, map_tasks: int) -> Talk:
    """A consumer of a pipelined exchange."""
    messages: list[FromWorker[Any]] = [
        protocol.Join(REDUCE, number, number, "1"),
        protocol.Ready(f"10.0.{number >> 8 & 255}.{number & 255}", 40_000, 1),
        protocol.Watch({**READ, "state": "input"}),
        protocol.ConsumerDone(READ),
    ]
    return messages, [protocol.Epoch(1 << 62), protocol.Seal(dict.fromkeys(range(map_tasks), 1_000))]


def producer(number: int, partitions: int, epoch: int = 1 << 62) -> Talk:
    """A producer of a pipelined exchange."""
    messages: list[FromWorker[Any]] = [
        protocol.Lease(epoch, number, number, MAP),
        protocol.Begin(),
        protocol.Watch({**SENT, "state": "credit"}),
        protocol.ProducerDone((1_000,) * partitions, SENT),
    ]
    return messages, [protocol.Go(), protocol.Ok()]

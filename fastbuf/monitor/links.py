"""The kernel's figures on a writer's TCP connections: unsent bytes, round trip, retransmissions, throughput."""

from __future__ import annotations

import struct
import time
from collections import Counter, deque
from typing import Any

from fastbuf.exchange.record_writer import RecordWriter
from fastbuf.monitor.figures import MOST_TARGETS

WINDOW_S = 5.0  #: seconds over which figures are computed
MOST_TOLD = 2  #: figures are reported for this many links, the fullest ones
#: Fields of Linux's ``struct tcp_info`` (include/uapi/linux/tcp.h) at their offsets, which no kernel version changes:
#: tcpi_rtt (microseconds), tcpi_total_retrans, tcpi_bytes_acked; tcpi_busy_time and tcpi_rwnd_limited (microseconds).
_INFO = struct.Struct("=68xI28xI16xQ40xQQ")

Info = tuple[float, int, int, float, float]


def read_info(info: bytes) -> Info | None:
    """Round trip (s), retransmitted packets, bytes acknowledged, seconds with unacknowledged bytes, and seconds of
    these limited by the receiver's window; None: the kernel is older than Linux 4.10.
    """
    if len(info) < _INFO.size:
        return None
    rtt_us, resent, arrived, busy_us, full_us = _INFO.unpack_from(info)
    return rtt_us / 1e6, resent, arrived, busy_us / 1e6, full_us / 1e6


class Links:
    """The links of one writer; sampled several times a second, reported once."""

    def __init__(self) -> None:
        self._looks = 0
        self._unsent: Counter[int] = Counter()
        self._infos: dict[int, bytes] = {}
        self._before: deque[tuple[float, dict[int, Info]]] = deque()

    def look(self, writer: RecordWriter, links: dict[str, tuple[int, bytes]]) -> None:
        """Add a sample; links: the current :meth:`ShuffleEnvironment.links` of the environment."""
        self._looks += 1
        for index, gate in enumerate(writer.partition.gates):
            unsent, info = links.get(gate[1], (0, b"")) if gate is not None else (0, b"")
            if unsent:
                self._unsent[index] += 1
            if info:
                self._infos[index] = info

    def figures(self, targets: list[int]) -> dict[str, Any]:
        """``looks``: number of samples; ``unsent``: by consumer, samples with unsent bytes in the kernel; ``links``:
        figures of the fullest links over the last seconds.
        """
        now = time.monotonic()
        latest = {index: values for index, info in self._infos.items() if (values := read_info(info)) is not None}
        self._before.append((now, latest))
        while self._before[0][0] < now - WINDOW_S and len(self._before) > 2:
            self._before.popleft()
        links = {}
        for index, _ in self._unsent.most_common(MOST_TOLD):
            # The kernel may not have told of a link at the first samples
            since, before = next((sample for sample in self._before if index in sample[1]), (now, {}))
            if index in latest and now > since:
                rtt, resent, arrived, busy, full = latest[index]
                links[str(targets[index])] = {
                    "busy": min(1.0, max(0.0, busy - before[index][3]) / (now - since)),
                    "receiver_full": min(1.0, max(0.0, full - before[index][4]) / (now - since)),
                    "resent": max(0, resent - before[index][1]),
                    "rtt_s": rtt,
                    "bytes_per_s": max(0, arrived - before[index][2]) / (now - since),
                }
        unsent = {str(targets[index]): looks for index, looks in self._unsent.most_common(MOST_TARGETS)}
        return {"unsent": unsent, "looks": self._looks, **({"links": links} if links else {})}

"""Frozen settings, and the one place of every default.  Units stand in the names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any

from fastbuf.checks import flag, instance, one_of, seconds, seconds_or_none, whole, writable_directory
from fastbuf.errors import ConfigError

SEGMENT_BYTES = 32 * 1024  #: Flink's taskmanager.memory.segment-size
POOL_SEGMENTS = 2048  #: Flink's old default of network buffers
EXCLUSIVE_SEGMENTS = 2  #: Flink's buffers-per-channel
FLOATING_SEGMENTS = 8  #: Flink's floating-buffers-per-gate
OVERDRAFT_SEGMENTS = 5  #: Flink 1.15's max-overdraft-buffers-per-gate
MAX_BUFFERS_PER_CHANNEL = 10  #: Flink's max-buffers-per-channel
BUFFER_TIMEOUT_S = 0.1  #: Flink's execution.buffer-timeout
STALL_TIMEOUT_S = 120.0
MAX_RECORD_BYTES = 256 << 20
BATCH_ROWS = 10_000  #: Spark's own Arrow batch
BATCH_BYTES = 16 << 20
CONNECT_TIMEOUT_S = 20.0
TRANSPORTS = ("auto", "memfd", "tcp")  #: "auto" tries the others in this order
FLOW_CONTROLS = ("credit", "watermark", "on_off", "stepwise", "pid_rate")  #: in the order of flow_control.pxd
PING_INTERVAL_S = 10.0
ON_SLOW_CONSUMER = ("wait", "drop", "disconnect", "drop_oldest")  #: of a broadcast; as in result_partition.pxd
ON_PEER_LOSS = ("error", "forget", "wait")  #: of an input gate; in the order of gate_core.pxd
_MOST_PER_CHANNEL = 1 << 20  # segments of a channel, or floating ones of a gate: their sums stay within 32 bits


@dataclass(frozen=True)
class TlsConfig:
    """TLS for an environment's TCP connections; nothing is ever sent without it.

    Between processes of one host that share memory (``shared=True``) nothing is sent.
    Both ends show a certificate that the same authority signed.

    Parameters
    ----------
    certificate, key
        Paths of this host's certificate (with what chains it to the authority's) and of its key, PEM.
    authority
        Path of the authority's certificate, PEM.
    check_hostname
        Whether a consumer's certificate must name the address it was reached by.
    """

    certificate: str
    key: str
    authority: str
    check_hostname: bool = True

    def __post_init__(self) -> None:
        for name in ("certificate", "key", "authority"):
            instance(name, getattr(self, name), str, PathLike)
        flag("check_hostname", self.check_hostname)


@dataclass(frozen=True)
class ExchangeConfig:
    """How one exchange behaves.

    Parameters
    ----------
    exclusive
        Segments that belong to one input channel alone; at least 1.
    floating
        Segments of one gate that its channels share.
    max_buffers_per_channel
        Buffers that one subpartition may queue.
    overdraft
        Segments a pool may lend beyond its limit to finish a record that was begun.
    buffer_timeout_s
        The writer's, on every transport; a gate's is not looked at. A partly filled buffer leaves at the latest after
        this, and a gate that makes record batches waits for as long again for more rows; 0: at once, -1: only when
        full.
    connect_timeout_s
        How long to try to connect a consumer, one that does not listen yet as well. Over TCP and with
        ``on_peer_loss="cancel"`` such a one is not waited for: it counts as one that has enough.
    stall_timeout_s
        A peer that should move and does not for so long is an error: a consumer that takes nothing of a full queue, a
        producer that is awaited and has not connected. One that is connected and has nothing to say is none, for as
        long as it is known to live (`ping_interval_s`). None: wait for as long as it takes.
    ping_interval_s
        A peer that is silent for so long is asked for a sign of life, and is lost when it gives none for as long again:
        found within three intervals, on shared memory too. A connection has the shortest of its channels' at either
        end.
    max_record_bytes
        A longer record is refused.
    batch_rows, batch_bytes
        Bounds of the record batches a gate gives out.
    checksum
        CRC32C over every buffer on the wire, and in a blocking partition's file.
    transport
        ``"auto"``: shared memory between processes of one host where it can be had (both environments `shared`), else
        TCP; ``"memfd"``: shared memory or an error; ``"tcp"``.
    flow_control
        How a TCP connection keeps a producer from sending more than its consumer takes; both ends of an exchange say
        the same. ``"credit"``: against segments that the consumer has ready. The others are what stream processors had
        or have in its place, to compare with: ``"watermark"`` (Flink before 1.5), ``"on_off"`` (Storm), ``"stepwise"``
        (JStorm), ``"pid_rate"`` (Spark Streaming). They mean TCP, a slow consumer holds up others, and a peer that is
        silent is not asked for a sign of life.
    spill_directory
        Where a blocking partition stores what is written, a directory of this host; default: the system's directory
        for temporary files.
    """

    exclusive: int = EXCLUSIVE_SEGMENTS
    floating: int = FLOATING_SEGMENTS
    max_buffers_per_channel: int = MAX_BUFFERS_PER_CHANNEL
    overdraft: int = OVERDRAFT_SEGMENTS
    buffer_timeout_s: float = BUFFER_TIMEOUT_S
    stall_timeout_s: float | None = STALL_TIMEOUT_S
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    ping_interval_s: float = PING_INTERVAL_S
    max_record_bytes: int = MAX_RECORD_BYTES
    batch_rows: int = BATCH_ROWS
    batch_bytes: int = BATCH_BYTES
    checksum: bool = False
    transport: str = "auto"
    flow_control: str = "credit"
    spill_directory: str | PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            # Frozen for everybody else: from here on a setting is of its type, whatever number it was given as.
            object.__setattr__(self, name, check(name, getattr(self, name)))
        if self.flow_control != "credit" and self.transport == "memfd":
            raise ConfigError(
                f"flow_control is {self.flow_control!r} and transport is 'memfd': shared memory needs no flow control; "
                "leave one of them out"
            )


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "exclusive": lambda name, value: whole(name, value, 1, _MOST_PER_CHANNEL),
    "floating": lambda name, value: whole(name, value, 0, _MOST_PER_CHANNEL),
    "max_buffers_per_channel": lambda name, value: whole(name, value, 1, 1024),
    "overdraft": lambda name, value: whole(name, value, 0, _MOST_PER_CHANNEL),
    "buffer_timeout_s": lambda name, value: seconds(name, value, or_else=(-1.0,)),
    "stall_timeout_s": lambda name, value: seconds_or_none(name, value, low=0.001),
    "connect_timeout_s": lambda name, value: seconds(name, value, low=0.001, high=1e6),
    "ping_interval_s": lambda name, value: seconds(name, value, low=0.01),
    "max_record_bytes": lambda name, value: whole(name, value, 1),  # below 2 GiB
    "batch_rows": lambda name, value: whole(name, value, 1),
    "batch_bytes": lambda name, value: whole(name, value, 1, (1 << 62) - 1),
    "checksum": flag,
    "transport": lambda name, value: one_of(name, value, TRANSPORTS),
    "flow_control": lambda name, value: one_of(name, value, FLOW_CONTROLS),
    "spill_directory": writable_directory,
}

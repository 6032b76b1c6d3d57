"""Frozen settings, and the one place of every default.  Units stand in the names."""

from __future__ import annotations

from dataclasses import dataclass

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
TRANSPORTS = ("auto", "memfd", "tcp")
PING_INTERVAL_S = 10.0


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
        How long to try to connect a consumer, one that does not listen yet as well.
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
    spill_directory
        Where a blocking partition stores what is written; default: the system's directory for temporary files.
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
    spill_directory: str | None = None

    def __post_init__(self) -> None:
        for name, low in (
            ("exclusive", 1),
            ("floating", 0),
            ("max_buffers_per_channel", 1),
            ("overdraft", 0),
            ("batch_rows", 1),
            ("batch_bytes", 1),
            ("max_record_bytes", 1),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < low:
                raise ConfigError(f"{name} is {value!r}: it must be an integer of at least {low}")
        if self.max_buffers_per_channel > 1024:
            raise ConfigError(f"max_buffers_per_channel is {self.max_buffers_per_channel}: at most 1024")
        if self.transport not in TRANSPORTS:
            raise ConfigError(f"transport is {self.transport!r}: it must be one of {', '.join(TRANSPORTS)}")
        if self.max_record_bytes >= 1 << 31:
            raise ConfigError(f"max_record_bytes is {self.max_record_bytes}: it must be below 2 GiB")
        if self.stall_timeout_s is not None and self.stall_timeout_s <= 0:
            raise ConfigError(f"stall_timeout_s is {self.stall_timeout_s}: it must be above 0, or None (no limit)")
        if not self.ping_interval_s >= 0.01:
            raise ConfigError(f"ping_interval_s is {self.ping_interval_s}: at least 0.01")

"""fastbuf: bounded, credit-based shuffles for Python.

Preallocated memory segments, serializers, and an exchange with credit-based flow control between
threads and processes.  Importing it starts nothing and needs NumPy alone; record batches need
pyarrow, the Spark stages (``fastbuf_spark``) pyspark.
"""

from pathlib import Path as _Path

import fastbuf._main_interpreter  # first: an extension that is refused says so in Cython's words
import fastbuf.checkpoint
import fastbuf.monitor
import fastbuf.transports  # noqa: F401  (the last two register themselves with the exchange)
from fastbuf.config import ExchangeConfig, TlsConfig
from fastbuf.errors import (
    AuthenticationError,
    BlockCorrupt,
    BlockError,
    BlockTruncated,
    ConfigError,
    ExchangeAborted,
    ExchangeClosed,
    ExchangeError,
    FastbufError,
    PeerLost,
    PoolDestroyed,
    PoolTimeout,
    PreflightError,
    ProtocolError,
    RecordError,
    RecordTooLong,
    ResourceError,
    SchemaError,
    SchemaMismatch,
    SegmentExported,
    SegmentStateError,
    SequenceError,
    StallTimeout,
)
from fastbuf.exchange.address import GateAddress
from fastbuf.exchange.channel_selector import (
    broadcast,
    custom,
    first_free,
    forward,
    hash_by,
    range_by,
    rescale,
    round_robin,
    shuffle,
)
from fastbuf.exchange.environment import ShuffleEnvironment
from fastbuf.exchange.events import (
    Barrier,
    CancelCheckpoint,
    EndOfData,
    Event,
    UserEvent,
    Watermark,
    WatermarkStatus,
)
from fastbuf.exchange.input_gate import InputGate
from fastbuf.exchange.record_writer import RecordWriter
from fastbuf.memory import Arena, Borrower, Lender, LocalBufferPool, MemorySegment, NetworkBufferPool
from fastbuf.monitor import Monitor, MonitorAddress
from fastbuf.serializers import (
    ColumnarSerializer,
    Field,
    PickledSerializer,
    RowSerializer,
    Schema,
    hash_partition,
    murmur3_hash,
)

__version__ = "0.2.0"


def get_include() -> str:
    """The folder of the headers that fastbuf's ``.pxd`` files name, for ``include_dirs`` of a Cython module.

    Returns
    -------
    str
        The ``.pxd`` files themselves are found by ``cimport``, as modules are by ``import``.
    """
    return str(_Path(__file__).parent / "_native")


__all__ = [
    "Arena",
    "AuthenticationError",
    "Barrier",
    "BlockCorrupt",
    "BlockError",
    "BlockTruncated",
    "Borrower",
    "CancelCheckpoint",
    "ColumnarSerializer",
    "ConfigError",
    "EndOfData",
    "Event",
    "ExchangeAborted",
    "ExchangeClosed",
    "ExchangeConfig",
    "ExchangeError",
    "FastbufError",
    "Field",
    "GateAddress",
    "InputGate",
    "Lender",
    "LocalBufferPool",
    "MemorySegment",
    "Monitor",
    "MonitorAddress",
    "NetworkBufferPool",
    "PeerLost",
    "PickledSerializer",
    "PoolDestroyed",
    "PoolTimeout",
    "PreflightError",
    "ProtocolError",
    "RecordError",
    "RecordTooLong",
    "RecordWriter",
    "ResourceError",
    "RowSerializer",
    "Schema",
    "SchemaError",
    "SchemaMismatch",
    "SegmentExported",
    "SegmentStateError",
    "SequenceError",
    "ShuffleEnvironment",
    "StallTimeout",
    "TlsConfig",
    "UserEvent",
    "Watermark",
    "WatermarkStatus",
    "broadcast",
    "custom",
    "first_free",
    "forward",
    "get_include",
    "hash_by",
    "hash_partition",
    "murmur3_hash",
    "range_by",
    "rescale",
    "round_robin",
    "shuffle",
]

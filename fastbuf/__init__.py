"""fastbuf: bounded, credit-based shuffles for Python.

Preallocated memory segments, serializers, and an exchange with credit-based flow control between
threads and processes.  Importing it starts nothing and needs NumPy alone; record batches need
pyarrow, the Spark stages (``fastbuf_spark``) pyspark.
"""

import fastbuf.transports  # noqa: F401  (registers itself with the exchange)
from fastbuf.config import ExchangeConfig, TlsConfig
from fastbuf.errors import (
    BlockCorrupt,
    BlockError,
    BlockTruncated,
    ExchangeAborted,
    ExchangeClosed,
    ExchangeError,
    FastbufError,
    PeerLost,
    PoolTimeout,
    RecordError,
    SchemaError,
    SchemaMismatch,
    SegmentStateError,
    StallTimeout,
)
from fastbuf.exchange.channel_selector import (
    broadcast,
    custom,
    forward,
    hash_by,
    range_by,
    rescale,
    round_robin,
    shuffle,
)
from fastbuf.exchange.environment import ShuffleEnvironment
from fastbuf.exchange.events import Barrier, Event, UserEvent, Watermark
from fastbuf.exchange.input_gate import InputGate
from fastbuf.exchange.record_writer import RecordWriter
from fastbuf.flow.credit_ledger import CreditLedger
from fastbuf.memory import Arena, Borrower, Lender, LocalBufferPool, MemorySegment, NetworkBufferPool
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

__all__ = [
    "Arena",
    "Barrier",
    "BlockCorrupt",
    "BlockError",
    "BlockTruncated",
    "Borrower",
    "ColumnarSerializer",
    "CreditLedger",
    "Event",
    "ExchangeAborted",
    "ExchangeClosed",
    "ExchangeConfig",
    "ExchangeError",
    "FastbufError",
    "Field",
    "InputGate",
    "Lender",
    "LocalBufferPool",
    "MemorySegment",
    "NetworkBufferPool",
    "PeerLost",
    "PickledSerializer",
    "PoolTimeout",
    "RecordError",
    "RecordWriter",
    "RowSerializer",
    "Schema",
    "SchemaError",
    "SchemaMismatch",
    "SegmentStateError",
    "ShuffleEnvironment",
    "StallTimeout",
    "TlsConfig",
    "UserEvent",
    "Watermark",
    "broadcast",
    "custom",
    "forward",
    "hash_by",
    "hash_partition",
    "murmur3_hash",
    "range_by",
    "rescale",
    "round_robin",
    "shuffle",
]

"""The settings of a shuffle: read on the driver, then sent to the workers unchanged."""

from __future__ import annotations

import contextlib
import math
import operator
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fastbuf import config as core
from fastbuf.checks import MOST_SEGMENTS, segment_bytes, writable_directory
from fastbuf.config import TRANSPORTS, ExchangeConfig, TlsConfig
from fastbuf.errors import ConfigError
from fastbuf_spark.pyspark_private import has_setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = "spark.fastbuf."
MODES = ("auto", "pipelined", "blocking")
MAX_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
WORKER_MEMORY = "spark.python.worker.memory"  #: memory for rows and tables of PySpark's own aggregations
_SIZE = re.compile(r"(?i)^\s*(\d+)\s*(b|k|kb|kib|m|mb|mib|g|gb|gib|t|tb|tib)?\s*$")
_SECONDS = re.compile(r"(?i)^\s*(-?\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?\s*$")
_PART = r"([+-]?)\s*(\d+(?:\.\d+)?)\s*([a-z]+)"
_INTERVAL = re.compile(rf"\s*(?:interval\s)?(?:\s*{_PART})+\s*", re.IGNORECASE)
_INTERVALS = {
    "us microsecond microseconds": 1e-6,
    "ms millisecond milliseconds": 1e-3,
    "s sec second seconds": 1.0,
    "m min minute minutes": 60.0,
    "h hour hours": 3600.0,
    "d day days": 86400.0,
    "w week weeks": 604800.0,
}
_SECONDS_OF = {name: seconds for names, seconds in _INTERVALS.items() for name in names.split()}
DURATION = (
    "give a number of seconds, a datetime.timedelta, or a text with units (microseconds, milliseconds, seconds, "
    "minutes, hours, days, weeks; us, ms, s, m, h, d, w), as '10 seconds' or '1 hour 30 minutes'"
)
#: Field, least and greatest value of the whole numbers.
_RANGES: tuple[tuple[str, int, int | None], ...] = (
    ("memory_bytes", 1, None),
    ("exclusive", 1, None),
    ("floating", 0, None),
    ("overdraft", 0, None),
    ("max_buffers_per_channel", 1, 1024),
    ("max_record_bytes", 1, (1 << 31) - 1),
    ("max_row_bytes", 0, None),
    ("batch_rows", 1, None),
    ("batch_bytes", 1, None),
    ("port_min", 0, 65535),
    ("port_max", 0, 65535),
    ("driver_port", 0, 65535),
    ("ui_port", 0, 65535),
)


class Unset(int):
    """A default value: none was given.  It stays one when other fields are replaced."""


_FACTOR = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_UNIT_S = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class ShuffleConf:
    """The settings of a shuffle.  Every field but the last is also a Spark setting, ``spark.fastbuf.<camelCase>``.

    In both, sizes may be texts with a suffix (``"64m"``), and times texts with a unit (``"100ms"``).

    Parameters
    ----------
    mode
        What ``mode="auto"`` of a verb means: ``"blocking"`` (``"auto"`` means the same), or ``"pipelined"``.
    memory_bytes
        Most bytes of segments of one task; in blocking mode, of the map side's staging buffers, which are of 2 KiB for
        each partition at least.  A task of ``group_by`` uses the same amount again for rows, including the copy made
        for sorting, before it spills, and one of ``reduce_by_key``, ``group_by_key`` and similar functions for keys and
        values; if it is not given, these use as much as PySpark's own aggregations, ``spark.python.worker.memory``
        (512 MiB).
    segment_size
        Bytes of one segment.
    exclusive, floating
        Segments of each channel, and segments shared by all channels of a gate; both are given out as credits.
    overdraft
        Segments that may exceed the limit to finish a record.
    max_buffers_per_channel
        Buffers that one subpartition may queue.
    buffer_timeout
        Seconds after which a partly filled buffer is sent; 0: at once, -1: only when full.
    transport
        ``"auto"``: shared memory between workers on the same host if possible, else TCP; or another one by its name,
        as for :class:`fastbuf.ExchangeConfig`.
    tls_certificate, tls_key, tls_authority
        Paths of PEM files on every worker, for TLS between workers; both ends must show a certificate that the
        authority signed.  Give all three, or none.
    tls_check_hostname
        Whether a worker's certificate must contain the address at which it is reached.
    stall_timeout
        Seconds without progress after which an error is raised.
    connect_timeout
        Seconds that a worker may take to connect to the driver or to another worker.
    checksum
        Whether every buffer and block has a CRC32C.
    max_record_bytes
        Longer records are refused.
    max_row_bytes
        Upper bound of a row's size in the input, if you know one.  Then pipelined producers read batches with a fixed
        number of rows, and Spark need not measure the batch after every row (three times as fast for short rows).  0:
        unknown; only rows of fixed length, and cached rows of known average length, are read that way.
    batch_rows, batch_bytes
        Limits of the record batches that the second function gets; the rows default to the session's
        ``spark.sql.execution.arrow.maxRecordsPerBatch``.
    monitor
        Whether running workers report what they do once a second (:func:`fastbuf_spark.progress`); without these
        reports nothing is known of blocking runs.
    monitor_key_values
        Whether they also report the values of very frequent keys; else only the hashes of these leave a worker.
    port_min, port_max
        Ports on which workers and file servers may listen; 0 and 0: any.
    driver_port
        Port of the rendezvous on the driver; 0: any.
    ui, ui_port
        Whether the driver shows its shuffles on a web page (:func:`fastbuf_spark.ui`), for its own machine only, and
        the port; 0: any.
    spill_directory
        Directory of the nameless files for rows and pairs that do not fit into ``memory_bytes``, by its absolute path
        on the executors; empty: where Spark's Python workers spill.
    held_directory
        Directories, with commas between them, of the files in which blocking mode's map tasks keep their rows: a RAM
        disk, or what all hosts share.  Empty: on one host below the driver's ``spark.local.dir``, on several hosts
        below each executor's.
    file_servers
        Whether each executor has a process that gives other hosts the rows of these files.  ``False``: on several
        hosts rows go through Spark's shuffle, or lie in a ``held_directory`` that all of them share.
    storage_options
        How the files that the job reads and writes are reached in a store of objects, by deltalake's names
        (``{"AWS_ACCESS_KEY_ID": ...}``): credentials, endpoint, region.  They are not shown.  Default: what the session
        has for Spark's own reader of S3 (``spark.hadoop.fs.s3a.access.key`` and the like), and the environment.

    Raises
    ------
    ConfigError
        A value of another type or out of range; the message has the name, the value and the range.
    """

    memory_bytes: int = Unset(64 << 20)
    segment_size: int = core.SEGMENT_BYTES
    exclusive: int = core.EXCLUSIVE_SEGMENTS
    floating: int = core.FLOATING_SEGMENTS
    overdraft: int = core.OVERDRAFT_SEGMENTS
    max_buffers_per_channel: int = core.MAX_BUFFERS_PER_CHANNEL
    buffer_timeout: float = core.BUFFER_TIMEOUT_S
    transport: str = "auto"
    stall_timeout: float = core.STALL_TIMEOUT_S
    connect_timeout: float = core.CONNECT_TIMEOUT_S
    checksum: bool = False
    max_record_bytes: int = core.MAX_RECORD_BYTES
    max_row_bytes: int = 0
    batch_rows: int = Unset(core.BATCH_ROWS)
    batch_bytes: int = core.BATCH_BYTES
    tls_certificate: str = ""
    tls_key: str = ""
    tls_authority: str = ""
    tls_check_hostname: bool = True
    monitor: bool = True
    monitor_key_values: bool = False
    port_min: int = 0
    port_max: int = 0
    driver_port: int = 0
    spill_directory: str = ""
    held_directory: str = ""
    file_servers: bool = True
    mode: str = "auto"
    ui: bool = False
    ui_port: int = 0
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        for each in fields(self):
            # The class is frozen, but here given values are converted to the fields' types
            object.__setattr__(self, each.name, _typed(each.name, str(each.type), getattr(self, each.name)))
        if self.transport not in TRANSPORTS:
            raise ConfigError(f"transport is {self.transport!r}: it must be one of {', '.join(TRANSPORTS)}")
        if self.mode not in MODES:
            raise ConfigError(f"mode is {self.mode!r}: it must be one of {', '.join(MODES)}")
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value < low or (high is not None and value > high):
                wanted = f"from {low} to {high}" if high is not None else f"of at least {low}"
                raise ConfigError(f"{name} is {value}: it must be a whole number {wanted}")
        segment_bytes(self.segment_size)
        if self.segments < 8:
            raise ConfigError(
                f"memory_bytes is {self.memory_bytes}, which is {self.segments} segments of {self.segment_size} bytes: "
                f"at least 8 are needed; raise memory_bytes to {8 * self.segment_size} or lower segment_size"
            )
        if self.port_min > self.port_max:
            raise ConfigError(f"port_min {self.port_min}, port_max {self.port_max}: port_min must be <= port_max")
        if self.buffer_timeout < 0 and self.buffer_timeout != -1:
            raise ConfigError(f"buffer_timeout is {self.buffer_timeout:g}: seconds from 0, or -1 (only when full)")
        for name in ("stall_timeout", "connect_timeout"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name):g}: it must be above 0 seconds")
        if self.segments > MOST_SEGMENTS:
            raise ConfigError(
                f"memory_bytes is {self.memory_bytes}: {self.segments} segments of {self.segment_size} bytes are more "
                f"than there can be ({MOST_SEGMENTS}); lower memory_bytes or raise segment_size"
            )
        present = [bool(path) for path in (self.tls_certificate, self.tls_key, self.tls_authority)]
        if any(present) and not all(present):
            raise ConfigError("tls_certificate, tls_key and tls_authority go together: give all three, or none")
        if self.spill_directory and not os.path.isabs(self.spill_directory):
            raise ConfigError(
                f"spill_directory is {self.spill_directory!r}: it must be an absolute path, as executors have other "
                "working directories"
            )
        self.exchange()

    def checked_on(self, master: str) -> ShuffleConf:
        """These settings, with the paths checked if the executors are of this host."""
        if self.spill_directory and master.startswith("local"):
            writable_directory("spark.fastbuf.spillDirectory", self.spill_directory)
        return self

    @property
    def memory_was_set(self) -> bool:
        """Whether ``memory_bytes`` was given."""
        return not isinstance(self.memory_bytes, Unset)

    @property
    def most_rows(self) -> int | None:
        """What no batch may exceed, if ``batch_rows`` was given; else that is where a batch ends soon."""
        return None if isinstance(self.batch_rows, Unset) else self.batch_rows

    def held_bytes(self, setting: Callable[[str, str], str]) -> int:
        """Memory for the rows, keys and values that a task holds: ``memory_bytes`` if given, else that of PySpark's own
        aggregations; ``setting`` gets the name of a setting of Spark and its default.
        """
        return self.memory_bytes if self.memory_was_set else parse_bytes(WORKER_MEMORY, setting(WORKER_MEMORY, "512m"))

    @property
    def segments(self) -> int:
        """Number of segments in ``memory_bytes``."""
        return self.memory_bytes // self.segment_size

    def exchange(self) -> ExchangeConfig:
        """The settings that the exchange itself uses."""
        return ExchangeConfig(
            exclusive=self.exclusive,
            floating=self.floating,
            max_buffers_per_channel=self.max_buffers_per_channel,
            overdraft=self.overdraft,
            buffer_timeout_s=self.buffer_timeout,
            stall_timeout_s=self.stall_timeout,
            connect_timeout_s=self.connect_timeout,
            max_record_bytes=self.max_record_bytes,
            batch_rows=self.batch_rows,
            batch_bytes=self.batch_bytes,
            checksum=self.checksum,
            transport=self.transport,
        )

    def tls(self) -> TlsConfig | None:
        """The workers' certificates; None: TCP without TLS."""
        if not self.tls_certificate:
            return None
        return TlsConfig(self.tls_certificate, self.tls_key, self.tls_authority, self.tls_check_hostname)

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> ShuffleConf:
        """Read the ``spark.fastbuf.*`` entries of a mapping; a name that is not a setting is refused.

        Parameters
        ----------
        settings
            Spark's settings by name; names without the prefix are ignored.
        """
        by_name = {_camel(each.name): each for each in fields(cls) if each.name != "storage_options"}
        values: dict[str, Any] = {}
        for name, value in settings.items():
            if not name.startswith(PREFIX):
                continue
            setting = by_name.get(name[len(PREFIX) :])
            if setting is None:
                settings_are = ", ".join(PREFIX + k for k in sorted(by_name))
                raise ConfigError(f"{name} is not a setting; the settings are: {settings_are}")
            values[setting.name] = _parse(name, str(setting.type), value)
        return cls(**values)

    @classmethod
    def from_session(cls, spark: SparkSession) -> ShuffleConf:
        """Read the settings of a session (classic or Connect)."""
        return cls.from_settings(_settings_of(spark))

    @classmethod
    def of(cls, spark: SparkSession, conf: ShuffleConf | None) -> ShuffleConf:
        """``conf``, or the session's settings, with the rows of Spark's own batches if none are given."""
        conf = conf or cls.from_session(spark)
        if conf.spill_directory:
            conf.checked_on(str(spark.conf.get("spark.master", "")))
        rows = int(spark.conf.get(MAX_RECORDS) or 0) if conf.most_rows is None else 0
        return conf if rows <= 0 or rows == core.BATCH_ROWS else replace(conf, batch_rows=rows)

    @classmethod
    def from_context(cls, sc: Any) -> ShuffleConf:
        """Read the settings for RDDs: those of the SparkContext, and over them those of the active session."""
        from pyspark.sql import SparkSession

        settings = dict(sc.getConf().getAll())
        with contextlib.suppress(Exception):  # there is no session: RDDs need none
            spark = SparkSession.active()
            if spark.sparkContext is sc:
                settings.update(_settings_of(spark))
        return cls.from_settings(settings).checked_on(sc.master)


def _settings_of(spark: SparkSession) -> dict[str, str]:
    if not has_setting(spark, PREFIX):
        return {}
    return {str(k): str(v) for k, v in spark.conf.getAll.items()}


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _typed(name: str, kind: str, value: Any) -> Any:
    """A value converted to its field's type; texts are parsed like Spark's settings."""
    if kind == "Mapping[str, str]":
        if isinstance(value, Mapping) and all(isinstance(each, str) for pair in value.items() for each in pair):
            return dict(value)
        raise ConfigError(f"{name} must be a dict of texts, as {{'AWS_ACCESS_KEY_ID': ...}}")  # not shown: a secret
    if isinstance(value, str):
        return _parse(name, kind, value)
    what = f"{name} is {value!r:.100} ({type(value).__name__})"
    if kind == "bool":
        if isinstance(value, bool):
            return value
        raise ConfigError(f"{what}: it must be True or False")
    if kind == "int":
        if not isinstance(value, bool | np.bool_) and hasattr(value, "__index__"):
            return value if isinstance(value, int) else operator.index(value)
        raise ConfigError(f"{what}: it must be a whole number; bytes may be a text with a suffix ('64m')")
    if kind == "float":
        seconds = math.nan
        if not isinstance(value, bool | np.bool_) and (hasattr(value, "__index__") or hasattr(value, "__float__")):
            seconds = float(value)
        if math.isfinite(seconds):
            return seconds
        raise ConfigError(f"{what}: it must be a number of seconds, or a text with a unit ('100ms')")
    raise ConfigError(f"{what}: it must be a text")


def parse_seconds(name: str, text: str) -> float:
    """Parse an interval as people write it (``"10 seconds"``, ``"500 ms"``, ``"1 hour 30 minutes"``); as in Spark, each
    part may have a sign.
    """
    parts = re.findall(_PART, re.sub(r"^\s*interval\s", "", text, flags=re.IGNORECASE), re.IGNORECASE)
    if not _INTERVAL.fullmatch(text) or any(unit.lower() not in _SECONDS_OF for _, _, unit in parts):
        raise ConfigError(f"{name} is {text!r}: {DURATION}")
    return sum(float(f"{sign}{number}") * _SECONDS_OF[unit.lower()] for sign, number, unit in parts)


def parse_bytes(name: str, text: str) -> int:
    """Parse a size as in Spark's settings (``"512m"``)."""
    return int(_parse(name, "int", text))


def _parse(name: str, kind: str, text: str) -> Any:
    if kind == "bool":
        if text.strip().lower() in ("true", "false"):
            return text.strip().lower() == "true"
        raise ConfigError(f"{name} is {text!r}: it must be true or false")
    if kind == "int":
        match = _SIZE.match(text)
        if match:
            return int(match[1]) * _FACTOR[(match[2] or "")[:1].lower()]
        raise ConfigError(f"{name} is {text!r}: it must be a whole number; bytes may have a suffix (64m)")
    if kind == "float":
        match = _SECONDS.match(text)
        if match:
            return float(match[1]) * _UNIT_S[(match[2] or "").lower()]
        raise ConfigError(f"{name} is {text!r}: it must be a number of seconds, or have a unit (100ms)")
    return text.strip()

"""The figures by which a task is judged, and Flink's levels of back pressure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

OK, LOW, HIGH = "OK", "LOW", "HIGH"
REST = -1  #: stands for all consumers that have no figure of their own
OUTPUT_WAITS = ("credit", "link", "segment")
PRESSED = (*OUTPUT_WAITS, "engine_out")
IDLE = ("input", "engine_in")
#: What an exchange that was told to go on has done without: figures of tasks, and the words for a number of each.
LOSSES = {
    "buffers_dropped": "dropped {} buffers",
    "records_dropped": "dropped {} records",
    "consumers_cut": "cut off {} consumers",
    "producers_lost": "lost {} producers",
    "records_cut": "dropped {} half records",
    "records_missed": "missed {} records",
    "skipped": "skipped {} records",
}
SINK_FULL = 0.9  #: if the kernel held rows of a task in this share of its samples, whoever reads them is behind


def level(blocked: float) -> str:
    """``OK``, ``LOW`` or ``HIGH``: a share of time in which tasks were blocked, by Flink's bounds."""
    return OK if blocked <= 0.1 else LOW if blocked <= 0.5 else HIGH


@dataclass(frozen=True)
class Task:
    """Figures of one subtask over a window.

    Attributes
    ----------
    stage
        The function that runs in it, or ``"source"``.
    subtask
        Its partition.
    seconds
        By state: ``credit``, ``link``, ``segment``, ``input``, ``engine_in``, ``engine_out``, ``codec`` (encoding or
        decoding batches), ``user``.
    blocked
        Of a producer: seconds by the consumer that it waited for; ``REST``: all consumers not named.
    rows, bytes
        Sent or received.
    cpu_s, queued_s, gc_s, stopped_s
        Seconds of its thread on a CPU; ready to run, but without a CPU; in Python's garbage collector; and seconds in
        which its process was stopped. ``None``: not known, and the rule is not used.
    frames
        How often each line of the user's code was found running.
    linked
        Of a producer: the part of `blocked` in which the socket was full.
    unsent
        Of a producer, by consumer: in how many of its `looks` (samples) the kernel had unsent bytes.
    unread
        Of a consumer: in how many of its `looks` the kernel had rows for which whoever reads them had no room.
    short_s
        Of a producer: seconds that it waited for a segment although the consumer's queue had room.
    throttled_s, major_faults
        Seconds in which a limit of its control group kept it from running; pages that had to be read from disk.
    machine_s, cores, host
        Seconds that all CPUs of its machine were busy; their number; name of the machine.
    task
        Its name, the same in every exchange that it takes part in.
    hot_keys
        Of a producer: shares of the most frequent keys, by ``"consumer:hash"``.
    silent_s
        How long it has sent no report.
    key_values
        Of a producer: the text of those keys, by hash; only if that was asked for.
    links
        Of a producer: the kernel's figures of the fullest links, by consumer (:meth:`Links.figures`).
    jvm_gc_s
        Seconds in the garbage collector of Spark's JVM, which feeds it and takes its rows. ``None``: not known.
    """

    stage: str
    subtask: int
    seconds: Mapping[str, float]
    blocked: Mapping[int, float] = field(default_factory=dict)
    rows: float = 0
    bytes: float = 0
    cpu_s: float | None = None
    queued_s: float | None = None
    gc_s: float | None = None
    stopped_s: float | None = None
    frames: Mapping[str, float] = field(default_factory=dict)
    linked: Mapping[int, float] = field(default_factory=dict)
    unsent: Mapping[int, float] = field(default_factory=dict)
    looks: float = 0.0
    unread: float = 0.0
    short_s: float = 0.0
    throttled_s: float | None = None
    major_faults: float = 0.0
    machine_s: float | None = None
    cores: int = 0
    host: str = ""
    task: str = ""
    hot_keys: Mapping[str, float] = field(default_factory=dict)
    silent_s: float = 0.0
    key_values: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    jvm_gc_s: float | None = None

    @property
    def wall_s(self) -> float:
        """Sum of its seconds in all states."""
        return sum(self.seconds.values())

    def share(self, *names: str) -> float:
        """The share of its time spent in these states."""
        return sum(self.seconds.get(name, 0.0) for name in names) / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def sink_full(self) -> bool:
        """Whether the reader of its rows holds it up: it mostly waits for that, or their socket is mostly full."""
        behind = self.looks > 0 and self.unread >= SINK_FULL * self.looks
        return self.share("engine_out") >= 0.5 or (behind and self.share("user") < 0.5)

    @property
    def cost(self) -> float:
        """Seconds of user code per row; 0 without rows."""
        return self.seconds.get("user", 0.0) / self.rows if self.rows else 0.0

    @property
    def frame(self) -> str | None:
        """The line of user code that was found most often."""
        return max(self.frames, key=self.frames.__getitem__, default=None)

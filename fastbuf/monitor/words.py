"""A diagnosis, and its text: which task, why, by which figures, and what to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fastbuf.monitor.task import OK, OUTPUT_WAITS

ROOT_SHARE = 0.2  #: a subtask with at least this share of the lost time is named
SURE, LIKELY = 0.8, 0.6  #: least confidence for "causes", and for "probably causes"
LEAST_SHOWN = 0.01  #: shares of a task's time below this are not shown
HASH = "key with hash "

CAUSES = {
    "user_function": "the user's function is slow",
    "skew": "it gets far more rows than the others",
    "silent": "it sends no reports: it hangs, or its code lets no other thread of its process run",
    "stopped": "its process was stopped",
    "cpu_starved": "it waits for a CPU that others use",
    "gc": "Python's garbage collector runs",
    "jvm_gc": "the garbage collector of Spark's JVM stops what it reads from or gives to",
    "paging": "its memory is read back from disk",
    "slow_link": "the network to it takes no more",
    "segments": "its writers have too few segments for the bursts in which rows come",
    "credits": "both ends wait for each other's credit",
    "slow_sink": "whoever reads its rows is slow",
    "source_bound": "the input comes slowly",
    "codec": "rows are encoded or decoded for most of its time",
    "unknown": "no rule is sure why",
}
_REMEDIES = {
    "user_function": "Make that function faster, or use more partitions.",
    "skew": "Choose a key with more values, or add one to it (salting).",
    "silent": "See what its process does (py-spy dump, gdb): a stop, or a call that does not return.",
    "stopped": "See what stops the process: a debugger, a container's limits, swapping.",
    "cpu_starved": "Use fewer slots than cores, or keep others off these machines.",
    "gc": "Keep fewer objects, or call gc.freeze() once the function's own data are loaded.",
    "jvm_gc": "Raise spark.executor.memory (in local mode spark.driver.memory), or cache less.",
    "paging": "Give the machine more memory, or the process less to hold.",
    "slow_link": "Send less (select columns, aggregate before the shuffle), or use a faster network.",
    "segments": "Raise spark.fastbuf.memoryBytes, or, where a writer may not hold all of it, spark.fastbuf.exclusive "
    "and spark.fastbuf.floating; without Spark the writer's maximum, or the environment's segments.",
    "credits": "Raise spark.fastbuf.exclusive and spark.fastbuf.floating; without Spark those of ExchangeConfig.",
    "slow_sink": "Look at what takes the rows of this stage: Spark's next operator, a write, another shuffle.",
    "source_bound": "Use more input partitions, or read fewer columns.",
    "codec": "Send fewer columns, or whole batches in place of single rows; use more partitions.",
    "unknown": "See what its code does (the flame graph of the page, py-spy dump).",
}
ONE_IS_SLOW = "See what is different about its rows or its machine, and make that function faster for them."
IT_WAITS = "It waits for something: ask for many rows at once, keep the answers, or use more partitions."
LIMITED = "Raise the CPU limit of its container, or use fewer slots."
WHICH_KEY = "To see which key: spark.fastbuf.monitorKeyValues=true, without Spark env.monitor.start(key_values=True)."


@dataclass(frozen=True)
class Root:
    """A task, or a stage, that slows down an exchange.

    Attributes
    ----------
    exchange, stage, subtask
        Where; subtask ``None``: all subtasks alike.
    cause
        ``user_function``, ``skew``, ``silent``, ``stopped``, ``cpu_starved``, ``gc``, ``jvm_gc``, ``paging``,
        ``slow_link``, ``segments``, ``credits``, ``slow_sink``, ``codec``, ``source_bound`` or ``unknown``.
    share
        Share of the lost time that it causes, 0 to 1.
    confidence
        0 to 1; below 0.6 the cause is ``unknown``.
    frame
        File, line and function of the user code, if it was seen.
    evidence
        The figures that the rule used.
    remedy
        What to change.
    key
        For ``skew``: the most frequent key as text, if that was asked for.
    suspected
        For ``unknown``: the cause whose rule fits, if it fits too closely, or was observed too briefly, to be sure.
    """

    exchange: str
    stage: str
    subtask: int | None
    cause: str
    share: float
    confidence: float
    frame: str | None = None
    evidence: dict[str, float] = field(default_factory=dict)
    remedy: str = ""
    key: str | None = None
    suspected: str | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Whether an exchange is slowed down, where, and why.

    Attributes
    ----------
    level
        ``"OK"``, ``"LOW"`` or ``"HIGH"``: the share of their time that producers were blocked, by Flink's bounds.
    blocked
        That share.
    roots
        What slows it down, the greatest share first; empty if nothing does.
    """

    level: str
    blocked: float
    roots: list[Root] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """The diagnosis as text."""
        if not self.roots and self.level != OK:
            return (
                f"Producers were blocked {self.blocked:.0%} of their time, and nothing that lasts is to blame for it."
            )
        if not self.roots:
            return f"Nothing holds up this exchange (producers were blocked {self.blocked:.0%} of their time)."
        return " ".join(sentence(root) for root in self.roots)


def remedy(cause: str, subtask: int | None, evidence: Mapping[str, float], key: str | None = None) -> str:
    """What to change."""
    if cause == "user_function" and evidence.get(ON_CPU, 1.0) < 0.5:
        return IT_WAITS
    if cause == "user_function" and subtask is not None and evidence.get(TIMES, 0.0) >= 2:
        return ONE_IS_SLOW
    if cause == "cpu_starved" and evidence.get(THROTTLED):
        return LIMITED
    if cause == "skew" and key is None and any(HASH in name for name in evidence):
        return f"{_REMEDIES[cause]} {WHICH_KEY}"
    return _REMEDIES[cause]


TIMES, ON_CPU = "times its peers for each row", "on a CPU"
UNREAD = "of its samples with rows unread"
THROTTLED = "seconds throttled by its limit"
_WAITS = "waits of a producer"  #: sum of its `credit`, `link` and `segment`
#: The text of a figure, by its name in `evidence`
_FIGURES = {
    "share": "{:.0%} of its time",
    ON_CPU: "on a CPU for {:.0%} of that",
    TIMES: "{:.3g} times its peers for each row",
    "rows": "{:,.0f} rows",
    "rows of the others": "the median of the others has {:,.0f}",
    "seconds without a word": "nothing heard for {:.1f} s",
    "seconds stopped": "for {:.1f} s",
    "seconds waiting for a CPU": "for {:.1f} s",
    UNREAD: "rows of it were waiting to be read in {:.0%} of the samples",
    THROTTLED: "a limit kept it from running for {:.1f} s",
    "seconds in the collector": "for {:.1f} s",
    "pages read from disk": "{:,.0f} pages",
    "seconds": "in {:.1f} s",
    "of": "of {:.1f} s",
    _WAITS: "a producer waited {:.0%} of its time",
    "without a segment": "a producer waited for one {:.0%} of its time",
    "consumer idle": "the consumer had no rows {:.0%} of its time",
    "link busy": "bytes were under way {:.0%} of the time",
    "bytes a second": "{:,.0f} bytes a second",
    "round trip in seconds": "a round trip of {:.3g} s",
    "segments sent again": "{:,.0f} packets sent again",
}
_WAITED = {"slow_sink": "it waited {:.0%} of its time", "source_bound": "{:.0%} of the time was waiting for it"}
#: The text of a state, for a task whose cause is unknown
_DID = {
    "user": "in its function", "credit": "waiting for credit", "link": "for a full socket", "segment": "for memory",
    "input": "for rows", "engine_in": "for its input", "engine_out": "for its reader", "codec": "coding",
}  # fmt: skip


def share_of(key: str) -> str:
    """The name in `evidence` of the share of rows that have one key."""
    return f"share of the {key}"


def _figure(cause: str, name: str, value: float) -> str:
    if name.startswith("share of the key"):
        return f"the {name.removeprefix('share of the ')} has {value:.0%} of all"
    if cause == "unknown" and name in _DID:
        return f"{value:.0%} {_DID[name]}"
    if name == "share" and cause in _WAITED:
        return _WAITED[cause].format(value)
    if name in _FIGURES:
        return _FIGURES[name].format(value)
    return f"{name} {value:,.0f}" if abs(value) >= 100 else f"{name} {value:.3g}"


def sentence(root: Root) -> str:
    """The text for one root; with less than `ROOT_SHARE` of the lost time it is described as the next bottleneck."""
    who = f"`{root.stage}`" if root.subtask is None else f"Subtask {root.subtask} of `{root.stage}`"
    does = f"{'causes' if root.confidence >= SURE else 'probably causes'} {root.share:.0%} of the lost time"
    if root.cause == "unknown":
        does = f"is behind {root.share:.0%} of the lost time"
    elif root.share < ROOT_SHARE:
        does = "would hold it up next"
    evidence = dict(root.evidence)
    where = f" in {root.frame}" if root.frame else ""
    if root.key is not None:
        where = f"; key {root.key} has {evidence.pop(share_of(f'key {root.key}'), 0.0):.0%} of the rows"
    if root.subtask is None:
        evidence.pop(TIMES, None)  # all are alike
    cause = root.suspected or root.cause
    if cause == "unknown":
        evidence = {name: value for name, value in evidence.items() if name in _DID and value >= LEAST_SHOWN}
    else:
        waits = [evidence.pop(name) for name in OUTPUT_WAITS if name in evidence]
        evidence = {_WAITS: sum(waits), **evidence} if waits else evidence
    why = CAUSES[cause]
    if cause == "slow_link" and root.subtask is None:
        why = why.replace(" to it", "")
    figures = ", ".join(_figure(cause, name, value) for name, value in evidence.items())
    figures = figures.replace(", of ", " of ").replace("pages, in ", "pages in ")
    why += f"{where}{f' ({figures})' if figures else ''}"
    return f"{who} {does}: {f'perhaps {why}, but no rule is sure' if root.suspected else why}. {root.remedy}"

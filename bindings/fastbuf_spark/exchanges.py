"""The exchanges that this driver has planned, and what ties each to the rendezvous."""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import time
from collections.abc import Callable
from typing import Any

from fastbuf_spark import rendezvous
from fastbuf_spark.checks import attempts_of, remedy, setting, slots_of
from fastbuf_spark.codec import Codec
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.jobs import ProducersJob, fate
from fastbuf_spark.rendezvous import Rendezvous
from fastbuf_spark.run import Job, Run, RunPlan
from fastbuf_spark.spec import ExchangeSpec
from fastbuf_spark.summary import RunSummary

log = logging.getLogger("fastbuf_spark")

Producers = Callable[[ExchangeSpec, int, list[tuple[str, int, int]]], Callable[[], Any]]

_CONSUMER = re.compile(r"fastbuf_consumer_([0-9a-f]{32})")
#: Operators that hand rows on as they come: from the first rows of a partition they compute what they should.
_HAND_ON = frozenset({"Project", "Filter", "ColumnarToRow", "InputAdapter"})
_LIMITS = frozenset({"CollectLimit", "LocalLimit"})
LAST_WORDS_S = 0.5  #: how long a run that is about to end may take to, before its figures are given as they are
STATUS_WAIT_MS = 3000  #: how long the driver may take to hear of what Spark has begun

_chains: dict[str, int] = {}  # exchange -> slots that it and those it reads from hold at once
_planned: dict[str, list[str]] = {}  # application -> its exchanges


def register(
    sc: Any,
    exchange: str,
    name: str,
    partitions: int,
    conf: ShuffleConf,
    codec: Codec,
    producers: Producers | None,
    chain: int = 0,
    limited: Callable[[], bool] | None = None,
) -> ExchangeSpec:
    """Make an exchange known to the rendezvous; what its workers have to know.

    Parameters
    ----------
    producers
        From spec, epoch and targets to the action that runs the producers; None: a fused stage, which has none.
    chain
        Slots that the exchanges below hold while this one runs.
    limited
        Whether the action that runs now may leave a fused stage's partition unread (a limit).
    """
    server, secret = _server(sc, conf), secrets.token_bytes(32)
    spec = ExchangeSpec(exchange, name, partitions, conf, codec, server.address, secret)
    slots = slots_of(sc)
    properties = sc._jsc.sc().getLocalProperties().clone()
    extra = 1 if producers is not None else 0

    def submit(run: Run, targets: list[list[Any]]) -> Job:
        assert producers is not None, "a fused stage has no producers' job"
        action = producers(spec, run.epoch, [(str(h), int(p), int(g)) for h, p, g in targets])
        about = f"fastbuf: producers of exchange '{name}' ({exchange[:8]}), {partitions} consumers in stage {run.stage}"
        return ProducersJob(sc, properties, server, run, action, about)

    def trouble(run: Run) -> str:
        held = server.held_slots(run)
        need = sum(held.values()) + partitions + extra
        if slots is None or need <= slots:
            return ""
        others = ", ".join(f"'{other}' holds {count}" for other, count in held.items())
        return (
            f"exchange '{name}' has {partitions} consumers, each with a slot"
            + (f"; {others}" if others else "")
            + ("; producers need one more" if extra else "")
            + f": {need} > {slots} slots. Use {remedy(sc, need)}, fewer partitions, or mode='blocking' for one of them"
        )

    failures: dict[int, int] = {}
    allowed = attempts_of(sc)

    def failed(run: Run, reason: str, final: bool) -> None:
        # Spark would run a barrier stage in front of a shuffle again and again, whatever maxFailures says, and name the
        # last failure only: so it is told to end the stage when a task would have been given up
        failures[run.stage] = failures.get(run.stage, 0) + 1
        if final or failures[run.stage] >= allowed:
            try:
                sc._jsc.sc().cancelStage(run.stage, f"exchange '{name}' failed: {reason}")
            except Exception as error:
                log.debug("stage %d could not be cancelled: %s", run.stage, error)

    plan = RunPlan(
        exchange,
        name,
        partitions,
        conf.stall_timeout,
        conf.start_timeout_s,
        submit if producers is not None else None,
        trouble,
        limited or (lambda: False),
        failed,
        lambda stage, attempt: fate(sc, stage, attempt),
    )
    server.register(exchange, secret, plan)
    _remember(sc, server, exchange)
    _chains[exchange] = partitions + chain
    return spec


def register_reports(
    sc: Any, exchange: str, name: str, partitions: int, conf: ShuffleConf, codec: Codec
) -> ExchangeSpec:
    """Make a blocking exchange known, whose tasks only report their figures."""
    server, secret = _server(sc, conf), secrets.token_bytes(32)
    server.register(exchange, secret, None, name, "blocking")
    _remember(sc, server, exchange)
    return ExchangeSpec(exchange, name, partitions, conf, codec, server.address, secret)


def _server(sc: Any, conf: ShuffleConf) -> Rendezvous:
    if str(sc.master).startswith("local") and not str(sc.master).startswith("local-cluster"):
        return rendezvous.serve("127.0.0.1", "127.0.0.1", conf.driver_port)
    host = setting(sc, "spark.driver.host", "127.0.0.1")
    return rendezvous.serve(setting(sc, "spark.driver.bindAddress", host), host, conf.driver_port)


def _remember(sc: Any, server: Rendezvous, exchange: str) -> None:
    """Exchanges live as long as their application: a DataFrame made from one may be run at any time until then."""
    application = str(sc.applicationId)
    for other in [key for key in _planned if key != application]:
        server.forget(_planned[other])
        for old in _planned.pop(other):
            _chains.pop(old, None)
    _planned.setdefault(application, []).append(exchange)


def chain_below(df: Any) -> int:
    """Slots that pipelined exchanges below a DataFrame hold while it is read; 0 where a cache may stand between."""
    text = df._jdf.queryExecution().analyzed().toString()
    below = [_chains.get(found, 0) for found in set(_CONSUMER.findall(text))]
    if not below or "InMemoryRelation" in df._jdf.queryExecution().withCachedData().toString():
        return 0
    return max(below)


def chain_problems(df: Any, partitions: int) -> list[str]:
    """Why a chain of exchanges cannot run at once, if it cannot: their consumers all hold slots at the same time."""
    below = chain_below(df)
    sc = df.sparkSession.sparkContext
    slots = slots_of(sc)
    need = below + partitions + 1
    if not below or slots is None or need <= slots:
        return []
    return [
        f"pipelined shuffles in a row hold their slots together: {below} below, {partitions} here, one for producers: "
        f"{need} > {slots} slots; use {remedy(sc, need)}, fewer partitions, or mode='blocking' for one of them"
    ]


def limited(spark: Any, exchange: str) -> Callable[[], bool]:
    """Asks Spark whether the action that reads a fused stage now is a bare limit.

    Spark ends a Python worker whose limit is satisfied, and with it a fused stage's producer.  The others then lack its
    rows: no matter where nothing but a limit, already satisfied, stands above them; a wrong result anywhere else.
    """

    def ask() -> bool:
        # Spark tells its status store of an action some time after it has begun it
        with contextlib.suppress(Exception):
            spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(STATUS_WAIT_MS)
        try:
            listed = spark._jsparkSession.sharedState().statusStore().executionsList()
            for i in reversed(range(listed.size())):
                run = listed.apply(i)
                text = run.physicalPlanDescription()
                if f"fastbuf_fused_{exchange}" in text:
                    return only_limits_above(text, f"fastbuf_fused_{exchange}")
        except Exception as error:  # no answer is no permission
            log.debug("no plan of the running action: %s", error)
        return False

    return ask


def only_limits_above(description: str, name: str) -> bool:
    """Whether a limit is the first thing above stage ``name`` in a formatted plan that does more than hand rows on.

    What stands above that limit gets all the rows that the limit lets through, whatever the other tasks left out.
    """
    described = set(
        re.findall(rf"^\((\d+)\) MapInArrow\b[^\n]*\n(?:[^\n]+\n)*?Arguments: {re.escape(name)}\(", description, re.M)
    )
    above: list[tuple[int, str]] = []  # the line's ancestors: indent and operator
    for line in description.splitlines():
        node = re.match(r"^([\s:+|-]*)(?:\* )?(\w+)(?: \((\d+)\))", line)
        if node is None:
            continue
        indent = len(node[1])
        above = [parent for parent in above if parent[0] < indent]
        if node[3] in described:
            return next((operator in _LIMITS for _, operator in reversed(above) if operator not in _HAND_ON), False)
        above.append((indent, node[2]))
    return False


def progress() -> list[RunSummary]:
    """Figures of the runs that are under way."""
    return [summary for server in rendezvous.servers() for summary in server.progress()]


def last_run() -> RunSummary | None:
    """Figures of the run that began last, in any mode; None before the first.

    Workers say their figures after their last rows: a run that is under way has half a second to end.
    """
    found = [server.summaries[-1] for server in rendezvous.servers() if server.summaries]
    if not found:
        return None
    deadline = time.monotonic() + LAST_WORDS_S
    while found[-1].outcome == "running" and time.monotonic() < deadline:
        time.sleep(0.005)  # Spark tells of an action's end before the workers do
    return found[-1]

"""The exchanges planned by this driver, and their registration with the rendezvous."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fastbuf.exchange.clock import monotonic
from fastbuf_spark import pyspark_private
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver import page, rendezvous
from fastbuf_spark.driver.checks import attempts_of, held_rows, machine_cores, remedy, slots_of, slots_to_come
from fastbuf_spark.driver.jobs import ProducersJob, stage_tasks
from fastbuf_spark.driver.rendezvous import Rendezvous
from fastbuf_spark.driver.reported import Reported
from fastbuf_spark.driver.run import Job, Run, RunPlan
from fastbuf_spark.driver.slots import Slots
from fastbuf_spark.driver.summary import RunSummary, too_many
from fastbuf_spark.protocol import Target
from fastbuf_spark.pyspark_private import setting
from fastbuf_spark.spec import ExchangeSpec
from fastbuf_spark.worker.held import HeldRows

log = logging.getLogger("fastbuf_spark")

Producers = Callable[[ExchangeSpec, int, list[Target]], Callable[[], Any]]

LAST_WORDS_S = 0.5  #: a run that is about to end may take this long before its current figures are returned

LOOKS = 16  #: exchanges of which a new one asks whether they are needed still: each is a call to the JVM

_services: dict[tuple[Any, ...], tuple[str, bytes]] = {}  # names and secrets of file servers
_services_lock = threading.Lock()
_planned: dict[str, list[str]] = {}  # application -> its exchanges
_results: deque[tuple[str, str, Any]] = deque()  # application, exchange, weak reference to what its consumers read


def register(sc: Any, spec: ExchangeSpec, producers: Producers | None, unsteady: str = "") -> ExchangeSpec:
    """Register an exchange with the rendezvous; returns it with where the driver is, and the secret.

    Parameters
    ----------
    producers
        Returns the action that runs the producers, given spec, epoch and targets; None: a barrier stage has no such
        action.
    unsteady
        Why the input may differ each time it is read; empty: no reason is known.
    """
    server, spec = _with_address(sc, spec)

    def submit(run: Run, targets: list[Target]) -> Job:
        assert producers is not None, "a barrier stage has no producers' job"
        action = producers(spec, run.epoch, targets)
        of = f"exchange '{spec.name}' ({spec.exchange[:8]})"
        about = f"fastbuf: producers of {of}, {len(targets)} consumers in stage {run.stage}"
        return ProducersJob(sc, server, run, action, about)

    failures: dict[int, int] = {}
    allowed = attempts_of(sc)

    def failed(run: Run, reason: str, final: bool) -> None:
        if producers is not None:
            return  # the failed tasks report it themselves
        # Spark would retry a barrier stage in front of a shuffle forever, whatever maxFailures says, and report only
        # the last failure.  So the stage is cancelled when a normal task would have been given up
        failures[run.stage] = failures.get(run.stage, 0) + 1
        if final or failures[run.stage] >= allowed:
            pyspark_private.cancel_stage(sc, run.stage, f"exchange '{spec.name}' failed: {reason}")

    plan = RunPlan(
        spec.exchange,
        spec.name,
        spec.partitions,
        spec.conf.stall_timeout,
        submit if producers is not None else None,
        partial(stage_tasks, sc),
        failed,
        partial(pyspark_private.fate, sc),
    )
    caches = partial(pyspark_private.caches_filled, sc)
    slots = Slots(lambda: slots_to_come(sc), caches, lambda count: remedy(sc, count))
    server.register(spec.exchange, spec.secret, plan, slots=slots, unsteady=unsteady)
    _remember(sc, server, spec.exchange)
    return spec


def register_reports(sc: Any, spec: ExchangeSpec) -> ExchangeSpec:
    """Register a blocking exchange, whose tasks only report: figures, and where they hold rows."""
    server, spec = _with_address(sc, spec)

    def refuse(stage: int, reason: str) -> None:
        if not pyspark_private.is_indeterminate(sc, stage):
            pyspark_private.cancel_stage(sc, stage, reason)

    def lost(run: int, partition: int, stage: int, reason: str) -> str:
        executor = server.held.replace(sc, spec.exchange, run, partition, reason)
        if executor is None:
            pyspark_private.cancel_stage(sc, stage, reason)
        return executor or ""

    asked = partial(stage_tasks, sc), partial(pyspark_private.fate, sc)
    done = _adviser(sc, spec.partitions, spec.conf)
    reported = Reported(spec.exchange, spec.name, "blocking", server.summaries, *asked, done, refuse)
    server.register_reports(
        spec.exchange,
        spec.secret,
        reported,
        held=lambda stage, partition, stats: server.held.add(sc, spec.exchange, stage, partition, stats),
        lost=lost,
        active=partial(pyspark_private.is_active, sc),
    )
    _remember(sc, server, spec.exchange)
    storage = held_rows(sc, spec.conf)
    if storage is not None and storage.service:
        storage = _served(sc, server, spec.conf, storage)
    return replace(spec, held=storage)


def _served(sc: Any, server: Rendezvous, conf: ShuffleConf, storage: HeldRows) -> HeldRows:
    """With the name and secret of the application's file servers; those with other ports or certificates are others."""
    about = (str(sc.applicationId), server.address, conf.port_min, conf.port_max, conf.tls(), storage.directories)
    with _services_lock:
        for other in [each for each in _services if each[0] != about[0]]:
            del _services[other]
        if about not in _services:
            _services[about] = f"held-{secrets.token_hex(8)}", secrets.token_bytes(32)
            server.register_servers(*_services[about])
            _remember(sc, server, _services[about][0])
        service, secret = _services[about]
    return replace(storage, service=service, secret=secret)


def _with_address(sc: Any, spec: ExchangeSpec) -> tuple[Rendezvous, ExchangeSpec]:
    """The rendezvous for an exchange, and the exchange with its address and a secret."""
    server = server_of(sc, spec.conf)
    return server, replace(spec, address=server.address, secret=secrets.token_bytes(32))


def _adviser(sc: Any, partitions: int, conf: ShuffleConf) -> Callable[[RunSummary], None]:
    """Tells, once, that partitions cost more than they bring, when a run has served all of them."""
    advice: list[str] = []

    def done(summary: RunSummary) -> None:
        if advice or len(summary.consumers) < partitions or summary.outcome != "ok":
            return
        cores = slots_of(sc) or partitions
        if str(sc.master).startswith("local"):
            cores = min(cores, machine_cores())
        advice.append(too_many(summary.name, partitions, cores, summary.bytes_sent, conf.memory_bytes))
        if advice[0]:
            log.warning("%s", advice[0])

    return done


def server_of(sc: Any, conf: ShuffleConf) -> Rendezvous:
    """The driver's rendezvous, at the address that executors reach."""
    # A page that the session asks for is shown also where the shuffle has settings of its own
    if conf.ui or setting(sc, "spark.fastbuf.ui", "false").strip().lower() == "true":
        page.start(conf.ui_port or int(setting(sc, "spark.fastbuf.uiPort", "0")))
    if str(sc.master).startswith("local") and not str(sc.master).startswith("local-cluster"):
        return rendezvous.serve("127.0.0.1", "127.0.0.1", conf.driver_port)
    host = setting(sc, "spark.driver.host", "127.0.0.1")
    return rendezvous.serve(setting(sc, "spark.driver.bindAddress", host), host, conf.driver_port)


def _remember(sc: Any, server: Rendezvous, exchange: str) -> None:
    """Exchanges live as long as their application, or as what is made of them (:func:`lives_with`)."""
    application = str(sc.applicationId)
    for other in [key for key in _planned if key != application]:
        server.forget(_planned[other])
        del _planned[other]
    _planned.setdefault(application, []).append(exchange)
    _forget_unused(application)


def lives_with(sc: Any, exchange: str, requests: Any) -> None:
    """Keep an exchange as long as the JVM has ``requests``, the RDD that its consumers read.

    All that is made of its result has that RDD: a frame, a view, a cache, an RDD.  Once it is garbage nothing can run
    the exchange any more, which has the input's plan and the functions in front of it.
    """
    reference = pyspark_private.weak_reference(sc, requests)
    if reference is not None:  # else it lives as long as Spark
        _results.append((str(sc.applicationId), exchange, reference))


def _forget_unused(application: str) -> None:
    servers = rendezvous.servers()
    live = {run.plan.exchange for server in servers for run in server.live_runs()}
    for _ in range(min(LOOKS, len(_results))):
        try:
            of, exchange, requests = _results.popleft()
        except IndexError:  # another thread has looked
            return
        if of != application:
            continue
        if exchange in live or not pyspark_private.is_garbage(requests):
            _results.append((of, exchange, requests))
            continue
        for server in servers:
            server.forget([exchange])
        with contextlib.suppress(KeyError, ValueError):
            _planned[of].remove(exchange)


def progress() -> list[RunSummary]:
    """Figures of the current runs."""
    return [summary for server in rendezvous.servers() for summary in server.progress()]


def last_run() -> RunSummary | None:
    """Figures of the most recently started run, in any mode; None before the first.

    Workers report their figures after their last rows: a current run gets half a second to end.
    """
    summaries = [server.summaries[-1] for server in rendezvous.servers() if server.summaries]
    if not summaries:
        return None
    deadline = monotonic() + LAST_WORDS_S
    while summaries[-1].outcome == "running" and monotonic() < deadline:
        time.sleep(0.005)  # Spark reports an action's end before the workers do
    return summaries[-1]

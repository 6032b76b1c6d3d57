"""Slots held by an input's own exchanges: stages before a shuffle run at the same time as its consumers.

Each pipelined exchange is identified by the RDD that its consumers read, which is part of everything made of their
result: a frame, an RDD, a cache.  Uses private methods of Spark; if one is missing, nothing is known, and a run that
finds no slot reports that itself (:mod:`fastbuf_spark.driver.slots`).
"""

from __future__ import annotations

import logging
from collections.abc import Container, Set
from typing import Any

from fastbuf_spark.driver.checks import is_connect
from fastbuf_spark.pyspark_private import is_cached, jvm_rdd, optimized_plan

log = logging.getLogger("fastbuf_spark")

_slots: dict[tuple[str, int], int] = {}  #: slots of an exchange and of those before it, by application and RDD


def remember(sc: Any, requests: Any, slots: int) -> None:
    """Record an exchange: its consumers read the RDD ``requests``; they and those before them hold ``slots``."""
    application = str(sc.applicationId)
    for other in [key for key in _slots if key[0] != application]:
        del _slots[other]
    _slots[application, int(requests.id())] = slots


def held_by_frame(df: Any) -> int:
    """Slots that consumers hold while a DataFrame is read, counted as often as its plan contains them."""
    if is_connect(df):
        return 0
    sc = df.sparkSession.sparkContext
    slots = _of(sc)
    try:
        return _in_plan(sc, optimized_plan(df), slots) if slots else 0
    except Exception as error:
        log.debug("the exchanges that the input reads are not known: %s", error)
        return 0


def held_by_rdds(rdds: Any) -> int:
    """The same for RDDs."""
    sc = rdds[0].context
    slots = _of(sc)
    try:
        return sum(_in_lineage(sc, jvm_rdd(rdd), slots) for rdd in rdds) if slots else 0
    except Exception as error:
        log.debug("the exchanges that the input reads are not known: %s", error)
        return 0


def exchanges(sc: Any) -> Set[int]:
    """The RDDs that consumers of pipelined exchanges read: what is made of them has rows in any order."""
    return _of(sc).keys()


def _of(sc: Any) -> dict[int, int]:
    application = str(sc.applicationId)
    return {rdd: slots for (of, rdd), slots in _slots.items() if of == application}


def _in_plan(sc: Any, plan: Any, slots: dict[int, int]) -> int:
    leaves = plan.collectLeaves()
    total = 0
    for leaf in (leaves.apply(i) for i in range(leaves.size())):
        name = str(leaf.getClass().getSimpleName())
        if name in ("LogicalRDD", "ExternalRDD"):
            total += _in_lineage(sc, leaf.rdd(), slots)
        elif name == "InMemoryRelation" and not leaf.cacheBuilder().isCachedColumnBuffersLoaded():
            total += _in_plan(sc, leaf.cacheBuilder().logicalPlan(), slots)
    return total


def _in_lineage(sc: Any, last: Any, slots_of: dict[int, int]) -> int:
    slots: dict[int, int] = {}
    for number, (_, reads) in sorted(_lineage(sc, last, slots_of).items()):  # an RDD is made after those it reads
        slots[number] = slots_of.get(number, 0) + sum(slots[read] for read in reads)
    return slots[int(last.id())]


def _lineage(sc: Any, last: Any, stop_at: Container[int]) -> dict[int, tuple[Any, list[int]]]:
    """The RDDs that are computed for an RDD, with those that each reads; not beyond those in `stop_at`.

    Uses a loop: a lineage may be deeper than Python's stack.
    """
    rdds: dict[int, tuple[Any, list[int]]] = {}
    waiting = [last]
    while waiting:
        rdd = waiting.pop()
        number = int(rdd.id())
        if number in rdds:
            continue
        rdds[number] = rdd, []
        if number in stop_at or is_cached(sc, rdd):
            continue
        dependencies = rdd.dependencies()
        for i in range(dependencies.size()):
            read = dependencies.apply(i).rdd()
            rdds[number][1].append(int(read.id()))
            waiting.append(read)
    return rdds

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

_held: dict[tuple[str, int], int] = {}  #: slots of an exchange and of those before it, by application and RDD


def remember(sc: Any, requests: Any, slots: int) -> None:
    """Record an exchange: its consumers read the RDD ``requests``; they and those before them hold ``slots``."""
    application = str(sc.applicationId)
    for other in [known for known in _held if known[0] != application]:
        del _held[other]
    _held[application, int(requests.id())] = slots


def held_by_frame(df: Any) -> int:
    """Slots that consumers hold while a DataFrame is read, counted as often as its plan contains them."""
    if is_connect(df):
        return 0
    sc = df.sparkSession.sparkContext
    known = _of(sc)
    try:
        return _in_plan(sc, optimized_plan(df), known) if known else 0
    except Exception as error:
        log.debug("the exchanges that the input reads are not known: %s", error)
        return 0


def held_by_rdds(rdds: Any) -> int:
    """The same for RDDs."""
    sc = rdds[0].context
    known = _of(sc)
    try:
        return sum(_in_lineage(sc, jvm_rdd(rdd), known) for rdd in rdds) if known else 0
    except Exception as error:
        log.debug("the exchanges that the input reads are not known: %s", error)
        return 0


def exchanges(sc: Any) -> Set[int]:
    """The RDDs that consumers of pipelined exchanges read: what is made of them has rows in any order."""
    return _of(sc).keys()


def _of(sc: Any) -> dict[int, int]:
    application = str(sc.applicationId)
    return {rdd: slots for (of, rdd), slots in _held.items() if of == application}


def _in_plan(sc: Any, plan: Any, known: dict[int, int]) -> int:
    leaves = plan.collectLeaves()
    found = 0
    for leaf in (leaves.apply(i) for i in range(leaves.size())):
        name = str(leaf.getClass().getSimpleName())
        if name in ("LogicalRDD", "ExternalRDD"):
            found += _in_lineage(sc, leaf.rdd(), known)
        elif name == "InMemoryRelation" and not leaf.cacheBuilder().isCachedColumnBuffersLoaded():
            found += _in_plan(sc, leaf.cacheBuilder().logicalPlan(), known)
    return found


def _in_lineage(sc: Any, last: Any, known: dict[int, int]) -> int:
    slots: dict[int, int] = {}
    for number, (_, reads) in sorted(_lineage(sc, last, known).items()):  # an RDD is made after those it reads
        slots[number] = known.get(number, 0) + sum(slots[read] for read in reads)
    return slots[int(last.id())]


def _lineage(sc: Any, last: Any, known: Container[int]) -> dict[int, tuple[Any, list[int]]]:
    """The RDDs that are computed for an RDD, with those that each reads; not beyond those that are ``known``.

    Uses a loop: a lineage may be deeper than Python's stack.
    """
    found: dict[int, tuple[Any, list[int]]] = {}
    waiting = [last]
    while waiting:
        rdd = waiting.pop()
        number = int(rdd.id())
        if number in found:
            continue
        found[number] = rdd, []
        if number in known or is_cached(sc, rdd):
            continue
        dependencies = rdd.dependencies()
        for i in range(dependencies.size()):
            read = dependencies.apply(i).rdd()
            found[number][1].append(int(read.id()))
            waiting.append(read)
    return found

"""Whether an input has the same rows, in the same order, each time Spark computes it: read from Spark's plan.

Uses private methods of Spark on the driver; if one is missing, and on Spark Connect, the answer is no.  User functions
cannot be inspected: they are assumed to be deterministic.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Set
from typing import Any

from fastbuf_spark.driver import upstream
from fastbuf_spark.driver.checks import is_connect
from fastbuf_spark.pyspark_private import optimized_plan

log = logging.getLogger("fastbuf_spark")

#: Operators of an optimized plan that keep the order of each partition's rows, or make rows in a fixed order.  All
#: others, including those of later Sparks, are treated as shuffles.
_IN_ORDER = frozenset(
    {"Project", "Filter", "Range", "LocalRelation", "OneRowRelation", "EmptyRelation", "Generate", "Expand", "Union"}
    | {"Sample", "LocalLimit", "MapInArrow", "MapInPandas", "PythonMapInArrow", "MapPartitions", "MapElements"}
    | {"AppendColumns", "TypedFilter", "DeserializeToObject", "SerializeFromObject", "ArrowEvalPython"}
    | {"BatchEvalPython", "SubqueryAlias", "View", "ResolvedHint", "CollectMetrics", "EventTimeWatermark"}
)
_LIMITS = frozenset({"GlobalLimit", "LocalLimit", "Offset", "Tail", "GlobalLimitAndOffset", "LimitAndOffset"})
#: Operators between a sort and a limit that keep the sorted order.
_KEEP_SORT = frozenset({"Project", "Filter", "SubqueryAlias", *_LIMITS})


def is_deterministic(df: Any) -> bool:
    """Whether a DataFrame has the same rows each time it is computed.

    Parameters
    ----------
    df
        A DataFrame; if keys are expressions, the one with their columns (``Keys.frame``).

    Returns
    -------
    bool
        False if Spark calls one of its expressions nondeterministic (``rand()``, a nondeterministic user-defined
        function), for samples, for limits over unsorted rows, and if unknown.  Does not check aggregates that depend on
        the order of rows (``first``, ``collect_list``), nor the input of an RDD.
    """
    if is_connect(df):
        return False
    try:
        return all(bool(node.deterministic()) and _is_steady(node) for node in _nodes(optimized_plan(df)))
    except Exception as error:
        log.debug("whether the input is deterministic is not known: %s", error)
        return False


def order_is_fixed(df: Any) -> bool:
    """Whether each partition of a DataFrame has its rows in the same order whenever its task runs again.

    Returns
    -------
    bool
        True only without shuffle, exchange or aggregate: a task that reads from several others gets rows in any order.
        False if unknown.
    """
    if is_connect(df):
        return False
    try:
        exchanges = upstream.exchanges(df.sparkSession.sparkContext)
        return all(_keeps_order(node, exchanges) for node in _nodes(optimized_plan(df)))
    except Exception as error:
        log.debug("whether the order of the input is fixed is not known: %s", error)
        return False


def unsteady(df: Any, in_turn: bool, in_order: bool) -> str:
    """Why the partitions of a shuffle of this input may differ each time it is read; empty if no reason is known.

    Parameters
    ----------
    in_turn
        Rows are distributed in turn, not by a key: then their order must be the same too.
    in_order
        The functions before the shuffle keep the order of rows.
    """
    if not is_deterministic(df):
        return "rand(), a sample, a limit over rows that are not sorted, or a function that is said to be so"
    if in_turn and not (in_order and order_is_fixed(df)):
        return "rows without a key are placed in turn, and their order is not fixed"
    return ""


def observed(df: Any) -> bool:
    """Whether someone waits for figures that a job over this input brings (``df.observe``)."""
    try:
        return any(_name(node) == "CollectMetrics" for node in _nodes(optimized_plan(df)))
    except Exception as error:
        log.debug("whether the input is observed is not known: %s", error)
        return True


def _nodes(plan: Any) -> Iterator[Any]:
    """All operators of a plan, and of the plans of its caches, which may be computed again."""
    yield plan
    if _name(plan) == "InMemoryRelation":
        yield from _nodes(plan.cacheBuilder().logicalPlan())
    children = plan.children()
    for i in range(children.size()):
        yield from _nodes(children.apply(i))


def _name(plan: Any) -> str:
    return str(plan.getClass().getSimpleName())


def _is_steady(node: Any) -> bool:
    """Whether an operator gives the same rows each time, where this does not depend on its expressions."""
    name = _name(node)
    if name == "Sample":
        return False
    if name not in _LIMITS:
        return True
    below = node.children().apply(0)
    while _name(below) in _KEEP_SORT:
        below = below.children().apply(0)
    return _name(below) == "Sort"


def _keeps_order(node: Any, exchanges: Set[int]) -> bool:
    name = _name(node)
    if name == "Sort":
        return not node.productElement(1)  # the field ``global``: a sort of all rows begins with an exchange
    if name == "Repartition":
        return not node.shuffle()  # a coalesce: partitions are concatenated in order
    if name in ("LogicalRDD", "ExternalRDD"):
        lineage = str(node.rdd().toDebugString())
        # Spark prints a shuffle in a lineage as "+-"; of an exchange there is the RDD that its consumers read
        return "+-" not in lineage and exchanges.isdisjoint(map(int, re.findall(r"RDD\[(\d+)\]", lineage)))
    if name == "LogicalRelation":
        # Files: their list is fixed; a database returns rows in any order
        return str(node.relation().getClass().getSimpleName()) == "HadoopFsRelation"
    if name == "DataSourceV2ScanRelation":
        return str(node.scan().getClass().getName()).startswith("org.apache.spark.sql.execution.datasources.v2.")
    return name == "InMemoryRelation" or name in _IN_ORDER

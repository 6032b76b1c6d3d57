"""What Spark's plan of an input says of its rows: whether they come again, and whether they come in the same order.

Seen on the driver, through private doors of Spark; where one is shut, and on Spark Connect, which has none, the answer
is no.  What a user's own Python function does nobody can see: it is taken to give the same for the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from fastbuf_spark.driver.checks import is_connect

log = logging.getLogger("fastbuf_spark")

#: Operators of an optimized plan that give each partition's rows in the order in which they get them, or make them in
#: a fixed one.  Others, and those of later Sparks, are taken for shuffles.
_IN_ORDER = frozenset(
    {"Project", "Filter", "Range", "LocalRelation", "OneRowRelation", "EmptyRelation", "Generate", "Expand", "Union"}
    | {"Sample", "LocalLimit", "MapInArrow", "MapInPandas", "PythonMapInArrow", "MapPartitions", "MapElements"}
    | {"AppendColumns", "TypedFilter", "DeserializeToObject", "SerializeFromObject", "ArrowEvalPython"}
    | {"BatchEvalPython", "SubqueryAlias", "View", "ResolvedHint", "CollectMetrics", "EventTimeWatermark"}
)
_LIMITS = frozenset({"GlobalLimit", "LocalLimit", "Offset", "Tail", "GlobalLimitAndOffset", "LimitAndOffset"})
#: Through these a sort is still the order of a limit's input.
_KEEP_SORT = frozenset({"Project", "Filter", "SubqueryAlias", *_LIMITS})


def is_deterministic(df: Any) -> bool:
    """Whether a DataFrame has the same rows each time it is computed.

    Parameters
    ----------
    df
        A DataFrame; with keys that are expressions, the one they are columns of (``Keys.frame``).

    Returns
    -------
    bool
        False if Spark calls an expression of it nondeterministic (``rand()``, a nondeterministic user-defined
        function), for samples, for limits over rows that are not sorted, and if that cannot be known.  Aggregates that
        depend on the order of rows (``first``, ``collect_list``) are not looked for; nor is what stands below an RDD.
    """
    if is_connect(df):
        return False
    try:
        return all(bool(node.deterministic()) and _is_steady(node) for node in _nodes(_plan(df)))
    except Exception as error:
        log.debug("whether the input is deterministic is not known: %s", error)
        return False


def order_is_fixed(df: Any) -> bool:
    """Whether each partition of a DataFrame has its rows in the same order whenever its task is run again.

    Returns
    -------
    bool
        True only where no shuffle, exchange or aggregate stands below: what a task reads from several others comes in
        any order.  False if that cannot be known.
    """
    if is_connect(df):
        return False
    try:
        return all(_keeps_order(node) for node in _nodes(_plan(df)))
    except Exception as error:
        log.debug("whether the order of the input is fixed is not known: %s", error)
        return False


def unsteady(df: Any, in_turn: bool, in_order: bool = True) -> str:
    """Why the partitions of a shuffle of this input may differ each time it is read; empty if nothing says so.

    Parameters
    ----------
    in_turn
        Rows are placed in turn, not by a key: then their order has to be the same as well.
    in_order
        What is done with the rows before they are placed keeps their order.
    """
    if not is_deterministic(df):
        return "rand(), a sample, a limit over rows that are not sorted, or a function that is said to be so"
    if in_turn and not (in_order and order_is_fixed(df)):
        return "rows without a key are placed in turn, and their order is not fixed"
    return ""


def _plan(df: Any) -> Any:
    return df._jdf.queryExecution().optimizedPlan()


def _nodes(plan: Any) -> Iterator[Any]:
    """All operators of a plan, and of the plans of the caches in it, which may be computed again."""
    yield plan
    if _name(plan) == "InMemoryRelation":
        yield from _nodes(plan.cacheBuilder().logicalPlan())
    children = plan.children()
    for i in range(children.size()):
        yield from _nodes(children.apply(i))


def _name(plan: Any) -> str:
    return str(plan.getClass().getSimpleName())


def _is_steady(node: Any) -> bool:
    """Whether an operator gives the same rows for the same, where Spark does not say so of its expressions."""
    name = _name(node)
    if name == "Sample":
        return False
    if name not in _LIMITS:
        return True
    below = node.children().apply(0)
    while _name(below) in _KEEP_SORT:
        below = below.children().apply(0)
    return _name(below) == "Sort"


def _keeps_order(node: Any) -> bool:
    name = _name(node)
    if name == "Sort":
        return not node.productElement(1)  # its field ``global``: a sort of all rows begins with an exchange
    if name == "Repartition":
        return not node.shuffle()  # a coalesce: partitions are joined one after the other
    if name in ("LogicalRDD", "ExternalRDD"):
        return "+-" not in str(node.rdd().toDebugString())  # so Spark draws a shuffle in an RDD's lineage
    if name == "LogicalRelation":
        # Files, whose list is made once; rows of a database come as it likes
        return str(node.relation().getClass().getSimpleName()) == "HadoopFsRelation"
    if name == "DataSourceV2ScanRelation":
        return str(node.scan().getClass().getName()).startswith("org.apache.spark.sql.execution.datasources.v2.")
    return name == "InMemoryRelation" or name in _IN_ORDER

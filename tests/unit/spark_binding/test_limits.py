"""Which plans may leave a fused stage's partitions unread, by what Spark says of a running action."""

from __future__ import annotations

import pytest

from fastbuf_spark.exchanges import only_limits_above

NAME = "fastbuf_fused_0123"
BODY = """

(1) Range [codegen id : 1]
Output [1]: [id#0L]
Arguments: Range (0, 10, step=1, splits=Some(2))

(2) MapInArrow
Input [1]: [id#0L]
Arguments: fastbuf_fused_0123(id#0L)#1, [id#2L], true

(3) CollectLimit
Input [1]: [id#2L]
Arguments: 21
"""
SHOWN = "== Physical Plan ==\nCollectLimit (3)\n+- * Project (4)\n   +- MapInArrow (2)\n      +- * Range (1)\n" + BODY


def test_a_bare_limit() -> None:
    assert only_limits_above(SHOWN, NAME)


def test_an_aggregate_above_a_limit_while_it_runs() -> None:
    tree = """== Physical Plan ==
AdaptiveSparkPlan (16)
+- == Current Plan ==
   HashAggregate (9)
   +- GlobalLimit (8)
      +- ShuffleQueryStage (7)
         +- Exchange (6)
            +- * LocalLimit (5)
               +- * Project (4)
                  +- MapInArrow (2)
                     +- * Range (1)
"""
    assert only_limits_above(tree + BODY, NAME)


@pytest.mark.parametrize(
    "tree",
    [
        "+- MapInArrow (2)\n   +- * Range (1)\n",
        "CollectLimit (3)\n+- MapInArrow (9)\n   +- MapInArrow (2)\n      +- * Range (1)\n",
        "CollectLimit (3)\n+- HashAggregate (9)\n   +- MapInArrow (2)\n      +- * Range (1)\n",
        "CollectLimit (3)\n+- Union (9)\n   :- * LocalLimit (7)\n   :  +- * Range (1)\n   +- MapInArrow (2)\n",
    ],
    ids=["no limit", "another stage", "an aggregate", "two branches"],
)
def test_anything_else(tree: str) -> None:
    assert not only_limits_above("== Physical Plan ==\n" + tree + BODY, NAME)


def test_another_stage_or_no_plan() -> None:
    assert not only_limits_above(SHOWN, "fastbuf_fused_9999")
    assert not only_limits_above("", NAME)

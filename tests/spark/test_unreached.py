"""A consumer that listens and is refused to a producer: it must not be taken for one that has had enough."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import stages
from conftest import failure, in_time

import fastbuf_spark as fbs
from fastbuf_spark.driver import plan
from fastbuf_spark.worker.producer import Producer

pytestmark = pytest.mark.spark


def test_a_consumer_that_still_reads_is_told_that_it_was_refused(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a firewall does that rejects: the kernel says then what it says where nobody listens."""
    spark.range(0, 4, 1, 4).mapInArrow(stages.identity, "id long").count()  # starts the workers
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        port = closed.getsockname()[1]

        def misled(spec: Any, epoch: int, targets: list[Any], fold: Any) -> Producer:
            return Producer(spec, epoch, [(host, port, *rest) for host, _, *rest in targets[:1]] + targets[1:], fold)

        monkeypatch.setattr(plan, "Producer", misled)
        df = spark.range(0, 60_000, 1, 2).selectExpr("id % 17 as k", "id")
        conf = fbs.ShuffleConf(transport="tcp")
        made = fbs.map_in_arrow(df, stages.identity, df.schema, keys="k", num_partitions=2, mode="pipelined", conf=conf)
        text = in_time(60.0, lambda: failure(made.count))  # half of the time after which it would be a stall
    assert f"consumer 127.0.0.1:{port} cannot be reached" in text
    assert "refused; seen from 127.0.0.1" in text
    assert "spark.fastbuf.portMin" in text
    monkeypatch.undo()
    again = fbs.map_in_arrow(df, stages.identity, df.schema, keys="k", num_partitions=2, mode="pipelined", conf=conf)
    assert again.count() == 60_000

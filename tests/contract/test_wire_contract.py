"""A shared wire keeps every promise of a transport, by credit and by watermarks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import test_transport_contract as contract

import fastbuf as fb


class Wired:
    """An environment whose remote targets are reached over its wire."""

    def __init__(self, env: fb.ShuffleEnvironment, wire: Any) -> None:
        self.env = env
        self.wire = wire

    def create_result_partition(self, serializer: Any, targets: list[Any], **more: Any) -> fb.RecordWriter:
        gates = [self.env.gate(target[-1]) for target in targets]
        return self.env.create_result_partition(serializer, [self.wire.to(gate) for gate in gates], **more)


class WireRig(contract.Rig):
    def __init__(self, flow_control: str) -> None:
        super().__init__("local")
        self.kind = "tcp"  # what is promised of channels that are not read in place
        self.address: Any = ("wire",)
        self.near: Any = Wired(self.far, self.far.create_wire(flow_control))


@pytest.fixture(params=["credit", "watermark"])
def rig(request: pytest.FixtureRequest) -> Iterator[WireRig]:
    before = {t.name for t in threading.enumerate()}
    rig = WireRig(request.param)
    yield rig
    rig.close()
    assert rig.far.pool.stats().in_use == 0
    assert {t.name for t in threading.enumerate()} <= before | {"MainThread"}, "a thread was left behind"


# What a slow channel does to the others is what the two differ in: see test_watermark.py.
globals().update(
    {name: test for name, test in vars(contract).items() if name.startswith("test_") and "slow_channel" not in name}
)

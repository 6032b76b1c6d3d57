"""TCP keeps every promise of a transport under each flow control; credit's turn is in ``test_transport_contract``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import test_transport_contract as contract

import fastbuf as fb
from fastbuf.config import FLOW_CONTROLS


class FlowRig(contract.Rig):
    credit = False

    def __init__(self, flow_control: str) -> None:
        super().__init__("tcp")
        self.flow_control = flow_control

    def settings(self, **config: Any) -> fb.ExchangeConfig:
        return super().settings(flow_control=self.flow_control, **config)


@pytest.fixture(params=FLOW_CONTROLS[1:])
def rig(request: pytest.FixtureRequest) -> Iterator[FlowRig]:
    before = {t.name for t in threading.enumerate()}
    rig = FlowRig(request.param)
    yield rig
    rig.close()
    assert {t.name for t in threading.enumerate()} <= before | {"MainThread"}, "a thread was left behind"


# What a slow channel does to the others is what they differ in: see test_flow_controls.py.
globals().update(
    {name: test for name, test in vars(contract).items() if name.startswith("test_") and "slow_channel" not in name}
)

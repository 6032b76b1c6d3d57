"""The ledger's arithmetic: announced = used + available, floating segments never above their number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastbuf as fb
from fastbuf.errors import ConfigError, FastbufError


def test_every_channel_begins_with_its_exclusive_credit() -> None:
    ledger = fb.CreditLedger(channels=3, exclusive=2, floating=4)
    assert [ledger.available(i) for i in range(3)] == [2, 2, 2]
    assert ledger.audit()


def test_a_sender_without_credit_may_not_send() -> None:
    ledger = fb.CreditLedger(channels=1, exclusive=2, floating=0)
    assert ledger.take(0)
    assert ledger.take(0)
    assert not ledger.take(0)
    assert ledger.announce(0) == 1
    assert ledger.take(0)


def test_the_backlog_says_how_many_more_are_wanted() -> None:
    ledger = fb.CreditLedger(channels=2, exclusive=2, floating=8)
    assert ledger.backlog(0, 5) == 5
    assert ledger.announce(0, 5) == 5
    assert ledger.backlog(0) == 5
    assert ledger.available(0) == 7


def test_floating_credit_is_bounded_by_the_gate_not_by_the_channel() -> None:
    ledger = fb.CreditLedger(channels=2, exclusive=1, floating=3)
    assert ledger.announce(0, 10) == 3
    assert ledger.announce(1, 10) == 0
    assert ledger.take(0)
    assert ledger.announce(1, 10) == 1


@pytest.mark.parametrize("bad", [{"channels": 0}, {"channels": 1, "exclusive": 0}, {"channels": 1, "floating": -1}])
def test_impossible_ledgers_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        fb.CreditLedger(**bad)


def test_an_altered_counter_is_found() -> None:
    ledger = fb.CreditLedger(channels=2)
    ledger.counters[1, 0] += 1
    with pytest.raises(FastbufError, match="channel 1"):
        ledger.audit()


@given(st.lists(st.tuples(st.sampled_from("atb"), st.integers(0, 2), st.integers(0, 6)), max_size=60))
def test_no_order_of_operations_breaks_the_invariants(steps: list[tuple[str, int, int]]) -> None:
    ledger = fb.CreditLedger(channels=3, exclusive=2, floating=5)
    sent = [0, 0, 0]
    granted = [2, 2, 2]
    for what, channel, n in steps:
        if what == "a":
            granted[channel] += ledger.announce(channel, n)
        elif what == "t":
            could = granted[channel] > sent[channel]
            assert ledger.take(channel) is could
            sent[channel] += could
        else:
            wanted = ledger.backlog(channel, n)
            assert wanted == max(0, 2 + n - ledger.available(channel))
        assert ledger.audit()
        assert ledger.available(channel) == granted[channel] - sent[channel]

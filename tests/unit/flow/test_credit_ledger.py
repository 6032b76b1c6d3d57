"""The ledger's arithmetic: announced = used + available, floating segments never above their number."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastbuf as fb
from fastbuf.errors import ConfigError, FastbufError
from fastbuf.flow._testing import announce_loop, take_loop


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


def test_what_may_be_in_flight_is_bounded_by_the_segments() -> None:
    ledger = fb.CreditLedger(channels=1, exclusive=2, floating=1)
    ledger.announce(0)
    ledger.counters[0, 0] += 1  # announced = used + available still holds ...
    ledger.counters[0, 2] += 1  # ... but nobody set a segment aside for it
    with pytest.raises(FastbufError, match=r"exclusive 2 \+ floating 1"):
        ledger.audit()


def test_floating_segments_that_were_made_are_found() -> None:
    ledger = fb.CreditLedger(channels=2, exclusive=1, floating=1)
    ledger.announce(0)
    ledger.counters[1, [0, 2, 5]] += 1
    with pytest.raises(FastbufError, match="2 floating segments of 1"):
        ledger.audit()


def test_a_floating_segment_that_nobody_gave_back_is_found() -> None:
    ledger = fb.CreditLedger(channels=2, exclusive=2, floating=4)
    assert ledger.announce(1, 3) == 3
    ledger.counters[1, 5] += 1
    with pytest.raises(FastbufError, match=r"channel 1: of 5 available and exclusive 2, 4 are floating"):
        ledger.audit()


def test_the_counters_are_the_ledgers_own_memory() -> None:
    ledger = fb.CreditLedger(channels=3, exclusive=2, floating=4)
    view = ledger.counters
    assert view.shape == (3, 8)
    assert view.dtype == "int64"
    ledger.take(1)
    ledger.backlog(1, 9)
    assert view[1, :6].tolist() == [2, 1, 1, 9, 2, 0]
    assert ledger.counters is view


def audited_while_threads_meet() -> int:
    """Two senders and a receiver for each of two channels that share the floating segments.

    Returns how many audits there were meanwhile; 0: nobody met anybody.
    """
    total = 25_000
    ledger = fb.CreditLedger(channels=2, exclusive=1, floating=3)
    with ThreadPoolExecutor(6) as pool:
        receivers = [pool.submit(announce_loop, ledger, i, 4, total) for i in range(2)]
        senders = [pool.submit(take_loop, ledger, i, total) for i in range(2) for _ in range(2)]
        audits = 0
        while not all(done.done() for done in (*receivers, *senders)):
            assert ledger.audit()
            audits += 1
        announced = [done.result() for done in receivers]
        taken = [done.result() for done in senders]
    assert ledger.audit()
    for channel in range(2):
        left = 0
        while ledger.take(channel):
            left += 1
        used = sum(taken[2 * channel : 2 * channel + 2]) + left
        assert ledger.counters[channel, [0, 1, 2, 5]].tolist() == [used, used, 0, 0]
        assert used == announced[channel]
    assert ledger.announce(0, 9) == 4  # every floating segment is back
    return audits if min(announced) > 1 else 0


def test_threads_meet_in_it_without_a_lock() -> None:
    # Some may be done before others begin, or before this thread looks once; not again and again.
    assert any(audited_while_threads_meet() for _ in range(10))


def test_an_exchange_keeps_its_credit_in_the_gates_ledger() -> None:
    """The counters of a gate's channels, seen and proved by anybody while the I/O thread goes on."""
    rows = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
    config = fb.ExchangeConfig(exclusive=2, floating=3)
    with (
        fb.ShuffleEnvironment(segments=64, segment_size=1024) as env,
        fb.ShuffleEnvironment(segments=64, segment_size=1024) as far,
        env.create_input_gate(rows, channels=2, config=config) as gate,
    ):
        env.listen()
        writers = [far.create_result_partition(rows, [gate.address], i, config=config) for i in range(2)]
        assert gate.ledger.counters[:, [0, 1, 2, 4]].tolist() == [[2, 0, 2, 2]] * 2

        def send(writer: fb.RecordWriter) -> None:
            writer.emit_many((k, "x" * 300) for k in range(6000))
            writer.close()

        with ThreadPoolExecutor(2) as pool:
            done = [pool.submit(send, writer) for writer in writers]
            got = 0
            while not gate.finished:
                got += len(gate.poll(1) or [])
                assert gate.ledger.audit()
            for sent in done:
                sent.result()
        assert got == 12_000
        announced, used, available = gate.ledger.counters[:, :3].T.tolist()
        assert used == announced == [sum(w.totals()) for w in writers]
        assert available == [0, 0]

"""The code that ships, under every schedule and every value that a load may give, within bounds (``checker.c``).

And each of a list of mutations of it is found: a fence dropped, two stores swapped, an order weakened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import shipped
from shipped import Scenario, explore

EVENT = (("event", ()),)
ACTIVITY = (("activity", ()),)
FREE_LIST = (("free_list", ("memory/pool_core.pyx",)),)
POOL = (
    ("pool", ("memory/pool_core.pyx",)),
    ("pool_claims", ("memory/pool_claims.pyx",)),
    ("pool_waking", ("memory/pool_waking.pyx",)),
)
#: So that one who waits soon sleeps.
NO_SPIN = ("memory/pool_core.pyx", "SPINS = 100", "SPINS = 0")
FAILURE = (("failure", ("exchange/failure.pyx",)),)
QUEUE = (("subpartition", ("exchange/result_subpartition.pyx",)),)
OLDEST = (("drop_oldest", ("exchange/result_subpartition.pyx",)),)
BELL = (("bell", ("exchange/doorbell.pyx",)),)
RING = (
    ("shared_ring", ("exchange/shared_reader.pyx",)),
    ("shared_ring_bell", ("exchange/doorbell.pyx",)),
    ("shared_ring_queue", ("exchange/result_subpartition.pyx",)),
    ("shared_ring_lender", ("exchange/shared_lender.pyx",)),
)
#: So that a queue's ring has no more places than it has buffers.
NO_EVENTS = ("exchange/result_subpartition.pxd", "EVENT_SLOTS = 8 ", "EVENT_SLOTS = 0 ")

event = Scenario("event", EVENT)
event_two_waiters = Scenario("event, two waiters", EVENT, ("WAITERS=2",))
event_two_each = Scenario("event, two waiters and two notices", EVENT, ("WAITERS=2", "NOTIFIERS=2"))
activity = Scenario("activity", ACTIVITY, stale=4)
free_list = Scenario("free list", FREE_LIST)
free_list_three = Scenario("free list, three threads", FREE_LIST, ("POPPERS=2",))
pool = Scenario("pool", POOL, sizes=NO_SPIN)
pool_surplus = Scenario("pool, another one's surplus", POOL, ("WAY=1",), sizes=NO_SPIN)
pool_limits = Scenario("pool, limits that move", POOL, ("WAY=2",), stale=1, sizes=NO_SPIN)
pool_destroyed = Scenario("pool, destroyed", POOL, ("WAY=3",), stale=1, sizes=NO_SPIN)
pool_ended = Scenario("pool, destroyed with its segment out", POOL, ("WAY=4",), sizes=NO_SPIN)
pool_batches = Scenario("pool, batches", POOL, ("WAY=5",), stale=1, sizes=NO_SPIN)
pool_figures = Scenario("pool, figures", POOL, ("WAY=6",), sizes=NO_SPIN)
failure = Scenario("failure", FAILURE)
queue = Scenario("queue", QUEUE)
queue_flushed = Scenario("queue, flushed", QUEUE, ("FLUSHES=1",))
queue_one_segment = Scenario("queue, one segment", QUEUE, ("SEGMENTS=1",))
queue_waited_for = Scenario("queue, flushed and waited for", QUEUE, ("BUFFERS=1", "FLUSHES=2"), preemptions=3)
queue_of_many = Scenario("queue, one of many", QUEUE, ("ANY=1", "BOUND=4", "BUFFERS=5", "SEGMENTS=5"), stale=1)
queue_round = Scenario("queue, a ring of two", QUEUE, ("SEGMENTS=3",), sizes=NO_EVENTS)
oldest = Scenario("oldest dropped", OLDEST)
oldest_two = Scenario("oldest dropped, of two", OLDEST, ("BOUND=2",))
oldest_event = Scenario("oldest dropped, around an event", OLDEST, ("EVENTS=1",))
oldest_enough = Scenario("oldest dropped, a drainer that has enough", OLDEST, ("STOPS=1",))
oldest_round = Scenario("oldest dropped, a ring of two", OLDEST, sizes=NO_EVENTS)
ring = Scenario("ring", RING, ("ENDS=0",))
ring_one_segment = Scenario("ring, one segment", RING, ("ENDS=0", "SEGMENTS=1"))
ring_flushed = Scenario("ring, flushed", RING, ("ENDS=0", "FLUSHES=1", "BUFFERS=1"))
ring_enough = Scenario("ring, a reader that has enough", RING, ("ENDS=1",))
ring_revoked = Scenario("ring, taken back", RING, ("ENDS=2",))
ring_killed = Scenario("ring, a reader that is killed", RING, ("ENDS=3",), preemptions=1, stale=1)
ring_burst = Scenario("ring, buffers in a row", RING, ("DRAINS=1", "BURSTS=1"), stale=1)
ring_told_late = Scenario("ring, told of what is left", RING, ("DRAINS=1", "BUFFERS=1"), stale=1)
DROPPED = ("DROPS=1", "BOUND=1", "SEGMENTS=3")
ring_oldest = Scenario("ring, oldest dropped", RING, ("ENDS=0", "BUFFERS=3", *DROPPED), stale=1)
ring_oldest_two = Scenario("ring, oldest of two dropped", RING, ("ENDS=0", *DROPPED))
ring_oldest_revoked = Scenario("ring, oldest dropped and taken back", RING, ("ENDS=2", *DROPPED), stale=1)
ring_oldest_killed = Scenario(
    "ring, oldest dropped of a reader that is killed", RING, ("ENDS=3", *DROPPED), preemptions=1, stale=1
)
bell = Scenario("bell", BELL)

SCENARIOS = [
    event,
    event_two_waiters,
    event_two_each,
    activity,
    free_list,
    free_list_three,
    pool,
    pool_surplus,
    pool_limits,
    pool_destroyed,
    pool_ended,
    pool_batches,
    pool_figures,
    failure,
    queue,
    queue_flushed,
    queue_one_segment,
    queue_waited_for,
    queue_of_many,
    queue_round,
    oldest,
    oldest_two,
    oldest_event,
    oldest_enough,
    oldest_round,
    ring,
    ring_one_segment,
    ring_flushed,
    ring_enough,
    ring_revoked,
    ring_killed,
    ring_burst,
    ring_told_late,
    ring_oldest,
    ring_oldest_two,
    ring_oldest_revoked,
    ring_oldest_killed,
    bell,
]

LONG = os.environ.get("FASTBUF_LONG") == "1"
#: What takes ten seconds and more; the others have its parts
NIGHTLY = [
    event_two_waiters,
    ring_one_segment,
    ring_flushed,
    ring_enough,
    ring_revoked,
    ring_killed,
    ring_told_late,
    oldest_two,
    oldest_event,
    oldest_enough,
    ring_oldest,
    ring_oldest_revoked,
    ring_oldest_killed,
    oldest_round,
    ring_burst,
    ring_oldest_two,
]

PREPARE = "return (uint32_t)(fb_u64_or_seq_cst(&e->word, FB_EVENT_ASLEEP) >> 32);"
NOTIFY = "fb_u64_cas_seq_cst(&e->word, &word, (word + FB_EVENT_ONE_EPOCH) & ~(uint64_t)FB_EVENT_ASLEEP)"
RELAXED = "memory_order_relaxed"

#: What is done to the code, where, and the scenario that finds it.
MUTATIONS: dict[str, tuple[Scenario, str, str, str]] = {
    "a waiter does not announce itself": (
        event,
        "_native/fb_event.h",
        PREPARE,
        "return (uint32_t)(fb_u64_load_seq_cst(&e->word) >> 32);",
    ),
    "a waiter announces itself without order": (
        event,
        "_native/fb_event.h",
        PREPARE,
        f"return (uint32_t)(atomic_fetch_or_explicit(&e->word.v, FB_EVENT_ASLEEP, {RELAXED}) >> 32);",
    ),
    "a waiter reads the epoch after it has announced itself": (
        event,
        "_native/fb_event.h",
        PREPARE,
        "fb_u64_or_seq_cst(&e->word, FB_EVENT_ASLEEP); return (uint32_t)(fb_u64_load_relaxed(&e->word) >> 32);",
    ),
    "a notice does not move the epoch": (event, "_native/fb_event.h", "(word + FB_EVENT_ONE_EPOCH) & ~", "word & ~"),
    "a notice without order": (
        event,
        "_native/fb_event.h",
        NOTIFY,
        f"atomic_compare_exchange_weak_explicit(&e->word.v, &word, (word + FB_EVENT_ONE_EPOCH) & "
        f"~(uint64_t)FB_EVENT_ASLEEP, {RELAXED}, {RELAXED})",
    ),
    "a notice wakes nobody": (event, "_native/fb_event.h", "if (!(word & FB_EVENT_ASLEEP)) return;", "return;"),
    "a waiter sleeps whatever the epoch is": (
        event,
        "_native/fb_event.h",
        "if ((uint32_t)(word >> 32) == key) {",
        "key = (uint32_t)(word >> 32); {",
    ),
    "the epoch is looked at without acquire": (
        event_two_waiters,
        "_native/fb_event.h",
        "(uint32_t)(fb_u64_load_acquire(&e->word) >> 32)",
        "(uint32_t)(fb_u64_load_relaxed(&e->word) >> 32)",
    ),
    "the bit is cleared by a step of its own": (
        event_two_each,
        "_native/fb_event.h",
        "if (!(word & FB_EVENT_ASLEEP)) return;",
        "if (!(word & FB_EVENT_ASLEEP)) return;\n"
        "    atomic_fetch_and_explicit(&e->word.v, ~(uint64_t)FB_EVENT_ASLEEP, memory_order_seq_cst);",
    ),
    "the sequence is not made odd": (
        activity,
        "_native/fb_activity.h",
        "    fb_u32_store_relaxed(&a->seq, seq + 1);\n",
        "",
    ),
    "the state without release": (
        activity,
        "_native/fb_activity.h",
        "fb_u32_store_release(&a->state",
        "fb_u32_store_relaxed(&a->state",
    ),
    "the time without release": (
        activity,
        "_native/fb_activity.h",
        "fb_i64_store_release(&a->since",
        "fb_i64_store_relaxed(&a->since",
    ),
    "the end of a change without release": (
        activity,
        "_native/fb_activity.h",
        "fb_u32_store_release(&a->seq",
        "fb_u32_store_relaxed(&a->seq",
    ),
    "the end of a change before its last field": (
        activity,
        "_native/fb_activity.h",
        "    fb_i64_store_release(&a->since, now);\n    fb_u32_store_release(&a->seq, seq + 2);",
        "    fb_u32_store_release(&a->seq, seq + 2);\n    fb_i64_store_release(&a->since, now);",
    ),
    "a reader that does not look again": (
        activity,
        "_native/fb_activity.h",
        "while (fb_u32_load_relaxed(&a->seq) != seq)",
        "while (0)",
    ),
    "a total read without acquire": (
        activity,
        "_native/fb_activity.h",
        "fb_i64_load_acquire(&a->total[i])",
        "fb_i64_load_relaxed(&a->total[i])",
    ),
    "a list without a tag": (free_list_three, "memory/free_list.pxd", "((h >> 32) + 1) << 32", "(h >> 32) << 32"),
    "a push that forgets what lies below": (
        free_list,
        "memory/free_list.pxd",
        "fb_u64_store_release(&g.meta[i].link, (depth + 1) << 32 | <uint32_t>h)",
        "fb_u64_store_release(&g.meta[i].link, (depth + 1) << 32)",
    ),
    "a push without order": (
        free_list,
        "_native/fb_atomic.h",
        "return atomic_compare_exchange_weak_explicit(&a->v, expected, x, memory_order_seq_cst,        \\\n"
        "                                                     memory_order_seq_cst); }",
        f"return atomic_compare_exchange_weak_explicit(&a->v, expected, x, {RELAXED}, {RELAXED}); }}",
    ),
    "a recycle that looks who waits before its segment is there": (
        pool,
        "memory/pool_core.pyx",
        "        push(g, &p.free, i)\n        after_push(p)\n    return last",
        "        after_push(p)\n        push(g, &p.free, i)\n    return last",
    ),
    "a recycle that wakes nobody": (
        pool,
        "memory/pool_core.pyx",
        "    if fb_u32_load_seq_cst(&p.waiting) != 0:\n        wake(p)",
        "    pass",
    ),
    "one who waits without a second look": (
        pool,
        "memory/pool_core.pyx",
        "        arm(p)\n        i = take(p, 0)\n        if i >= 0:\n            return i\n        if local_destroyed",
        "        i = take(p, 0)\n        if i >= 0:\n            return i\n        arm(p)\n        if local_destroyed",
    ),
    "who waits, said without order": (
        pool,
        "memory/pool_waking.pyx",
        "        if fb_u32_cas_seq_cst(&p.waiting, &expected, 1):\n            return",
        "        if fb_u32_load_relaxed(&p.waiting) == 0:\n            fb_u32_store_release(&p.waiting, 1)\n"
        "            return",
    ),
    "a surplus that is moved and wakes nobody": (
        pool_surplus,
        "memory/pool_claims.pyx",
        "    if moved != 0:\n        pool_wake_waiting(g)\n    return moved",
        "    return moved",
    ),
    "a recycle beyond the limit that keeps its segment": (
        pool_limits,
        "memory/pool_core.pyx",
        "    if <uint32_t>fb_u64_load_seq_cst(&p.word) > fb_u32_load_seq_cst(&p.limit):\n        trim(p)\n",
        "",
    ),
    "a destroyed pool that wakes nobody": (
        pool_ended,
        "memory/pool_claims.pyx",
        "    trim(p)\n    pool_wake_waiting(g) ",
        "    trim(p)\n    #",
    ),
    "a destroyed pool that gives out what it has": (
        pool_destroyed,
        "memory/pool_core.pyx",
        "    if w & WORD_DESTROYED:\n        push(p.pool, &p.free, i)\n        after_push(p)\n        return -1\n",
        "",
    ),
    "figures of two moments": (
        pool_figures,
        "memory/pool_claims.pyx",
        "        if again == h:\n            return",
        "        return",
    ),
    "a batch that wakes nobody": (
        pool_batches,
        "memory/pool_core.pyx",
        "segments + begin, k - begin)\n            after_push(owner)",
        "segments + begin, k - begin)",
    ),
    "a failure's text written by two": (
        failure,
        "exchange/failure.pyx",
        "if not fb_u32_cas_strong(&f.code, &expected, FAIL_CLAIMED):",
        "if fb_u32_load_acquire(&f.code) != expected:",
    ),
    "a failure that is shown before its text": (
        failure,
        "exchange/failure.pyx",
        "    fb_u32_store_release(&f.code, code)\n    return True",
        "    fb_u32_store_release(&f.code, code)\n    f.text[0] = text[0]\n    return True",
    ),
    "a second failure that does not wait for the first one's text": (
        failure,
        "exchange/failure.pyx",
        "        while fb_u32_load_acquire(&f.code) == FAIL_CLAIMED:\n            sched_yield()",
        "        while False:\n            sched_yield()",
    ),
    "a place given back before the drainer is done with it": (
        queue_round,
        "exchange/result_subpartition.pyx",
        "    fb_u32_store_release(&s.head, head + 1)\n    if event",
        "    fb_u32_store_relaxed(&s.head, head + 1)\n    if event",
    ),
    "bytes shown without release": (
        queue_flushed,
        "exchange/result_subpartition.pyx",
        "    fb_u32_store_release(&slot.committed, position)",
        "    fb_u32_store_relaxed(&slot.committed, position)",
    ),
    "a buffer queued without release": (
        queue,
        "exchange/result_subpartition.pyx",
        "    fb_u32_store_release(&s.tail, tail + 1)\n    if s.shared != NULL:\n        lender_begin",
        "    fb_u32_store_relaxed(&s.tail, tail + 1)\n    if s.shared != NULL:\n        lender_begin",
    ),
    "committed read before finished": (
        queue_flushed,
        "exchange/result_subpartition.pyx",
        "        finished = fb_u32_load_acquire(&slot.finished)      # before committed: see the pairing\n"
        "        committed = fb_u32_load_acquire(&slot.committed)\n",
        "        committed = fb_u32_load_acquire(&slot.committed)\n"
        "        finished = fb_u32_load_acquire(&slot.finished)\n",
    ),
    "the end looked at after the last buffer": (
        queue,
        "exchange/result_subpartition.pyx",
        "    cdef bint ended = fb_u32_load_acquire(&s.ended)\n    return ended and sub_queued(s) == 0",
        "    cdef bint empty = sub_queued(s) == 0\n    return empty and fb_u32_load_acquire(&s.ended)",
    ),
    "no fence before the drainer looks at the low-water mark": (
        queue_of_many,
        "exchange/result_subpartition.pyx",
        "    fb_fence_seq_cst()          # low_water after head: see the wake-ups in the .pxd\n",
        "",
    ),
    "no fence before a writer looks again": (
        queue_of_many,
        "exchange/result_subpartition.pyx",
        "        fb_fence_seq_cst()      # before the check: see the wake-ups in the .pxd\n",
        "",
    ),
    "a flush that is asked for before its bytes are shown": (
        queue_waited_for,
        "exchange/result_subpartition.pyx",
        "    fb_u32_store_release(&s.flush_asked, 1)\n",
        "    fb_u32_store_relaxed(&s.flush_asked, 1)\n",
    ),
    "a drainer that claims by a store": (
        oldest,
        "exchange/result_subpartition.pyx",
        "        if fb_u64_cas_acq_rel(s.ends, &ends, (ends >> 32) << 32 | <uint32_t> (number + 1)):\n",
        "        fb_u64_store_release(s.ends, (ends >> 32) << 32 | <uint32_t> (number + 1))\n        if True:\n",
    ),
    "a writer that takes back by a store": (
        oldest,
        "exchange/result_subpartition.pyx",
        "        if fb_u64_cas_acq_rel(s.ends, &ends, <uint64_t> front[0] << 32 | front[0]):\n",
        "        fb_u64_store_release(s.ends, <uint64_t> front[0] << 32 | front[0])\n        if True:\n",
    ),
    "a slot published without release": (
        oldest,
        "exchange/result_subpartition.pyx",
        "    fb_u64_add_seq_cst(s.ends, <uint64_t> 1 << 32)\n",
        "    fb_u64_add_relaxed(s.ends, <uint64_t> 1 << 32)\n",
    ),
    "slots that are published before they are moved": (
        oldest_two,
        "exchange/result_subpartition.pyx",
        "    for number in range(front, front + (tail - front)):\n        slot =",
        "    fb_u64_add_seq_cst(s.ends, <uint64_t> (tail - front) << 32)\n"
        "    for number in range(front, front + (tail - front)):\n        slot =",
    ),
    "a gap that is not told": (
        oldest_two,
        "exchange/result_subpartition.pyx",
        "        mark.gap += gap\n",
        "",
    ),
    "a gap that is told after what follows it": (
        oldest,
        "exchange/result_subpartition.pyx",
        "    while slot != NULL and slot.event == NULL and not _after_gap(s, slot):",
        "    while slot != NULL and slot.event == NULL:",
    ),
    "events that are dropped": (
        oldest_event,
        "exchange/result_subpartition.pyx",
        "        if slot.event == NULL and (buffers > keep or",
        "        if (buffers > keep or",
    ),
    "a reader that claims by a store": (
        ring_oldest_two,
        "exchange/shared_reader.pyx",
        "            if fb_u64_cas_acq_rel(&self.block.ends, &ends, (ends >> 32) << 32 | <uint32_t> (self.head + 1)):",
        "            fb_u64_store_release(&self.block.ends, (ends >> 32) << 32 | <uint32_t> (self.head + 1))\n"
        "            if True:",
    ),
    "what a reader stores, without release": (
        ring_one_segment,
        "exchange/shared_reader.pyx",
        "atomics cimport *\n",
        "atomics cimport *\nfrom fastbuf._native.atomics cimport fb_u32_store_relaxed as fb_u32_store_release\n",
    ),
    "a reader reads committed before finished": (
        ring_flushed,
        "exchange/shared_reader.pyx",
        "            finished = fb_u32_load_acquire(&slot.finished)      # before committed: see the pairing\n"
        "            committed = fb_u32_load_acquire(&slot.committed)\n",
        "            committed = fb_u32_load_acquire(&slot.committed)\n"
        "            finished = fb_u32_load_acquire(&slot.finished)\n",
    ),
    "a reader looks at the end after the last buffer": (
        ring,
        "exchange/shared_reader.pyx",
        "        cdef bint ended = self.writer_ended() == SHARED_DONE\n"
        "        return ended and self.head == fb_u32_load_acquire(&self.block.tail)",
        "        cdef bint empty = self.head == fb_u32_load_acquire(&self.block.tail)\n"
        "        return empty and self.writer_ended() == SHARED_DONE",
    ),
    "a reader does not say that it looks": (
        ring_revoked,
        "exchange/shared_reader.pyx",
        "            fb_u32_exchange_acq_rel(&self.block.reading, 1)\n",
        "",
    ),
    "no fence before a reader looks whether all is taken back": (
        ring_revoked,
        "exchange/shared_reader.pyx",
        "            fb_fence_seq_cst()\n            self.inside = True",
        "            self.inside = True",
    ),
    "a reader does not look whether all is taken back": (
        ring_revoked,
        "exchange/shared_reader.pyx",
        "        return fb_u32_load_seq_cst(&self.block.revoked) == 0",
        "        return True",
    ),
    "a writer takes back what is looked at": (
        ring_revoked,
        "exchange/shared_lender.pyx",
        "    return fb_u32_load_seq_cst(&x.block.reading) == 0",
        "    return True",
    ),
    "no fence before a writer looks whether a reader looks": (
        ring_revoked,
        "exchange/shared_lender.pyx",
        "    fb_u32_exchange_acq_rel(&x.block.revoked, 1)\n    fb_fence_seq_cst()\n",
        "    fb_u32_store_release(&x.block.revoked, 1)\n",
    ),
    "bytes lent without release": (
        ring_flushed,
        "exchange/shared_block.pxd",
        "    fb_u32_store_release(&_shared_slot(x, number).committed, position)",
        "    fb_u32_store_relaxed(&_shared_slot(x, number).committed, position)",
    ),
    "a reader's end that is looked at after its last place": (
        ring,
        "exchange/shared_lender.pyx",
        "    how = fb_u32_load_acquire(&x.block.reader_ended)\n    if not _take_home(x, s) or",
        "    cdef bint sane = _take_home(x, s)\n"
        "    how = fb_u32_load_acquire(&x.block.reader_ended)\n    if not sane or",
    ),
    "a reader that does not tell of what is left": (
        ring_told_late,
        "exchange/shared_reader.pyx",
        "        if self.head != self.told_head:\n            self.tell()",
        "        pass",
    ),
    "a burst whose last buffer is not told of": (
        ring_burst,
        "exchange/result_subpartition.pyx",
        "    if sub_finish_early(s):\n        sub_tell(s)",
        "    sub_finish_early(s)",
    ),
    "a doorbell that is armed after the look": (
        bell,
        "exchange/doorbell.pyx",
        "    fb_u32_store_relaxed(&bell.armed, 1)\n"
        "    fb_event_prepare(&bell.event)           # the pairing: see bell_ring\n",
        "    fb_event_prepare(&bell.event)\n    fb_u32_store_relaxed(&bell.armed, 1)\n",
    ),
    "a reader that tells a writer of nothing": (
        ring_one_segment,
        "exchange/shared_reader.pyx",
        "        if low_water == 0 or fb_u32_load_relaxed(&self.block.tail) - self.head <= low_water:",
        "        if False:",
    ),
}


#: Those that take longest to find; the others have some of each part
NIGHTLY_MUTATIONS = {
    "bytes lent without release",
    "a reader reads committed before finished",
    "a reader does not say that it looks",
    "what a reader stores, without release",
    "a reader that does not tell of what is left",
    "a writer takes back what is looked at",
    "a reader's end that is looked at after its last place",
    "a reader looks at the end after the last buffer",
    "no fence before a writer looks whether a reader looks",
    "a place given back before the drainer is done with it",
    "a burst whose last buffer is not told of",
    "a reader that tells a writer of nothing",
    "no fence before a reader looks whether all is taken back",
    "a reader that claims by a store",
    "a doorbell that is armed after the look",
    "the end looked at after the last buffer",
    "no fence before the drainer looks at the low-water mark",
    "a destroyed pool that gives out what it has",
    "a flush that is asked for before its bytes are shown",
    "a buffer queued without release",
    "a push without order",
    "a drainer that claims by a store",
    "a destroyed pool that wakes nobody",
    "one who waits without a second look",
    "a recycle beyond the limit that keeps its segment",
}


@pytest.fixture(scope="module", autouse=True)
def scratch() -> Iterator[None]:
    yield
    shipped.clean()


@pytest.mark.parametrize("scenario", [s for s in SCENARIOS if LONG or s not in NIGHTLY], ids=lambda s: s.name)
def test_no_schedule_has_a_fault(scenario: Scenario) -> None:
    code, said = explore(scenario)
    assert code == 0, said
    assert int(said.split()[0]) > 80, said


def test_at_least_twenty_mutations_are_tried_each_time() -> None:
    assert set(MUTATIONS) >= NIGHTLY_MUTATIONS
    assert len(set(MUTATIONS) - NIGHTLY_MUTATIONS) >= 20


@pytest.mark.parametrize("what", [what for what in MUTATIONS if LONG or what not in NIGHTLY_MUTATIONS])
def test_a_mutation_is_found(what: str) -> None:
    scenario, name, old, new = MUTATIONS[what]
    code, said = explore(scenario, (name, old, new))
    assert code == 1, f"{what} is not found: {said}"

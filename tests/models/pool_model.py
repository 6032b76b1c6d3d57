"""The operations of ``pool_core.pyx``, ``pool_claims.pyx`` and ``pool_waking.pyx`` on claims, limits, waiting and
waking, transcribed access by access.

Free lists are counts here (``checker/free_list.c`` shows that pop and push are atomic).  ``checker/pool.c`` runs the
shipped code itself, in fewer and smaller cases.  Names are those of the shipped code.  Each name in `without` leaves
one precaution out, which shows that the model would find its absence.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from explorer import Process


@dataclass
class Pool:
    """One LocalCore.  word is (held, claims, destroyed)."""

    required: int
    limit: int
    out: int = 0  # ghost: segments with users
    free: int = 0
    overdraft: int = 0
    word: tuple[int, int, bool] = field(init=False)
    hungry: int = 0
    epoch: int = 0
    waiters: int = 0
    listener_epoch: int = 0
    listener_waiters: int = 0
    listening: bool = False
    # request_async: the eventfd's count, the queue (task numbers), who serves it, and what each task was handed.
    signal: int = 0
    queue: tuple[int, ...] = ()
    serving: int = 0
    handed: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    tasks: bool = False

    def __post_init__(self) -> None:
        self.word = (self.out + self.free, 0, False)


class PoolWorld:
    def __init__(self, total: int, pools: list[Pool], without: str = "") -> None:
        self.total, self.pools, self.without = total, pools, without
        self.free = total - sum(p.word[0] for p in pools)
        self.spare = self.free - sum(max(0, p.required - p.word[0]) for p in pools)
        self.hungry = 0
        self.processes: list[Process] = []

    # --- the shipped operations -------------------------------------------------------------------------------------

    def arm(self, k: int) -> Process:
        p = self.pools[k]
        yield
        if p.hungry:
            return
        if self.without != "count before flag":
            yield
            self.hungry += 1
        yield
        if p.hungry:
            yield
            self.hungry -= 1
            return
        p.hungry = 1
        if self.without == "count before flag":
            yield
            self.hungry += 1

    def notify(self, k: int) -> Process:
        p = self.pools[k]
        yield
        if p.waiters:
            yield
            p.epoch += 1

    def wake(self, k: int) -> Process:
        p = self.pools[k]
        yield
        if not p.hungry:
            return
        p.hungry = 0
        yield
        self.hungry -= 1
        yield from self.notify(k)
        yield
        if p.listening and p.listener_waiters:
            yield
            p.listener_epoch += 1
        if p.tasks:
            yield
            p.signal += 1

    def wake_hungry(self) -> Process:
        yield
        if not self.hungry:
            return
        for k, p in enumerate(self.pools):
            yield
            if p.hungry:
                yield
                held, _, destroyed = p.word
                yield
                if destroyed or held < p.limit + p.overdraft:
                    yield from self.wake(k)

    def spare_refund(self) -> Process:
        yield
        self.spare += 1
        if self.without == "wake after refund":
            return
        yield
        if self.free:
            yield from self.wake_hungry()

    def trim(self, k: int) -> Process:
        p = self.pools[k]
        moved = 0
        while True:
            yield
            w = p.word
            yield
            if w[0] <= p.limit:
                break
            yield
            if not p.free:
                break
            p.free -= 1
            done = False
            while True:
                yield
                if w[0] <= p.limit:
                    break
                yield
                if p.word == w:
                    p.word = (w[0] - 1, *w[1:])
                    done = True
                    break
                w = p.word
            if not done:
                yield
                p.free += 1
                if self.without != "wake after putting back":
                    yield
                    if p.hungry:
                        yield from self.wake(k)
                break
            yield
            self.free += 1
            if w[2] or w[0] + w[1] - 1 >= p.required:
                yield
                self.spare += 1
            moved += 1
        if moved and self.without != "wake after trim":
            yield from self.wake_hungry()
        return moved

    def reclaim(self) -> Process:
        moved = 0
        if self.without == "reclaim":
            return 0
        for k, p in enumerate(self.pools):
            yield  # one step for both words: a glance, trim looks again at each
            if p.word[0] > p.limit:
                moved += yield from self.trim(k)
        return moved

    def take_global(self, k: int, extra: int) -> Process:
        p = self.pools[k]
        paid = False
        while True:
            yield
            w = p.word
            while True:
                yield
                if w[2] or w[0] + w[1] >= p.limit + extra:
                    if paid:
                        yield from self.spare_refund()
                    return False
                beyond = w[0] + w[1] >= p.required and self.without != "pay for what is beyond"
                if beyond and not paid:
                    yield
                    if self.free:
                        yield
                        if self.spare > 0:
                            self.spare -= 1
                            paid = True
                    if not paid:
                        if not (yield from self.reclaim()):
                            return False
                        yield
                        w = p.word
                        continue
                elif paid and not beyond:
                    paid = False
                    yield from self.spare_refund()
                yield
                if p.word == w:
                    p.word = (w[0], w[1] + 1, w[2])
                    break
                w = p.word
            paid = False
            yield
            if self.free:
                self.free -= 1
                p.out += 1
                yield
                p.word = (p.word[0] + 1, p.word[1] - 1, p.word[2])
                return True
            yield
            w = p.word
            p.word = (w[0], w[1] - 1, w[2])
            if w[2] or w[0] + w[1] - 1 >= p.required:
                yield
                self.spare += 1
            if self.without == "look again after undo":
                return False
            yield
            if self.free:
                yield from self.wake_hungry()
            elif not (yield from self.reclaim()):
                return False

    def take_listed(self, k: int) -> Process:
        p = self.pools[k]
        yield
        if not p.free:
            return False
        p.free -= 1
        p.out += 1
        yield
        if p.word[2]:
            yield from self.recycle(k)
            return False
        return True

    def take(self, k: int, extra: int = 0) -> Process:
        return (yield from self.take_listed(k)) or (yield from self.take_global(k, extra))

    def recycle(self, k: int) -> Process:
        p = self.pools[k]
        limit = -1
        if self.without == "push before limit":
            yield
            limit = p.limit
        yield
        p.out -= 1
        p.free += 1
        yield
        held = p.word[0]
        if limit < 0:
            yield
            limit = p.limit
        if held > limit:
            yield from self.trim(k)
        if self.without != "wake after recycle":
            yield
            if p.hungry:
                yield from self.wake(k)

    def set_limit(self, k: int, limit: int) -> Process:
        yield
        self.pools[k].limit = limit

    def destroy(self, k: int) -> Process:
        p = self.pools[k]
        yield
        held, claims, _ = p.word
        p.word = (held, claims, True)
        if held + claims < p.required:
            yield
            self.spare += p.required - held - claims
        yield from self.set_limit(k, 0)
        yield from self.trim(k)
        yield from self.wake_hungry()

    def acquire(self, k: int) -> Process:
        p = self.pools[k]
        while True:
            yield
            p.waiters += 1
            yield
            key = p.epoch
            if self.without != "look again after arming":
                yield from self.arm(k)
            if (yield from self.take(k)):
                yield
                p.waiters -= 1
                return True
            if self.without == "look again after arming":
                yield from self.arm(k)
            yield
            if p.word[2]:
                p.waiters -= 1
                return False
            yield lambda key=key: p.epoch != key
            p.waiters -= 1
            if (yield from self.take_listed(k)):
                return True

    def arrive(self) -> Process:
        """A segment comes to the global list out of a destroyed pool that is not modelled: the end of trim."""
        yield
        self.free += 1
        yield
        self.spare += 1
        yield from self.wake_hungry()

    # --- users ------------------------------------------------------------------------------------------------------

    def user(self, k: int, keep: bool = False) -> Process:
        """Requests one, for ever if need be, and recycles it."""
        if (yield from self.acquire(k)) and not keep:
            yield from self.recycle(k)

    def trier(self, k: int, extra: int = 0) -> Process:
        """Tries once, and recycles what it gets."""
        if (yield from self.take(k, extra)):
            yield from self.recycle(k)

    def listener(self, k: int) -> Process:
        """As an event loop does it: tries, arms, sleeps on its own event."""
        p = self.pools[k]
        while True:
            yield
            p.listener_waiters += 1
            yield
            key = p.listener_epoch
            got = yield from self.take(k)
            if not got:
                yield from self.arm(k)
                got = yield from self.take(k)
            yield
            if got or p.word[2]:
                p.listener_waiters -= 1
                break
            yield lambda key=key: p.listener_epoch != key
            p.listener_waiters -= 1
        if got:
            yield from self.recycle(k)

    def serve(self, k: int) -> Process:
        """``TaskQueue._serve``; its lock is one that sleeps until it is free."""
        p = self.pools[k]
        yield lambda: not p.serving
        p.serving = 1
        if self.without == "take the signal first":
            yield from self.hand_out(k)
            yield
            p.signal = 0
        else:
            yield
            p.signal = 0
            yield from self.hand_out(k)
        yield
        p.serving = 0

    def hand_out(self, k: int) -> Process:
        p = self.pools[k]
        mine = False
        while True:
            yield
            if not p.queue:
                break
            task = p.queue[0]
            if not mine:
                mine = yield from self.take(k)
            if not mine:
                if self.without != "arm for the tasks":
                    yield from self.arm(k)
                    mine = yield from self.take(k)
                if not mine:
                    yield
                    if not p.word[2]:
                        return
            yield
            if task in p.queue:
                p.queue = tuple(t for t in p.queue if t != task)
                if task not in p.gone:
                    if mine:
                        p.handed = (*p.handed, task)
                    mine = False
        if mine:
            yield from self.recycle(k)

    def task(self, k: int, number: int, cancelled: bool = False) -> Process:
        """``TaskQueue.request`` on a loop of its own, which watches the signal; cancelled at any moment, if so said."""
        p = self.pools[k]
        yield
        p.queue = (*p.queue, number)
        if self.without != "serve after entering":
            yield from self.serve(k)
        while True:
            yield lambda: cancelled or number in p.handed or p.signal or p.word[2]
            if number in p.handed or p.word[2] or cancelled:
                break
            yield from self.serve(k)
        yield  # leaves: what was handed to it by now is its own to recycle
        p.queue = tuple(t for t in p.queue if t != number)
        p.gone = (*p.gone, number)
        if number in p.handed and not (cancelled and self.without == "recycle when cancelled"):
            yield from self.recycle(k)

    def redistribution(self, limits: list[int]) -> Process:
        order = sorted(range(len(limits)), key=lambda k: limits[k] > self.pools[k].limit)
        for k in tuple(order):
            yield from self.set_limit(k, limits[k])
        yield from self.wake_hungry()

    # --- what must hold -----------------------------------------------------------------------------------------------

    def key(self) -> Hashable:
        pools = tuple(tuple(vars(p).values()) for p in self.pools)
        return pools, self.free, self.spare, self.hungry

    def check(self) -> None:
        homes = self.free + sum(p.free + p.out for p in self.pools)
        assert homes <= self.total, f"{homes} segments of {self.total}"
        for p in self.pools:
            assert p.word[0] >= 0, "negative account"
            assert p.word[1] >= 0, "negative claims"
            assert p.free >= 0, "an empty list gave a segment"
            assert p.out >= 0, "recycled twice"

    def check_end(self, asleep: list[int]) -> None:
        for k, p in enumerate(self.pools):
            assert p.word[1] == 0, f"pool {k}: claims left"
            assert p.word[0] == p.free + p.out, f"pool {k}: counts {p.word[0]}, has {p.free} free and {p.out} out"
        assert self.free + sum(p.word[0] for p in self.pools) == self.total, "a segment was lost"
        unmet = sum(max(0, p.required - p.word[0]) for p in self.pools if not p.word[2])
        assert self.spare == self.free - unmet, f"spare is {self.spare}, free {self.free}, unmet {unmet}"
        assert self.hungry == sum(p.hungry for p in self.pools), "the hungry are miscounted"
        assert not asleep, f"asleep for ever: processes {asleep}"

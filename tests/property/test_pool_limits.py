"""Random sequences of creates, destroys, requests and recycles, against a plain account of who may hold what."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from fastbuf.errors import PoolDestroyed, PoolTimeout, ResourceError
from fastbuf.memory import LocalBufferPool, MemorySegment, NetworkBufferPool


class Account:
    """What the model knows of one pool."""

    def __init__(self, required: int, maximum: int, overdraft: int, number: int) -> None:
        self.required, self.maximum, self.overdraft, self.number = required, maximum, overdraft, number
        self.limit = required
        self.out = self.free = self.peak = 0
        self.destroyed = False

    @property
    def held(self) -> int:
        return self.out + self.free


Entry = tuple[MemorySegment, Account]


def share(total: int, accounts: list[Account]) -> None:
    """The rule of SPEC section 1, worked out with a running total in exact integers."""
    spare = total - sum(a.required for a in accounts)
    rooms = [min(spare, a.maximum - a.required) for a in accounts]
    amount = min(spare, sum(rooms))
    ends = [0, *(amount * end // sum(rooms) if sum(rooms) else 0 for end in itertools.accumulate(rooms))]
    for account, (low, high) in zip(accounts, itertools.pairwise(ends), strict=True):
        account.limit = account.required + high - low


class PoolLimits(RuleBasedStateMachine):
    pools = Bundle("pools")
    segments = Bundle("segments")

    @initialize(total=st.integers(1, 24))
    def start(self, total: int) -> None:
        self.total = total
        self.network = NetworkBufferPool(total, 64)
        self.accounts: list[Account] = []
        self.numbers = itertools.count()

    def alive(self) -> list[Account]:
        return [a for a in self.accounts if not a.destroyed]

    def global_free(self) -> int:
        return self.total - sum(a.held for a in self.accounts)

    @rule(target=pools, required=st.integers(0, 8), room=st.integers(0, 30), overdraft=st.integers(0, 4))
    def create(self, required: int, room: int, overdraft: int) -> object:
        maximum = max(1, required + room)
        left = self.total - sum(a.required for a in self.alive())
        if required > left:
            with pytest.raises(ResourceError, match="segments="):
                self.network.create_local_pool(required, maximum, overdraft)
            return multiple()
        account = Account(required, maximum, overdraft, next(self.numbers))
        self.accounts.append(account)
        share(self.total, self.alive())
        self.any_pool = self.network.create_local_pool(required, maximum, overdraft, name=str(account.number))
        return self.any_pool, account

    def could(self, account: Account, extra: int) -> bool:
        """Whether a request must be met; does to the model what it does to the pools."""
        if account.free:
            account.free -= 1
        else:
            if account.held >= account.limit + extra:
                return False
            beyond = account.held >= account.required
            unmet = sum(max(0, a.required - a.held) for a in self.alive())
            if self.global_free() == 0 or (beyond and self.global_free() <= unmet):
                for other in self.accounts:  # free segments beyond a limit are nobody's
                    surplus = min(other.free, max(0, other.held - other.limit))
                    other.free -= surplus
                unmet = sum(max(0, a.required - a.held) for a in self.alive())
            if self.global_free() == 0 or (beyond and self.global_free() <= unmet):
                return False
        account.out += 1
        account.peak = max(account.peak, account.out)
        return True

    def request(self, entry: tuple[LocalBufferPool, Account], kind: str) -> object:
        pool, account = entry
        call = {
            "try": pool.try_request,
            "overdraft": pool.try_request_overdraft,
            "now": lambda: pool.request(timeout=0),
        }[kind]
        if account.destroyed:
            with pytest.raises(PoolDestroyed):
                call()
            return multiple()
        if not self.could(account, account.overdraft if kind == "overdraft" else 0):
            if kind == "now":
                with pytest.raises(PoolTimeout):
                    call()
            else:
                assert call() is None
            return multiple()
        segment = call()
        assert segment is not None, "a segment that the pool may have was refused"
        return segment, account

    @rule(target=segments, entry=pools, kind=st.sampled_from(["try", "overdraft", "now"]))
    def request_one(self, entry: tuple[LocalBufferPool, Account], kind: str) -> object:
        return self.request(entry, kind)

    @rule(target=segments, entry=pools, n=st.integers(2, 12))
    def request_several(self, entry: tuple[LocalBufferPool, Account], n: int) -> object:
        pool, account = entry
        if account.destroyed:
            with pytest.raises(PoolDestroyed):
                pool.request_many(n)
            return multiple()
        wanted = 0
        while wanted < n and self.could(account, 0):
            wanted += 1
        got = pool.request_many(n)
        assert len(got) == wanted
        return multiple(*[(segment, account) for segment in got])

    @rule(first=consumes(segments), second=consumes(segments), third=consumes(segments))
    def recycle_several(self, first: Entry, second: Entry, third: Entry) -> None:
        entries = [first, second, third]
        self.any_pool.recycle_many([segment for segment, _ in entries])
        # Those that stand together and are of one pool come home first, and then what is beyond the limit leaves.
        for _, group in itertools.groupby(entries, key=lambda entry: entry[1]):
            some = list(group)
            account = some[0][1]
            account.out -= len(some)
            account.free += len(some)
            account.free -= min(account.free, max(0, account.held - account.limit))

    @rule(entry=consumes(segments), twice=st.booleans())
    def recycle(self, entry: tuple[MemorySegment, Account], twice: bool) -> None:
        segment, account = entry
        if twice:
            segment.retain().recycle()
        segment.recycle()
        account.out -= 1
        account.free += 1
        account.free -= min(account.free, max(0, account.held - account.limit))

    @rule(entry=pools)
    def destroy(self, entry: tuple[LocalBufferPool, Account]) -> None:
        pool, account = entry
        pool.destroy()
        if not account.destroyed:
            account.destroyed, account.limit, account.free = True, 0, 0
            share(self.total, self.alive())

    @invariant()
    def figures_agree(self) -> None:
        if not hasattr(self, "network"):
            return
        self.network.audit()
        assert self.network.available == self.global_free()
        assert self.network.stats().in_use == sum(a.out for a in self.accounts)

    @rule(entry=pools)
    def pool_agrees(self, entry: tuple[LocalBufferPool, Account]) -> None:
        pool, account = entry
        stats = pool.stats()
        got = (stats.limit, stats.held, stats.in_use, stats.available, stats.peak, stats.destroyed)
        assert got == (account.limit, account.held, account.out, account.free, account.peak, account.destroyed)

    def teardown(self) -> None:
        if hasattr(self, "network"):
            self.network.destroy()


TestPoolLimits = PoolLimits.TestCase
TestPoolLimits.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

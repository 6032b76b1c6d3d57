"""A pool with one lock and no cleverness: what the shipped one has to behave like."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

from fastbuf.errors import (
    ConfigError,
    FastbufError,
    PoolDestroyed,
    PoolTimeout,
    ResourceError,
    SegmentExported,
    SegmentStateError,
)


def share_out(total: int, pools: Sequence[tuple[int, int]]) -> list[int]:
    """Limits by the rule of SPEC section 1, in fractions: proportional, rounded down along the running total."""
    spare = total - sum(required for required, _ in pools)
    room = [min(spare, maximum - required) for required, maximum in pools]
    share = min(spare, sum(room))
    ends = [share * sum(room[: k + 1]) // sum(room) if sum(room) else 0 for k in range(len(pools))]
    return [pools[k][0] + ends[k] - (ends[k - 1] if k else 0) for k in range(len(pools))]


class ReferenceSegment:
    def __init__(self, pool: ReferenceLocalPool, index: int) -> None:
        self._pool, self.index, self._held, self._views = pool, index, 1, []
        self.size = pool.network.segment_size

    def _check(self) -> None:
        if not self._held:
            raise SegmentStateError(f"segment {self.index} was recycled")

    @property
    def refcount(self) -> int:
        return self._held

    def view(self) -> memoryview:
        self._check()
        memory = self._pool.network.memory[self.index]
        self._views.append((memory, len(memory)))
        return memoryview(memory)

    def _exported(self) -> bool:
        for memory, length in self._views:
            try:
                memory.append(0)  # a bytearray with exports cannot be resized
            except BufferError:
                return True
            del memory[length:]
        return False

    def retain(self) -> ReferenceSegment:
        self._check()
        self._held += 1
        return self

    def recycle(self) -> None:
        self._check()
        if self._held == 1 and self._exported():
            raise SegmentExported(f"segment {self.index} has views")
        self._held -= 1
        if not self._held:
            self._pool.take_back(self.index)


class ReferenceLocalPool:
    def __init__(self, network: ReferencePool, required: int, maximum: int, overdraft: int) -> None:
        self.network, self.required, self.maximum, self.overdraft = network, required, maximum, overdraft
        self.limit = required
        self.free: list[int] = []
        self.held = 0
        self.peak = 0
        self.destroyed = False

    @property
    def in_use(self) -> int:
        return self.held - len(self.free)

    def _take(self, extra: int) -> ReferenceSegment | None:
        network = self.network
        if self.destroyed:
            raise PoolDestroyed("destroyed")
        if not self.free:
            if self.held >= self.limit + extra:
                return None
            network.collect_surplus()
            unmet = sum(max(0, p.required - p.held) for p in network.pools)
            if not network.free or (self.held >= self.required and len(network.free) <= unmet):
                return None
            self.free.append(network.free.pop())
            self.held += 1
        index = self.free.pop()
        self.peak = max(self.peak, self.in_use)
        return ReferenceSegment(self, index)

    def try_request(self) -> ReferenceSegment | None:
        with self.network.changed:
            return self._take(0)

    def try_request_overdraft(self) -> ReferenceSegment | None:
        with self.network.changed:
            return self._take(self.overdraft)

    def request_many(self, n: int) -> list[ReferenceSegment]:
        if n < 0:
            raise ConfigError(f"n is {n}")
        found: list[ReferenceSegment] = []
        with self.network.changed:
            while len(found) < n and (segment := self._take(0)) is not None:
                found.append(segment)
            if not n and self.destroyed:
                raise PoolDestroyed("destroyed")
        return found

    def recycle_many(self, segments: Iterable[ReferenceSegment]) -> None:
        segments = list(segments)
        with self.network.changed:
            for segment in segments:
                if not isinstance(segment, ReferenceSegment):
                    raise TypeError(f"{segment!r} is no segment")
                if segment._held < segments.count(segment):
                    raise SegmentStateError(f"segment {segment.index} was recycled")
                if segment._held == segments.count(segment) and segment._exported():
                    raise SegmentExported(f"segment {segment.index} has views")
            for segment in segments:
                segment.recycle()

    def request(self, timeout: float | None = None) -> ReferenceSegment:
        end = None if timeout is None else time.monotonic() + timeout
        with self.network.changed:
            while True:
                segment = self._take(0)
                if segment is not None:
                    return segment
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise PoolTimeout(
                        f"required {self.required}, available {len(self.free)}, in use {self.in_use}, "
                        f"total {self.network.total}: raise segments="
                    )
                self.network.changed.wait(left)

    def take_back(self, index: int) -> None:
        with self.network.changed:
            if self.held > self.limit:
                self.held -= 1
                self.network.free.append(index)
            else:
                self.free.append(index)
            self.network.changed.notify_all()

    def destroy(self) -> None:
        with self.network.changed:
            if self.destroyed:
                return
            self.destroyed, self.limit = True, 0
            self.network.pools.remove(self)
            self.network.free += self.free
            self.held -= len(self.free)
            self.free = []
            self.network.redistribute()
            self.network.changed.notify_all()


class ReferencePool:
    def __init__(self, segments: int, segment_size: int) -> None:
        self.total, self.segment_size = segments, segment_size
        self.memory = [bytearray(segment_size) for _ in range(segments)]
        self.free = list(range(segments))
        self.pools: list[ReferenceLocalPool] = []
        self.changed = threading.Condition(threading.RLock())
        self.destroyed = False

    @property
    def available(self) -> int:
        return len(self.free)

    def redistribute(self) -> None:
        limits = share_out(self.total, [(p.required, p.maximum) for p in self.pools])
        for pool, limit in zip(self.pools, limits, strict=True):
            pool.limit = limit

    def collect_surplus(self) -> None:
        for pool in self.pools:
            while not self.free and pool.free and pool.held > pool.limit:
                self.free.append(pool.free.pop())
                pool.held -= 1

    def create_local_pool(
        self, required: int, maximum: int | None = None, overdraft: int = 0, name: str = ""
    ) -> ReferenceLocalPool:
        with self.changed:
            if self.destroyed:
                raise PoolDestroyed("destroyed")
            maximum = max(self.total, required) if maximum is None else maximum
            if required < 0 or overdraft < 0 or maximum < max(1, required):
                raise ConfigError(f"required {required}, maximum {maximum}, overdraft {overdraft}")
            taken = sum(p.required for p in self.pools)
            if taken + required > self.total:
                raise ResourceError(f"{required} of {self.total - taken} left of {self.total}: raise segments=")
            pool = ReferenceLocalPool(self, required, maximum, overdraft)
            self.pools.append(pool)
            self.redistribute()
            self.changed.notify_all()
            return pool

    def audit(self) -> None:
        homes = self.free + [index for pool in self.pools for index in pool.free]
        if len(homes) != len(set(homes)):
            raise FastbufError(f"a segment is in two places: {sorted(homes)}")

    def destroy(self) -> None:
        self.destroyed = True
        for pool in list(self.pools):
            pool.destroy()

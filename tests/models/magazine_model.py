"""The operations of ``fb_magazine.h`` and ``magazines.pyx``, access by access, on processors that delay stores.

Every process has a store buffer, as x86 has (total store order): its plain stores, relaxed or release, wait there in
order until a step of their own carries one to memory; it sees them itself at once.  A read-modify-write empties the
process's own buffer first; membarrier empties everybody's, one process after the other.  That is all that O2 of
``fb_magazine.h`` can rely on, and without it Dekker's pair fails.

Lists and the event are single steps here (``checker/free_list.c``, ``test_pool_model``).  A magazine has `hot` and two
items, a chunk two segments.  Each name in `without` leaves one precaution out, which shows that the model would find
its absence.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from explorer import Process

GLANCE, LOOK, SURE = range(3)
CHUNK = ITEMS = 2


class MagazineWorld:
    """One pool with a magazine for each process, or for the first `magazines` of them, and a global list that another
    pool's waiter lives on.

    Segments are numbered from 1.  ``memory`` holds what plain loads and stores touch.
    """

    def __init__(
        self, processes: int, out: dict[int, tuple[int, ...]], without: str = "", limit: int = 9, magazines: int = 0
    ) -> None:
        self.n, self.without = processes, without
        self.magazines = magazines or processes
        self.memory: dict[str, object] = {"gate": 0, "limit": limit, "hungry": 0}
        for k in range(self.magazines):
            self.memory |= {f"open{k}": 1, f"busy{k}": 0, f"hot{k}": 0, f"items{k}": ()}
        self.buffers: list[tuple[tuple[str, object], ...]] = [()] * processes
        self.free: tuple[int, ...] = ()
        self.chunks: tuple[tuple[int, ...], ...] = ()
        self.everywhere: tuple[int, ...] = ()  # the global list
        self.out = [out.get(k, ()) for k in range(processes)]  # who has what; ghost
        self.segments = tuple(sorted(i for mine in self.out for i in mine))
        self.held = len(self.segments)
        self.waiters = self.epoch = 0
        self.others_hungry = self.others_epoch = 0
        self.ended: tuple[int, ...] = ()
        self.destroyed = self.settled = False
        self.fault = ""
        self.processes: list[Process] = []

    def begin(self, *work: Process) -> MagazineWorld:
        self.processes = [*work, *(self.drain(k) for k in range(self.n))]
        return self

    # --- the processor ----------------------------------------------------------------------------------------------

    def load(self, k: int, name: str) -> Any:
        for written, value in reversed(self.buffers[k]):
            if written == name:
                return value
        return self.memory[name]

    def store(self, k: int, name: str, value: object) -> None:
        # No step: nobody else sees it yet.
        self.buffers[k] = (*self.buffers[k], (name, value))

    def fence(self, k: int) -> None:
        for name, value in self.buffers[k]:
            self.memory[name] = value
        self.buffers[k] = ()

    def drain(self, k: int) -> Process:
        while True:
            yield lambda: bool(self.buffers[k])
            (name, value), *rest = self.buffers[k]
            self.memory[name] = value
            self.buffers[k] = tuple(rest)

    # --- the owner --------------------------------------------------------------------------------------------------

    def enter(self, k: int) -> Process:
        self.store(k, f"busy{k}", 1)
        if self.without == "look at open":
            return True
        yield
        return self.load(k, f"open{k}") == 1

    def may_keep(self, k: int) -> Process:
        if self.without != "hungry":
            yield
            if self.load(k, "hungry"):
                return False
        if self.without == "limit":
            return True
        yield
        return not self.destroyed and self.held <= self.load(k, "limit")

    def enter_seldom(self, k: int) -> Process:
        self.store(k, f"busy{k}", 1)
        if self.without != "gate":
            yield
            if self.load(k, "gate"):
                return False
        yield
        if self.load(k, f"open{k}"):
            return True
        if not (yield from self.may_keep(k)):
            return False
        yield
        self.fence(k)
        self.memory[f"open{k}"] = 1
        if self.without == "second look":
            return True
        yield
        if (self.without == "gate" or not self.load(k, "gate")) and (yield from self.may_keep(k)):
            return True
        self.store(k, f"open{k}", 0)
        return False

    def magazine_take(self, k: int) -> Process:
        i = 0
        if (yield from self.enter(k)):
            yield
            i = self.load(k, f"hot{k}")
            if i:
                self.store(k, f"hot{k}", 0)
            else:
                yield
                items = self.load(k, f"items{k}")
                if items:
                    self.store(k, f"items{k}", items[:-1])
                    i = items[-1]
        self.store(k, f"busy{k}", 0)
        return i

    def magazine_put(self, k: int, i: int) -> Process:
        put = False
        if (yield from self.enter(k)):
            yield
            if not self.load(k, f"hot{k}"):
                self.store(k, f"hot{k}", i)
                put = True
            else:
                yield
                items = self.load(k, f"items{k}")
                if len(items) < ITEMS:
                    self.store(k, f"items{k}", (*items, i))
                    put = True
        self.store(k, f"busy{k}", 0)
        return put

    def magazine_put_slowly(self, k: int, i: int) -> Process:
        put = yield from self.enter_seldom(k)
        if put:
            yield
            items = self.load(k, f"items{k}")
            if len(items) == ITEMS:
                yield
                self.fence(k)
                self.chunks = (items[:CHUNK], *self.chunks)
                items = items[CHUNK:]
            self.store(k, f"items{k}", (*items, i))
        self.store(k, f"busy{k}", 0)
        return put

    def magazine_take_many(self, k: int, n: int) -> Process:
        found: tuple[int, ...] = ()
        if (yield from self.enter(k)):
            yield
            hot = self.load(k, f"hot{k}")
            if hot:
                self.store(k, f"hot{k}", 0)
                found = (hot,)
            yield
            items = self.load(k, f"items{k}")
            some = min(len(items), n - len(found))
            found += items[len(items) - some :]
            self.store(k, f"items{k}", items[: len(items) - some])
        self.store(k, f"busy{k}", 0)
        return found

    def magazine_put_many(self, k: int, some: tuple[int, ...], seldom: bool) -> Process:
        put = yield from (self.enter_seldom(k) if seldom else self.enter(k))
        if put:
            yield
            items = self.load(k, f"items{k}")
            put = len(some) <= ITEMS - len(items)
            if put:
                self.store(k, f"items{k}", items + some)
        self.store(k, f"busy{k}", 0)
        return put

    def magazine_refill(self, k: int) -> Process:
        i = 0
        if (yield from self.enter_seldom(k)):
            yield
            if not self.load(k, f"items{k}"):
                yield
                self.fence(k)
                if self.chunks:
                    i, *more = self.chunks[0]
                    self.chunks = self.chunks[1:]
                    self.store(k, f"items{k}", tuple(more))
        self.store(k, f"busy{k}", 0)
        return i

    # --- everybody else ---------------------------------------------------------------------------------------------

    def close_gate(self, k: int) -> Process:
        yield lambda: self.memory["gate"] == 0
        self.fence(k)
        self.memory["gate"] = 1

    def open_gate(self, k: int) -> None:
        self.store(k, "gate", 0)

    def hush(self, k: int) -> Process:
        """Returns, as bits, whose magazines were open."""
        were_open = 0
        if self.without != "shut":
            for j in tuple(range(self.magazines)):
                were_open |= yield from self.close_magazine(k, j)
        others = were_open & ~(1 << k)
        if others and self.without != "membarrier":
            yield
            self.fence(k)  # the kernel's first step
            for j in tuple(range(self.magazines)):  # it does the same to the others, who do not matter here
                yield
                self.fence(j)
        for j in (j for j in range(self.magazines) if others >> j & 1 and self.without != "busy"):
            yield lambda j=j: self.memory[f"busy{j}"] == 0
        return were_open

    def close_magazine(self, k: int, j: int) -> Process:
        yield
        if not self.load(k, f"open{j}"):
            return 0
        self.store(k, f"open{j}", 0)
        return 1 << j

    def open_magazines(self, k: int, which: int) -> Process:
        if which and (self.without == "look before opening" or (yield from self.may_keep(k))):
            for j in tuple(range(self.magazines)):
                if which >> j & 1:
                    yield
                    self.store(k, f"open{j}", 1)

    def shut(self, k: int) -> Process:
        if self.without == "shut at the limit":
            return
        yield from self.close_gate(k)
        for j in tuple(range(self.magazines)):
            yield
            if self.load(k, f"open{j}"):
                yield from self.hush(k)
                break
        self.open_gate(k)

    def gather(self, k: int, j: int) -> Process:
        yield
        hot = self.load(k, f"hot{j}")
        yield
        items = self.load(k, f"items{j}")
        found = (hot, *reversed(items)) if hot else tuple(reversed(items))
        if found:
            self.store(k, f"hot{j}", 0)
            self.store(k, f"items{j}", ())
            yield
            self.fence(k)
            self.free = (*found, *self.free)
        return len(found)

    def break_chunk(self, k: int) -> Process:
        yield
        self.fence(k)
        if not self.chunks:
            return False
        some, self.chunks = self.chunks[0], self.chunks[1:]
        yield
        self.free = (*some, *self.free)
        return True

    def seems_loaded(self) -> Process:
        for j in tuple(range(self.magazines)):
            for name in ("busy", "hot", "items"):
                yield
                if self.memory[f"{name}{j}"]:
                    return True
        return False

    def fetch(self, k: int, how: int) -> Process:
        yield
        if not self.chunks and (how == GLANCE or (how == LOOK and not (yield from self.seems_loaded()))):
            yield
            if self.load(k, "gate") == 0 or self.without == "look at the gate":
                yield
                return bool(self.free)
        yield from self.close_gate(k)
        yield
        found = bool(self.free) or (yield from self.break_chunk(k))
        if not found and how != GLANCE:
            open_again = yield from self.hush(k)
            moved = 0
            for j in tuple(range(self.magazines)):
                n = yield from self.gather(k, j)
                moved += n
                if n and j != k:
                    open_again &= ~(1 << j)
            if how != SURE:
                yield from self.open_magazines(k, open_again)
            found = moved > 0 or (yield from self.break_chunk(k)) or bool(self.free)
        self.open_gate(k)
        return found

    # --- requests and recycles --------------------------------------------------------------------------------------

    def got(self, k: int, i: int) -> bool:
        if any(i in mine for mine in self.out):
            self.fault = f"segment {i} was given twice"
        self.out[k] = (*self.out[k], i)
        return True

    def take(self, k: int, how: int) -> Process:
        if k < self.magazines:
            i = yield from self.magazine_take(k)
            if i:
                return self.got(k, i)
            yield
            if self.chunks:
                i = yield from self.magazine_refill(k)
                if i:
                    return self.got(k, i)
        while True:
            yield
            self.fence(k)
            if self.free:
                i, *rest = self.free
                self.free = tuple(rest)
                if self.destroyed:
                    yield from self.push(k, i)
                    return False
                return self.got(k, i)
            if not (yield from self.fetch(k, how)):
                return False

    def take_many(self, k: int, n: int) -> Process:
        """``local_try_acquire_many``."""
        found = yield from self.magazine_take_many(k, n)
        for i in found:
            self.got(k, i)
        yield
        self.fence(k)
        listed, self.free = self.free[: n - len(found)], self.free[n - len(found) :]
        if listed and self.destroyed:
            self.out[k] = self.out[k][: len(self.out[k]) - len(found)]
            return (yield from self.push(k, *found, *listed))
        for i in listed:
            self.got(k, i)
        for _ in range(n - len(found) - len(listed)):
            if not (yield from self.take(k, LOOK)):
                break

    def push(self, k: int, *some: int) -> Process:
        yield
        self.fence(k)
        self.free = (*some, *self.free)
        yield
        if self.held > self.load(k, "limit"):
            yield from self.trim(k, LOOK)
        yield
        if self.load(k, "hungry"):
            yield from self.wake(k)

    def recycle(self, k: int) -> Process:
        i, *rest = self.out[k]
        self.out[k] = tuple(rest)
        beyond = self.is_beyond(k)
        if not (yield from self.magazine_put(k, i)) and not (yield from self.magazine_put_slowly(k, i)):
            yield from self.push(k, i)
        elif beyond and self.is_beyond(k):
            self.fault = f"segment {i} was kept, and the pool was beyond its limit when it was recycled"

    def recycle_many(self, k: int) -> Process:
        """``segment_recycle_many`` of all that it has."""
        some, self.out[k] = self.out[k], ()
        beyond = self.is_beyond(k)
        for seldom in (False, True):
            if (yield from self.magazine_put_many(k, some, seldom)):
                if beyond and self.is_beyond(k):
                    self.fault = f"segments {some} were kept, and the pool was beyond its limit when they were recycled"
                return
        yield from self.push(k, *some)

    def is_beyond(self, k: int) -> bool:
        """Whether somebody has brought the pool beyond its limit, and is through with it; ghost."""
        return self.settled and self.held > self.memory["limit"]  # type: ignore[operator]

    def trim(self, k: int, how: int) -> Process:
        moved = False
        while True:
            yield
            if self.held <= self.load(k, "limit"):
                break
            yield
            self.fence(k)
            if not self.free:
                if (yield from self.fetch(k, how)):
                    continue
                break
            i, self.free = self.free[0], self.free[1:]
            yield
            self.held -= 1
            yield
            self.everywhere = (*self.everywhere, i)
            moved = True
        if moved:
            yield from self.wake_others()

    def wake(self, k: int) -> Process:
        yield
        self.fence(k)
        if self.memory["hungry"]:
            self.memory["hungry"] = 0
            yield
            if self.waiters:
                self.epoch += 1

    def wake_others(self) -> Process:
        yield
        if self.others_hungry:
            self.others_hungry = 0
            self.others_epoch += 1

    # --- who does it ------------------------------------------------------------------------------------------------

    def user(self, k: int, work: str) -> Process:
        """-: tries to take one; =: two; +: recycles one, if it has one; *: all it has; .: the thread ends."""
        for at in range(len(work)):
            yield  # a process runs up to its first step before anybody moves
            if work[at] == "-":
                yield from self.take(k, LOOK)
            elif work[at] == "=":
                yield from self.take_many(k, 2)
            elif work[at] == ".":
                yield from self.end(k)
            elif self.out[k] and work[at] == "*":
                yield from self.recycle_many(k)
            elif self.out[k]:
                yield from self.recycle(k)

    def end(self, k: int) -> Process:
        """``slot_flush``."""
        if self.without != "flush":
            yield from self.close_gate(k)
            yield from self.gather(k, k)
            self.store(k, f"open{k}", 0)
            self.open_gate(k)
        self.ended = (*self.ended, k)

    def waiter(self, k: int) -> Process:
        """``local_wait``: waits for one for ever, and keeps it."""
        while True:
            yield
            self.fence(k)
            self.waiters += 1
            yield
            key = self.epoch
            yield
            self.fence(k)
            self.memory["hungry"] = 1
            got = yield from self.take(k, LOOK if self.without == "sure" else SURE)
            yield
            if got or self.destroyed:
                self.waiters -= 1
                return
            yield lambda key=key: self.epoch != key
            self.waiters -= 1

    def other(self, k: int) -> Process:
        """Waits in another pool, which is below its limit, for what this one has beyond its own: ``reclaim``."""
        while True:
            yield
            key = self.others_epoch
            yield
            self.fence(k)
            self.others_hungry = 1
            yield
            if not self.everywhere:
                yield
                if self.held > self.load(k, "limit"):
                    yield from self.trim(k, LOOK if self.without == "sure" else SURE)
                yield
            if self.everywhere:
                self.out[k] = (*self.out[k], self.everywhere[0])
                self.everywhere = self.everywhere[1:]
                return
            yield lambda key=key: self.others_epoch != key

    def lower(self, k: int, limit: int) -> Process:
        """Redistribution."""
        yield
        self.fence(k)
        self.memory["limit"] = limit
        yield
        if self.held > limit:
            yield from self.shut(k)
        self.settled = True
        yield from self.wake_others()

    def overdraw(self, k: int) -> Process:
        """``take_global``, beyond the limit: of a global list that has one."""
        yield
        self.fence(k)
        self.held += 1
        yield
        if self.held > self.load(k, "limit"):
            yield from self.shut(k)
        self.fence(k)
        self.settled = True
        self.out[k] = (*self.out[k], self.everywhere[0])
        self.everywhere = self.everywhere[1:]

    def destroy(self, k: int) -> Process:
        yield
        self.fence(k)
        self.destroyed = True
        yield
        self.memory["limit"] = 0
        yield
        if self.held:
            yield from self.shut(k)
        yield from self.trim(k, LOOK if self.without == "sure" else SURE)
        yield from self.wake(k)
        yield
        self.epoch += 1

    def look_in(self, k: int) -> Process:
        """What ``local_figures`` does with gate and magazines, without the counting."""
        yield from self.close_gate(k)
        were_open = yield from self.hush(k)
        yield from self.open_magazines(k, were_open)
        self.open_gate(k)

    def count(self, k: int) -> Process:
        """``local_figures``: what it says was so when it looked at the list for the last time."""
        yield from self.close_gate(k)
        were_open = yield from self.hush(k)
        parked = 0
        for j in tuple(range(self.magazines)):
            yield
            parked += bool(self.load(k, f"hot{j}"))
            yield
            parked += len(self.load(k, f"items{j}"))
        while True:
            yield
            free, chunks = self.free, self.chunks
            yield
            if (free, chunks) == (self.free, self.chunks):
                break
        home = parked + len(free) + CHUNK * len(chunks)
        if home != len(self.at_home()):
            self.fault = f"{home} were counted, and {self.at_home()} are home"
        yield from self.open_magazines(k, were_open)
        self.open_gate(k)

    # --- what must hold -----------------------------------------------------------------------------------------------

    def kept(self) -> list[int]:
        """What is in magazines, as their owners see it."""
        found: list[int] = []
        for k in range(self.magazines):
            found += [*filter(None, [self.load(k, f"hot{k}")]), *self.load(k, f"items{k}")]
        return found

    def at_home(self) -> list[int]:
        return [*self.free, *(i for chunk in self.chunks for i in chunk), *self.kept()]

    def key(self) -> Hashable:
        return (
            tuple(self.memory.values()),
            tuple(self.buffers),
            (self.free, self.chunks, self.everywhere, tuple(self.out)),
            (self.held, self.waiters, self.epoch, self.others_hungry, self.others_epoch),
            (self.ended, self.destroyed, self.settled, self.fault),
        )

    def check(self) -> None:
        assert not self.fault, self.fault

    def check_end(self, asleep: list[int]) -> None:
        out = [i for mine in self.out for i in mine]
        places = [*out, *self.everywhere, *self.at_home()]
        assert sorted(places) == list(self.segments), f"out {out}, {self.everywhere} global, {self.at_home()} home"
        asleep = [k for k in asleep if k < len(self.processes) - self.n]
        assert not asleep, f"asleep for ever: processes {asleep}, while {self.at_home()} are home"
        for k in self.ended:
            assert (self.memory[f"hot{k}"], self.memory[f"items{k}"]) == (0, ()), "a thread that has ended keeps some"
        assert not (self.destroyed and self.at_home()), f"{self.at_home()} did not leave the pool that was destroyed"

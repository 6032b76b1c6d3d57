"""Every interleaving of pushes and pops on the free list of ``free_list.pxd``, one shared access a step."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from explorer import Process, Violation, explore

# head is (tag, index + 1), link[i] is (depth, next index + 1): as in the shipped words.


class FreeListWorld:
    def __init__(self, segments: int, work: list[str], tagged: bool = True) -> None:
        self.segments, self.tagged = segments, tagged
        self.head = (0, 1 if segments else 0)
        self.link = [(segments - i, i + 2 if i + 1 < segments else 0) for i in range(segments)]
        self.out: list[int] = []  # ghost: what processes hold
        self.processes: list[Process] = [self.run(ops) for ops in work]

    def swing(self, old: tuple[int, int], index: int) -> bool:
        if self.head != old:
            return False
        self.head = (old[0] + 1 if self.tagged else 0, index)
        return True

    def pop(self) -> Process:
        yield
        h = self.head
        while h[1]:
            yield
            link = self.link[h[1] - 1]
            yield
            if self.swing(h, link[1]):
                self.out.append(h[1] - 1)
                return h[1] - 1, link[0] - 1
            h = self.head  # the failed CAS brings the value it saw
        return -1, 0

    def push(self, i: int) -> Process:
        yield
        h = self.head
        while True:
            depth = 0
            if h[1]:
                yield
                depth = self.link[h[1] - 1][0]
            yield
            self.link[i] = (depth + 1, h[1])
            yield
            if h == self.head:
                self.out.remove(i)
            if self.swing(h, i + 1):
                return
            h = self.head

    def pop_many(self, n: int) -> Process:
        yield
        h = self.head
        while h[1]:
            at, got, depth = h[1], (), 0
            while at and len(got) < n:
                got = (*got, at - 1)
                yield
                depth, at = self.link[at - 1]
            yield
            if self.swing(h, at):
                self.out.extend(got)
                return got, depth - 1
            h = self.head
        return (), 0

    def push_many(self, many: tuple[int, ...]) -> Process:
        yield
        h = self.head
        while True:
            depth = 0
            if h[1]:
                yield
                depth = self.link[h[1] - 1][0]
            below, k = h[1], len(many)
            while k:
                k -= 1
                depth += 1
                yield
                self.link[many[k]] = (depth, below)
                below = many[k] + 1
            yield
            if h == self.head:
                for i in many:
                    self.out.remove(i)
            if self.swing(h, below):
                return
            h = self.head

    def run(self, ops: str) -> Process:
        # -: take one; +: put one back; a digit: take so many at once; *: put all back at once.
        mine: tuple[int, ...] = ()
        for n in range(len(ops)):  # n, not an iterator: local variables are part of the state, hidden positions are not
            if ops[n] == "-":
                i, _ = yield from self.pop()
                if i >= 0:
                    mine = (*mine, i)
            elif ops[n].isdigit():
                some, _ = yield from self.pop_many(int(ops[n]))
                mine = (*mine, *some)
            elif ops[n] == "*":
                if mine:
                    some, mine = mine, ()
                    yield from self.push_many(some)
            elif mine:
                i, mine = mine[0], mine[1:]
                yield from self.push(i)

    def key(self) -> Hashable:
        return self.head, tuple(self.link), tuple(sorted(self.out))

    def walk(self) -> list[tuple[int, int]]:
        found, at = [], self.head[1]
        while at:
            assert len(found) <= self.segments, f"the list runs in a circle: {found}"
            found.append((at - 1, self.link[at - 1][0]))
            at = self.link[at - 1][1]
        return found

    def check(self) -> None:
        on_list = self.walk()
        assert len(set(self.out)) == len(self.out), f"a segment was given twice: {self.out}"
        # A segment that is being pushed is still out until the CAS, whatever its link says.
        assert sorted([i for i, _ in on_list] + self.out) == list(range(self.segments)), (
            f"on the list {on_list}, out {self.out}"
        )
        assert [depth for _, depth in on_list] == list(range(len(on_list), 0, -1)), f"depths {on_list}"

    def check_end(self, asleep: list[int]) -> None:
        assert not asleep


@pytest.mark.parametrize(
    ("segments", "work"),
    [
        (1, ["-+-+", "-+-+"]),
        (2, ["-+-+", "-+-+"]),
        (2, ["--++", "-+-+"]),
        (3, ["--+", "-+-+"]),
        (2, ["-+", "-+", "-+"]),
        (3, ["--++", "-", "-+"]),
        (3, ["2*2*", "-+-+"]),
        (3, ["2*", "2*2*"]),
        (3, ["3*", "-+", "2*"]),
        (4, ["3*", "2+*", "-+"]),
        (2, ["3*", "3*", "-+"]),
    ],
)
def test_free_list(segments: int, work: list[str]) -> None:
    assert explore(lambda: FreeListWorld(segments, work)) > 50


def test_without_the_tag_the_model_finds_aba() -> None:
    # Teeth: one pops A and B and pushes A back, while the other has read A's link to B.
    with pytest.raises(Violation):
        explore(lambda: FreeListWorld(3, ["--+", "-"], tagged=False))
    explore(lambda: FreeListWorld(3, ["--+", "-"], tagged=True))


def test_without_the_tag_the_model_finds_a_chain_that_has_changed() -> None:
    with pytest.raises(Violation):
        explore(lambda: FreeListWorld(3, ["--+", "2"], tagged=False))

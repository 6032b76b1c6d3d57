"""The credit protocol as a whole: producers, consumers, exclusive and floating segments, recall, cancel, abort, death.

One step is what one thread does in one go: what stands under the gate's lock in ``gate_core.pyx``, one turn of a
connection in ``tcp_connection.pyx``, one buffer of a writer.  The functions of ``buffer_manager.pyx`` are transcribed
by name.  Every participant is a process of its own, with a pool of its own, and the wires are in order and lossless
until somebody dies.

Forbidden outcomes, looked for in every state:

F1  a buffer comes and no segment waits for it (overflow), or more than `bound` are queued
F2  a segment counted twice or not at all: a gate's pool has out just what is ready or with the reader
F3  credit lost or made: what a receiver believes outstanding is with the sender, on a wire, or not told yet
F4  more floating segments out than there are, or not those that the channels hold
F5  a channel waits for segments while its gate could give it some, or has none while another has two
F6  a buffer out of order, lost or twice
F7  nobody can move and somebody has not ended (deadlock); an end with segments out; an error where none was due, or
    none where one was
F8  a channel is given credit while it is blocked

Each name in `without` leaves one rule out, which shows that its absence would be found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from buffer_manager_model import CANCELLED, ENDED, FINISHED, OPEN, Buffers, Channel, Forbidden, Gate, Setting

EOF, DONE, ABORT, CANCEL, RECALL, RETURN = "eof", "done", "abort", "cancel", "recall", "return"

Step = tuple[str, Callable[[Any], None]]  # its name, and what it does to a state


@dataclass
class Producer:
    at: int = 0  # buffers of its plan that are written
    phase: str = "writing"  # closing, done; failed -> raised; dead


def _copy(part: Any) -> Any:
    new = object.__new__(type(part))
    new.__dict__.update(part.__dict__)
    return new


@dataclass
class Credits(Buffers):
    """A state.  `successors` gives the states one step on."""

    producers: list[Producer] = field(default_factory=list)
    moved: int = 0
    happened: frozenset[Any] = frozenset()

    @classmethod
    def begin(cls, setting: Setting) -> Credits:
        new = cls(setting)
        new.producers = [Producer() for _ in setting.plans]
        new.gates = [Gate(limit, unopened=0 if setting.open else len(setting.plans)) for limit in setting.limits]
        new.channels = [[Channel() for _ in setting.plans] for _ in new.gates]
        for g in range(len(new.gates)):
            for p in range(len(setting.plans)):
                new.bm_open(g, p)
                new.recall(g)
        return new

    def clone(self) -> Credits:
        new = _copy(self)
        new.channels = [[_copy(c) for c in row] for row in self.channels]
        new.gates = [_copy(g) for g in self.gates]
        new.producers = [_copy(p) for p in self.producers]
        return new  # type: ignore[no-any-return]

    def key(self) -> int:
        parts = [tuple(c.__dict__.values()) for row in self.channels for c in row]
        parts += [tuple(part.__dict__.values()) for part in (*self.gates, *self.producers)]
        return hash((tuple(parts), self.moved, self.happened))

    # ---- gate_core.pyx

    def gate_close(self, g: int, word: str) -> None:
        """gate_cancel and what its connections say then."""
        gate = self.gates[g]
        if gate.hand >= 0:
            self.bm_release(g, gate.hand)
        gate.hand = -1
        for p, is_end in gate.queue:
            if not is_end:
                self.bm_release(g, p)
        gate.queue = ()
        for p, c in enumerate(self.channels[g]):
            if c.state == OPEN:
                c.state = CANCELLED
                if not c.closed:
                    self.bm_close(g, p)
                self.say_back(c, word)
            elif c.state == ENDED:
                c.state = FINISHED
            c.there = ()

    def release(self, g: int) -> None:
        gate = self.gates[g]
        if gate.hand >= 0:
            self.bm_release(g, gate.hand)
        gate.hand = -1
        self.recall(g)

    def recall(self, g: int) -> None:
        """_recall: a channel has none, and the pool none for it."""
        if not self.gates[g].lacking or self.setting.without == "who has what it does not need is asked for it":
            return
        for c in self.channels[g]:
            if c.state == OPEN and not c.lacks_segment and not c.recalled:
                c.recalled = c.recall = c.reports_backlog = True

    def take_back(self, g: int, p: int, n: int, backlog: int) -> None:
        """gate_take_back."""
        c = self.channels[g][p]
        if not c.closed:
            if n > c.ready - c.unannounced:
                raise Forbidden(f"F3: producer {p} gives back {n} credits and never had so many")
            self.bm_take_back(g, p, n, backlog)
            self.recall(g)

    def say_back(self, c: Channel, word: Any) -> None:
        if not c.sub_closed:
            c.back += (word,)

    def say_there(self, c: Channel, word: Any) -> None:
        if c.state == OPEN:
            c.there += (word,)

    def hear_there(self, g: int, p: int) -> None:
        c, gate = self.channels[g][p], self.gates[g]
        word, c.there = c.there[0], c.there[1:]
        if word == DONE:
            c.state = ENDED
            gate.queue += ((p, True),)
            self.bm_close(g, p)
            self.say_back(c, DONE)
            c.there = ()
        elif word in (ABORT, EOF):
            if not (word == EOF and self.setting.without == "an end without end of partition is a failure"):
                gate.phase = "failed"
            c.state = CANCELLED
            c.there = ()
            self.bm_close(g, p)
        elif word[0] == RETURN:
            self.take_back(g, p, word[1], word[2])
        else:
            sequence, backlog = word
            if sequence != c.received:
                raise Forbidden(f"F6: buffer {sequence} came where {c.received} was due")
            self.bm_take(g, p, backlog)
            c.received += 1
            gate.queue += ((p, False),)

    def next_read(self, g: int) -> int:
        """Where in the queue is what the reader takes next: the first that is of no blocked channel; -1: nowhere."""
        row = self.channels[g]
        return next((i for i, (p, _) in enumerate(self.gates[g].queue) if not row[p].blocked), -1)

    def block(self, g: int, p: int, blocked: bool) -> None:
        """gate_block."""
        self.channels[g][p].was_blocked = True
        (self.bm_block if blocked else self.bm_unblock)(g, p)
        self.recall(g)

    def read(self, g: int) -> None:
        """The reader takes a buffer, and releases it in a later step."""
        gate = self.gates[g]
        at = self.next_read(g)
        p, is_end = gate.queue[at]
        gate.queue = gate.queue[:at] + gate.queue[at + 1 :]
        c = self.channels[g][p]
        if is_end:
            c.state = FINISHED
            if all(other.state == FINISHED for other in self.channels[g]):
                gate.phase = "done"
            return
        c.delivered += 1
        gate.hand = p
        if self.setting.without == "credit returns on release, not on reading":
            c.with_reader += 1  # still there, and granted again
            self.bm_release(g, p)

    # ---- writer and sender

    def write(self, p: int) -> None:
        producer = self.producers[p]
        c = self.channels[self.setting.plans[p][producer.at]][p]
        producer.at += 1
        if not c.cancelled:
            c.queued += 1
        if producer.at == len(self.setting.plans[p]):
            producer.phase = "closing"

    def finish(self, p: int) -> None:
        self.producers[p].phase = "done"

    def sub_close(self, c: Channel, cancelled: bool) -> None:
        c.sub_closed = True
        c.asked_back = False
        c.back = ()
        c.credit = 0
        c.cancelled = c.cancelled or cancelled
        if self.setting.without != "a cancel drops what is queued":
            c.queued = 0

    def hear_back(self, g: int, p: int) -> None:
        c, producer = self.channels[g][p], self.producers[p]
        word, c.back = c.back[0], c.back[1:]
        if isinstance(word, int):
            c.credit += word
            c.has_said = False
        elif word == RECALL:
            c.asked_back = c.says = True
        elif word == DONE:
            self.sub_close(c, False)
        elif word == CANCEL or (word == EOF and self.setting.loss_is_cancel):
            self.sub_close(c, True)
        else:
            self.sub_close(c, True)
            if self.setting.without != "an error of one reaches the others":
                producer.phase = "failed"

    def producer_raises(self, p: int) -> None:
        self.producers[p].phase = "raised"
        for row in self.channels:
            c = row[p]
            if not c.sub_closed:
                if not c.said_end or self.setting.without == "":
                    self.say_there(c, ABORT)
                self.sub_close(c, True)

    def die(self, who: tuple[str, int], arrives: bool) -> None:
        """kill -9; arrives: what was on the wire still comes before the end is heard."""
        kind, k = who
        if kind == "producer":
            self.producers[k].phase = "dead"
            for row in self.channels:
                c = row[k]
                if not c.sub_closed:
                    if not arrives:
                        c.there = ()
                    self.say_there(c, EOF)
                    self.sub_close(c, True)
                    c.queued = 0
        else:
            self.gates[k].phase = "dead"
            for c in self.channels[k]:
                if c.state in (OPEN, ENDED):
                    c.state = CANCELLED
                    c.there = ()
                    if not arrives:
                        c.back = ()
                    self.say_back(c, EOF)

    # ---- steps

    def steps(self) -> Iterator[Step]:
        s = self.setting
        at_once = self.eager_step() if s.eager else None
        if at_once is not None:
            yield at_once
            return
        for p, producer in enumerate(self.producers):
            if producer.phase == "writing" and not self.idle(p):
                g = s.plans[p][producer.at]
                c = self.channels[g][p]
                out = sum(row[p].queued for row in self.channels)
                if c.cancelled or (c.queued < s.bound and out < s.segments):
                    yield f"producer {p} writes to {g}", lambda w, p=p: w.write(p)
            elif producer.phase == "closing" and all(row[p].sub_closed for row in self.channels):
                yield f"producer {p} is done", lambda w, p=p: w.finish(p)
            elif producer.phase == "failed":
                yield f"producer {p} raises", lambda w, p=p: w.producer_raises(p)
        for g, gate in enumerate(self.gates):
            for p, c in enumerate(self.channels[g]):
                yield from self.connection_steps(g, p, c)
            yield from self.reader_steps(g, gate)
        if self.moved < len(s.moves):
            yield "a limit moves", lambda w: w.move()
        for g in s.cancels:
            if ("cancel", g) not in self.happened and self.gates[g].phase == "reading":
                yield f"consumer {g} has enough", lambda w, g=g: w.cancel(g)
        for who in s.dies:
            phase = (self.producers if who[0] == "producer" else self.gates)[who[1]].phase
            if who not in self.happened and phase in ("writing", "closing", "reading"):
                for arrives in (True, False):
                    yield f"{who} dies, {arrives}", lambda w, who=who, arrives=arrives: w.happen(who, arrives)

    def eager_step(self) -> Step | None:
        """A step that need not be put off, if there is one.

        Telling and hearing of credit, the reader's taking of a buffer, a writer's last step: they take nothing from any
        other step and change nothing that another looks at, but for what a death or an end discards anyway.  So are
        the ends of partition where nobody dies.  Whatever can happen with such a step put off can happen with it done
        at once (the ample sets of Peled, CAV 1993), and one order is enough.
        """
        s = self.setting
        consumers_live = all(kind != "consumer" for kind, _ in s.dies)
        for p, producer in enumerate(self.producers):
            if producer.phase == "closing" and all(row[p].sub_closed for row in self.channels):
                return f"producer {p} is done", lambda w, p=p: w.finish(p)
        for g, row in enumerate(self.channels):
            for p, c in enumerate(row):
                if c.reports_backlog or c.says:  # what it gives back depends on what it has heard
                    continue
                if c.back and not c.sub_closed:
                    word = c.back[0]
                    if isinstance(word, int) or (consumers_live and word in (DONE, CANCEL)):
                        return f"{p} hears {g}", lambda w, g=g, p=p: w.hear_back(g, p)
                if c.unannounced and c.state == OPEN:
                    return f"{g} announces to {p}", lambda w, g=g, p=p: w.announce(g, p)
                if self.may_say_end(p, c) and not s.dies:
                    return f"{p} says end to {g}", lambda w, g=g, p=p: w.say_end(g, p)
            gate = self.gates[g]
            if not s.fused and gate.phase == "reading" and gate.hand < 0 and self.next_read(g) >= 0 and not s.blocks:
                return f"consumer {g} reads", lambda w, g=g: w.read(g)
        return None

    def may_say_end(self, p: int, c: Channel) -> bool:
        over = c.queued or c.said_end or c.sub_closed or c.asked_back
        return self.producers[p].phase == "closing" and not over and not self.idle(p)

    def idle(self, p: int) -> bool:
        """Whether it waits for others to get on; those that have ended are not waited for."""
        return any(
            p == who
            and self.producers[p].at == at
            and self.producers[q].phase in ("writing", "closing")
            and sum(row[q].delivered for row in self.channels) < most
            and all(gate.phase == "reading" for gate in self.gates)
            for who, at, q, most in self.setting.waits
        )

    def connection_steps(self, g: int, p: int, c: Channel) -> Iterator[Step]:
        s, producer = self.setting, self.producers[p]
        if not c.sub_closed and producer.phase in ("writing", "closing"):
            if c.asked_back:
                yield f"{p} gives back to {g}", lambda w: w.give_back(g, p)
            elif c.queued and not c.credit and c.says and not c.has_said:
                yield f"{p} says to {g} that it has something", lambda w: w.say_backlog(g, p)
            if c.asked_back:
                pass
            elif c.queued and (c.credit or s.without == "no buffer without credit"):
                yield f"{p} sends to {g}", lambda w: w.send(g, p)
            elif self.may_say_end(p, c):
                yield f"{p} says end to {g}", lambda w: w.say_end(g, p)
        if c.there:
            yield f"{g} hears {p}", lambda w: w.hear_there(g, p)
        if c.back and not c.sub_closed:
            yield f"{p} hears {g}", lambda w: w.hear_back(g, p)
        if c.unannounced and c.state == OPEN:
            yield f"{g} announces to {p}", lambda w: w.announce(g, p)
        elif c.recall and c.state == OPEN:
            yield f"{g} recalls from {p}", lambda w: w.say_recall(g, p)

    def reader_steps(self, g: int, gate: Gate) -> Iterator[Step]:
        if gate.phase == "failed":
            yield f"consumer {g} raises", lambda w: w.gate_raises(g)
        if gate.phase != "reading":
            return
        busy = self.setting.without == "take in while a send is blocked" and self.producers[g].phase == "writing"
        if self.setting.fused and busy:
            return
        if gate.hand >= 0:
            yield f"consumer {g} releases", lambda w: w.release(g)
        elif self.next_read(g) >= 0:
            yield f"consumer {g} reads", lambda w: w.read(g)
        for at, p in self.setting.blocks:
            c = self.channels[g][p]
            if at == g and (c.blocked or not c.was_blocked):
                word = "unblocks" if c.blocked else "blocks"
                yield f"consumer {g} {word} {p}", lambda w, p=p, blocked=not c.blocked: w.block(g, p, blocked)
        if self.could_serve(g):
            yield f"consumer {g} serves", lambda w: w.bm_serve(g)

    def send(self, g: int, p: int) -> None:
        c = self.channels[g][p]
        c.queued -= 1
        c.credit -= 1
        if self.setting.without != "the sender counts" or c.sent != 1:
            self.say_there(c, (c.sent, c.queued))
        c.sent += 1

    def say_end(self, g: int, p: int) -> None:
        self.channels[g][p].said_end = True
        self.say_there(self.channels[g][p], DONE)

    def announce(self, g: int, p: int) -> None:
        c = self.channels[g][p]
        n, c.unannounced = c.unannounced, 0
        self.say_back(c, n)

    def say_recall(self, g: int, p: int) -> None:
        c = self.channels[g][p]
        c.recall = False
        self.say_back(c, RECALL)

    def give_back(self, g: int, p: int) -> None:
        """sender_next, after a RECALL: all but what the next buffer needs."""
        c = self.channels[g][p]
        c.asked_back = False
        needed = 1 if c.queued else 0
        if c.credit > needed:
            self.say_there(c, (RETURN, c.credit - needed, 0))
            if self.setting.without != "what is given back is the sender's no longer":
                c.credit = needed

    def say_backlog(self, g: int, p: int) -> None:
        c = self.channels[g][p]
        c.has_said = True
        if self.setting.without != "who was asked says when it has something":
            self.say_there(c, (RETURN, 0, c.queued))

    def gate_raises(self, g: int) -> None:
        self.gate_close(g, ABORT)
        self.gates[g].phase = "raised"

    def cancel(self, g: int) -> None:
        self.happened |= {("cancel", g)}
        self.gate_close(g, CANCEL)
        self.gates[g].phase = "cancelled"

    def happen(self, who: tuple[str, int], arrives: bool) -> None:
        self.happened |= {who}
        self.die(who, arrives)

    def move(self) -> None:
        g, limit = self.setting.moves[self.moved]
        self.moved += 1
        self.gates[g].limit = limit

    # ---- what must hold

    def check(self) -> None:
        s = self.setting
        for g, gate in enumerate(self.gates):
            if gate.phase == "dead":
                continue
            row = self.channels[g]
            held = sum(c.ready + c.with_reader for c in row)
            assert gate.in_use == held, f"F2: gate {g} has {gate.in_use} segments out, {held} are accounted for"
            loans = sum(c.floating for c in row)
            assert gate.floating_out == loans <= s.floating, f"F4: gate {g}: {gate.floating_out} floating, {loans} lent"
            for p, c in enumerate(row):
                assert c.queued <= s.bound, f"F1: {c.queued} buffers queued"
                if c.state != OPEN or c.sub_closed:
                    continue
                flying = sum(word[1] if word[0] == RETURN else 1 for word in c.there if isinstance(word, tuple))
                told = sum(word for word in c.back if isinstance(word, int))
                known = c.credit + flying + told + c.unannounced
                assert c.available == c.ready == known, (
                    f"F3: channel {p} of gate {g}: {c.available} outstanding, {c.ready} ready, {known} to be found"
                )
            if not s.moves and gate.phase == "reading":
                assert not self.could_serve(g), f"F5: gate {g} lets a channel wait and has segments"
                most = max(c.ready + c.with_reader for c in row)
                asked = s.open and all(c.recalled for c in row if c.state == OPEN and c.ready + c.with_reader > 1)
                assert not gate.lacking or most < 2 or asked, (
                    f"F5: a channel of gate {g} has none while another has {most}, and was not asked for it"
                )
        for p in range(len(self.producers)):
            out = sum(row[p].queued for row in self.channels)
            assert out <= s.segments, f"F1: producer {p} has {out} segments out"

    def everybody(self) -> list[Any]:
        return [*self.producers, *self.gates]

    def check_end(self) -> None:
        s = self.setting
        phases = [x.phase for x in self.everybody()]
        over = {"done", "raised", "cancelled", "dead"}
        assert set(phases) <= over, f"F7: nobody can move: {phases}"
        for p, producer in enumerate(self.producers):
            left = sum(row[p].queued for row in self.channels)
            assert left == 0, f"F7: producer {p} ended with {left} segments out"
            if not self.happened:
                assert producer.phase == "done", f"F7: producer {p}: {producer.phase}, and nobody died"
        dead = {who for who in self.happened if who[0] != "cancel"}
        for g, gate in enumerate(self.gates):
            if gate.phase != "dead":
                assert gate.in_use == 0, f"F7: gate {g} ended with {gate.in_use} segments out"
            for p, c in enumerate(self.channels[g]):
                due = s.plans[p].count(g)
                if gate.phase == "done":
                    assert c.delivered == due, f"F6: consumer {g} had {c.delivered} of {due} buffers of producer {p}"
                if ("consumer", g) in dead and c.cancelled and not s.loss_is_cancel:
                    assert phases[p] in ("raised", "dead"), f"F7: producer {p} ended well though consumer {g} died"
                if ("producer", p) in dead and c.state != FINISHED:
                    assert gate.phase != "done", f"F7: consumer {g} ended well without all of producer {p}"
            if not dead:
                assert gate.phase in ("done", "cancelled"), f"F7: consumer {g}: {gate.phase}, and nobody died"


def explore(setting: Setting, most: int = 1_000_000, ends: set[tuple[str, ...]] | None = None) -> int:
    """Visit every state; returns how many there are, and leaves in `ends` how everybody can end.

    Raises
    ------
    Forbidden
        With the steps that lead to it.
    """
    first = Credits.begin(setting)
    seen = {first.key()}
    stack: list[tuple[Credits, Any]] = [(first, None)]
    while stack:
        state, path = stack.pop()
        moved = False
        try:
            state.check()
        except AssertionError as error:
            raise Forbidden(f"{error}\n{_told(path)}") from None
        for name, step in state.steps():
            moved = True
            new = state.clone()
            try:
                step(new)
            except AssertionError as error:
                raise Forbidden(f"{error}\n{_told((name, path))}") from None
            key = new.key()
            if key not in seen:
                seen.add(key)
                if len(seen) > most:
                    raise RuntimeError(f"more than {most} states: make the scenario smaller")
                stack.append((new, (name, path)))
        if not moved:
            if ends is not None:
                ends.add(tuple(x.phase for x in state.everybody()))
            try:
                state.check_end()
            except AssertionError as error:
                raise Forbidden(f"{error}\n{_told(path)}") from None
    return len(seen)


def _told(path: Any) -> str:
    steps = []
    while path is not None:
        name, path = path
        steps.append(name)
    return " <- ".join(steps)

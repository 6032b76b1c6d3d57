"""All channels from one environment to another share one connection: counted, and that none harms another."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fastbuf as fb
from fastbuf.errors import AuthenticationError, ExchangeAborted, PeerLost, SequenceError
from fastbuf.transports import handshake as hs
from fastbuf.transports import listener, tcp

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
SEGMENT = 1024
Ends = tuple[fb.ShuffleEnvironment, fb.ShuffleEnvironment, tuple[str, int]]


@pytest.fixture
def ends() -> Iterator[Ends]:
    with (
        fb.ShuffleEnvironment(segments=4096, segment_size=SEGMENT) as far,
        fb.ShuffleEnvironment(segments=4096, segment_size=SEGMENT) as near,
    ):
        yield near, far, far.listen()


def connections(*ports: int) -> int:
    """Established connections to these ports, both ends of which are on this machine: counted at the listener's.

    Asked until it is right: another process may dial a port by chance, and is sent away.
    """
    n = 0
    for family in ("tcp", "tcp6"):
        with open(f"/proc/net/{family}") as table:
            rows = [line.split() for line in table][1:]
        n += sum(int(row[1].rpartition(":")[2], 16) in ports and row[3] == "01" for row in rows)
    return n


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)  # another thread's deed is looked for


def in_threads(jobs: list[Any]) -> list[Any]:
    out: list[Any] = [None] * len(jobs)

    def run(i: int) -> None:
        try:
            out[i] = jobs[i]()
        except BaseException as error:
            out[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "hangs"
    return out


def gate_and_target(ends: Ends, secret: bytes = b"s", channels: int = 1, **config: Any) -> tuple[Any, Any]:
    gate = ends[1].create_input_gate(
        ROWS, channels=channels, epoch=4, secret=secret, config=fb.ExchangeConfig(**config)
    )
    return gate, (*ends[2], gate.gate_id)


def writer_to(ends: Ends, targets: list[Any], secret: bytes = b"s", channel: int = 0, **how: Any) -> fb.RecordWriter:
    config = fb.ExchangeConfig(**how.pop("config", {}))
    return ends[0].create_result_partition(ROWS, targets, channel=channel, epoch=4, secret=secret, config=config, **how)


def test_producers_times_consumers_use_one_connection(ends: Ends) -> None:
    """8 x 8 channels, made by 8 threads at once."""
    made = [gate_and_target(ends, channels=8) for _ in range(8)]
    targets = [target for _, target in made]
    writers = in_threads(
        [lambda i=i: writer_to(ends, targets, channel=i, selector=fb.custom(lambda r, n: r[0] % n)) for i in range(8)]
    )
    assert all(isinstance(writer, fb.RecordWriter) for writer in writers), writers
    until(lambda: connections(ends[2][1]) == 1)

    def send(writer: fb.RecordWriter, i: int) -> None:
        writer.emit_many((k, f"{i}" + "x" * (k % 90)) for k in range(800))
        writer.close()

    got = in_threads(
        [lambda w=w, i=i: send(w, i) for i, w in enumerate(writers)] + [lambda g=g: list(g) for g, _ in made]
    )
    assert got[:8] == [None] * 8
    for part, records in enumerate(got[8:]):
        assert len(records) == 800
        for i in range(8):
            assert [n for n, text in records if text[0] == str(i)] == list(range(part, 800, 8))
    for gate, _ in made:
        assert gate.audit()
        gate.close()
    until(lambda: connections(ends[2][1]) == 0)  # nobody needs it any more
    # And the next channel opens another.
    gate, target = gate_and_target(ends)
    writer = writer_to(ends, [target])
    until(lambda: connections(ends[2][1]) == 1)
    writer.abort("over")


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_who_both_produces_and_consumes_needs_no_second_connection(host: str) -> None:
    """3 x 3 channels in either direction between two environments that both listen."""
    environments = [fb.ShuffleEnvironment(segments=1024, segment_size=SEGMENT) for _ in range(2)]
    with environments[0], environments[1]:
        addresses = [env.listen(host) for env in environments]
        gates = [[env.create_input_gate(ROWS, channels=3, secret=b"s") for _ in range(3)] for env in environments]
        writers = [
            environments[side].create_result_partition(
                ROWS,
                [(*addresses[1 - side], gate.gate_id) for gate in gates[1 - side]],
                channel=i,
                secret=b"s",
                selector=fb.broadcast(),
            )
            for i in range(3)
            for side in range(2)
        ]
        until(lambda: connections(addresses[0][1], addresses[1][1]) == 1)
        records = [(k, "b" * (k % 200)) for k in range(500)]

        def send(writer: fb.RecordWriter) -> None:
            writer.emit_many(records)
            writer.close()

        readers = [lambda g=gate: list(g) for side in gates for gate in side]
        got = in_threads([lambda w=w: send(w) for w in writers] + readers)
        assert got[:6] == [None] * 6
        for part in got[6:]:
            assert sorted(part) == sorted(records * 3)
        until(lambda: connections(addresses[0][1], addresses[1][1]) == 0)
        for side in gates:
            for gate in side:
                gate.close()


def test_environments_that_dial_each_other_at_once() -> None:
    """Whoever is first, and whether they met in the middle: never an error, nothing lost."""
    for _ in range(20):
        environments = [fb.ShuffleEnvironment(segments=256, segment_size=SEGMENT) for _ in range(2)]
        with environments[0], environments[1]:
            addresses = [env.listen() for env in environments]
            gates = [env.create_input_gate(ROWS, channels=1, secret=b"s") for env in environments]
            together = threading.Barrier(2)

            def take_part(
                side: int,
                environments: Any = environments,
                addresses: Any = addresses,
                gates: Any = gates,
                together: Any = together,
            ) -> list[Any]:
                target = (*addresses[1 - side], gates[1 - side].gate_id)
                together.wait(20)
                writer = environments[side].create_result_partition(ROWS, [target], secret=b"s")
                writer.emit((side, ""))
                writer.flush()
                first = gates[side].poll(20)
                closer = threading.Thread(target=writer.close)
                closer.start()
                rest = list(gates[side])
                closer.join(20)
                return [*first, *rest]

            assert in_threads([lambda: take_part(0), lambda: take_part(1)]) == [[(1, "")], [(0, "")]]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told to use the other end's connection waits for it as long as that may take on a busy machine."""
    monkeypatch.setattr(tcp, "CROSSING_S", 20.0)


@pytest.fixture
def crossing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two who dial do not say HELLO before both have dialled, and fail late; -> ports said, in their order."""
    together, crossed = threading.Barrier(2), threading.Event()
    greet, said = hs.greet, []

    def greet_together(sock: socket.socket, hello: hs.Hello, secret: bytes, where: str) -> None:
        said.append(hello.port)
        if len(said) <= 2:
            together.wait(20)
        try:
            greet(sock, hello, secret, where)
        except hs.Crossed:
            crossed.set()
            raise
        except AuthenticationError:
            assert crossed.wait(20)
            raise

    monkeypatch.setattr(hs, "greet", greet_together)
    return said


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_who_dials_each_other_at_once_shares_one_connection(crossing: list[int], host: str) -> None:
    environments = [fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT) for _ in range(2)]
    with environments[0], environments[1]:
        addresses = [env.listen(host) for env in environments]
        gates = [env.create_input_gate(ROWS, channels=1, secret=b"s") for env in environments]
        targets = [(*address, gate.gate_id) for address, gate in zip(addresses, gates, strict=True)]
        dial = [env.create_result_partition for env in environments]
        writers = in_threads([lambda s=side: dial[s](ROWS, [targets[1 - s]], secret=b"s") for side in (0, 1)])
        assert sorted(crossing) == sorted(port for _, port in addresses), "each dialled, and once"
        until(lambda: connections(*(port for _, port in addresses)) == 1)  # the other one's end may not have gone yet
        for side, writer in enumerate(writers):
            writer.emit((side, "there"))
            writer.flush()
            assert gates[1 - side].poll(20) == [(side, "there")]
        assert in_threads([w.close for w in writers] + [lambda g=g: list(g) for g in gates]) == [None, None, [], []]
        until(lambda: connections(*(port for _, port in addresses)) == 0)


def test_who_waits_for_the_others_connection_in_vain_dials_alone(crossing: list[int]) -> None:
    """The one who goes on is refused: its secret is not the gate's."""
    environments = [fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT) for _ in range(2)]
    with environments[0], environments[1]:
        addresses = [env.listen() for env in environments]
        lower = addresses[1] < addresses[0]
        gates = [env.create_input_gate(ROWS, channels=1, secret=b"s") for env in environments]
        targets = [(*address, gate.gate_id) for address, gate in zip(addresses, gates, strict=True)]
        dial = [env.create_result_partition for env in environments]
        secrets = [b"wrong" if side == lower else b"s" for side in (0, 1)]
        made = in_threads([lambda s=side: dial[s](ROWS, [targets[1 - s]], secret=secrets[s]) for side in (0, 1)])
        assert isinstance(made[lower], AuthenticationError)
        assert crossing[2:] == [0], "dials once more, and says no port"
        writer, gate = made[not lower], gates[lower]
        writer.emit((1, "alone"))
        assert in_threads([writer.close, lambda: list(gate)]) == [None, [(1, "alone")]]


def test_who_claims_the_address_of_another_gains_nothing(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer with a secret says that it listens where another does: what is for that other goes there all the same."""
    greet = hs.greet

    def greet_slowly(sock: socket.socket, *words: Any) -> None:
        """Only the claimant, who never answers, is to have so little time."""
        sock.settimeout(20)
        greet(sock, *words)

    monkeypatch.setattr(hs, "greet", greet_slowly)
    near, far, address = ends
    host, port = near.listen()
    gate = near.create_input_gate(ROWS, channels=1, epoch=4, secret=b"of near")
    lure, _ = gate_and_target(ends)
    hello = hs.Hello(lure.gate_id, 0, 4, ROWS.fingerprint, SEGMENT, hs.fresh_nonce(), port=port)
    with socket.create_connection(address, timeout=5) as claimant:
        hs.greet(claimant, hello, b"s", "far")
        writer = far.create_result_partition(
            ROWS,
            [(host, port, gate.gate_id)],
            epoch=4,
            secret=b"of near",
            config=fb.ExchangeConfig(connect_timeout_s=0.5),
        )
        until(lambda: connections(port) == 1)
        writer.emit((1, "for near"))
        writer.flush()
        assert gate.poll(20) == [(1, "for near")]
        claimant.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # it was sent nothing at all yet
            assert b"for near" not in claimant.recv(1 << 16)
    writer.abort("over")


def test_64_channels_slow_and_fast(ends: Ends) -> None:
    """Every second consumer reads nothing until all the others have had everything."""
    made = [gate_and_target(ends, exclusive=2, floating=1) for _ in range(64)]
    writers = [writer_to(ends, [target], config={"max_buffers_per_channel": 2}) for _, target in made]
    until(lambda: connections(ends[2][1]) == 1)
    records = [(k, "y" * 100) for k in range(200)]
    fast_done = threading.Event()
    left = [32]
    lock = threading.Lock()

    def read(i: int) -> list[Any]:
        if i % 2:
            assert fast_done.wait(30), "a slow channel held up a fast one"
        got = list(made[i][0])
        with lock:
            left[0] -= 1
            if left[0] == 0:
                fast_done.set()
        return got

    def send(writer: fb.RecordWriter) -> None:
        writer.emit_many(records)
        writer.close()

    got = in_threads([lambda w=w: send(w) for w in writers] + [lambda i=i: read(i) for i in range(64)])
    assert got[:64] == [None] * 64
    assert all(records == part for part in got[64:])
    until(lambda: connections(ends[2][1]) == 0)


def test_each_gate_has_its_own_secret_on_the_connection_of_all(ends: Ends) -> None:
    gates = [gate_and_target(ends, secret=f"secret {i}".encode()) for i in range(3)]
    first = writer_to(ends, [gates[0][1]], secret=b"secret 0")
    for wrong in (b"secret 0", b"", b"secret 2"):
        with pytest.raises(AuthenticationError, match="secret was not proved"):
            writer_to(ends, [gates[1][1]], secret=wrong)
    with pytest.raises(PeerLost, match="no gate 999"):
        writer_to(ends, [(*ends[2], 999)])
    with pytest.raises(SequenceError, match="channel 0 is connected already"):
        writer_to(ends, [gates[0][1]], secret=b"secret 0")
    rest = [writer_to(ends, [gates[i][1]], secret=f"secret {i}".encode()) for i in (1, 2)]
    until(lambda: connections(ends[2][1]) == 1)
    for (gate, _), writer in zip(gates, [first, *rest], strict=True):
        out = in_threads([lambda w=writer: (w.emit((1, "a")), w.close()), lambda g=gate: list(g)])
        assert out[1] == [(1, "a")]


def test_ends_of_one_channel_are_its_own(ends: Ends) -> None:
    """Cancelled, aborted from either side, forgotten in the middle of a blocked write: the last channel goes on."""
    names = ("cancelled", "consumer aborts", "producer aborts", "closed", "honest")
    made = {name: gate_and_target(ends) for name in names}
    writers = {name: writer_to(ends, [made[name][1]], config={"max_buffers_per_channel": 2}) for name in names}
    for name in names:
        while writers[name].try_emit((1, "z" * 300)):
            pass
    made["cancelled"][0].close()
    made["consumer aborts"][0].abort("no more of this")
    made["consumer aborts"][0].close()
    writers["producer aborts"].abort("cannot go on")
    writers["closed"].abort("let go")
    ends[0].release_partition(writers["closed"].partition)
    with pytest.raises(ExchangeAborted, match="no more of this"):
        writers["consumer aborts"].emit_many((2, "z" * 300) for _ in range(10_000))
    with pytest.raises(ExchangeAborted, match="cannot go on"):
        list(made["producer aborts"][0])
    with pytest.raises(ExchangeAborted, match="let go"):
        list(made["closed"][0])
    until(lambda: writers["cancelled"].cancelled)
    honest, gate = writers["honest"], made["honest"][0]

    def write_on() -> None:
        while not honest.resume():
            time.sleep(0.001)  # polling is the point: the non-blocking interface
        honest.emit_many((3, "h") for _ in range(500))
        honest.close()

    blocked = in_threads([write_on, lambda: [n for n, _ in gate]])
    assert blocked[1].count(3) == 500
    until(lambda: connections(ends[2][1]) <= 1)
    for writer in writers.values():
        with contextlib.suppress(fb.FastbufError):
            writer.abort("over")
    for other, _ in made.values():
        other.close()
    until(lambda: ends[0].pool.available == 4096 and ends[1].pool.available == 4096)
    ends[0].pool.audit()
    ends[1].pool.audit()


def test_the_death_of_the_connection_is_that_of_all_its_channels(ends: Ends) -> None:
    with fb.ShuffleEnvironment(segments=64, segment_size=SEGMENT) as dies:
        made = [gate_and_target(ends) for _ in range(4)]
        writers = [dies.create_result_partition(ROWS, [target], epoch=4, secret=b"s") for _, target in made]
        until(lambda: connections(ends[2][1]) == 1)
        dies.transport("tcp").close()  # its thread ends without a word on any channel
        for gate, _ in made:
            with pytest.raises(PeerLost, match="lost without its end of partition"):
                list(gate)
        for writer in writers:
            writer.abort("over")


def test_a_channel_joins_while_the_last_one_ends(ends: Ends) -> None:
    """The connection is closed with its last channel: who comes at that moment gets another, never an error."""
    for k in range(150):
        gate, target = gate_and_target(ends)
        writer = writer_to(ends, [target])
        writer.emit((k, ""))
        writer.flush()
        assert gate.poll(20) == [(k, "")]
        closer = threading.Thread(target=writer.close)
        closer.start()
        assert list(gate) == []
        gate.close()
        closer.join(20)
    until(lambda: connections(ends[2][1]) == 0)


def test_who_joins_and_proves_nothing_has_a_bounded_time(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, target = gate_and_target(ends, channels=1)
    writer = writer_to(ends, [target])
    other, far_target = gate_and_target(ends)
    desk: Any = ends[1].transport("tcp")
    refused: list[tuple[bytes, bool]] = []
    reply = desk.reply

    class Slow:
        """The listener's desk, which loses what it would answer."""

        def __getattr__(self, name: str) -> Any:
            return getattr(desk, name)

        def reply(self, connection: int, stream: int, message: bytes, last: bool) -> None:
            refused.append((message, last))
            if last:
                reply(connection, stream, message, last)

    desk_listener = next(t for t in threading.enumerate() if t.name == "fastbuf-listener")._args[0].__self__  # type: ignore[attr-defined]
    monkeypatch.setattr(desk_listener, "_desk", Slow())
    monkeypatch.setattr(listener, "PROOF_TIME_S", 0.2)
    with pytest.raises(fb.ExchangeError, match="secret was not proved in time"):
        writer_to(ends, [far_target])
    assert [last for _, last in refused] == [False, True]
    monkeypatch.undo()
    second = writer_to(ends, [far_target])
    until(lambda: connections(ends[2][1]) == 1)
    for made, at in ((writer, gate), (second, other)):
        assert in_threads([made.close, lambda g=at: list(g)]) == [None, []]

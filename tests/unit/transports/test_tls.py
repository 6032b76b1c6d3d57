"""TLS between environments: what it lets through, whom it refuses, and that its ends are the exchange's ends."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from certificates import OPENSSL, authority, host
from flood import FLOOD, Flood
from left_behind import nothing_left
from promises import Reactions, own_time

import fastbuf as fb
from fastbuf.errors import AuthenticationError, ConfigError, ExchangeAborted, PeerLost
from fastbuf.fork_safe import openssl as openssl_lock
from fastbuf.transports import handshake
from fastbuf.transports.tls import TlsEnds

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fb.TlsConfig]:
    folder = tmp_path_factory.mktemp("certificates")
    ours, others = authority(folder, "ours"), authority(folder, "others")
    here = "IP:127.0.0.1,IP:::1,DNS:localhost"
    return {
        "near": host(folder, "near", ours, here),
        "far": host(folder, "far", ours, here),
        "elsewhere": host(folder, "elsewhere", ours, "IP:127.0.0.2"),
        "stranger": (stranger := host(folder, "stranger", others, here)),
        "impostor": fb.TlsConfig(stranger.certificate, stranger.key, str(ours[1])),
    }


@pytest.fixture(autouse=True)
def each_leaves_nothing() -> Iterator[None]:
    with nothing_left():
        yield


def environment(tls: fb.TlsConfig | None) -> fb.ShuffleEnvironment:
    return fb.ShuffleEnvironment(segments=256, segment_size=4096, tls=tls)


def write_all(writer: fb.RecordWriter, records: list[Any]) -> threading.Thread:
    def write() -> None:
        writer.emit_many(records)
        writer.close()

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def test_a_flood_of_strangers_does_not_lock_producers_out(hosts: dict[str, fb.TlsConfig]) -> None:
    """Who says nothing has a place until it is needed, where one speaks TLS first as well."""
    with environment(hosts["far"]) as far, environment(hosts["near"]) as near:
        address = far.listen()
        gate = far.create_input_gate(ROWS, channels=1)
        with Flood(address) as flood:
            while flood.renewed < FLOOD:
                time.sleep(0.01)  # polling a state that has no event
            thread = write_all(near.create_result_partition(ROWS, [gate.address]), [(1, "in")])
            assert list(gate) == [(1, "in")]
        thread.join(20)
        assert far.stats()["strangers_dropped"] >= FLOOD


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_channels_share_a_connection_that_speaks_tls(hosts: dict[str, fb.TlsConfig], address: str) -> None:
    records = [(k, "s" * (k % 3000)) for k in range(3000)]  # 4.5 MB: more than all that lies between the ends
    with environment(hosts["far"]) as far, environment(hosts["near"]) as near:
        gates = [far.create_input_gate(ROWS, channels=2, secret=b"t") for _ in range(2)]
        host_, port = far.listen(address)
        targets = [(host_, port, gate.gate_id) for gate in gates]
        writers = [
            near.create_result_partition(ROWS, targets, channel=i, secret=b"t", selector=fb.broadcast())
            for i in range(2)
        ]
        threads = [write_all(writer, records) for writer in writers]
        got: list[list[Any]] = [[], []]
        readers = [threading.Thread(target=lambda i=i: got[i].extend(gates[i])) for i in range(2)]
        for thread in readers:
            thread.start()
        for thread in threads + readers:
            thread.join(30)
        for part in got:
            assert len(part) == 6000
            assert sorted(part) == sorted(records * 2)
        for gate in gates:
            gate.close()


def test_processes_of_one_host_that_share_memory_send_nothing_and_need_no_tls(hosts: dict[str, fb.TlsConfig]) -> None:
    records = [(k, "s" * (k % 300)) for k in range(3000)]
    with (
        fb.ShuffleEnvironment(segments=256, segment_size=4096, tls=hosts["far"], shared=True) as far,
        fb.ShuffleEnvironment(segments=256, segment_size=4096, tls=hosts["near"], shared=True) as near,
    ):
        gate = far.create_input_gate(ROWS, channels=1, secret=b"t")
        writer = near.create_result_partition(ROWS, [(*far.listen(), gate.gate_id)], secret=b"t")
        assert writer.stats()["transports"] == {"memfd": 1}
        thread = write_all(writer, records)
        assert list(gate) == records
        thread.join(30)
        gate.close()


def test_the_bytes_are_not_to_be_read_on_the_way(hosts: dict[str, fb.TlsConfig]) -> None:
    seen = bytearray()
    with environment(hosts["far"]) as far, environment(hosts["near"]) as near:
        gate = far.create_input_gate(ROWS, channels=1, secret=b"t")
        target = far.listen()
        server = socket.create_server(("127.0.0.1", 0))

        def tap() -> None:
            one, _ = server.accept()
            with one, socket.create_connection(target) as two:

                def pass_on(source: socket.socket, sink: socket.socket) -> None:
                    while data := source.recv(65536):
                        seen.extend(data)
                        sink.sendall(data)
                    sink.shutdown(socket.SHUT_WR)

                back = threading.Thread(target=pass_on, args=(two, one))
                back.start()
                pass_on(one, two)
                back.join(10)

        thread = threading.Thread(target=tap)
        thread.start()
        address = server.getsockname()[:2]
        writer = near.create_result_partition(ROWS, [(*address, gate.gate_id)], secret=b"t")
        sender = write_all(writer, [(1, "a word that nobody else is to hear" * 20)])
        assert len(list(gate)) == 1
        sender.join(10)
        thread.join(10)
        server.close()
        gate.close()
    assert len(seen) > 1000
    assert b"nobody else" not in seen
    assert b"FASTBUF" not in seen


@pytest.mark.parametrize(
    ("consumer", "producer", "text"),
    [
        ("far", None, "accepts only TLS"),
        (None, "near", "did not pass TLS's handshake"),
        ("stranger", "near", "did not pass TLS's handshake"),
        ("far", "stranger", "did not pass TLS's handshake"),
        ("far", "impostor", "refused this host's certificate"),
        ("elsewhere", "near", "did not pass TLS's handshake .*127.0.0.1"),
    ],
)
def test_who_is_refused_and_nothing_falls_back(
    hosts: dict[str, fb.TlsConfig], consumer: str | None, producer: str | None, text: str
) -> None:
    with (
        environment(hosts[consumer] if consumer else None) as far,
        environment(hosts[producer] if producer else None) as near,
        environment(hosts["near"] if consumer else None) as honest,
    ):
        gate = far.create_input_gate(ROWS, channels=1, secret=b"t")
        target = (*far.listen(), gate.gate_id)
        with pytest.raises(AuthenticationError, match=text):
            near.create_result_partition(ROWS, [target], secret=b"t")
        assert gate.stats()["channels"] == 0
        if consumer != "stranger" and consumer != "elsewhere":  # the listener serves on whom it should
            writer = honest.create_result_partition(ROWS, [target], secret=b"t")
            writer.emit((1, "honest"))
            writer.flush()
            assert gate.poll(20) == [(1, "honest")]
            writer.abort("over")


def test_a_refusal_is_read_though_the_connection_has_been_reset(hosts: dict[str, fb.TlsConfig]) -> None:
    """Whoever refuses a certificate closes with our last bytes unread, which resets the connection: the alert that came
    before is still the reason, however late we write (under Python 3.13 it was a lost peer every other time)."""
    where = "consumer under test"
    with environment(hosts["far"]) as far:
        gate = far.create_input_gate(ROWS, channels=1, secret=b"t")
        ends = TlsEnds(hosts["impostor"])
        plain = socket.create_connection(far.listen(), timeout=20)
        sock = ends.shake(plain, "127.0.0.1", where)
        gone = select.poll()
        gone.register(sock, select.POLLHUP)
        assert gone.poll(20_000)  # reset
        hello = handshake.Hello(gate.gate_id, 0, 0, 0, 4096, handshake.fresh_nonce())
        with pytest.raises(PeerLost) as caught:
            handshake.greet(sock, hello, b"t", where)
        assert ends.refused(caught.value.__cause__), repr(caught.value.__cause__)
        sock.close()
        ends.relay.close()


def test_a_certificate_for_another_name_where_names_are_not_looked_at(hosts: dict[str, fb.TlsConfig]) -> None:
    near_files = hosts["near"]
    relaxed = fb.TlsConfig(near_files.certificate, near_files.key, near_files.authority, check_hostname=False)
    with environment(hosts["elsewhere"]) as far, environment(relaxed) as near:
        gate = far.create_input_gate(ROWS, channels=1, secret=b"t")
        writer = near.create_result_partition(ROWS, [(*far.listen(), gate.gate_id)], secret=b"t")
        sender = write_all(writer, [(1, "one")])
        assert list(gate) == [(1, "one")]
        sender.join(10)


def test_files_that_are_not_there_are_named(hosts: dict[str, fb.TlsConfig]) -> None:
    near = hosts["near"]
    with (
        environment(fb.TlsConfig("/nowhere.pem", near.key, near.authority)) as env,
        pytest.raises(ConfigError, match=r"/nowhere\.pem"),
    ):
        env.listen()


def test_strangers_on_a_tls_listener(hosts: dict[str, fb.TlsConfig]) -> None:
    """Silence, noise, and a TLS greeting that stops in its midst: an honest peer comes through all the same."""
    with environment(hosts["far"]) as far, environment(hosts["near"]) as near:
        gate = far.create_input_gate(ROWS, channels=1, secret=b"t")
        address = far.listen()
        noise = (b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 500, b"FASTB")
        strangers = [socket.create_connection(address, timeout=5) for _ in noise]
        for sock, data in zip(strangers, noise, strict=True):
            sock.sendall(data)
        writer = near.create_result_partition(ROWS, [(*address, gate.gate_id)], secret=b"t")
        sender = write_all(writer, [(1, "one")])
        assert list(gate) == [(1, "one")]
        sender.join(10)
        for sock in strangers:
            sock.close()


def test_aborts_and_cancels_pass(hosts: dict[str, fb.TlsConfig]) -> None:
    with environment(hosts["far"]) as far, environment(hosts["near"]) as near:
        gates = [far.create_input_gate(ROWS, channels=1, secret=b"t") for _ in range(3)]
        address = far.listen()
        a, b, c = (
            near.create_result_partition(ROWS, [(*address, gate.gate_id)], secret=b"t", on_peer_loss="error")
            for gate in gates
        )
        a.abort("cannot go on")
        with pytest.raises(ExchangeAborted, match="cannot go on"):
            list(gates[0])
        gates[1].abort("no more of this")
        gates[1].close()
        with pytest.raises(ExchangeAborted, match="no more of this"):
            b.emit_many((k, "t" * 100) for k in range(10_000_000))
        gates[2].close()
        while not c.cancelled:
            c.emit((1, "nobody wants this"))
        c.close()
        b.abort("over")


CHILD = """
import sys, fastbuf as fb
files, host, port, gate = sys.argv[1:4], *sys.argv[4:]
with fb.ShuffleEnvironment(segments=64, segment_size=4096, tls=fb.TlsConfig(*files)) as env:
    rows = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))
    writer = env.create_result_partition(rows, [(host, int(port), int(gate))], secret=b"t")
    writer.emit_many((k, "t" * 50) for k in range(1_000_000_000))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_the_death_of_a_peer_is_named(hosts: dict[str, fb.TlsConfig], how: signal.Signals) -> None:
    config = fb.ExchangeConfig(ping_interval_s=0.5)
    near = hosts["near"]
    reactions = Reactions(2.0)
    with environment(hosts["far"]) as far:
        address, port = far.listen()
        for _ in range(10):
            gate = far.create_input_gate(ROWS, channels=1, secret=b"t", config=config)
            arguments = [near.certificate, near.key, near.authority, address, str(port), str(gate.gate_id)]
            child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(CHILD), *arguments])
            try:
                assert next(iter(gate))[0] == 0
                at = own_time()
                os.kill(child.pid, how)
                with pytest.raises(PeerLost, match=r"producer 127\.0\.0\.1"):
                    for _ in gate:
                        pass
                reactions.add(own_time() - at)
            except PeerLost as early:  # a machine that does not run it for so long has stopped it, too
                if "gave no sign of life" not in str(early):
                    raise
            finally:
                child.kill()
                child.wait(30)
            gate.close()
            assert far.pool.available == 256
            if len(reactions.took) == 3:
                break
    reactions.check()


FORKS = """
    import os, sys, threading
    import fastbuf as fb

    ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))
    TLS = fb.TlsConfig(*sys.argv[1:])

    def forked(work, *arguments):
        pid = os.fork()
        if pid == 0:
            work(*arguments)
            os._exit(0)
        return pid

    def environment():
        return fb.ShuffleEnvironment(segments=64, segment_size=4096, tls=TLS)

    def produce(target, channel):
        watchdog()
        with environment() as env, env.create_result_partition(ROWS, [target], channel=channel) as writer:
            writer.emit((channel,))

    def watchdog():
        timer = threading.Timer(10, os._exit, [1])
        timer.daemon = True
        timer.start()

    def round():
        # OpenSSL was not used yet in this process: the first handshakes take its locks for long.
        watchdog()
        with environment() as env:
            gate = env.create_input_gate(ROWS, channels=8)
            env.listen()
            producers = [forked(produce, gate.address, i) for i in range(8)]
            assert sorted(gate) == [(i,) for i in range(8)]
        for pid in producers:
            assert os.waitpid(pid, 0)[1] == 0

    for n in range(60):
        if os.waitpid(forked(round), 0)[1] != 0:
            sys.exit(f"round {n}: a child that was forked during a handshake hung in its own")
"""


HASHES = """
    import hashlib, os, sys, threading
    import fastbuf as fb

    ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))
    TLS = fb.TlsConfig(*sys.argv[1:])
    over = threading.Event()

    def connect():
        while not over.is_set():
            with (
                fb.ShuffleEnvironment(segments=32, segment_size=4096, tls=TLS) as far,
                fb.ShuffleEnvironment(segments=32, segment_size=4096, tls=TLS) as near,
            ):
                far.listen()
                with far.create_input_gate(ROWS, channels=1) as gate:
                    near.create_result_partition(ROWS, [gate.address]).abort()

    def hashed():
        timer = threading.Timer(5, os._exit, [1])
        timer.daemon = True
        timer.start()
        hashlib.new("sha3_256", b"x").digest()  # OpenSSL has to find this one, with its locks
        os._exit(0)

    connecting = threading.Thread(target=connect)
    connecting.start()
    for n in range(400):
        child = os.fork()
        if child == 0:
            hashed()
        if os.waitpid(child, 0)[1] != 0:
            over.set()
            sys.exit(f"child {n}, forked while a thread connected, hung in its first hash")
    over.set()
    connecting.join()
"""


@pytest.mark.parametrize("program", [FORKS, HASHES], ids=["accepting", "connecting"])
def test_children_forked_during_handshakes_can_use_openssl(hosts: dict[str, fb.TlsConfig], program: str) -> None:
    near = hosts["near"]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), near.certificate, near.key, near.authority],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_collector_of_garbage_waits_for_no_thread_while_this_one_is_in_openssl(
    hosts: dict[str, fb.TlsConfig],
) -> None:
    """It runs at any allocation, and closes a forgotten environment, whose relay may be about to use OpenSSL."""
    gc.collect()  # what earlier tests forgot is closed by such threads too
    for thread in threading.enumerate():
        if thread.name == "fastbuf-close":
            thread.join(20)
    with environment(hosts["far"]) as far:
        far.listen()
        gate = far.create_input_gate(ROWS, channels=1)
        near: Any = environment(hosts["near"])
        writer: Any = near.create_result_partition(ROWS, [gate.address])
        writer.emit((1, "one"))
        writer.flush()
        assert gate.poll(timeout=20) == [(1, "one")]
        circle: list[Any] = [near, writer]
        circle.append(circle)
        with openssl_lock:
            del near, writer, circle
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                gc.collect()
                closing = [thread for thread in threading.enumerate() if thread.name == "fastbuf-close"]
        assert len(closing) == 1
        closing[0].join(20)
        assert not closing[0].is_alive()
        with pytest.raises(ExchangeAborted):
            list(gate)

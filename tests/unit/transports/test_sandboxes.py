"""What sandboxes deny: fastbuf does without it, or says what it lacks. The list is that of reference/platforms.md."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import sandbox
from left_behind import nothing_left
from sandbox import Rule

import fastbuf as fb
from fastbuf.transports.listener import Listener

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/platforms.md"
AF_UNIX, SOL_SOCKET, SO_PEERCRED, IPPROTO_TCP, TCP_CONGESTION = 1, 1, 17, 6, 13
SIOCOUTQ, SIOCOUTQNSD = 0x5411, 0x894B

# By its name on the page: what is refused.
DENIED = {
    "memfd_create": [Rule("memfd_create")],
    "socket(AF_UNIX)": [Rule(call, {0: AF_UNIX}, errno.EAFNOSUPPORT) for call in ("socket", "socketpair")],
    "pidfd_open": [Rule("pidfd_open")],
    "getsockopt(SO_PEERCRED)": [Rule("getsockopt", {1: SOL_SOCKET, 2: SO_PEERCRED})],
    "clock_gettime": [Rule("clock_gettime")],
    "setsockopt(TCP_CONGESTION)": [Rule("setsockopt", {1: IPPROTO_TCP, 2: TCP_CONGESTION})],
    "ioctl(SIOCOUTQ)": [Rule("ioctl", {1: request}) for request in (SIOCOUTQ, SIOCOUTQNSD)],
    "madvise": [Rule("madvise")],
    "prctl": [Rule("prctl")],
    "prlimit64": [Rule("prlimit64")],
    "getrandom": [Rule("getrandom")],
    "/proc": [],  # not mounted
    "eventfd2": [Rule("eventfd2")],
    "epoll_create1": [Rule("epoll_create1")],
}
TO_TCP = {"memfd_create": "memfd_create: ", "socket(AF_UNIX)": "no Unix socket can be made"}
NEEDED = ("eventfd2", "epoll_create1")

PROGRAM = """
    import json, logging, os, sys
    import sandbox
    wanted = json.loads(sys.argv[1])
    if wanted["proc"]:
        try:
            sandbox.hide_proc()
        except OSError as error:
            sys.exit(f"skip: {error}")
    sandbox.refuse([sandbox.Rule(call, {int(k): v for k, v in arguments.items()}, answer)
                    for call, arguments, answer in wanted["rules"]])
    import fastbuf as fb

    class Told(logging.Handler):
        def emit(self, record):
            told.append(record.getMessage())
    told = []
    logging.getLogger("fastbuf").addHandler(Told())
    rows = fb.RowSerializer(fb.Schema.of(n="int64"))

    # within the process, with its figures
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, (gate,) = env.exchange(rows)
        writer.emit((1,))
        env.monitor.snapshot()
        writer.close()
        assert list(gate) == [(1,)]

    def consume(transport):
        with fb.ShuffleEnvironment(segments=64, shared=True) as env, fb.ShuffleEnvironment(64, shared=True) as again:
            env.listen()
            again.listen()      # is told no second time
            gate = env.create_input_gate(rows, channels=1)
            child = os.fork()
            if child == 0:
                try:
                    produce(gate.address, transport)
                except BaseException as error:
                    print(json.dumps({"error": f"{type(error).__name__}: {error}", "told": told}), flush=True)
                finally:
                    os._exit(0)
            if transport == "auto":
                assert list(gate) == [(k,) for k in range(1000)]
            os.waitpid(child, 0)

    def produce(target, transport):
        config = fb.ExchangeConfig(transport=transport, connect_timeout_s=5)
        with fb.ShuffleEnvironment(segments=64, shared=True) as env:
            with env.create_result_partition(rows, [target], config=config) as writer:
                writer.emit_many([(k,) for k in range(1000)])
                env.monitor.snapshot()
                print(json.dumps({"transports": writer.stats()["transports"], "told": told}), flush=True)

    try:
        consume(wanted["transport"])
    except fb.FastbufError as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}", "told": told}))
"""


def run(*names: str, transport: str = "auto", answer: int | None = None) -> dict[str, Any]:
    if not sandbox.supported():
        pytest.skip("the numbers of this machine's system calls are not in tests/sandbox.py")
    rules = [rule for name in names for rule in DENIED[name]]
    rules = [rule if answer is None else rule._replace(answer=answer) for rule in rules]
    wanted = {"rules": rules, "proc": "/proc" in names, "transport": transport}
    path = os.pathsep.join(filter(None, [str(Path(sandbox.__file__).parent), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), json.dumps(wanted)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if "skip: " in done.stderr:
        pytest.skip("this user may not mount (root may)")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_without_a_sandbox_memory_is_shared() -> None:
    """What the others differ from."""
    assert run() == {"transports": {"memfd": 1}, "told": []}


@pytest.mark.parametrize("name", [name for name in DENIED if name not in (*TO_TCP, *NEEDED)])
def test_what_is_done_without(name: str) -> None:
    assert run(name) == {"transports": {"memfd": 1}, "told": []}


@pytest.mark.parametrize(("name", "words"), TO_TCP.items())
def test_tcp_in_place_of_shared_memory(name: str, words: str) -> None:
    """By "auto", and told once; "memfd" says what it lacks."""
    found = run(name)
    assert found["transports"] == {"tcp": 1}
    assert len(found["told"]) == 1
    assert words in found["told"][0]
    assert "TCP" in found["told"][0]
    assert words in run(name, transport="memfd")["error"]


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_needed_is_named(name: str) -> None:
    """An exchange within the process works: the program has had one."""
    found = run(name)
    assert "ResourceError: " in found["error"]
    assert name in found["error"]
    assert "sandbox" in found["error"]


def test_all_of_it_at_once() -> None:
    """As an old kernel answers."""
    found = run(*(name for name in DENIED if name not in NEEDED), answer=errno.ENOSYS)
    assert found["transports"] == {"tcp": 1}


def test_the_page_has_the_same_list() -> None:
    listed = re.search(r"^## In a sandbox$(.*?)(?=^## )", PAGE.read_text(), re.M | re.S)
    assert listed is not None
    assert re.findall(r"^\| `([^`]+)` \|", listed[1], re.M) == list(DENIED)


def test_a_listen_that_failed_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second said that the environment listens already."""
    with nothing_left(), fb.ShuffleEnvironment(segments=32, shared=True) as env:

        def no_thread(*arguments: object) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(Listener, "start", no_thread)
            with pytest.raises(RuntimeError, match="new thread"):
                env.listen()
        address = env.listen()
        assert env.address == address
        with pytest.raises(fb.ConfigError, match="already"):
            env.listen()


def test_without_a_thread_for_shared_memory_it_listens_on_tcp(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next one that needs the thread starts it."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "fastbuf-memfd":
            raise RuntimeError("can't start new thread")
        start(thread)

    with nothing_left(), fb.ShuffleEnvironment(segments=32, shared=True) as env:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            assert env.listen() == env.address
        assert "can't start new thread" in caplog.text
        assert "ulimit -u" in caplog.text
        assert "TCP" in caplog.text
        with fb.ShuffleEnvironment(segments=32, shared=True) as far:
            far.listen()
            assert between(far, env) == {"tcp": 1}
            assert between(env, far) == {"memfd": 1}


def between(producer: fb.ShuffleEnvironment, consumer: fb.ShuffleEnvironment) -> dict[str, int]:
    """By which transport they exchange."""
    rows = fb.RowSerializer(fb.Schema.of(n="int64"))
    with consumer.create_input_gate(rows, channels=1) as gate:
        with producer.create_result_partition(rows, [gate.address]) as writer:
            writer.emit((1,))
            used: dict[str, int] = writer.stats()["transports"]
        assert list(gate) == [(1,)]
    return used

"""Processes that may open no more files or start no more threads: an error names the limit, nothing stays open."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))


@pytest.mark.parametrize("shared", [False, True], ids=["tcp", "memfd"])
def test_each_descriptor_that_is_missing_is_named(shared: bool) -> None:
    """With room for none, one, two, ... descriptors, until the exchange works."""
    script = f"""
        import logging, os, resource
        import fastbuf as fb
        from fastbuf.transports import strangers
        told = []
        strangers.log.addHandler(logging.Handler())
        strangers.log.handlers[-1].emit = lambda record: told.append(record.getMessage())
        rows = fb.RowSerializer(fb.Schema.of(n="int64"))
        config = fb.ExchangeConfig(connect_timeout_s=0.5)

        def exchange():
            with fb.ShuffleEnvironment(segments=32, shared={shared}) as env:
                env.listen()
                with env.create_input_gate(rows, channels=1, config=config) as gate:
                    with env.create_result_partition(rows, [gate.address], config=config) as writer:
                        writer.emit((1,))
                    return list(gate)

        exchange()  # modules are read, and the kernel's files are open
        held = len(os.listdir("/proc/self/fd")) - 1  # without the one that lists them
        outcomes = []
        for room in range(40):
            resource.setrlimit(resource.RLIMIT_NOFILE, (held + room, 4096))
            told.clear()
            try:
                outcome = exchange()
            except fb.ResourceError as error:
                assert f"is {{held + room}} descriptors (ulimit -n" in str(error), error
                outcome = "refused"
            except fb.PeerLost as error:  # this process's other end could not accept, and has said so
                assert any("cannot accept" in line and "ulimit -n" in line for line in told), (room, error, told)
                outcome = "not accepted"
            resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
            assert len(os.listdir("/proc/self/fd")) - 1 == held, (room, outcome)
            outcomes.append(outcome)
            if outcome == [(1,)]:
                break
        assert outcomes[0] == "refused" and outcomes[-1] == [(1,)], outcomes
        assert len(outcomes) > 5, outcomes
    """
    run = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-2000:]


@pytest.mark.parametrize("limit", ["0", "4096", "100_000", "10_000_000"])
def test_where_files_may_not_grow_processes_exchange_through_tcp(limit: str) -> None:
    """``ulimit -f`` is of memfds too.  The last one has room for one environment's segments, not for the other's."""
    script = f"""
        import logging, resource
        import fastbuf as fb
        told = []
        logging.getLogger("fastbuf").addHandler(logging.Handler())
        logging.getLogger("fastbuf").handlers[-1].emit = lambda record: told.append(record.getMessage())
        rows = fb.RowSerializer(fb.Schema.of(n="int64"))
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
        with (
            fb.ShuffleEnvironment(segments=512, shared=True) as near,
            fb.ShuffleEnvironment(segments=64, shared=True) as far,
        ):
            far.listen()
            gate = far.create_input_gate(rows, channels=1)
            with near.create_result_partition(rows, [gate.address]) as writer:
                writer.emit((1,))
                assert writer.stats()["transports"] == {{"tcp": 1}}
            assert list(gate) == [(1,)]
        assert any("(ulimit -f)" in line and "shared=True does nothing here" in line for line in told), told
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("shared", [False, True], ids=["tcp", "memfd"])
def test_a_thread_that_cannot_start_is_named(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with fb.ShuffleEnvironment(segments=32, shared=shared) as env:
        with monkeypatch.context() as patch:
            # As Python does where the kernel refuses a thread
            patch.setattr(threading, "_start_new_thread", refuse)
            patch.setattr(threading, "_start_joinable_thread", refuse, raising=False)
            with pytest.raises(fb.ResourceError, match=r"thread 'fastbuf-listener' cannot be started.*ulimit -u"):
                env.listen()
        env.listen()  # as if nothing had happened
        with env.create_input_gate(ROWS, channels=1) as gate:
            with env.create_result_partition(ROWS, [gate.address]) as writer:
                writer.emit((1,))
            assert list(gate) == [(1,)]


def refuse(*_: object, **__: object) -> None:
    raise RuntimeError("can't start new thread")

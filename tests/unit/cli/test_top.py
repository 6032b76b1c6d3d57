"""``fastbuf top`` and ``fastbuf replay``."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import monitored
import pytest
from click.testing import CliRunner
from rich.console import Console

from fastbuf.cli.app import cli
from fastbuf.cli.top import view
from fastbuf.monitor import Exchange, Recorder, Server, serve, snapshot

pytest.importorskip("uvicorn", reason="pip install 'fastbuf[monitor]'")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(monitored.two_in_a_row) as made:
        yield made


def top(*arguments: str) -> tuple[int, str]:
    done = CliRunner(env={"COLUMNS": "140", "LINES": "40"}).invoke(cli, ["top", *arguments])
    return done.exit_code, done.output


def test_once_it_prints_the_sentence_the_stages_and_the_subtasks(server: Server) -> None:
    code, said = top(server.url, "--once")
    assert code == 0, said
    assert "Subtask 3 of `total` causes 90% of the lost time" in " ".join(said.split())
    assert "HIGH  producers held back 78%" in said
    lines = said.splitlines()
    (stage,) = [line for line in lines if line.split()[:2] == ["►", "total"]]
    assert stage.split()[2:4] == ["4", "95%"]
    subtasks = [line.split() for line in lines if "█" in line and "░" in line and "#" not in line]
    assert [line[0] for line in subtasks] == ["►", "1", "0", "2"], "by lost time"
    assert "waits for rows" in said


def test_a_stage_and_a_job_may_be_chosen(server: Server) -> None:
    code, said = top(server.url, "--once", "--stage", "producers of total", "--job", "clean-1")
    assert code == 0
    assert "waits for credit of 3" in said
    assert "held back" in said
    assert "producers of total: dropped 12 buffers" in said
    code, said = top(server.url, "--once", "--stage", "nothing")
    assert (code, "there are: producers of clean, clean, producers of total, total" in " ".join(said.split())) == (
        1,
        True,
    )
    code, said = top(server.url, "--once", "--job", "nothing")
    assert (code, "there are: total-2" in said) == (1, True)


@pytest.mark.parametrize("every", ["nan", "inf", "1e12"])
def test_a_pause_that_nobody_can_wait_is_refused(every: str, server: Server) -> None:
    code, said = top(server.url, "--every", every)
    assert (code, "--every" in said) == (2, True)


def test_any_token_gets_through_its_url() -> None:
    token = 8 * "a+b&c%20d=#"
    with serve(monitored.two_in_a_row, token=token) as made:
        assert made.token == token
        assert top(made.url, "--once")[0] == 0


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_a_proxy_is_not_told_the_token(name: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.setblocking(False)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        code, said = top(server.url, "--once")
        assert code == 0, said
        with pytest.raises(BlockingIOError):
            proxy.accept()


def test_wrong_addresses_say_what_is_wrong(server: Server) -> None:
    for url in (server.address, "nonsense", "ftp://x/#token=y", "http://x:80a/#token=y", "http://[x/#token=y"):
        code, said = top(url, "--once")
        assert code == 1
        assert "#token=" in said
    code, said = top(server.address + "/#token=" + 43 * "x", "--once")
    assert (code, "the token is another page's" in " ".join(said.split())) == (1, True)
    with serve(list) as other:
        gone = other.url
    code, said = top(gone, "--once")
    assert (code, "no page answers" in said) == (1, True)
    code, said = top("https://127.0.0.1:1/#token=y", "--once", "--authority", __file__)
    assert (code, "cannot be used as the authority's certificate" in " ".join(said.split())) == (1, True)


def test_a_server_of_something_else_is_no_page() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(4096)
                sock.sendall(b"SSH-2.0-x\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        code, said = top(f"http://127.0.0.1:{listener.getsockname()[1]}/#token=y", "--once")
        thread.join()
    assert (code, "no page answers" in said) == (1, True)


def test_names_are_text() -> None:
    made = Exchange("a", "[red]x[/red]" + monitored.EVIL, consumers={0: monitored.consumer(3.0)})
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view(snapshot([made], 1.0), None, None, 10))
    console.file.close()
    assert "[red]x[/red]<img" in console.export_text()


def test_many_subtasks_are_cut_and_counted() -> None:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view(snapshot([monitored.many(100)], 1.0), None, None, 5))
    console.print(view(snapshot([], 1.0), None, None, 5))
    console.file.close()
    said = console.export_text()
    assert "and 95 more" in said
    assert "Nothing has run yet." in said


def test_in_a_terminal_of_80_columns_nothing_is_cut() -> None:
    first, second = monitored.two_in_a_row()
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for exchange in (first, second):
        console.print(view(snapshot([exchange], 1.0), None, None, 10, console.width))
        console.print(view(snapshot([exchange], 1.0), None, f"producers of {exchange.name}", 10, console.width))
    console.file.close()
    said = console.export_text()
    assert "…" not in said
    for words in ("subtasks of", "busy █ held back ▒ idle ░", "waited for", "rows", "pauses"):
        assert words in said


def test_of_tasks_that_tell_their_rows_alone_no_share_of_their_time_is_told() -> None:
    """A blocking exchange: what is not known is no nought."""
    told = {k: {"records": 41_000, "bytes": 1 << 20, "state": "runs"} for k in range(2)}
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view(snapshot([Exchange("a", "blocks", "blocking", producers=told)], 1.0), None, None, 10))
    console.file.close()
    stages = [line.split() for line in console.export_text().splitlines() if "blocks" in line]
    assert ["producers", "of", "blocks", "2", "-", "-", "-", "82,000", "0"] in stages


def test_of_one_that_failed_the_reason_is_told_and_nobody_blamed() -> None:
    first, second = monitored.two_in_a_row()
    reason = "consumer 3 failed\nTraceback: ..."
    second = dataclasses.replace(second, outcome="aborted", reason=reason)
    first = dataclasses.replace(first, outcome="aborted", reason="its reader ended: " + reason)
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view(snapshot([first, second], 1.0), None, None, 10))
    console.file.close()
    said = console.export_text()
    assert f"{second.name} failed: consumer 3 failed\n" in re.sub(" +\n", "\n", said)
    assert "►" not in said
    assert "Traceback" not in said
    assert "waits for" not in said.replace("waited for", "")


@pytest.mark.parametrize("width", [80, 160])
def test_a_stream_is_shown_with_why_its_checkpoint_waits(width: int) -> None:
    look = monitored.a_watched_stream(name=f"{monitored.EVIL}[red]").look(1e9)
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view(look, None, None, 10, width))
    console.print(view(snapshot(monitored.two_in_a_row(), 1.0) | {"queries": look["queries"]}, None, None, 10, width))
    console.file.close()
    said = console.export_text()
    words = " ".join(said.split())
    assert (
        words.count("The checkpoint in progress waits 4.2 s for task 0 of running, which is busy in its functions") == 2
    )
    assert "holds up those before it: `source` waits for it most of the time (90%)" in words
    assert "1,200 windows are open, 3 late rows, `split b of source` holds its watermark back." in words
    assert "2 failed" in words
    assert "disk full" in words
    assert "…" not in said.replace("...", "")
    assert "Subtask 3 of `total`" in words, "a shuffle that runs too"
    assert "[red]" in words


def test_live_it_ends_when_the_page_has_gone(tmp_path: Path) -> None:
    """In a real terminal, until the driver ends."""
    program = """
import sys
from rich.console import Console
from fastbuf.cli import top
sys.exit(top.run(Console(force_terminal=True, width=140, height=40), sys.argv[1], every=0.2))
"""
    with serve(monitored.two_in_a_row) as server:
        running = subprocess.Popen([sys.executable, "-c", program, server.url], stdout=subprocess.PIPE, text=True)
        assert running.stdout is not None
        seen = ""
        while "by lost time" not in seen:
            seen += running.stdout.readline()
    rest, _ = running.communicate(timeout=30)
    assert running.returncode == 1
    assert "no page answers" in " ".join(rest.split())


def test_a_saved_history_is_shown_again_and_written_as_a_trace(tmp_path: Path) -> None:
    ended = [dataclasses.replace(exchange, outcome="ok") for exchange in monitored.two_in_a_row()]
    recorder = Recorder(lambda: ended)
    recorder.look()
    saved, trace = tmp_path / "seen.json", tmp_path / "trace.json"
    recorder.history.save(saved)
    done = CliRunner().invoke(cli, ["replay", str(saved), "--trace", str(trace)])
    assert done.exit_code == 0, done.output
    assert json.loads(trace.read_text())["traceEvents"]
    for nowhere in (tmp_path / "none" / "trace.json", tmp_path):
        done = CliRunner().invoke(cli, ["replay", str(saved), "--trace", str(nowhere)])
        assert (done.exit_code, type(done.exception)) == (2, SystemExit), done.output

    command = [sys.executable, "-m", "fastbuf.cli", "replay", str(saved)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    url = running.stdout.readline().strip()
    code, said = top(url, "--once")
    running.send_signal(signal.SIGINT)
    assert running.wait(30) == 0
    running.stdout.close()
    assert code == 0, said
    assert "Subtask 3 of `total`" in said

    saved.write_text("{}")
    done = CliRunner().invoke(cli, ["replay", str(saved)])
    assert (done.exit_code, "not a history" in done.output) == (1, True)

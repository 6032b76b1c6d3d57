"""A real Prometheus scrapes the page's metrics, with the token, and answers what the dashboard asks."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import monitored
import pytest

from fastbuf.monitor import serve

pytest.importorskip("uvicorn", reason="pip install 'fastbuf[monitor]'")
PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(PROMETHEUS is None, reason="there is no prometheus on PATH: apt-get install prometheus"),
]
SOON_S = 60.0
CONFIG = """
global: {{ scrape_interval: 1s }}
scrape_configs:
  - job_name: fastbuf
    authorization: {{ credentials_file: {token} }}
    static_configs: [{{ targets: ["{target}"] }}]
"""


class Asked:
    """Prometheus's own interface."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}/api/v1/"

    def __call__(self, path: str, **query: str) -> Any:
        url = self.address + path + "?" + urllib.parse.urlencode(query)
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    folder: Path = tmp_path_factory.mktemp("prometheus")
    still = monitored.two_in_a_row()
    with serve(lambda: still, queries=lambda: [monitored.a_stream(at=time.time())]) as server:
        (folder / "token").write_text(server.token)
        target = server.address.removeprefix("http://")
        (folder / "prometheus.yml").write_text(CONFIG.format(token=folder / "token", target=target))
        port = free_port()
        where = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        with (folder / "log").open("w") as log:
            command = [str(PROMETHEUS), *where, f"--web.listen-address=127.0.0.1:{port}"]
            running = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            ask = Asked(port)
            end = time.monotonic() + SOON_S
            while True:
                assert running.poll() is None, (folder / "log").read_text()[-4000:]
                try:
                    targets = ask("targets")["activeTargets"]
                    # Two scrapes, that there is a rate
                    if ask("query", query="count_over_time(fastbuf_records_total[1m]) >= 2")["result"]:
                        break
                except (OSError, urllib.error.URLError):
                    targets = []
                assert time.monotonic() < end, targets
                time.sleep(0.2)  # between two looks
            yield ask
        finally:
            running.terminate()
            running.wait(20)


def test_it_is_scraped_without_a_complaint(asked: Asked) -> None:
    (target,) = asked("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    found = {
        (one["metric"]["exchange"], one["metric"]["stage"]): float(one["value"][1])
        for one in asked("query", query="fastbuf_records_total")["result"]
    }
    assert found["total", "consumers"] == 69_000
    known = asked("metadata")
    assert known["fastbuf_task_state_seconds_total"][0]["type"] == "counter"
    assert known["fastbuf_diagnosis_info"][0]["type"] == "gauge"


def test_every_question_of_the_dashboard_is_answered(asked: Asked) -> None:
    board = json.loads((resources.files("fastbuf.monitor") / "grafana.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$exchange", ".*").replace("$query", ".*").replace("$__rate_interval", "1m")
            assert asked("query", query=query)["result"], panel["title"]


@pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool on PATH: apt-get install prometheus")
def test_names_and_units_are_those_that_prometheus_advises() -> None:
    still = monitored.two_in_a_row()
    with serve(lambda: still, queries=lambda: [monitored.a_stream()]) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        with urllib.request.urlopen(urllib.request.Request(server.address + "/metrics", headers=headers)) as answer:
            told = answer.read()

    def checked(metrics: bytes) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([str(PROMTOOL), "check", "metrics"], input=metrics, capture_output=True, check=False)

    done = checked(told)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert checked(told.replace(b"fastbuf_records_total", b"fastbuf_records")).returncode != 0, "it does look"

"""The page's server: what it answers, to whom, and how it ends."""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import monitored
import pytest

from fastbuf.errors import ConfigError
from fastbuf.monitor import Server, serve
from fastbuf.monitor.guard import Guard
from fastbuf.monitor.recorder import Recorder
from fastbuf.monitor.routes import Streams, application, page_files

pytest.importorskip("uvicorn", reason="the page needs uvicorn: pip install 'fastbuf[monitor]'")
IDS = {"job": "total-2", "vertex": "total-2-consumers"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(monitored.two_in_a_row) as made:
        yield made
    assert made.closed


class Answer:
    def __init__(self, found: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = found.status, found.headers, found.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(server: Server, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Answer:
    host, port = server.address.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path, body, named)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def get(server: Server, path: str) -> Any:
    found = ask(server, path, Authorization=f"Bearer {server.token}")
    assert found.status == 200, (path, found.body)
    return found.json


def paths() -> list[str]:
    """Every route that there is, with ids filled in: one that is added later is among them."""
    return [route.path.format(**IDS) for route in application(Recorder(list), Streams()).routes]  # type: ignore[attr-defined]


DATA = sorted(set(paths()) - set(page_files()))


def test_there_are_routes_and_files() -> None:
    assert {"/snapshot", "/metrics", "/events", "/history", "/jobs/total-2"} <= set(DATA)
    assert {"/", "/page/page.js", "/page/vendor/uplot.js"} <= set(page_files())


# who may


@pytest.mark.parametrize("path", [*DATA, "/nothing", "/page/", "/login"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
def test_without_the_token_it_is_401_everywhere(server: Server, path: str, method: str) -> None:
    wrong = [{}, {"Authorization": "Bearer " + 43 * "x"}, {"Authorization": f"Basic {server.token}"}, {"Cookie": "a=b"}]
    for headers in wrong:
        found = ask(server, path, method, **headers)
        assert found.status == 401, (path, headers)
        assert b"total" not in found.body


@pytest.mark.parametrize("path", sorted(page_files()))
def test_the_pages_own_files_are_free_and_hold_no_figures(server: Server, path: str) -> None:
    found = ask(server, path)
    assert found.status == 200
    assert b"total-2" not in found.body
    assert server.token.encode() not in found.body


@pytest.mark.parametrize("path", [*DATA, "/", "/login", "/nothing"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""])
def test_another_host_is_refused_even_with_the_token(server: Server, path: str, host: str) -> None:
    port = server.address.rpartition(":")[2]
    found = ask(server, path, Host=host.format(port=port), Authorization=f"Bearer {server.token}")
    assert found.status == 400


@pytest.mark.parametrize("path", ["/", "/page/page.js", "/snapshot", "/nothing", "/metrics"])
@pytest.mark.parametrize("may", [True, False])
def test_every_answer_has_its_policy(server: Server, path: str, may: bool) -> None:
    found = ask(server, path, **({"Authorization": f"Bearer {server.token}"} if may else {}))
    policy = found.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.headers["referrer-policy"] == "no-referrer"
    assert found.headers["cache-control"] == "no-store"
    assert found.headers["server"] is None
    assert found.headers["access-control-allow-origin"] is None


def test_the_token_is_handed_in_once_for_a_cookie_that_no_script_reads(server: Server) -> None:
    found = ask(server, "/login", "POST", json.dumps({"token": server.token}), Origin=server.address)
    assert found.status == 204
    cookie = found.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert server.token not in cookie
    held = cookie.partition(";")[0]
    for other in ("a=b", 'g_state={"i_l":0}', "x", "=;;", "ü=1, 2"):
        assert ask(server, "/snapshot", Cookie=f"{other}; {held}").status == 200, other
        assert ask(server, "/snapshot", Cookie=f"{held};{other}").status == 200, other
    assert ask(server, "/snapshot", Cookie=held[:-1]).status == 401


@pytest.mark.parametrize(
    "body", ["", "{}", "[]", "nonsense", '{"token": "x"}', '{"token": null}', "{" * 100_000, 4000 * "[", "\x00"]
)
def test_a_wrong_token_gets_no_cookie(server: Server, body: str) -> None:
    found = ask(server, "/login", "POST", body)
    assert found.status == 401
    assert found.headers["set-cookie"] is None


def test_another_sites_page_cannot_hand_in_a_token(server: Server) -> None:
    body = json.dumps({"token": server.token})
    for origin in ("http://evil.example", "null", server.address.replace("http", "https")):
        assert ask(server, "/login", "POST", body, Origin=origin).status == 401


def test_a_token_has_256_bits_and_is_never_shown_by_accident(server: Server) -> None:
    with serve(list) as other:
        assert other.token != server.token
    assert len(server.token) >= 43
    assert server.url == f"{server.address}/#token={server.token}"
    assert server.token not in repr(server)


@pytest.mark.parametrize("token", ["", "short", 31 * "x", 40 * "ü", 20 * "a b"])
def test_a_weak_token_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="token has"):
        Guard(None, token, [], [], False)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="token has"):
        serve(list, token=token)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
@pytest.mark.parametrize("given", [{}, {"token": 43 * "x"}])
def test_an_address_that_others_reach_needs_token_and_tls(host: str, given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"^host is .* (token and )?certificate and key are missing"):
        serve(list, host=host, **given)  # type: ignore[arg-type]


def test_wrong_addresses_and_certificates_are_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="go together"):
        serve(list, certificate="x.pem")
    with pytest.raises(ConfigError, match=r"nothing\.pem"):
        serve(list, certificate=tmp_path / "nothing.pem", key=tmp_path / "nothing.pem")
    with serve(list) as first, pytest.raises(ConfigError, match="cannot listen"):
        serve(list, port=int(first.address.rpartition(":")[2]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"port": -1}, "port is -1: it must be an integer from 0 to 65535"),
        ({"port": "x"}, "port is 'x'"),
        ({"host": None}, "host is None"),
        ({"host": ""}, "host is '': give an address"),
        ({"token": 5}, "token is 5"),
        ({"names": "abc"}, "names is 'abc': give a list"),
        ({"history": 5}, "history is 5"),
    ],
)
def test_settings_are_checked(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        serve(list, **given)


def test_over_tls(tmp_path: Path) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    about = [
        "-keyout",
        str(key),
        "-out",
        str(certificate),
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]
    subprocess.run([*command, *about], check=True, capture_output=True, timeout=60)
    options: dict[str, Any] = {"token": 43 * "x", "certificate": certificate, "key": key, "names": ["127.0.0.2"]}
    with serve(list, host="0.0.0.0", **options) as server:
        port = int(server.address.rpartition(":")[2])
        trust = ssl.create_default_context(cafile=str(certificate))

        def over(host: str) -> int:
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=trust)
            connection.request(
                "GET", "/jobs", headers={"Authorization": "Bearer " + 43 * "x", "Host": f"{host}:{port}"}
            )
            found = connection.getresponse()
            connection.close()
            return found.status

        assert server.url.startswith("https://")
        assert [over(host) for host in ("127.0.0.1", "127.0.0.2", "127.0.0.3")] == [200, 200, 400]
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=trust)
        connection.request("POST", "/login", json.dumps({"token": 43 * "x"}))
        assert "Secure" in str(connection.getresponse().headers["set-cookie"])
        connection.close()


# what it answers


def test_jobs_in_flinks_words(server: Server) -> None:
    assert get(server, "/jobs") == {"jobs": [{"id": "total-2", "status": "RUNNING"}]}
    (job,) = get(server, "/jobs/overview")["jobs"]
    assert (job["jid"], job["state"], job["end-time"], job["tasks"]) == ("total-2", "RUNNING", -1, {"RUNNING": 15})
    found = get(server, "/jobs/total-2")
    assert found == get(server, "/jobs/clean-1") | {"now": found["now"]}  # one of its exchanges will do
    assert [vertex["name"] for vertex in found["vertices"]] == [
        "producers of clean",
        "clean",
        "producers of total",
        "total",
    ]
    assert found["vertices"][3]["metrics"]["read-records"] == 69_000
    assert found["vertices"][2]["metrics"]["write-records"] == 160_000
    assert found["vertices"][2]["metrics"]["accumulated-backpressured-time"] == 62_400
    plan = {node["id"]: [(i["id"], i["ship_strategy"]) for i in node["inputs"]] for node in found["plan"]["nodes"]}
    assert plan["total-2-producers"] == [("clean-1-consumers", "FORWARD")]
    assert plan["total-2-consumers"] == [("total-2-producers", "HASH")]


def test_back_pressure_in_flinks_words(server: Server) -> None:
    found = get(server, "/jobs/total-2/vertices/total-2-producers/backpressure")
    assert (found["status"], found["backpressure-level"]) == ("ok", "high")
    first = found["subtasks"][0]
    assert (first["subtask"], first["ratio"], first["backpressure-level"]) == (0, 0.7, "high")
    assert first["samples"] == {"taken": 100, "blocked": 70, "level": "HIGH"}
    assert first["ratio"] + first["idleRatio"] + first["busyRatio"] == pytest.approx(1)


def test_metrics_of_subtasks_in_flinks_words(server: Server) -> None:
    path = "/jobs/total-2/vertices/total-2-consumers/subtasks/metrics"
    names = {metric["id"] for metric in get(server, path)}
    assert {"busyTimeMsPerSecond", "numRecordsIn", "inPoolUsage", "gc_s"} <= names
    (busy,) = get(server, f"{path}?get=busyTimeMsPerSecond")
    assert (busy["max"], busy["min"]) == (950, 195)
    assert busy["skew"] == pytest.approx(71.4, abs=0.1)
    (some,) = get(server, f"{path}?get=numRecordsIn&agg=sum,max&subtasks=0-1,3")
    assert some == {"id": "numRecordsIn", "sum": 49_000, "max": 20_000}


def test_flame_graphs_in_flinks_words(server: Server) -> None:
    path = "/jobs/total-2/vertices/total-2-consumers/flamegraph"
    assert get(server, f"{path}?subtaskindex=3&type=OFF_CPU")["data"]["value"] == 40
    assert get(server, f"{path}?subtaskindex=3")["data"]["value"] == 310
    assert get(server, path)["data"]["value"] > 310


def test_diagnosis(server: Server) -> None:
    found = get(server, "/jobs/total-2/diagnosis")
    assert found["diagnosis"]["roots"][0]["subtask"] == 3
    assert [part["name"] for part in found["exchanges"]] == ["clean", "total"]


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/none",
        "/jobs/none/diagnosis",
        "/jobs/total-2/vertices/none/backpressure",
        "/jobs/total-2/vertices/total-2-consumers/flamegraph?subtaskindex=9",
        "/jobs/total-2/vertices/total-2-consumers/flamegraph?subtaskindex=x",
        "/jobs/total-2/vertices/total-2-consumers/flamegraph?subtaskindex=%C2%B2",
        "/jobs/total-2/vertices/total-2-consumers/flamegraph?type=hot",
        "/jobs/total-2/vertices/total-2-consumers/subtasks/metrics?get=numRecordsIn&agg=p99",
        "/jobs/total-2/vertices/total-2-consumers/subtasks/metrics?get=numRecordsIn&subtasks=a-b",
        "/history/moment",
        "/history/moment?at=now",
    ],
)
def test_what_is_not_there_is_404_and_says_so(server: Server, path: str) -> None:
    found = ask(server, path, Authorization=f"Bearer {server.token}")
    assert found.status == 404
    assert found.json["errors"][0]


def test_history_and_trace_are_files(server: Server) -> None:
    assert get(server, "/history")["format"] == "fastbuf history 1"
    assert get(server, "/history/trace")["traceEvents"]
    line = get(server, "/jobs/total-2/history")
    moment = get(server, f"/history/moment?at={line['at'][0]}")
    assert moment["jobs"][0]["id"] == "total-2"
    found = ask(server, "/history", Authorization=f"Bearer {server.token}")
    assert found.headers["content-disposition"] == 'attachment; filename="fastbuf-history.json"'


def test_events_come_once_a_second_until_the_server_ends() -> None:
    before = set(threading.enumerate())
    server = serve(monitored.two_in_a_row)
    host, port = server.address.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("GET", "/events", headers={"Authorization": f"Bearer {server.token}"})
    found = connection.getresponse()
    assert found.headers["content-type"].startswith("text/event-stream")
    seen = []
    while len(seen) < 3:
        line = found.readline()
        if line.startswith(b"data: "):
            seen.append(json.loads(line[6:]))
    assert [snapshot["jobs"][0]["id"] for snapshot in seen] == 3 * ["total-2"]
    assert 0.5 < seen[2]["at"] - seen[1]["at"] < 5
    server.close()
    assert server.closed
    assert found.read() is not None  # it ends
    connection.close()
    assert set(threading.enumerate()) <= before


def test_a_source_that_fails_does_not_end_it() -> None:
    fails = [True]

    def source() -> list[Any]:
        if fails[0]:
            raise RuntimeError("not now")
        return monitored.two_in_a_row()

    with serve(source) as server:
        assert ask(server, "/jobs", Authorization=f"Bearer {server.token}").status == 500
        fails[0] = False
        assert get(server, "/jobs")["jobs"]


def test_it_does_not_hold_up_the_end_of_the_interpreter() -> None:
    code = """
        import http.client, time
        from fastbuf.monitor import serve
        server = serve(list)
        host, port = server.address.removeprefix("http://").split(":")
        watching = http.client.HTTPConnection(host, int(port))
        watching.request("GET", "/events", headers={"Authorization": "Bearer " + server.token})
        watching.getresponse().readline()
        print("ends", flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


def test_nothing_listens_unless_it_is_asked_for() -> None:
    code = "import sys, fastbuf.monitor; assert not {'uvicorn', 'starlette', 'prometheus_client'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("hidden", ["uvicorn", "starlette"])
def test_without_the_packages_it_says_what_to_install(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == hidden]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(ConfigError, match=r"fastbuf\[monitor\]"):
        serve(list)

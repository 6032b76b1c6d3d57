"""Clusters that tests make themselves: Spark's own in one process, or a master and workers on hosts of their own.

A host is a network namespace with an address of its own; they are joined by a bridge in the driver's namespace, and
none of them reaches anything else.  A driver is a process of its own (``cluster_driver.py``), so that one test's Spark
is not the next one's, and what a test started ends with it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import javas
import pytest
from bad_network import DEVICE, Switch

ROOT = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).with_name("cluster_driver.py")
TREE = os.pathsep.join([str(ROOT), str(ROOT / "bindings")])
ANSWER = "answer of the driver: "
SMALL_JVM = ["-Xmx256m", *javas.OPTIONS.split()]
START_S = 120.0  # for a JVM on a machine that is busy


def plain_conf(conf: dict[str, str]) -> dict[str, str]:
    """Settings of every driver here, and those of one test."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.executor.extraJavaOptions": javas.OPTIONS,
        **conf,
    }


def drive(
    master: str,
    cases: list[dict[str, Any]],
    conf: dict[str, str] | None = None,
    *,
    seconds: float,
    inside: list[str] | None = None,
    python: str = sys.executable,
    path: str = TREE,
) -> list[dict[str, Any]]:
    """What came of each case, in a driver of its own; it must end within ``seconds``, or the test fails with its words.

    Parameters
    ----------
    inside
        Command that runs another one on the driver's host.
    python, path
        What workers run, and find their packages in.
    """
    job = {"master": master, "conf": plain_conf(conf or {}), "cases": cases}
    env = {**os.environ, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": path}
    command = [*(inside or []), sys.executable, str(DRIVER), json.dumps(job), TREE]
    with tempfile.TemporaryDirectory(prefix="fastbuf-driver-") as folder, open(f"{folder}/log", "w+") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            log.seek(0)
            pytest.fail(f"no end after {seconds:g} s: {cases}\n{log.read()[-6000:]}")
        finally:
            end_group(process)
        log.seek(0)
        text = log.read()
    answers = [line.removeprefix(ANSWER) for line in text.splitlines() if line.startswith(ANSWER)]
    assert answers, f"the driver ended with {process.returncode} and no answer:\n{text[-6000:]}"
    return list(json.loads(answers[-1]))


def end_group(process: subprocess.Popen[Any]) -> None:
    """End a process that leads a session, and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


class Hosts:
    """Namespaces with an address each: ``10.213.0.1`` is the driver's, the workers' follow.

    Parameters
    ----------
    workers
        How many besides the driver.
    """

    def __init__(self, workers: int) -> None:
        for tool in ("ip", "tc"):
            if shutil.which(tool) is None:
                pytest.skip(f"needs {tool}: apt-get install iproute2")
        if os.geteuid():
            pytest.skip("network namespaces with a bridge need root: run the tests as root")
        self.switch: Switch | None = None
        self.names = [f"fb{os.getpid()}n{number}" for number in range(workers + 1)]
        self.addresses = [f"10.213.0.{number + 1}" for number in range(workers + 1)]
        try:
            self._make()
        except BaseException as error:
            self.close()
            if isinstance(error, subprocess.CalledProcessError):
                pytest.skip(f"no namespaces with a bridge here: {error.stderr.strip()} ({' '.join(error.cmd)})")
            raise

    def _make(self) -> None:
        for name in self.names:
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        driver, *workers = self.names
        run("ip", "-n", driver, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", driver, "addr", "add", f"{self.addresses[0]}/24", "dev", "bridge")
        run("ip", "-n", driver, "link", "set", "bridge", "up")
        for number, name in enumerate(workers, 1):
            port = f"port{number}"
            run("ip", "-n", driver, "link", "add", port, "type", "veth", "peer", "name", "eth", "netns", name)
            run("ip", "-n", driver, "link", "set", port, "master", "bridge", "up")
            run("ip", "-n", name, "addr", "add", f"{self.addresses[number]}/24", "dev", "eth")
            run("ip", "-n", name, "link", "set", "eth", "up")

    def inside(self, number: int) -> list[str]:
        """The command that runs another on this host."""
        return ["ip", "netns", "exec", self.names[number]]

    def bad_network(self) -> None:
        """From here on packets take 20 ms more, and one of a hundred is lost; by netem, or a switch of our own."""
        for name in self.names[1:]:
            netem = ["tc", "-n", name, "qdisc", "add", "dev", "eth", "root", "netem", "delay", "20ms", "loss", "1%"]
            if subprocess.run(netem, capture_output=True, check=False).returncode:
                self.switch = Switch(dict(zip(self.names, self.addresses, strict=True)))
                break
        for number, name in enumerate(self.names if self.switch else ()):
            address, device = f"{self.addresses[number]}/24", "eth" if number else "bridge"
            run("ip", "-n", name, "addr", "del", address, "dev", device)
            run("ip", "-n", name, "addr", "add", address, "dev", DEVICE)
            run("ip", "-n", name, "link", "set", DEVICE, "up")

    def part(self, low: int, high: int) -> None:
        """No answer comes from these ports of a worker to another one, as behind a firewall that drops.

        Of other ports it does: Spark's own executors give each other what is broadcast.
        """
        for name in self.names[1:]:
            for other in self.addresses[1:]:
                what = f"to {other} ipproto tcp sport {low}-{high} blackhole"
                run("ip", "-n", name, "rule", "add", "pref", "10", *what.split())

    def refuse(self, low: int, high: int) -> None:
        """Connections to these ports of other workers fail at once, as with a firewall that says so."""
        for number, name in enumerate(self.names[1:], 1):
            for other in self.addresses[1:number] + self.addresses[number + 1 :]:
                what = f"to {other} ipproto tcp dport {low}-{high} prohibit"
                run("ip", "-n", name, "rule", "add", "pref", "10", *what.split())

    def close(self) -> None:
        """End what still runs on these hosts, and them."""
        if self.switch is not None:
            self.switch.close()
        for name in self.names:
            if os.path.exists(f"/run/netns/{name}"):
                for pid in run("ip", "netns", "pids", name).split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                run("ip", "netns", "del", name)


def run(*command: str) -> str:
    """The output of a command that must succeed."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


class Standalone:
    """A master on the driver's host and one worker on each other one.

    Parameters
    ----------
    cores
        Of each worker.
    """

    def __init__(self, hosts: Hosts, folder: Path, cores: int) -> None:
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        self.home = spec.submodule_search_locations[0]
        self.hosts = hosts
        self.folder = folder
        self.master = f"spark://{hosts.addresses[0]}:7077"
        self.processes: list[subprocess.Popen[Any]] = []
        try:
            self._java(0, "master.Master", "--host", hosts.addresses[0], "--port", "7077", "--webui-port", "0")
            self._ready("master.Master-0", "I have been elected leader")
            for number in range(1, len(hosts.names)):
                more = ["--host", hosts.addresses[number], "--work-dir", str(folder / f"work{number}")]
                self._java(number, "worker.Worker", *more, "-c", str(cores), "-m", "2g", self.master)
            for number in range(1, len(hosts.names)):
                self._ready(f"worker.Worker-{number}", "Successfully registered with master")
        except BaseException:
            self.close()
            raise

    def _java(self, number: int, name: str, *arguments: str) -> None:
        java = shutil.which("java")
        if java is None:
            pytest.skip("needs java: apt-get install openjdk-17-jre-headless")
        # Nothing of the tree: what a worker finds is what a test gives it
        env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYSPARK_PYTHON")}
        env |= {"SPARK_HOME": self.home, "SPARK_LOCAL_IP": self.hosts.addresses[number], "SPARK_SCALA_VERSION": "2.13"}
        command = [java, *SMALL_JVM, "-cp", f"{self.home}/jars/*", f"org.apache.spark.deploy.{name}", *arguments]
        with open(self.folder / f"{name}-{number}", "w") as log:
            self.processes.append(
                subprocess.Popen(
                    [*self.hosts.inside(number), *command],
                    cwd=self.folder,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _ready(self, log: str, words: str) -> None:
        deadline = time.monotonic() + START_S
        while words not in (self.folder / log).read_text():
            if time.monotonic() > deadline or any(p.poll() is not None for p in self.processes):
                pytest.fail(f"{log} is not ready:\n{(self.folder / log).read_text()[-4000:]}")
            time.sleep(0.1)  # between two looks

    def drive(
        self,
        cases: list[dict[str, Any]],
        conf: dict[str, str] | None = None,
        *,
        seconds: float,
        python: str = sys.executable,
        path: str = TREE,
    ) -> list[dict[str, Any]]:
        """As :func:`drive`, on the driver's host; ``path`` is what its executors' workers find packages in."""
        address = self.hosts.addresses[0]
        own = {
            "spark.driver.host": address,
            "spark.driver.bindAddress": address,
            "spark.executorEnv.PYTHONPATH": path,
            **(conf or {}),
        }
        return drive(self.master, cases, own, seconds=seconds, inside=self.hosts.inside(0), python=python, path=TREE)

    def close(self) -> None:
        for process in self.processes:
            end_group(process)


@contextlib.contextmanager
def standalone(folder: Path, cores: int = 3, workers: int = 2, bad: bool = False) -> Iterator[Standalone]:
    """A cluster that is gone afterwards; ``bad``: its network is."""
    hosts = Hosts(workers)
    try:
        if bad:
            hosts.bad_network()
        cluster = Standalone(hosts, folder, cores)
        try:
            yield cluster
        finally:
            cluster.close()
    finally:
        hosts.close()


def bare_python(folder: Path) -> str:
    """A Python with what Spark's workers need, and without fastbuf."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    python = folder / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(run(*asked).strip())
    here = Path(importlib.util.find_spec("numpy").origin).parents[1]  # type: ignore[union-attr,arg-type]
    for name in (
        "numpy",
        "numpy.libs",
        "pyarrow",
        "pyarrow.libs",
        "pandas",
        "pandas.libs",
        "dateutil",
        "six.py",
        "tzdata",
    ):
        if (here / name).exists():
            (packages / name).symlink_to(here / name)
    return str(python)


def wheel(folder: Path) -> Path:
    """The wheel of this tree, with the extensions that are built in it."""
    clone = folder / "clone"
    left_out = shutil.ignore_patterns(".git", ".venv", "build", "site", "*.egg-info", ".*_cache", "docs", "tests")
    shutil.copytree(ROOT, clone, ignore=left_out, symlinks=True)
    tag = f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    for built in sorted((clone / "fastbuf").rglob("*.so")):
        there = clone / "build" / tag / built.relative_to(clone)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(built, there)  # newer than all sources, so nothing is compiled
    command = [sys.executable, "setup.py", "-q", "bdist_wheel", "-d", str(folder / "dist")]
    subprocess.run(command, cwd=clone, check=True, capture_output=True, timeout=300)
    (made,) = (folder / "dist").glob("*.whl")
    return made


def archive(folder: Path) -> Path:
    """The wheel unpacked in a tar file, as ``spark.archives`` takes it."""
    with zipfile.ZipFile(wheel(folder)) as packed:
        packed.extractall(folder / "environment")
    made = folder / "environment.tar.gz"
    with tarfile.open(made, "w:gz", compresslevel=1) as tar:
        tar.add(folder / "environment", ".")
    return made

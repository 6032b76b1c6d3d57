"""A Flink cluster of one job manager and two task managers, each a JVM, on loopback; ended with the bench.

Needs ``FASTBUF_FLINK_LIB``: a folder with Flink's jars, as in the wheel of PyPI::

    pip download --no-deps apache-flink-libraries==2.3.0 && unzip -q apache_flink_libraries-*.whl 'pyflink/lib/*'
    FASTBUF_FLINK_LIB=$PWD/pyflink/lib make bench BENCH_ARGS="-k flink"

Sizes are those that Flink gives a task manager of its default 1728 MB, with network memory as large as ours.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType

import psutil

SOURCE = Path(__file__).parent / "flink" / "KeyByJob.java"
START_S = 90
FLOATING = int(os.environ.get("FASTBUF_BENCH_FLOATING", "8"))  #: floating segments of a gate, ours and Flink's
NETWORK_BYTES = 128 << 20
# What Flink's own start scripts open of Java 17's modules.
OPENED = ("lang", "lang.reflect", "net", "io", "nio", "text", "time")
OPENED += ("util", "util.concurrent", "util.concurrent.atomic", "util.concurrent.locks")
FLAGS = [
    "-XX:+UseG1GC",
    "--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in OPENED),
]
CONFIG = """
jobmanager.rpc.address: 127.0.0.1
jobmanager.bind-host: 127.0.0.1
jobmanager.rpc.port: {rpc}
rest.address: 127.0.0.1
rest.bind-address: 127.0.0.1
rest.port: {rest}
blob.server.port: {blob}
io.tmp.dirs: {folder}
taskmanager.host: 127.0.0.1
taskmanager.bind-host: 127.0.0.1
taskmanager.numberOfTaskSlots: 1
taskmanager.cpu.cores: 1.0
taskmanager.memory.task.heap.size: 896m
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.task.off-heap.size: 0m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.managed.size: 64m
taskmanager.memory.network.min: {network}b
taskmanager.memory.network.max: {network}b
taskmanager.network.memory.floating-buffers-per-gate: {floating}
taskmanager.network.memory.max-buffers-per-channel: {most}
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 192m
taskmanager.memory.jvm-overhead.max: 192m
jobmanager.memory.heap.size: 512m
jobmanager.memory.off-heap.size: 128m
jobmanager.memory.jvm-metaspace.size: 256m
"""


def missing() -> str | None:
    """Why Flink cannot be measured here; ``None`` when it can."""
    lib = os.environ.get("FASTBUF_FLINK_LIB")
    if not lib:
        return "FASTBUF_FLINK_LIB is not set: the folder of Flink's jars (see benches/flink_cluster.py)"
    if not list(Path(lib).glob("flink-dist-*.jar")):
        return f"no flink-dist-*.jar in FASTBUF_FLINK_LIB={lib}"
    if shutil.which("javac") is None:
        return "no javac: the job is Java (a JDK >= 17, such as Debian's openjdk-17-jdk)"
    return None


def _free_ports(n: int) -> list[int]:
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in listening]
    for s in listening:
        s.close()
    return ports


class FlinkCluster:
    """Starts the JVMs and the client that takes orders (``flink/KeyByJob.java``)."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fastbuf-flink-"))
        self.processes: list[subprocess.Popen[str]] = []
        lib = Path(os.environ["FASTBUF_FLINK_LIB"]).resolve()
        subprocess.run(
            ["javac", "-nowarn", "-cp", f"{lib}/*", "-d", str(self.folder / "classes"), str(SOURCE)], check=True
        )
        self.class_path = f"{self.folder / 'classes'}:{lib}/*"
        (self.folder / "log4j2.properties").write_text(
            "rootLogger.level = ERROR\nrootLogger.appenderRef.c.ref = C\nappender.c.name = C\n"
            "appender.c.type = CONSOLE\nappender.c.target = SYSTEM_ERR\nappender.c.layout.type = PatternLayout\n"
        )
        rpc, rest, blob = _free_ports(3)
        (self.folder / "conf").mkdir()
        (self.folder / "tmp").mkdir()
        (self.folder / "conf" / "config.yaml").write_text(
            CONFIG.format(
                rpc=rpc,
                rest=rest,
                blob=blob,
                folder=self.folder / "tmp",
                network=NETWORK_BYTES,
                floating=FLOATING,
                most=FLOATING + 2,
            )
        )
        conf = ["--configDir", str(self.folder / "conf")]
        runtime = "org.apache.flink.runtime"
        try:
            self._start("512m", f"{runtime}.entrypoint.StandaloneSessionClusterEntrypoint", conf)
            for name in ("sender", "receiver"):
                manager = [*conf, "-D", f"taskmanager.resource-id={name}"]
                self._start(
                    "1024m", f"{runtime}.taskexecutor.TaskManagerRunner", manager, ["-XX:MaxDirectMemorySize=384m"]
                )
            self._wait(f"http://127.0.0.1:{rest}/overview")
            self.client = self._start("512m", "KeyByJob", [f"127.0.0.1:{rest}"])
        except BaseException:
            self.close()
            raise

    def _start(
        self, heap: str, main: str, arguments: list[str], flags: list[str] | None = None
    ) -> subprocess.Popen[str]:
        command = ["java", f"-Xms{heap}", f"-Xmx{heap}", *FLAGS, *(flags or []), f"-Djava.io.tmpdir={self.folder}/tmp"]
        command += [f"-Dlog4j2.configurationFile={self.folder}/log4j2.properties", "-cp", self.class_path, main]
        with (self.folder / f"{len(self.processes)}.log").open("w") as log:
            process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if main == "KeyByJob" else log,
                stderr=log,
                text=True,
            )
        self.processes.append(process)
        return process

    def _wait(self, url: str) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(url, timeout=2) as answer:
                    if json.load(answer)["taskmanagers"] == 2:
                        return
            except OSError:
                pass
            time.sleep(0.5)
        logs = "\n".join(p.read_text()[-2000:] for p in sorted(self.folder.glob("*.log")))
        raise RuntimeError(f"Flink's task managers did not come up within {START_S} s:\n{logs}")

    def order(self, line: str) -> list[float]:
        """Have the client run a job, and give what it answers."""
        assert self.client.stdin is not None
        assert self.client.stdout is not None
        self.client.stdin.write(line + "\n")
        self.client.stdin.flush()
        answer = self.client.stdout.readline().split()
        if not answer:
            raise RuntimeError("Flink's client ended: " + (self.folder / "3.log").read_text()[-2000:])
        return [float(word) for word in answer]

    def cpu_s(self) -> float:
        """CPU seconds of both task managers so far."""
        used = 0.0
        for process in self.processes[1:3]:
            times = psutil.Process(process.pid).cpu_times()
            used += times.user + times.system
        return used

    def close(self) -> None:
        """End the JVMs that were started here."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait(30)
        shutil.rmtree(self.folder)

    def __enter__(self) -> FlinkCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

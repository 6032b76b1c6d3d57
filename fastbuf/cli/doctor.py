"""``fastbuf doctor``: what this machine has, what it lacks, and how to fix that."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

OK, WARN, FAIL = "ok", "warn", "fail"
STYLES = {OK: "green", WARN: "yellow", FAIL: "bold red"}
MIB = 1 << 20
SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    thing: str
    state: str
    detail: str
    advice: str = ""


def python() -> Finding:
    """The running Python; this command cannot be installed on one that is too old."""
    return Finding("Python", OK, f"{sys.version.split()[0]}, {sys.executable}")


def extensions() -> Finding:
    """Whether the compiled modules load."""
    try:
        importlib.import_module("fastbuf")
    except ImportError as error:
        return Finding(
            "fastbuf", FAIL, str(error), "in a clone: make build; else: pip install --force-reinstall fastbuf"
        )
    return Finding("fastbuf", OK, f"{_version('fastbuf')}, {Path(__file__).parents[1]}")


def compiler() -> Finding:
    cc = (sysconfig.get_config_var("CC") or "cc").split()[0]
    command = next((path for path in (shutil.which(os.environ.get("CC", "cc")), shutil.which(cc)) if path), None)
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if command is None:
        return Finding("C compiler", WARN, "none", "needed to build from source only: apt-get install gcc libc6-dev")
    if not header.exists():
        return Finding(
            "C compiler", WARN, f"{command}, no {header}", "to build from source: apt-get install python3-dev"
        )
    return Finding("C compiler", OK, command)


def java() -> Finding:
    """Java as Spark looks for it: JAVA_HOME, else PATH."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    advice = "install Java 17 or newer: apt-get install openjdk-17-jre-headless, or sdk install java 17.0.15-tem"
    if command is None and _version("pyspark") is None:
        return Finding("Java", WARN, "not on PATH, JAVA_HOME not set", f"for the Spark modes and the demo: {advice}")
    if command is None:
        return Finding("Java", FAIL, "not on PATH, JAVA_HOME not set", advice)
    try:
        output = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=20, check=False).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("Java", FAIL, f"{command}: {error}", "set JAVA_HOME to a Java 17 or newer")
    match = re.search(r'version "(\d+)[^"]*"', output)
    if match is None:
        return Finding("Java", FAIL, f"{command} does not say its version", advice)
    if int(match[1]) < 17:
        return Finding("Java", FAIL, f"{match[0]}, {command}", advice)
    return Finding("Java", OK, f"{match[0]}, {command}")


def spark() -> Finding:
    version = _version("pyspark")
    if version is None:
        return Finding(
            "PySpark", WARN, "not installed", "for the Spark modes and the demo: pip install 'fastbuf[spark]'"
        )
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
    if not (4, 1) <= numbers <= (4, 3):
        return Finding("PySpark", FAIL, version, "fastbuf_spark is for 4.1 to 4.3: pip install 'fastbuf[spark]'")
    chosen = os.environ.get("PYSPARK_PYTHON")
    if chosen and shutil.which(chosen) is None:
        return Finding(
            "PySpark", FAIL, f"PYSPARK_PYTHON={chosen} is not there", f"export PYSPARK_PYTHON={sys.executable}"
        )
    if chosen and Path(shutil.which(chosen) or chosen).resolve() != Path(sys.executable).resolve():
        return Finding(
            "PySpark", WARN, f"{version}, workers run {chosen}", "that Python must have fastbuf and pyarrow too"
        )
    return Finding("PySpark", OK, version)


def binding() -> Finding:
    if importlib.util.find_spec("fastbuf_spark") is None:
        return Finding("fastbuf_spark", FAIL, "not importable", "in a clone: make build; else: pip install fastbuf")
    return Finding("fastbuf_spark", OK, "importable")


def arrow() -> Finding:
    version = _version("pyarrow")
    if version is None:
        return Finding("pyarrow", WARN, "not installed", "for record batches: pip install 'fastbuf[arrow]'")
    if int(version.split(".")[0]) < 18:
        return Finding("pyarrow", FAIL, version, "18 or newer: pip install -U pyarrow")
    return Finding("pyarrow", OK, version)


def address_space() -> Finding:
    """RLIMIT_AS counts virtual memory: pyarrow alone takes about 350 MiB, and every mapped arena its full size."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return Finding("RLIMIT_AS", OK, "unlimited")
    state = WARN if soft < 1024 * MIB else OK
    advice = "raise ulimit -v, or spark.executor.pyspark.memory, to 1 GiB a worker at least" if state == WARN else ""
    return Finding("RLIMIT_AS", state, _mib(soft), advice)


def shared_memory() -> Finding:
    if not SHM.is_dir():
        return Finding("/dev/shm", WARN, "not there", "not needed by fastbuf, which uses memfd")
    usage = shutil.disk_usage(SHM)
    return Finding(
        "/dev/shm", OK, f"{_mib(usage.free)} free of {_mib(usage.total)} (not used: arenas are memfd or anonymous)"
    )


def memfd() -> Finding:
    if not hasattr(os, "memfd_create"):
        return Finding(
            "memfd", FAIL, "os.memfd_create is missing", "Linux 3.17 and a Python built on glibc 2.27 or newer"
        )
    try:
        descriptor = os.memfd_create("fastbuf-doctor")
    except OSError as error:
        return Finding(
            "memfd", WARN, str(error), "a seccomp profile forbids it; channels between processes will use TCP"
        )
    os.close(descriptor)
    return Finding("memfd", OK, "works")


def descriptors() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1024:
        return Finding("open files", WARN, str(soft), "ulimit -n 4096: each channel to another worker is a socket")
    return Finding("open files", OK, "unlimited" if soft == resource.RLIM_INFINITY else str(soft))


def cores() -> Finding:
    usable = len(os.sched_getaffinity(0))
    if usable < 2:
        return Finding(
            "cores",
            WARN,
            f"{usable} of {os.cpu_count()}",
            "the pipelined mode gains most where both stages can run at once",
        )
    return Finding("cores", OK, f"{usable} of {os.cpu_count()}")


def memory() -> Finding:
    import psutil

    free = psutil.virtual_memory().available
    state = WARN if free < 2048 * MIB else OK
    advice = "the demo wants 2 GiB: Spark's JVM, and a Python worker for each slot" if state == WARN else ""
    return Finding("memory", state, f"{_mib(free)} available of {_mib(psutil.virtual_memory().total)}", advice)


def cgroup() -> Finding:
    """The container's limit, cgroup version 2 or 1; psutil shows the host's memory instead."""
    limit = cgroup_limit()
    if limit is None:
        return Finding("cgroup memory", OK, "no limit")
    state = WARN if limit < 2048 * MIB else OK
    advice = "give the container 2 GiB at least, or lower spark.driver.memory and memory_bytes" if state == WARN else ""
    return Finding("cgroup memory", state, _mib(limit), advice)


def cgroup_limit(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that this process's control group may use, or None if unlimited."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (root / name).read_text().strip()
        except OSError:
            continue
        if text != "max" and int(text) < 1 << 60:  # version 1 writes a huge number for "no limit"
            return int(text)
    return None


CHECKS: tuple[Callable[[], Finding], ...] = (
    python,
    extensions,
    compiler,
    java,
    spark,
    binding,
    arrow,
    address_space,
    shared_memory,
    memfd,
    descriptors,
    cores,
    memory,
    cgroup,
)


def run(console: Console) -> int:
    """Print the table; returns 1 if a check fails."""
    findings = [check() for check in CHECKS]
    table = Table(title="fastbuf doctor", title_justify="left")
    table.add_column("what", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("found", overflow="fold")
    table.add_column("what to do", overflow="fold")
    for f in findings:
        # Escaped: rich would read the [spark] in an advice as a style.
        table.add_row(escape(f.thing), f"[{STYLES[f.state]}]{f.state}[/]", escape(f.detail), escape(f.advice))
    console.print(table)
    failed = [f.thing for f in findings if f.state == FAIL]
    warned = [f.thing for f in findings if f.state == WARN]
    if failed:
        console.print(f"Fails: {', '.join(failed)}.", style=STYLES[FAIL])
    elif warned:
        console.print(f"Works; look at: {', '.join(warned)}.", style=STYLES[WARN])
    else:
        console.print("All is well.", style=STYLES[OK])
    return 1 if failed else 0


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"

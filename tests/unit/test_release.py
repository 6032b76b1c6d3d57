"""What a release says of itself in several files is the same in all of them, and what they call is there."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fastbuf

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
VERSIONS = ["3.11", "3.12", "3.13", "3.14"]  #: of CPython, for which wheels are made


def notes(*arguments: str) -> str:
    script = [sys.executable, str(ROOT / ".ci" / "notes.py"), *arguments]
    return subprocess.run(script, capture_output=True, text=True, check=True).stdout


def test_the_version_stands_in_one_place() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "fastbuf.__version__"}
    assert notes("--version").strip() == fastbuf.__version__


def test_the_notes_of_a_release_are_its_part_of_the_changelog() -> None:
    text = notes()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert text.startswith(f"# fastbuf {fastbuf.__version__}\n\n### ")
    assert "\n## " not in text
    assert text.partition("\n\n")[2].strip() in changelog


def test_the_changelog_tells_what_breaks() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    breaks = re.search(r"^### What breaks against 0\.1\n(.*?)^##", text, re.DOTALL | re.MULTILINE)
    assert breaks
    assert breaks[1].strip().startswith("- ")


def test_every_file_names_the_same_pythons() -> None:
    prefix = "Programming Language :: Python :: "
    classified = [c.removeprefix(prefix) for c in PROJECT["project"]["classifiers"] if c.startswith(prefix + "3.")]
    assert classified == VERSIONS
    built = PROJECT["tool"]["cibuildwheel"]["build"].split()
    assert built == [f"cp{version.replace('.', '')}-*" for version in VERSIONS]
    (matrix,) = re.findall(r"python: \[(.*)\]", (ROOT / ".github/workflows/ci.yml").read_text())
    assert matrix.replace('"', "").split(", ") == VERSIONS
    for script in ("need", "wheels"):
        looked_for = re.findall(r"python(3\.\d+)", (ROOT / ".ci" / script).read_text())
        assert set(VERSIONS) <= set(looked_for), script


def test_the_oldest_versions_are_known_and_said() -> None:
    """Those that .ci/wheels tries; a package without one would come in its newest version."""
    script = [sys.executable, str(ROOT / ".ci" / "floors.py"), "spark"]
    pins = dict(pin.split("==") for pin in subprocess.check_output(script, text=True).split())
    assert set(pins) == {"numpy", "pyarrow", "pyspark", "cloudpickle", "pandas"}
    platforms = (ROOT / "docs/reference/platforms.md").read_text()
    for package, name in (("numpy", "NumPy"), ("pyarrow", "pyarrow"), ("pyspark", "PySpark")):
        assert re.search(rf"^\| {name} \| {re.escape(pins[package])}\b", platforms, re.MULTILINE), package


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_workflows_call_what_the_makefile_has(path: Path) -> None:
    called = set(re.findall(r"run: make (\S+)", path.read_text()))
    kinds = re.findall(r"kind: \[(.*)\]", path.read_text())
    if "${{" in called:
        called = {f"{kind}-test" for kind in kinds[0].split(", ")} | called - {"${{"}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert called
    assert called <= targets


def test_there_is_a_workflow_for_changes_nights_and_tags() -> None:
    text = {path.stem: path.read_text() for path in WORKFLOWS}
    assert "pull_request" in text["ci"]
    assert "schedule" in text["nightly"]
    assert 'tags: ["v*"]' in text["wheels"]


def test_hooks_before_a_commit_run_what_lint_runs() -> None:
    """The same tools as ``make lint``, out of the same environment."""
    entries = re.findall(r"entry: (.*)", (ROOT / ".pre-commit-config.yaml").read_text())
    tools = set(re.findall(r"\$\(BIN\)/(ruff check|ruff format|mypy|cython-lint)", (ROOT / "Makefile").read_text()))
    assert len(tools) == 4
    assert {tool for tool in tools if not any(tool in entry for entry in entries)} == set()

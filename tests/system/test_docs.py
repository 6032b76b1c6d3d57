"""Every Python example of README.md and docs/ runs.

The examples of one page share a namespace and a session of Spark, in order, as a reader would type them.  All pages run
in one process, those with the same master on one SparkContext, so that Spark starts once for each.  By night also those
that wait for verdicts of the monitor, and most of the cookbook.  A block in
``python`` fences is run unless it has a title: then it is a file, which another test uses.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from nights import LONG, nightly

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```python[ ]*\n(.*?)^```", re.DOTALL | re.MULTILINE)

RUNNER = """
import json, sys, traceback
from pyspark.sql import SparkSession

stop, SparkSession.stop = SparkSession.stop, lambda session: None  # a page's last line, and the next page goes on

def on_to(master):
    '''A session with no settings, no tables and no cache of the page before, on its context if that has this master.'''
    before = SparkSession._instantiatedSession
    if before is None:
        return
    if before.sparkContext.master != master:
        stop(before)
        return
    before.catalog.clearCache()
    SparkSession._instantiatedSession = SparkSession._activeSession = fresh = before.newSession()
    java = SparkSession._get_j_spark_session_class(fresh._jvm)
    java.setDefaultSession(fresh._jsparkSession)
    java.setActiveSession(fresh._jsparkSession)

outcomes = {}
for page, master, blocks in json.load(open(sys.argv[1])):
    on_to(master)
    space = {"__name__": "__main__"}
    for number, (line, code) in enumerate(blocks):
        name = f"{page}:{line}"
        try:
            exec(compile("\\n" * line + code, page, "exec"), space)
            outcomes[name] = ""
        except BaseException:
            outcomes[name] = traceback.format_exc()
            on_to(None)                              # who knows in what state it is
            break                                    # what follows on the page builds on it
on_to(None)
json.dump(outcomes, open(sys.argv[2], "w"))
"""


def blocks_of(page: Path) -> list[tuple[int, str]]:
    text = page.read_text()
    return [(text.count("\n", 0, match.start()) + 1, match[1]) for match in FENCE.finditer(text)]


def master_of(blocks: list[tuple[int, str]]) -> str | None:
    """What the page gives Spark's builder; None: it has no Spark."""
    found = re.search(r'[.]master\("(.*?)"\)', "".join(code for _, code in blocks))
    return found[1] if found else None


EXAMPLES = {str(page.relative_to(ROOT)): blocks_of(page) for page in PAGES}
#: Half a minute, and jobs of verbs that the how-tos have too
BY_NIGHT = (
    "docs/howto/find-the-slow-stage.md",
    *(f"docs/cookbook/{name}.md" for name in ("compaction", "delta-compaction", "embeddings", "features")),
    *(f"docs/cookbook/{name}.md" for name in ("near-duplicates", "sessions", "top-k", "train-test")),
)
# Each change of the master is another Spark
ORDERED = sorted(
    ((name, master_of(blocks), blocks) for name, blocks in EXAMPLES.items() if LONG or name not in BY_NIGHT),
    key=lambda one: str(one[1]),
)
OPTIONAL = {"deltalake": "delta", "pyiceberg": "iceberg"}  # packages that a page may need, and their extras
NAMES = [f"{page}:{line}" for page, blocks in EXAMPLES.items() for line, _ in blocks]
OF_NIGHT = [name for name in NAMES if name.startswith(BY_NIGHT)]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("docs")
    (folder / "runner.py").write_text(RUNNER)
    (folder / "examples.json").write_text(json.dumps(ORDERED))
    done = subprocess.run(
        [sys.executable, "runner.py", "examples.json", "outcomes.json"],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "outcomes.json").read_text())  # type: ignore[no-any-return]


def test_there_are_examples() -> None:
    assert any(name.startswith("README.md") for name in NAMES)
    assert any(name.startswith("docs/tutorial.md") for name in NAMES)


@pytest.mark.spark
@pytest.mark.timeout(600)
@nightly(name=OF_NIGHT)
@pytest.mark.parametrize("name", NAMES)
def test_example_runs(name: str, outcomes: dict[str, str]) -> None:
    code = "".join(block for _, block in EXAMPLES[name.rpartition(":")[0]])
    for package, extra in OPTIONAL.items():
        if re.search(rf"^(from|import) {package}\b", code, re.MULTILINE) and find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install 'fastbuf[{extra}]'")
    assert name in outcomes, "an example before it on the page failed"
    assert outcomes[name] == "", outcomes[name]


TITLED = re.compile(r"^```python title=\"(spawned|forked|service)\.py\"\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "where", "printed"),
    [
        ("spawned", "faster-than-a-queue", "2000 records\n"),
        ("forked", "faster-than-a-queue", None),
        ("service", "keep-a-service-running", None),
    ],
    ids=["spawned", "forked", "service"],
)
def test_the_programs_between_processes_print_what_the_page_says(
    name: str, where: str, printed: str | None, tmp_path: Path
) -> None:
    page = (ROOT / f"docs/howto/{where}.md").read_text()
    programs = dict(TITLED.findall(page))
    if printed is None:
        printed = re.findall(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[0]
    (tmp_path / f"{name}.py").write_text(programs[name])
    done = subprocess.run(
        [sys.executable, f"{name}.py"], capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == printed


def test_links_between_pages_lead_somewhere() -> None:
    dead = []
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not (page.parent / target).exists():
                dead.append(f"{page.relative_to(ROOT)} -> {target}")
    assert dead == []


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = (ROOT / "mkdocs.yml").read_text()
    assert [
        str(p.relative_to(ROOT / "docs")) for p in PAGES[1:] if str(p.relative_to(ROOT / "docs")) not in contents
    ] == []

"""Where to change what: small patches make such changes, and the table in ARCHITECTURE.md names the files of each.

A patch begins with the row that it is of.  By day it is applied to the files that it touches, and those are compared
with the row.  At night it is applied to a copy of the tree, what it changes is built, and its own tests run there.

To bring a patch up to date: apply it with ``git apply --reject``, mend it, run its tests, and write it down with
``git diff -U1`` behind its first lines.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nights import nightly

ROOT = Path(__file__).resolve().parents[2]
PATCHES = sorted((ROOT / "tests" / "changes").glob("*.patch"))
#: A path of the table may leave out these
BELOW = ("", "fastbuf", "bindings", "bindings/fastbuf_spark")
PATH = re.compile(r"`([\w./-]+\.(?:py|pyx|pxd|pyi|h|js|md))`")
#: From what is imported to what imports it: a changed map is built into all that stand behind it
ROOMS = ("_native", "memory", "serializers", "flow", "exchange", "transports")
TREE = ("fastbuf", "bindings", "tests", "docs", "benches")


def the_file(path: str) -> Path:
    """The file that the table means."""
    found = [at for below in BELOW if (at := ROOT / below / path).is_file()]
    assert len(found) == 1, f"ARCHITECTURE.md says {path!r}: that is {len(found)} files, {found}"
    return found[0].relative_to(ROOT)


def table() -> dict[str, tuple[str, str]]:
    """By what is changed: the cell with the files to change, and the one with those to look at."""
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## Where to change what")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {what: (change, look) for what, change, look in rows[2:]}


def row_of(patch: Path) -> str:
    return patch.read_text().partition("\n")[0]


def paths_in(patch: Path) -> dict[Path, bool]:
    """The files of a patch, and whether each is new."""
    pairs = re.findall(r"^--- (\S+)\n\+\+\+ b/(\S+)$", patch.read_text(), re.MULTILINE)
    return {Path(path): before == "/dev/null" for before, path in pairs}


def apply(patch: Path, at: Path) -> None:
    git = shutil.which("git")
    command = [git, "apply", "--whitespace=nowarn", str(patch)] if git else ["patch", "-p1", "-s", "-i", str(patch)]
    # Below another repository's tree git would leave out what is not in that
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(at.parent)}
    done = subprocess.run(command, cwd=at, env=env, capture_output=True, text=True, check=False)
    told = done.stdout + done.stderr
    assert done.returncode == 0, f"tests/changes/{patch.name} does not fit any more: bring it up to date\n{told}"


def by_name(patch: Path) -> str:
    return patch.stem


@pytest.mark.parametrize("patch", PATCHES, ids=by_name)
def test_the_map_names_the_files_of_a_change(patch: Path, tmp_path: Path) -> None:
    paths = paths_in(patch)
    for path in (path for path, is_new in paths.items() if not is_new):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    apply(patch, tmp_path)
    for path in paths:
        assert (tmp_path / path).is_file(), path
        if path.suffix == ".py":
            compile((tmp_path / path).read_text(), str(path), "exec")
    touched = {str(path) for path, is_new in paths.items() if not is_new and path.parts[0] != "tests"}
    named = {str(the_file(path)) for path in PATH.findall(table()[row_of(patch)][0])}
    assert touched == named, (
        f"tests/changes/{patch.name} and the row {row_of(patch)!r} of ARCHITECTURE.md differ: bring the map up to date "
        "if the change needs other files now, else the patch"
    )


def test_what_is_out_of_date_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row without one of its files, and a patch of lines that are no longer there."""
    patch = PATCHES[0]
    change, look = table()[row_of(patch)]
    first = PATH.findall(change)[0]
    with monkeypatch.context() as changed:
        changed.setattr(sys.modules[__name__], "table", lambda: {row_of(patch): (change.replace(first, ""), look)})
        with pytest.raises(AssertionError, match="bring the map up to date"):
            test_the_map_names_the_files_of_a_change(patch, tmp_path)
    old = tmp_path / "old.patch"
    old.write_text(patch.read_text().replace("\n ", "\n x"))
    with pytest.raises(AssertionError, match=r"old\.patch does not fit any more"):
        test_the_map_names_the_files_of_a_change(old, tmp_path)


def test_each_change_brings_a_test_of_its_own() -> None:
    assert len({row_of(patch) for patch in PATCHES}) == len(PATCHES) >= 8
    for patch in PATCHES:
        assert row_of(patch) in table(), patch.name
        assert own_tests(patch, new_alone=True), patch.name


def test_all_files_of_the_map_are_there() -> None:
    rows = table()
    assert len(rows) > 8
    for what, cells in rows.items():
        assert PATH.findall(cells[0]), what
        for path in PATH.findall(" ".join(cells)):
            the_file(path)


def own_tests(patch: Path, new_alone: bool = False) -> list[str]:
    return [
        str(path)
        for path, is_new in paths_in(patch).items()
        if path.name.startswith("test_") and path.suffix == ".py" and (is_new or not new_alone)
    ]


def built_for(patch: Path) -> set[str]:
    """The modules to build, as FASTBUF_ONLY has them: what is changed, and what is behind a map that is."""
    only = set()
    for path, is_new in paths_in(patch).items():
        if path.suffix == ".pyx":
            only.add(".".join(path.with_suffix("").parts))
        elif path.suffix in (".pxd", ".h") and not is_new:
            only |= {f"fastbuf.{room}." for room in ROOMS[ROOMS.index(path.parts[1]) :]}
    return only


def copy_of_the_tree(at: Path) -> Path:
    at.mkdir()
    for folder in TREE:
        shutil.copytree(ROOT / folder, at / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, at)
    return at


@nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("patch", PATCHES, ids=by_name)
def test_a_change_works(patch: Path, tmp_path: Path) -> None:
    if not list(ROOT.glob("fastbuf/*/*.so")):
        pytest.skip("the extensions are not built in place")
    tree = copy_of_the_tree(tmp_path / "tree")
    apply(patch, tree)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), str(tree / "bindings")]), "FASTBUF_LONG": ""}
    if only := built_for(patch):
        env |= {"FASTBUF_ONLY": ",".join(sorted(only)), "FASTBUF_CFLAGS": "-O0"}
        in_a_copy([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], tree, env)
    in_a_copy([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *own_tests(patch)], tree, env)
    shutil.rmtree(tree)


def in_a_copy(command: list[str], tree: Path, env: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{(done.stdout + done.stderr)[-20_000:]}"

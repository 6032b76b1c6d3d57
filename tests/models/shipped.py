"""Builds scenarios of ``checker/`` from the code that ships, or from a copy with one mutation, and runs them."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECKER = Path(__file__).resolve().parent / "checker"
CALLS = ("syscall", "clock_gettime", "sched_yield", "memcpy", "memset", "eventfd_write")
LOCKS = ("lock", "trylock", "unlock")
FLAGS = [
    *("-std=gnu11", "-O1", "-g", "-w"),
    *("-include", "pthread.h", "-include", "string.h"),  # before the names in them mean the checker's
    *(f"-D{name}=checked_{name}" for name in CALLS),
    *(f"-Dpthread_mutex_{name}=checked_mutex_{name}" for name in LOCKS),
]
DIRECTIVES = "boundscheck=False,wraparound=False,cdivision=True,initializedcheck=False"


Change = tuple[str, str, str]  #: a file of the package, a text in it, and what stands there instead


@dataclass(frozen=True)
class Scenario:
    """What is compiled, and how far it is looked at.

    ``parts`` are files of ``checker/`` with the Cython modules whose C they include.  ``preemptions`` and ``stale``
    bound how often a thread that could go on is interrupted, and how often a load gives another value than the newest.
    ``sizes`` makes a size small, so that the end of a ring is reached.
    """

    name: str
    parts: tuple[tuple[str, tuple[str, ...]], ...]
    defines: tuple[str, ...] = ()
    preemptions: int = 2
    stale: int = 2
    sizes: Change | None = None


def _compiler() -> str:
    return os.environ.get("CC") or str(sysconfig.get_config_var("CC")).split()[0]


@functools.cache
def _scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="fastbuf-checker-"))


def clean() -> None:
    """Removes what was built."""
    if _scratch.cache_info().currsize:
        shutil.rmtree(_scratch(), ignore_errors=True)
        _scratch.cache_clear()
        _checker.cache_clear()
        _tree.cache_clear()
        _object.cache_clear()


@functools.cache
def _checker() -> Path:
    made = _scratch() / "checker.o"
    subprocess.run(
        [_compiler(), "-std=gnu11", "-O2", "-g", "-c", str(CHECKER / "checker.c"), "-o", str(made)], check=True
    )
    return made


@functools.cache
def _tree(changes: tuple[Change, ...]) -> Path:
    """The sources, with texts in some files replaced by others."""
    tree = _scratch() / f"tree{_tree.cache_info().currsize}"
    shutil.copytree(
        ROOT / "fastbuf",
        tree / "fastbuf",
        ignore=shutil.ignore_patterns("*.c", "*.so", "__pycache__", "cli", "monitor"),
    )
    for name, old, new in changes:
        path = tree / "fastbuf" / name
        text = path.read_text()
        if old not in text:
            raise ValueError(f"{name} has no {old!r}: a mutation needs one")
        path.write_text(text.replace(old, new))
    return tree


@functools.cache
def _object(part: str, modules: tuple[str, ...], defines: tuple[str, ...], changes: tuple[Change, ...]) -> Path:
    tree = _tree(changes)
    for module in modules:
        source = tree / "fastbuf" / module
        if not source.with_suffix(".c").exists():
            command = [sys.executable, "-m", "cython", "-3", "-X", DIRECTIVES, str(source.relative_to(tree))]
            subprocess.run(command, check=True, cwd=tree, capture_output=True)
    built = tree / f"{part}-{'-'.join(defines)}.o"
    include = [tree, tree / "fastbuf/_native", CHECKER, sysconfig.get_paths()["include"]]
    command = [_compiler(), *FLAGS, *(f"-I{path}" for path in include), *(f"-D{x}" for x in defines)]
    subprocess.run([*command, "-fsanitize=thread", "-c", str(CHECKER / f"{part}.c"), "-o", str(built)], check=True)
    return built


def explore(scenario: Scenario, mutation: Change | None = None) -> tuple[int, str]:
    """Runs a scenario: the exit code (0: no fault, 1: a fault, 2: not all was looked at), and what it says."""
    base = (scenario.sizes,) if scenario.sizes else ()
    objects = []
    for part, modules in scenario.parts:
        # What stands in a module is in that one alone
        untouched = mutation is None or (mutation[0].endswith(".pyx") and mutation[0] not in modules)
        changes = base if untouched else (*base, mutation)
        objects.append(_object(part, modules, scenario.defines, changes))
    program = _scratch() / "scenario"
    # Of the modules' Python nothing runs, so nothing of it need be there
    link = [_compiler(), *map(str, objects), str(_checker()), "-no-pie", "-Wl,--unresolved-symbols=ignore-all"]
    subprocess.run([*link, "-o", str(program)], check=True)
    done = subprocess.run(
        [str(program), str(scenario.preemptions), str(scenario.stale)], capture_output=True, text=True, timeout=250
    )
    return done.returncode, done.stdout

"""Builds the Cython extensions; everything else about the package stands in pyproject.toml.

Environment
-----------
FASTBUF_DEBUG=1
    Bounds checks, assertions and poison on recycled segments.
FASTBUF_SANITIZE=thread|address
    Builds with that sanitizer; run with its runtime in LD_PRELOAD.
FASTBUF_CFLAGS="-O0"
    More options for the C compiler, after its own: the last one holds.
FASTBUF_ONLY=fastbuf.memory,fastbuf.flow
    Builds only the modules below these packages.
"""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("FASTBUF_DEBUG") == "1"
SANITIZE = os.environ.get("FASTBUF_SANITIZE", "")
ONLY = tuple(p for p in os.environ.get("FASTBUF_ONLY", "").split(",") if p)
WHEEL = "bdist_wheel" in sys.argv  # what only the tests and benches of a clone import (_testing) is not shipped

COMPILE = ["-std=c11", "-fvisibility=hidden", "-Wall", "-Wno-unused-function", "-Wno-unreachable-code"]
LINK = ["-pthread"]
SHARED = "fastbuf._cyutility"  # what Cython needs for memoryviews: made once, not in each of the modules that have some
if SANITIZE:
    COMPILE += ["-O1", "-g1", "-fno-omit-frame-pointer"]  # lines are all that its reports name
elif DEBUG:
    COMPILE += ["-O1", "-g", "-fno-omit-frame-pointer"]
else:
    COMPILE += ["-O3", "-g0"]
if SANITIZE:
    COMPILE.append(f"-fsanitize={SANITIZE}")
    LINK.append(f"-fsanitize={SANITIZE}")
COMPILE += os.environ.get("FASTBUF_CFLAGS", "").split()


def extensions() -> list[Extension]:
    found = []
    for source in sorted(Path("fastbuf").rglob("*.pyx")):
        name = ".".join(source.with_suffix("").parts)
        if WHEEL and source.stem == "_testing":
            continue
        if ONLY and not name.startswith(ONLY):
            continue
        found.append(
            Extension(
                name,
                [str(source)],
                include_dirs=["fastbuf/_native"],
                depends=[str(h) for h in Path("fastbuf/_native").glob("*.h")],
                extra_compile_args=COMPILE,
                extra_link_args=LINK,
                define_macros=[("FASTBUF_DEBUG", "1")] if DEBUG else [],
            )
        )
    return found


def translated() -> list[Extension]:
    """The extensions, with C made of them where it is missing or old."""
    found = extensions()
    if found:
        shared = SHARED.replace(".", "/") + ".c"
        found.append(Extension(SHARED, [shared], extra_compile_args=COMPILE, extra_link_args=LINK))
    return cythonize(
        found,
        shared_utility_qualified_name=SHARED,
        # Forked helpers: from 3.14 on Python no longer forks them by default, and this file is not importable.
        nthreads=0 if ONLY or sys.version_info >= (3, 14) else os.cpu_count() or 1,
        compiler_directives={
            "language_level": 3,
            "binding": False,
            "embedsignature": True,
            "embedsignature.format": "clinic",  # what inspect.signature and help() read
            "boundscheck": DEBUG,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": DEBUG,
            "freethreading_compatible": False,
        },
        show_all_warnings=False,
    )


# What only describes the package, or packs its sources, needs no C; and an sdist must not carry any.
DESCRIBES = len(sys.argv) > 1 and sys.argv[1] in ("egg_info", "dist_info", "sdist")

setup(
    ext_modules=extensions() if DESCRIBES else translated(),
    # A C compiler per core: the modules are many and independent.
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
)

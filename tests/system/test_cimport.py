"""Cython code of users: the page's package builds against the tree; ``test_wheel`` has it against the wheel."""

from __future__ import annotations

from pathlib import Path

from cimports import ROOT, build_and_use

import fastbuf as fb


def test_a_package_builds_against_the_tree(tmp_path: Path) -> None:
    """``fastbuf.get_include()`` and the ``.pxd`` files are all that a Cython module of a user needs."""
    build_and_use(tmp_path, ROOT)


def test_the_headers_are_where_it_says() -> None:
    folder = Path(fb.get_include())
    named = {"fb_atomic.h", "fb_event.h", "fb_columns.h"}
    assert named <= {path.name for path in folder.iterdir()}

"""What PyInstaller must know to put fastbuf into a program; it looks for this by the entry point ``pyinstaller40``."""

from __future__ import annotations

from pathlib import Path


def hook_directories() -> list[str]:
    """Where ``hook-fastbuf.py`` is."""
    return [str(Path(__file__).parent)]

"""Formats of files: a module, with one class, for each."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from fastbuf_spark.formats.base import Format

#: The class of each format, by the name of its module, by which readers and options know it too.
CLASSES = {
    "parquet": "Parquet",
    "csv": "Csv",
    "json": "Json",
    "ipc": "Ipc",
    "orc": "Orc",
    "avro": "Avro",
}


def format_of(name: str, options: Mapping[str, str]) -> Format:
    """A format, as these options of a reader have it."""
    kind: type[Format] = getattr(import_module(f"{__name__}.{name}"), CLASSES[name])
    return kind.of(options)

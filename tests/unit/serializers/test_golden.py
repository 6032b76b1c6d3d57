"""The format as it was fixed: golden blocks of all kinds, made and read, and the examples of docs/format.md.

A difference here means that blocks written by a release can no longer be read by the next: the format then gets a new
version, and these files stay for the old one.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import pytest
from golden_cases import EVERY, FOLDER, OBJECTS, RECORDS, Outside, as_hex, batch, blocks, golden

from fastbuf.serializers import ColumnarSerializer, PickledSerializer, RowSerializer, Schema
from fastbuf.serializers.block import HEADER_BYTES
from fastbuf.serializers.schema_types import KINDS

pa = pytest.importorskip("pyarrow", reason="columns need pyarrow")
NAMES = sorted(path.stem for path in FOLDER.glob("*.hex"))
DOC = Path(__file__).resolve().parents[3] / "docs" / "format.md"


def test_there_is_a_file_for_each_and_a_case_for_each_type() -> None:
    assert sorted(blocks()) == NAMES
    assert {field.type.kind for field in EVERY} == KINDS


@pytest.mark.parametrize("name", NAMES)
def test_blocks_are_made_as_ever(name: str) -> None:
    assert as_hex(blocks()[name]) == as_hex(golden(name))


@pytest.mark.parametrize("name", NAMES)
def test_blocks_of_old_are_read(name: str) -> None:
    block = golden(name)
    if name.startswith("rows"):
        wanted: Any = [] if "empty" in name else RECORDS
        assert RowSerializer(EVERY).loads(block) == wanted
        assert [row.as_tuple() for row in RowSerializer(EVERY).view(block, key="i8")] == wanted
    elif name.startswith("columns"):
        data = {"columns": batch(), "columns-checksum": batch().slice(1)}.get(name, batch().slice(0, 0))
        found = ColumnarSerializer(EVERY).loads(block)
        found.validate(full=True)
        assert found.schema == data.schema
        assert found.to_pylist() == data.to_pylist()
    else:
        found = PickledSerializer().loads(block)
        outside = bytearray(range(256)) * 16
        assert found == ([] if "empty" in name else [outside if isinstance(o, Outside) else o for o in OBJECTS])


def test_header_is_as_drawn() -> None:
    block = golden("rows-checksum")
    fields = struct.unpack("<4sHBBQQII", block[:HEADER_BYTES])
    assert fields[:5] == (b"FBUF", 1, 1, 1, EVERY.fingerprint)
    assert fields[5:7] == (len(block) - HEADER_BYTES, 2)


def example(name: str) -> bytes:
    """The bytes of the example of docs/format.md that begins with a sentence; what follows two blanks is comment."""
    text = DOC.read_text()
    after = text[text.index(name) :]
    lines = re.search(r"```\n(.*?)```", after, re.DOTALL)
    assert lines
    return b"".join(bytes.fromhex(re.split(r" {3,}", line.strip())[0]) for line in lines[1].splitlines())


@pytest.mark.skipif(not DOC.exists(), reason="this copy of the tests came without the docs")
def test_examples_of_the_page() -> None:
    schema = Schema.of(id="int32", name="string?", vec="list<float32>", flag="bool")
    assert RowSerializer(schema).dumps([(7, "ab", [1.5], True)])[HEADER_BYTES:] == example("Example: `Schema.of(id=")
    assert PickledSerializer(group=1).dumps([None, 7])[HEADER_BYTES:] == example("Example: `PickledSerializer(group=1)")
    columns = pa.record_batch({"id": pa.array([1, 2, 3], pa.int16()), "name": ["ab", None, "c"]})
    assert ColumnarSerializer().dumps(columns)[HEADER_BYTES:] == example("Example: a batch of three rows")
    assert Schema.of(id="int64", name="string?", vec="list<float32>").fingerprint == int(
        re.search(r"`0x([0-9A-F]{16})`", DOC.read_text())[1], 16
    )

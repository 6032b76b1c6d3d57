"""Delta tables as other writers make them: by deltalake, and by a log written by hand."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def by_hand(
    folder: Path,
    table: pa.Table,
    *,
    reader_features: Sequence[str] = (),
    configuration: Mapping[str, str] = {},
    deleted: Sequence[int] = (),
    metadata: Mapping[str, Any] = {},
    name: str = "a b.parquet",
) -> None:
    """A table of one file and one commit; ``deleted``: rows that its deletion vector has."""
    from deltalake import Schema

    (folder / "_delta_log").mkdir(parents=True)
    pq.write_table(table, folder / name)
    schema = json.loads(Schema.from_arrow(table.schema).to_json())
    for field in schema["fields"]:
        field["metadata"] |= metadata
    add: dict[str, Any] = {
        "path": name.replace(" ", "%20"),
        "partitionValues": {},
        "size": (folder / name).stat().st_size,
        "modificationTime": 1,
        "dataChange": True,
        "stats": json.dumps({"numRecords": len(table), "tightBounds": False}),
    }
    if deleted:
        raw = _deletion_vector(deleted)
        add["deletionVector"] = {
            "storageType": "i",
            "pathOrInlineDv": _z85(raw),
            "sizeInBytes": len(raw),
            "cardinality": len(deleted),
        }
    features = {"readerFeatures": list(reader_features), "writerFeatures": list(reader_features)}
    told = {
        "id": "a-table",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "configuration": dict(configuration),
        "createdTime": 1,
    }
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    lines = [{"protocol": protocol}, {"metaData": told}, {"add": add}]
    log = folder / "_delta_log" / f"{0:020d}.json"
    log.write_text("\n".join(map(json.dumps, lines)))


def _deletion_vector(rows: Sequence[int]) -> bytes:
    """A RoaringBitmapArray of one array container, as Delta's protocol has it."""
    container = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + struct.pack(f"<{len(rows)}H", *rows)
    return struct.pack("<IQI", 1681511377, 1, 0) + container


def _z85(raw: bytes) -> str:
    raw += b"\0" * (-len(raw) % 4)
    words = struct.unpack(f">{len(raw) // 4}I", raw)
    return "".join(_Z85[word // 85**power % 85] for word in words for power in (4, 3, 2, 1, 0))

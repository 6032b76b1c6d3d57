"""Iceberg tables as other writers make them: by pyiceberg, and deletes that it does not write itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def home(folder: Path) -> tuple[dict[str, str], Any]:
    """A catalog in a file below a folder, and its properties."""
    from pyiceberg.catalog import load_catalog

    properties = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("a")
    return properties, catalog


def rows_of(catalog: Any, name: str = "a.t") -> list[dict[str, Any]]:
    """What pyiceberg reads."""
    return catalog.load_table(name).scan().to_arrow().to_pylist()  # type: ignore[no-any-return]


def delete_rows(table: Any, places: Mapping[str, Sequence[int]], equality: bool = False) -> None:
    """Add a file of deletes: rows of data files by their numbers, or by their values."""
    from pyiceberg.manifest import (
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestContent,
        ManifestEntry,
        ManifestEntryStatus,
        ManifestWriterV2,
    )
    from pyiceberg.table.snapshots import Operation
    from pyiceberg.table.update.snapshot import _FastAppendFiles
    from pyiceberg.typedef import Record

    pairs = sorted((path, row) for path, rows in places.items() for row in rows)
    made = pa.table({"file_path": [path for path, _ in pairs], "pos": [row for _, row in pairs]})
    path = f"{table.location_provider().data_path}/deletes-{len(table.snapshots())}.parquet"
    with table.io.new_output(path).create() as sink:
        pq.write_table(made, sink)
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES if equality else DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(made),
        file_size_in_bytes=len(table.io.new_input(path)),
        equality_ids=[1] if equality else None,
        spec_id=0,
    )

    class Deletes(ManifestWriterV2):
        def content(self) -> ManifestContent:
            return ManifestContent.DELETES

        @property
        def _meta(self) -> dict[str, str]:
            return {**super()._meta, "content": "deletes"}

    class Append(_FastAppendFiles):
        def _manifests(self) -> list[Any]:
            output, spec = self.new_manifest_output(), table.metadata.spec()
            with Deletes(spec, table.schema(), output, self.snapshot_id, "null") as writer:
                entry = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=self.snapshot_id, data_file=file
                )
                writer.add(entry)
            return [writer.to_manifest_file(), *self._existing_manifests()]

    transaction = table.transaction()
    Append(Operation.DELETE, transaction, table.io).commit()
    transaction.commit_transaction()

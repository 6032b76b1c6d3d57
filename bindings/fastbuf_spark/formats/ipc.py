"""Arrow's own files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastbuf.errors import SchemaError
from fastbuf_spark.formats.base import Scanned
from fastbuf_spark.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class Ipc(Scanned):
    """Arrow IPC files."""

    name = "ipc"
    title = "Arrow IPC"
    suffix = "arrow"
    codecs = ("lz4", "zstd", "none")

    def layout(self) -> Any:
        import pyarrow.dataset as ds

        return ds.IpcFileFormat()

    def fields(self, fragment: Any) -> pa.Schema | None:
        import pyarrow as pa

        try:
            return super().fields(fragment)
        except pa.ArrowInvalid as error:
            raise SchemaError(
                f"{fragment.path}: {error}; read_ipc reads Arrow's files (pyarrow.ipc.new_file, Feather version 2), "
                "and not its streams"
            ) from error

    def schema_in_files(self, struct: StructType, zone: str, version: str) -> pa.Schema:
        return arrow_schema(struct, zone)

    def writer(self, sink: Any, schema: pa.Schema, compression: str, **options: Any) -> IpcWriter:
        return IpcWriter(sink, schema, compression)


class IpcWriter:
    """Writes a file, a record batch at a time."""

    def __init__(self, sink: Any, schema: pa.Schema, compression: str) -> None:
        import pyarrow as pa

        options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
        self._writer = pa.ipc.new_file(sink, schema, options=options)

    def write(self, table: pa.Table, rows: int) -> None:
        """Write record batches."""
        self._writer.write_table(table.combine_chunks(), max_chunksize=rows)

    def close(self) -> None:
        """Write where the batches are."""
        self._writer.close()

    def abandon(self) -> None:
        """Nothing is left to do."""

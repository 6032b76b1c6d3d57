"""Arrow's own files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastbuf.errors import SchemaError
from fastbuf_spark.formats.base import Scanned

if TYPE_CHECKING:
    import pyarrow as pa


class Ipc(Scanned):
    """Arrow IPC files."""

    name = "ipc"
    title = "Arrow IPC"

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

"""Lines of JSON, with one object each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from json import loads
from typing import TYPE_CHECKING, Self

from fastbuf_spark.formats.lines import BLANK, Lines, text_of

if TYPE_CHECKING:
    import pyarrow as pa

_LAST_NULL = re.compile(rb"\}\s*null")


@dataclass(frozen=True)
class Json(Lines):
    """Lines with one JSON object each."""

    name = "json"
    title = "JSON"
    nested = True

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        return cls(text_of(options))

    def has_text(self, kind: pa.DataType) -> bool:
        import pyarrow as pa

        return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))

    def bodies(self, blocks: Iterator[bytes], path: str) -> Iterator[bytes]:
        return (block for block in blocks if block.strip(BLANK))

    def table(self, block: bytes, fields: pa.Schema) -> pa.Table:
        """The rows of whole lines."""
        import pyarrow as pa
        import pyarrow.json as json

        number = block.count(b"\n")
        if not block.startswith(b"{") or block.count(b"\n{") != number - 1 or _LAST_NULL.search(block):
            lines = [line.strip(BLANK) for line in block.splitlines()]
            number = sum(map(bool, lines))
            for line in lines:
                if line and not line.startswith(b"{"):
                    raise pa.ArrowInvalid(f"a line is no JSON object: {line[:100].decode()!r}")
                if _LAST_NULL.search(line):
                    loads(line)  # Arrow's parser would end the process at a null that is in no object
        read = json.ReadOptions(block_size=len(block) + 1, use_threads=False)
        parse = json.ParseOptions(explicit_schema=fields, unexpected_field_behavior="ignore")
        table = json.read_json(pa.BufferReader(block), read, parse)
        if table.num_rows != number:
            raise pa.ArrowInvalid("a line has several JSON objects, or an object several lines")
        return table.select(fields.names)

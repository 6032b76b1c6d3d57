"""Files of lines, with values or JSON: parsed block by block.  Each is read by one task."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fastbuf.errors import ConfigError, SchemaError, SchemaMismatch
from fastbuf_spark.formats.base import Format
from fastbuf_spark.schema import types_in
from fastbuf_spark.worker.patterns import form_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from fastbuf_spark.driver.files import File
    from fastbuf_spark.driver.sources import Asked
    from fastbuf_spark.expressions import Skipping

BLOCK_BYTES = 4 << 20  #: of text that is parsed at once
LINE_BYTES = 16 << 20  #: most bytes of a line
BOM = b"\xef\xbb\xbf"
BLANK = bytes(range(33))  # what Java's trim() takes away
LINE_BREAK = re.compile(rb"\r\n|\r|\n")
OTHER_CODECS = (".deflate", ".snappy", ".xz", ".zip")  #: ends of names of files that Arrow does not decompress
#: Types that cannot be read from a field of text.
_NO_TEXT = ("array", "map", "struct", "binary", "variant", "interval", "time(")


@dataclass(frozen=True)
class Text:
    """How files of lines are written.

    Attributes
    ----------
    encoding
        Of one byte for each character, or UTF-8.
    newline
        Whether lines end with a newline alone, so that a carriage return is part of a value.
    date, instant, local
        Java's patterns of dates, of timestamps, and of those without a zone; empty: as Spark writes them.
    """

    encoding: str = "utf-8"
    newline: bool = False
    date: str = ""
    instant: str = ""
    local: str = ""

    def __post_init__(self) -> None:
        for pattern, day in ((self.date, True), (self.instant, False), (self.local, False)):
            if pattern:
                form_of(pattern, day)

    def pattern(self, kind: pa.DataType) -> str:
        """That of the values of a type."""
        import pyarrow as pa

        if pa.types.is_timestamp(kind):
            return self.local if kind.tz is None else self.instant
        return self.date if pa.types.is_date(kind) else ""


def text_of(options: Mapping[str, str]) -> Text:
    """The same, by options of a reader."""
    patterns = (options.get(name, "") for name in ("dateFormat", "timestampFormat", "timestampNTZFormat"))
    return Text(options.get("encoding", "utf-8").lower(), "lineSep" in options, *patterns)


@dataclass(frozen=True)
class Lines(Format):
    """Files of lines.  What stands in a line is the matter of a format's own class."""

    any_case = False
    nested: ClassVar[bool] = False  #: whether a value may have others in it

    text: Text = Text()

    def check(self, asked: Asked, schema: StructType) -> None:
        """SchemaError if a type is none of texts, or a column is that of bad records."""
        for field in schema.fields:
            kind = field.dataType.simpleString()
            odd = kind.startswith(_NO_TEXT) and not (self.nested and kind.startswith(("array", "struct")))
            below = [each.simpleString() for each in types_in(field.dataType)][1:]
            if odd or any(each.startswith(("timestamp", "date")) for each in below):
                raise SchemaError(
                    f"field {field.name!r} has the type {kind}, which {asked.name} does not read; read it as a string, "
                    "or use spark.read"
                )
        corrupt = asked.options.get("columnNameOfCorruptRecord", "_corrupt_record")
        if corrupt in schema.names:
            raise SchemaError(
                f"column {corrupt!r} is the one that Spark puts bad records into, which are errors here: leave it out, "
                f"or use spark.read ({asked.name})"
            )

    def check_files(self, files: Sequence[File]) -> None:
        """ConfigError if a file is compressed in a way that Arrow does not read."""
        for file in files:
            if file.path.endswith(OTHER_CODECS):
                raise ConfigError(
                    f"{file.path}: lines may be compressed by gzip (.gz), bzip2 (.bz2), zstd (.zst) or lz4 (.lz4), and "
                    "in no other way; use spark.read"
                )

    def pattern(self, kind: pa.DataType) -> str:
        return self.text.pattern(kind)

    def end(self, block: bytes, path: str) -> int:
        """Where the last whole row of a block ends."""
        return line_end(block)

    def bodies(self, blocks: Iterator[bytes], path: str) -> Iterator[bytes]:
        """The blocks, with ``\\n`` as the only line break, without the header; blocks of blanks are left out."""
        return blocks

    def table(self, block: bytes, fields: pa.Schema) -> pa.Table:
        """The rows of a block."""
        raise NotImplementedError

    def read(
        self, fragment: Any, schema: pa.Schema, names: Sequence[str], skipping: Skipping | None, rows: int
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.dataset as ds

        partition_keys = ds.get_partition_keys(fragment.partition_expression)
        fields = pa.schema([field for field in schema if field.name not in partition_keys])
        with fragment.filesystem.open_input_stream(fragment.path) as stream:
            for block in self.bodies(self.blocks(stream, fragment.path), fragment.path):
                try:
                    check_utf8(block)
                    table = self.table(block, fields)
                except (pa.ArrowInvalid, ValueError) as error:
                    message = re.sub(r" Row #\d+:| in row \d+", "", str(error))  # counted from the block's beginning
                    raise SchemaMismatch(f"{fragment.path}: {message}") from error
                for part in table.to_batches(rows):
                    columns = [
                        pa.repeat(pa.scalar(partition_keys[name], schema.field(name).type), part.num_rows)
                        if name in partition_keys
                        else part.column(name)
                        for name in names
                    ]
                    yield pa.RecordBatch.from_arrays(columns, list(names))

    def blocks(self, stream: Any, path: str) -> Iterator[bytes]:
        """The text of a file in pieces of whole lines, each of which ends with a line break.

        Raises
        ------
        SchemaMismatch
            A line is too long, or has a quoted value without an end; text is not as is told.
        """

        def read() -> bytes:
            data = bytes(stream.read(BLOCK_BYTES))
            if self.text.newline and b"\r" in data:
                raise SchemaMismatch(
                    f"{path} has a carriage return, which is no line break with lineSep: use spark.read"
                )
            return data

        def decoded(data: bytes) -> bytes:
            if self.text.encoding in ("utf-8", "utf8"):
                return data
            try:
                return data.decode(self.text.encoding).encode()
            except UnicodeDecodeError as error:
                raise SchemaMismatch(f"{path}: {error}; use spark.read") from error

        rest = decoded(read().removeprefix(BOM))
        while rest:
            more = decoded(read())
            block = rest if more or rest.endswith(b"\n") else rest + b"\n"
            at = self.end(block, path)
            if at:
                yield block[:at]
            rest = block[at:] + more
            if rest and not more:
                raise SchemaMismatch(f"{path}: a quoted value has no end: {rest[:100].decode(errors='replace')!r}")
            if len(rest) > LINE_BYTES + BLOCK_BYTES:
                raise SchemaMismatch(f"{path} has a line of more than {LINE_BYTES >> 20} MiB: {rest[:100]!r}...")


def check_utf8(text: bytes) -> None:
    """ArrowInvalid unless a text is UTF-8: Arrow's parser of JSON does not look."""
    import pyarrow as pa

    try:
        text.decode()
    except UnicodeDecodeError as error:
        near = text[max(0, error.start - 20) : error.start + 20]
        raise pa.ArrowInvalid(f"text that is not UTF-8: {near!r}; use spark.read with its encoding=") from error


def line_break(block: bytes) -> bytes:
    r"""How the lines of a file end, by its first block.  Spark reads a line break of this kind in quotes as ``\n``."""
    match = LINE_BREAK.search(block)
    return match[0] if match else b"\n"


def line_end(block: bytes) -> int:
    # Not behind a last \r: a \n may follow
    return max(block.rfind(b"\n"), block.rfind(b"\r", 0, len(block) - 1)) + 1

"""Lines of values (CSV)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from fastbuf.errors import ConfigError, SchemaError, SchemaMismatch
from fastbuf_spark.driver.reader_options import is_true
from fastbuf_spark.formats.base import missing, with_path
from fastbuf_spark.formats.lines import BLANK, BOM, LINE_BREAK, Lines, check_utf8, line_break, line_end, text_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from fastbuf_spark.driver.files import File
    from fastbuf_spark.driver.sources import Asked

_BLANK_LINE = re.compile(rb"(?:(?<=[\r\n])|\A)[\0-\x09\x0b\x0c\x0e- ]+(?=[\r\n]|\Z)")


@dataclass(frozen=True)
class Csv(Lines):
    """Lines of values (CSV).

    Attributes
    ----------
    names
        Of the columns, in the order of the values.
    header
        Whether the first line that is not blank is none of the rows.
    sep
        The character between values.
    backslash
        Whether a backslash before a quote is a character like others.
    quote
        Around values; empty: there are no quotes.
    comment
        The character that begins a comment line; empty: there are no such lines.
    null
        The value that is null.
    blank
        Of what a line consists that is no row, if it is not empty.
    """

    name = "csv"
    title = "CSV"
    by_name = False

    names: tuple[str, ...] = ()
    header: bool = False
    sep: str = ","
    backslash: bool = False
    quote: str = '"'
    comment: str = ""
    null: str = ""
    blank: bytes = BLANK

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        sep, quote, comment = options.get("delimiter", ","), options.get("quote", '"'), options.get("comment", "")
        for name, value in (("sep", sep), ("quote", quote), ("comment", comment)):
            others = {sep, quote, comment} if name == "sep" else {sep}
            if not (value or name != "sep") or len(value) > 1 or not value.isascii() or value in ("\r", "\n", "\\"):
                raise ConfigError(f"{name} is {value!r}: give one ASCII character, or use spark.read.csv")
            if name != "sep" and value in others:
                raise ConfigError(f"{name} and sep are {value!r}: give another one, or use spark.read.csv")
        if comment and comment == quote:
            raise ConfigError(f"comment and quote are {quote!r}: give another one, or use spark.read.csv")
        escape = options.get("escape")
        if escape not in (None, quote):
            raise ConfigError(f"escape is {escape!r}: give {quote!r} or None, or use spark.read.csv")
        blank = b"\r\n" if is_true(options, "multiLine") else BLANK
        header, null = is_true(options, "header"), options.get("nullValue", "")
        return cls(text_of(options), (), header, sep, escape is not None, quote, comment, null, blank)

    def with_columns(self, asked: Asked, schema: StructType) -> Self:
        return replace(self, names=tuple(schema.names))

    def without_columns(self, names: Collection[str]) -> Self:
        return replace(self, names=tuple(name for name in self.names if name not in names))

    def schema(self, asked: Asked, system: Any, files: Sequence[File], summaries: list[str]) -> StructType:
        """Strings, with the names of the first line that is not blank, of the first file that has one."""
        from pyspark.sql.types import StringType, StructField, StructType

        for file in files:
            names: list[str] = []
            with missing(file.path, system, asked.is_set("ignoreMissingFiles")):
                names = self._first_values(file.path, system)
            if names:
                names = self._headed(names, asked.is_set("caseSensitive"))
                return StructType([StructField(name, StringType()) for name in names])
        raise ConfigError(f"{asked.path} has no files with lines: give schema=")

    def _first_values(self, path: str, system: Any) -> list[str]:
        import pyarrow as pa
        import pyarrow.csv as csv

        with with_path(path), system.open_input_stream(path) as stream:
            for block in self.blocks(stream, path):
                block = block.replace(line_break(block), b"\n")
                line = block[slice(*self.first_row(block))]
                check_utf8(line)
                if self.is_row(line):
                    parse = csv.ParseOptions(
                        delimiter=self.sep, quote_char=self.quote or False, newlines_in_values=bool(self.quote)
                    )
                    try:
                        read = csv.ReadOptions(block_size=len(line) + 1)
                        return list(csv.read_csv(pa.BufferReader(line), read, parse).column_names)
                    except pa.ArrowInvalid as error:
                        raise SchemaError(f"{path}: {error}; give schema=") from error
        return []

    def _headed(self, names: list[str], case: bool) -> list[str]:
        """Names from a header: as in Spark, an empty one is numbered, and those that occur twice end with their place.

        Without a header they are those that Spark gives.
        """
        if not self.header:
            return [f"_c{i}" for i in range(len(names))]
        folded = [name if case else name.lower() for name in names]
        numbered = [f"{name}{i}" if folded.count(folded[i]) > 1 else name for i, name in enumerate(names)]
        return [f"_c{i}" if names[i] in ("", self.null) else name for i, name in enumerate(numbered)]

    @cached_property
    def _forms(self) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
        """A row with the end of its line; and the beginning of one up to a quoted value with more behind its quote."""
        sep, quote, comment = (re.escape(text.encode()) for text in (self.sep, self.quote, self.comment))
        plain, quoted = rb"[^%b\r\n]*+" % sep, b"(?!)"
        if quote:
            quoted = rb"%b[^%b]*+(?:%b%b[^%b]*+)*+%b" % (quote, quote, quote, quote, quote, quote)
            plain = b"(?!%b)%b" % (quote, plain)
        value = rb"(?:%b(?=[%b\r\n])|%b)" % (quoted, sep, plain)
        head = rb"(?:%b%b)*+" % (value, sep)
        row = rb"(?:%b|%b)(?:\r\n|\r|\n)" % (comment + rb"[^\r\n]*+" if comment else b"(?!)", head + value)
        return re.compile(row), re.compile(head + quoted + rb"[^%b\r\n]" % sep)

    def has_text(self, kind: pa.DataType) -> bool:
        import pyarrow as pa

        return not (pa.types.is_string(kind) or pa.types.is_large_string(kind))

    def end(self, block: bytes, path: str) -> int:
        """Where the last whole row of a block ends; a quoted value may have line breaks in it."""
        import numpy as np

        end, quote = line_end(block), self.quote.encode()
        if not quote or quote not in block[:end]:
            return end
        if not self.backslash and b"\\" + quote in block:
            raise SchemaMismatch(
                f"{path} has a quote behind a backslash, which Spark takes for a quote in the value: use "
                f"spark.read.csv, or give escape={self.quote!r} if the backslash is a character like others"
            )
        text = np.frombuffer(block, np.uint8)
        at = np.flatnonzero(text[:end] == ord(quote))
        beside = np.zeros(256, bool)
        beside[[*b"\r\n", *quote, ord(self.sep)]] = True
        opened, closed = at[::2], at[1::2]
        even = len(at) % 2 == 0 and not self.comment  # which may have any number of them
        if even and beside[text[opened - 1]][opened > 0].all() and beside[text[closed + 1]].all():
            return end
        # The block ends within a quoted value, or a value has quotes without being quoted: look row by row
        more = self._forms[1]
        rows = list(map(len, self._rows(block)))
        end = sum(rows)
        if end == len(block) and block.endswith(b"\r"):  # a \n may follow
            end -= rows[-1]
        if more.match(block, end):
            raise SchemaMismatch(
                f"{path} has a quoted value with more behind its last quote: "
                f"{block[end : end + 100].decode(errors='replace')!r}; use spark.read.csv"
            )
        return end

    def _rows(self, block: bytes) -> Iterator[bytes]:
        """The rows with the ends of their lines, up to one that is not whole."""
        row, end = self._forms[0], 0
        while match := row.match(block, end):
            yield match[0]
            end = match.end()

    def check_ends(self, block: bytes, ends: bytes, path: str) -> None:
        """SchemaMismatch if rows end in several ways where Spark takes one way alone, as it does with ``multiLine``."""
        if self.blank == BLANK or not LINE_BREAK.search(block.replace(ends, b"")):
            return
        rows = list(self._rows(block))[:-1]  # the last line of a file may have no end
        if any(LINE_BREAK.findall(row)[-1] != ends for row in rows):
            raise SchemaMismatch(
                f"{path} has lines that end by {ends!r}, and others, whose ends Spark takes for part of a value: use "
                "spark.read.csv, or leave multiLine out"
            )

    def first_row(self, block: bytes) -> tuple[int, int]:
        """Where the first row that is not blank begins, and where the next one does."""
        begin, end = 0, 0
        while not end:
            text = len(block) - len(block[begin:].lstrip(self.blank))
            begin = max(block.rfind(b"\n", begin, text), block.rfind(b"\r", begin, text), begin - 1) + 1
            match = LINE_BREAK.search(block, text)
            end = match.end() if match else len(block)
            if self.comment and block.startswith(self.comment.encode(), begin) and end < len(block):
                begin, end = end, 0
        if self.quote and self.quote.encode() in block[begin:end]:  # a value may have line breaks in it
            end = begin + len(next(self._rows(block[begin:]), block[begin:end]))
        return begin, end

    def is_row(self, line: bytes) -> bool:
        """Whether a line is none that is left out."""
        return bool(line.strip(self.blank)) and not (self.comment and line.startswith(self.comment.encode()))

    def bodies(self, blocks: Iterator[bytes], path: str) -> Iterator[bytes]:
        ends, header = b"", self.header
        for block in blocks:
            ends = ends or line_break(block)
            self.check_ends(block, ends, path)
            if ends != b"\n":
                block = block.replace(ends, b"\n")
            if header and any(map(self.is_row, block.splitlines())):
                block, header = block[self.first_row(block)[1] :], False
            if block.strip(self.blank):
                yield block

    def table(self, block: bytes, fields: pa.Schema) -> pa.Table:
        """The rows, all values as text."""
        import pyarrow as pa
        import pyarrow.csv as csv

        quote = self.quote.encode()
        if self.comment or len(self.names) == 1 or self.sep <= " ":
            if quote and quote in block:
                block = b"".join(row for row in self._rows(block) if self.is_row(row))
            else:
                if self.comment:
                    block = re.sub(rb"(?:(?<=[\r\n])|\A)%b[^\r\n]*+" % re.escape(self.comment.encode()), b"", block)
                if self.blank == BLANK:  # a row of blanks: none for Spark, and one of nulls for Arrow
                    block = _BLANK_LINE.sub(b"", block)
        if not block:
            return fields.empty_table()
        if block.startswith(BOM):  # it is no mark there, and Arrow would leave it out
            block = BOM + block
        places = [self.names.index(field.name) for field in fields]
        table = csv.read_csv(
            pa.BufferReader(block),
            csv.ReadOptions(
                column_names=[str(i) for i in range(len(self.names))], block_size=len(block) + 1, use_threads=False
            ),
            csv.ParseOptions(
                delimiter=self.sep,
                quote_char=self.quote or False,
                newlines_in_values=bool(self.quote),
                invalid_row_handler=lambda row: "error" if self.is_row(row.text.encode()) else "skip",
            ),
            csv.ConvertOptions(
                column_types={str(i): field.type for i, field in zip(places, fields, strict=True)},
                include_columns=[str(i) for i in places or [0]],
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=not self.null,
            ),
        )
        if not places:
            return table
        columns = [_without(column, self.null) if self.null else column for column in table.columns]
        return pa.table(columns, fields.names)


def _without(texts: pa.ChunkedArray, null: str) -> pa.ChunkedArray:
    """The texts, of which this one is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(pc.equal(texts, null), pa.scalar(None, texts.type), texts)

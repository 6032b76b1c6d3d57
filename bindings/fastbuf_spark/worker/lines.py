"""Files of lines, with values or JSON: parsed block by block, and their texts converted as Spark converts them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from json import loads
from typing import TYPE_CHECKING, Any

from fastbuf.errors import SchemaMismatch
from fastbuf_spark.worker.patterns import form_of, iso
from fastbuf_spark.worker.zones import instants

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 64 << 10
BLOCK_BYTES = 4 << 20  #: of text that is parsed at once
LINE_BYTES = 16 << 20  #: most bytes of a line
BOM = b"\xef\xbb\xbf"
_BLANK = bytes(range(33))  # what Java's trim() takes away
_BLANK_LINE = re.compile(rb"(?:(?<=[\r\n])|\A)[\0-\x09\x0b\x0c\x0e- ]+(?=[\r\n]|\Z)")
_LINE_BREAK = re.compile(rb"\r\n|\r|\n")
_LAST_NULL = re.compile(rb"\}\s*null")
_WHOLE = (b"0123456789-", r"^[+-]?\d+$")
_EXACT = (b"0123456789+-.eE", r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")
_REAL = (_EXACT[0], rf"{_EXACT[1]}|^(NaN|-?Inf|[+-]?Infinity)$")
_DATE = (b"", r"^\d{4}-\d{2}-\d{2}$")
_INSTANT = (
    b"",
    r"^\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?(Z|[+-](0\d|1[0-7])(:?\d{2})?|[+-]18(:?00)?)?)?)?$",
)


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


@dataclass(frozen=True)
class JsonLines:
    """Lines with one JSON object each."""

    text: Text = Text()

    def has_text(self, kind: pa.DataType) -> bool:
        """Whether a column of the type is read as text first."""
        import pyarrow as pa

        return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))

    def end(self, block: bytes, path: str) -> int:
        """Where the last whole line of a block ends."""
        return _line_end(block)

    def table(self, block: bytes, fields: pa.Schema) -> pa.Table:
        """The rows of whole lines."""
        import pyarrow as pa
        import pyarrow.json as json

        number = block.count(b"\n")
        if not block.startswith(b"{") or block.count(b"\n{") != number - 1 or _LAST_NULL.search(block):
            lines = [line.strip(_BLANK) for line in block.splitlines()]
            number = sum(map(bool, lines))
            for line in lines:
                if line and not line.startswith(b"{"):
                    raise pa.ArrowInvalid(f"a line is no JSON object: {line[:100].decode()!r}")
                if _LAST_NULL.search(line):
                    loads(line)  # Arrow's parser would end the process at a null that is in no object
        read = json.ReadOptions(block_size=len(block) + 1, use_threads=False)
        parse = json.ParseOptions(explicit_schema=fields, unexpected_field_behavior="ignore")
        made = json.read_json(pa.BufferReader(block), read, parse)
        if made.num_rows != number:
            raise pa.ArrowInvalid("a line has several JSON objects, or an object several lines")
        return made.select(fields.names)


@dataclass(frozen=True)
class ValueLines:
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
        The character that a line begins with which is none; empty: there are no such lines.
    null
        The value that is null.
    blank
        Of what a line consists that is no row, if it is not empty.
    """

    names: tuple[str, ...]
    header: bool
    sep: str
    backslash: bool
    quote: str = '"'
    comment: str = ""
    null: str = ""
    blank: bytes = _BLANK
    text: Text = Text()

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
        """Whether a column of the type is read as text first."""
        import pyarrow as pa

        return not (pa.types.is_string(kind) or pa.types.is_large_string(kind))

    def end(self, block: bytes, path: str) -> int:
        """Where the last whole row of a block ends; a quoted value may have line breaks in it."""
        import numpy as np

        end, quote = _line_end(block), self.quote.encode()
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
        while found := row.match(block, end):
            yield found[0]
            end = found.end()

    def check_ends(self, block: bytes, ends: bytes, path: str) -> None:
        """SchemaMismatch if rows end in several ways where Spark takes one way alone, as it does with ``multiLine``."""
        if self.blank == _BLANK or not _LINE_BREAK.search(block.replace(ends, b"")):
            return
        rows = list(self._rows(block))[:-1]  # the last line of a file may have no end
        if any(_LINE_BREAK.findall(row)[-1] != ends for row in rows):
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
            found = _LINE_BREAK.search(block, text)
            end = found.end() if found else len(block)
            if self.comment and block.startswith(self.comment.encode(), begin) and end < len(block):
                begin, end = end, 0
        if self.quote and self.quote.encode() in block[begin:end]:  # a value may have line breaks in it
            end = begin + len(next(self._rows(block[begin:]), block[begin:end]))
        return begin, end

    def is_row(self, line: bytes) -> bool:
        """Whether a line is none that is left out."""
        return bool(line.strip(self.blank)) and not (self.comment and line.startswith(self.comment.encode()))

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
                if self.blank == _BLANK:  # a row of blanks: none for Spark, and one of nulls for Arrow
                    block = _BLANK_LINE.sub(b"", block)
        if not block:
            return fields.empty_table()
        if block.startswith(BOM):  # it is no mark there, and Arrow would leave it out
            block = BOM + block
        places = [self.names.index(field.name) for field in fields]
        made = csv.read_csv(
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
            return made
        columns = [_without(column, self.null) if self.null else column for column in made.columns]
        return pa.table(columns, fields.names)


def _without(texts: pa.ChunkedArray, null: str) -> pa.ChunkedArray:
    """The texts, of which this one is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(pc.equal(texts, null), pa.scalar(None, texts.type), texts)


@contextlib.contextmanager
def with_path(path: str) -> Iterator[None]:
    """SchemaMismatch with a file's path for an error of Arrow's, which mostly has none."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None or isinstance(error, MemoryError):
            raise  # of the file system, which names the file, or none of the file's
        hint = "; Hadoop's .lz4 is another format than Arrow's: use spark.read" if path.endswith(".lz4") else ""
        place = "" if path in str(error) else f"{path}: "
        raise SchemaMismatch(f"{place}{error}{hint}") from error


def read_lines(fragment: Any, schema: pa.Schema, lines: JsonLines | ValueLines) -> Iterator[pa.RecordBatch]:
    """Batches of a file, with the values of its directories' names."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    known = ds.get_partition_keys(fragment.partition_expression)
    fields = pa.schema([field for field in schema if field.name not in known])
    header = isinstance(lines, ValueLines) and lines.header
    ends = b""
    with fragment.filesystem.open_input_stream(fragment.path) as stream:
        for block in blocks(stream, fragment.path, lines):
            blank = _BLANK
            if isinstance(lines, ValueLines):
                ends, blank = ends or line_break(block), lines.blank
                lines.check_ends(block, ends, fragment.path)
                if ends != b"\n":
                    block = block.replace(ends, b"\n")
                if header and any(map(lines.is_row, block.splitlines())):
                    block, header = block[lines.first_row(block)[1] :], False
            if not block.strip(blank):
                continue
            try:
                check_utf8(block)
                made = lines.table(block, fields)
            except (pa.ArrowInvalid, ValueError) as error:
                said = re.sub(r" Row #\d+:| in row \d+", "", str(error))  # counted from the block's beginning
                raise SchemaMismatch(f"{fragment.path}: {said}") from error
            for part in made.to_batches(BATCH_ROWS):
                columns = [
                    pa.repeat(pa.scalar(known[field.name], field.type), part.num_rows)
                    if field.name in known
                    else part.column(field.name)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def check_utf8(text: bytes) -> None:
    """ArrowInvalid unless a text is UTF-8: Arrow's parser of JSON does not look."""
    import pyarrow as pa

    try:
        text.decode()
    except UnicodeDecodeError as error:
        near = text[max(0, error.start - 20) : error.start + 20]
        raise pa.ArrowInvalid(f"text that is not UTF-8: {near!r}; use spark.read with its encoding=") from error


def blocks(stream: Any, path: str, lines: JsonLines | ValueLines) -> Iterator[bytes]:
    """The text of a file in pieces of whole lines, each of which ends with a line break.

    Raises
    ------
    SchemaMismatch
        A line is too long, or has a quoted value without an end; text is not as is told.
    """

    def read() -> bytes:
        data = bytes(stream.read(BLOCK_BYTES))
        if lines.text.newline and b"\r" in data:
            raise SchemaMismatch(f"{path} has a carriage return, which is no line break with lineSep: use spark.read")
        return data

    def decoded(data: bytes) -> bytes:
        if lines.text.encoding in ("utf-8", "utf8"):
            return data
        try:
            return data.decode(lines.text.encoding).encode()
        except UnicodeDecodeError as error:
            raise SchemaMismatch(f"{path}: {error}; use spark.read") from error

    rest = decoded(read().removeprefix(BOM))
    while rest:
        more = decoded(read())
        block = rest if more or rest.endswith(b"\n") else rest + b"\n"
        at = lines.end(block, path)
        if at:
            yield block[:at]
        rest = block[at:] + more
        if rest and not more:
            raise SchemaMismatch(f"{path}: a quoted value has no end: {rest[:100].decode(errors='replace')!r}")
        if len(rest) > LINE_BYTES + BLOCK_BYTES:
            raise SchemaMismatch(f"{path} has a line of more than {LINE_BYTES >> 20} MiB: {rest[:100]!r}...")


def line_break(block: bytes) -> bytes:
    r"""How the lines of a file end, by its first block.  Spark reads a line break of this kind in quotes as ``\n``."""
    found = _LINE_BREAK.search(block)
    return found[0] if found else b"\n"


def _line_end(block: bytes) -> int:
    # Not behind a last \r: a \n may follow
    return max(block.rfind(b"\n"), block.rfind(b"\r", 0, len(block) - 1)) + 1


def of_text(texts: pa.Array, kind: pa.DataType, zone: str, name: str, pattern: str = "") -> pa.Array:
    """Texts as values of a type, as Spark converts them; an instant without a zone is in ``zone``.

    Parameters
    ----------
    pattern
        Java's, of dates and times; empty: as Spark writes them.

    Raises
    ------
    SchemaMismatch
        A text is not one of the type (Spark returns null), or is in an hour skipped by daylight saving (Spark shifts
        it).
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    try:
        if pattern:
            texts = iso(texts, pattern, types.is_date(kind))
        if types.is_boolean(kind):
            low = pc.utf8_lower(texts)
            _check(low, (b"", "^(true|false)$"))
            return pc.equal(low, "true")
        if types.is_timestamp(kind):
            _check(texts, _INSTANT)
            return _instants(texts, kind, zone)
        numbers = ((types.is_integer, _WHOLE), (types.is_floating, _REAL), (types.is_decimal, _EXACT))
        for fits, form in (*numbers, (types.is_date, _DATE)):
            if fits(kind):
                _check(texts, form)
        if types.is_integer(kind) and pc.any(pc.starts_with(texts, "+")).as_py():
            texts = pc.utf8_ltrim(texts, "+")  # Java reads a plus before a whole number, and Arrow does not
        return texts.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        hour = f", or an hour that does not exist in {zone}" if types.is_timestamp(kind) else ""
        raise SchemaMismatch(
            f"column {name} has a text that is no {kind} as Spark writes it{hour}: {error}; read it as a string, and "
            "convert it in a function of your own"
        ) from error


def _check(texts: pa.Array, form: tuple[bytes, str]) -> None:
    """ArrowInvalid unless all texts have the form, a regular expression, or nothing but these bytes."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    plain = np.zeros(256, bool)
    plain[list(form[0])] = True
    data = texts.buffers()[2]
    if data is None or (form[0] and plain[np.frombuffer(data, np.uint8)].all()):
        return
    odd = texts.filter(pc.invert(pc.match_substring_regex(texts, form[1])))
    if len(odd):
        raise pa.ArrowInvalid(f"{odd[0].as_py()!r:.100}")


def _instants(texts: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind.tz is None:
        return texts.cast(kind)
    with_zone = pc.match_substring_regex(texts, r"(Z|[+-]\d{2}(:?\d{2})?)$")
    # A date without time ends like an offset
    with_zone = pc.and_(with_zone, pc.match_substring_regex(texts, r"\d:\d{2}"))
    nothing = pa.scalar(None, texts.type)
    told = pc.if_else(with_zone, texts, nothing).cast(pa.timestamp("us", tz="UTC")).cast(kind)
    local = pc.if_else(with_zone, nothing, texts).cast(pa.timestamp("us"))
    return pc.coalesce(told, instants(local, zone).cast(kind))

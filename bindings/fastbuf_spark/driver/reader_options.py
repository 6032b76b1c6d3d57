"""What changes the rows that Spark's own readers give: settings of the session, and options of a reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from fastbuf.errors import ConfigError
from fastbuf_spark.formats import CLASSES

PREFIX = "spark.sql."
FILES, LINES = " ".join(CLASSES), "csv json"
ANY = ("*",)
FALSE, TRUE, BOTH = ("false",), ("true",), ("true", "false")


@dataclass(frozen=True)
class Option:
    """A setting, an option, or both, of which the option counts.

    Attributes
    ----------
    names
        Of the option, without regard to case; the first one is that of what is honoured.
    settings
        Of the session, without ``spark.sql.``.
    readers
        Whom it concerns, by the names of formats.
    values
        Which are read as Spark reads them, as patterns; others are refused.
    what
        Is done, in the words of the docs.
    """

    names: str
    settings: str
    readers: str
    values: tuple[str, ...]
    what: str = "no others"


#: Without a line here an option is refused, and a setting not looked at: of those, ``SAME`` has the ones for files.
OPTIONS = (
    Option("mergeSchema", "parquet.mergeSchema", "parquet", BOTH, "honoured: the schemas of all files are merged"),
    Option("mergeSchema", "orc.mergeSchema", "orc", BOTH, "honoured: the schemas of all files are merged"),
    Option("", "parquet.respectSummaryFiles", "parquet", BOTH, "honoured: then those of summaries alone"),
    Option("", "caseSensitive", FILES, BOTH, "honoured"),
    Option("", "parquet.binaryAsString", "parquet", BOTH, "honoured"),
    Option("", "parquet.inferTimestampNTZ.enabled", "parquet", BOTH, "honoured"),
    Option("", "sources.partitionColumnTypeInference.enabled", FILES, BOTH, "honoured"),
    Option(
        "", "streaming.fileStreamSink.ignoreMetadata", FILES, BOTH, "honoured: if not, what streams wrote is refused"
    ),
    Option("", "timestampType", FILES, ANY, "honoured, in the DDL of a schema and in names of directories"),
    Option("", "session.timeZone", FILES, ANY, "honoured"),
    Option("timeZone", "", LINES, ANY, "honoured: the zone of texts that have none"),
    Option("recursiveFileLookup", "", FILES, BOTH, "honoured: directories' names give no columns then"),
    Option("pathGlobFilter", "", FILES, ANY, "honoured: a pattern for files' names"),
    Option("basePath", "", FILES, ANY, "honoured: names of directories below it are columns"),
    Option("delimiter sep", "", "csv", ANY, "honoured: one ASCII character"),
    Option("header", "", "csv", BOTH, "honoured"),
    Option("quote", "", "csv", ANY, "honoured: one ASCII character; empty: there are no quotes"),
    Option("escape", "", "csv", ANY, "honoured: the quote, or nothing"),
    Option("comment", "", "csv", ANY, "honoured: one ASCII character, which begins a comment line"),
    Option("nullValue", "", "csv", ANY, "honoured"),
    Option("encoding charset", "", LINES, ("utf-8", "utf8", "iso-8859-1", "us-ascii"), "honoured"),
    Option("lineSep", "", LINES, ("\n",), "honoured: a carriage return is no line break"),
    Option("dateFormat", "", LINES, ANY, "honoured: patterns of numbers (`dd/MM/yyyy`)"),
    Option("timestampFormat", "", LINES, ANY, "honoured: patterns of numbers, and up to three `X`"),
    Option("timestampNTZFormat", "", LINES, ANY, "honoured: patterns of numbers"),
    Option("mode", "", LINES, ("failfast",), "a bad record is an error"),
    Option("columnNameOfCorruptRecord", "columnNameOfCorruptRecord", LINES, ANY, "honoured: such a column is refused"),
    Option("multiLine", "", "csv", TRUE, "honoured: a line of blanks is a row then"),
    Option("multiLine", "", "json", FALSE),
    Option("inferSchema", "", "csv", FALSE, "give a schema"),
    Option("enforceSchema", "", "csv", TRUE),
    Option("ignoreLeadingWhiteSpace", "", "csv", FALSE),
    Option("ignoreTrailingWhiteSpace", "", "csv", FALSE),
    Option("emptyValue", "", "csv", ("",)),
    Option("nanValue", "", "csv", ("nan",)),
    Option("positiveInf", "", "csv", ("inf",)),
    Option("negativeInf", "", "csv", ("-inf",)),
    Option("locale", "", LINES, ("en-us",)),
    Option("ignoreCorruptFiles", "files.ignoreCorruptFiles", FILES, FALSE),
    Option("ignoreMissingFiles", "files.ignoreMissingFiles", FILES, BOTH, "honoured"),
    Option("ignoreInvalidPartitionPaths", "files.ignoreInvalidPartitionPaths", FILES, FALSE),
    Option("ignoredPathSegmentRegex", "files.ignoredPathSegmentRegex", FILES, ("^[._]",)),
    Option("", "files.archive.reader.enabled", FILES, FALSE),
    Option("", "sources.validatePartitionColumns", FILES, TRUE),
    Option("", "sources.useV1SourceList", "parquet", ("*parquet*",), "those with `parquet`"),
    Option("", "sources.useV1SourceList", "csv", ("*csv*",), "those with `csv`"),
    Option("", "sources.useV1SourceList", "json", ("*json*",), "those with `json`"),
    Option(
        "datetimeRebaseMode",
        "parquet.datetimeRebaseModeInRead legacy.parquet.datetimeRebaseModeInRead",
        "parquet",
        ("corrected",),
    ),
    Option("int96RebaseMode", "parquet.int96RebaseModeInRead", "parquet", ("corrected",)),
    Option("datetimeRebaseMode", "avro.datetimeRebaseModeInRead", "avro", ("corrected",)),
    Option("", "sources.useV1SourceList", "orc", ("*orc*",), "those with `orc`"),
    Option("", "sources.useV1SourceList", "avro", ("*avro*",), "those with `avro`"),
    Option("", "orc.impl", "orc", ("native",)),
    Option("", "legacy.avro.allowIncompatibleSchema", "avro", FALSE),
    Option("", "parquet.int96AsTimestamp", "parquet", TRUE),
    Option("", "parquet.int96TimestampConversion", "parquet", FALSE),
    Option("", "parquet.fieldId.read.enabled", "parquet", FALSE),
    Option("", "parquet.ignoreVariantAnnotation", "parquet", FALSE),
    Option("", "parquet.reader.respectUnknownTypeAnnotation.enabled", "parquet", FALSE),
    Option("", "legacy.parquet.nanosAsLong", "parquet", FALSE),
    Option("", "legacy.parquet.returnNullStructIfAllFieldsMissing", "parquet", FALSE),
    Option("", "timestampNanosTypes.enabled", FILES, FALSE),
    Option("", "legacy.timeParserPolicy", LINES, ("corrected",)),
    Option("", "legacy.charVarcharAsString", FILES, FALSE),
    Option("", "preserveCharVarcharTypeInfo", FILES, FALSE),
    Option(
        "maxColumns maxCharsPerColumn inputBufferSize columnPruning samplingRatio preferDate escapeQuotes quoteAll "
        "enableDateTimeParsingFallback",
        "",
        "csv",
        ANY,
        "no difference, or an error",
    ),
    Option(
        "primitivesAsString prefersDecimal inferTimestamp samplingRatio dropFieldIfAllNull useUnsafeRow "
        "enableDateTimeParsingFallback",
        "",
        "json",
        ANY,
        "no difference, or an error",
    ),
)

#: Settings for files that make no difference to rows: how fast they are read, how they are written, what becomes of a
#: value that is an error here.
SAME = (
    *("avro.compression.codec", "avro.datetimeRebaseModeInWrite", "avro.deflate.level", "avro.filterPushdown.enabled"),
    *("avro.schemaUrlAllowedSchemes", "avro.xz.level", "avro.zstandard.bufferPool.enabled", "avro.zstandard.level"),
    *("csv.filterPushdown.enabled", "csv.parser.columnPruning.enabled", "csv.parser.inputBufferSize"),
    *("json.enableExactStringParsing", "json.enablePartialResults", "json.filterPushdown.enabled"),
    *("json.useUnsafeRow", "legacy.csv.enableDateTimeParsingFallback", "legacy.json.enableDateTimeParsingFallback"),
    *("legacy.json.allowEmptyString.enabled", "files.supportSecondOffsetFormat", "files.maxPartitionBytes"),
    *("files.maxPartitionNum", "files.minPartitionNum", "files.openCostInBytes", "files.maxRecordsPerFile"),
    *("orc.aggregatePushdown", "orc.columnarReaderBatchSize", "orc.columnarWriterBatchSize", "orc.compression.codec"),
    *("orc.enableNestedColumnVectorizedReader", "orc.enableVectorizedReader", "orc.filterPushdown"),
    *("parquet.aggregatePushdown", "parquet.columnarReaderBatchSize", "parquet.compression.codec"),
    *("parquet.datetimeRebaseModeInWrite", "parquet.enableNestedColumnVectorizedReader"),
    *("parquet.enableNullTypeVectorizedReader", "parquet.enableVectorizedReader", "parquet.fieldId.read.ignoreMissing"),
    *("parquet.fieldId.write.enabled", "parquet.filterPushdown", "parquet.filterPushdown.date"),
    *("parquet.filterPushdown.decimal", "parquet.filterPushdown.string.startsWith"),
    *("parquet.filterPushdown.stringPredicate", "parquet.filterPushdown.timestamp", "parquet.int96RebaseModeInWrite"),
    *("parquet.output.committer.class", "parquet.outputTimestampType", "parquet.pushdown.inFilterThreshold"),
    *("parquet.recordLevelFilter.enabled", "parquet.variant.annotateLogicalType.enabled", "parquet.writeLegacyFormat"),
)


def read_options(spark: Any, reader: str, given: Mapping[str, Any], streams: bool = False) -> dict[str, str]:
    """What is to be honoured, of what is set, by the first name of an option, or of a setting that has none.

    Parameters
    ----------
    reader
        The name of a format.
    given
        Options by their names; None: not given.
    streams
        Whether a stream of files has them: then its errors say what streams have.

    Raises
    ------
    ConfigError
        Spark would read other rows than are read here, or has no such option.
    """
    options = {name.lower(): (name, _text(value)) for name, value in given.items() if value is not None}
    conf, honoured = spark.conf.getAll, {}
    for option in OPTIONS:
        if reader not in option.readers.split():
            continue
        names, settings = option.names.split(), option.settings.split()
        # Those of one line with several names are one option, or none that is honoured
        theirs = [options.pop(name.lower()) for name in names if name.lower() in options]
        theirs = theirs or [(PREFIX + name, str(conf[PREFIX + name])) for name in settings if PREFIX + name in conf]
        for name, value in theirs:
            if not any(value.lower() == fits or fnmatchcase(value.lower(), fits) for fits in option.values):
                raise ConfigError(_refusal(reader, name, value, option, streams))
        if theirs:
            honoured[(names or settings)[0]] = theirs[0][1]
    for name, value in options.values():
        raise ConfigError(_refusal(reader, name, value, None, streams))
    return honoured


def is_true(options: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Whether an option, or a setting, is true."""
    return options[name].strip().lower() == "true" if name in options else default


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


#: Of Spark's streams of files: what to do here
OF_STREAMS = dict.fromkeys(
    ("maxfilespertrigger", "maxbytespertrigger"),
    "a task reads one file after the other, as fast as its rows are taken, and write_stream(every=) says how often "
    "there is a checkpoint; leave it out",
) | {"maxfileage": "give max_file_age="}


def _refusal(reader: str, name: str, value: str, option: Option | None, streams: bool) -> str:
    ours = "stream_files" if streams else f"read_{reader}"
    theirs = {"ipc": "", "avro": "format('avro').load(...)"}.get(reader, f"{reader}(...)")
    spark = f"let Spark read the files: fbs.pipeline(spark.read.{theirs})" if theirs and not streams else ""
    if option is None and streams:
        return f"{ours} has no option {name}: {OF_STREAMS.get(name.lower(), 'leave it out')}"
    if option is None:
        return f"{ours} has no argument {name}, and reads with no such option of Spark's: " + (
            f"if there is one, {spark}" if spark else "leave it out"
        )
    fits = " or ".join(map(repr, option.values))
    one = f"one of {fits}" if len(option.values) > 2 else fits
    if name.startswith(PREFIX):
        ways = [f"set it to {one}", *[f"give {each}={fits}" for each in option.names.split()[:1]]]
    else:
        ways = [f"give {one}", "leave it out"] if option.values else ["leave it out"]
    taken = option.what.startswith("honoured")
    what = option.what.removeprefix("honoured").lstrip(":, ") if option.what != "no others" else ""
    why = f" ({what})" if what else ""
    said = f"and {ours} takes {fits}" if taken else f"with which {ours} would not give what Spark gives"
    return f"{name} is {value!r}, {said}{why}: " + ", or ".join([*ways, *([spark] if spark else [])])

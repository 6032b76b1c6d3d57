"""Lists files, parses their directories' names, and assigns row groups to tasks."""

from __future__ import annotations

import fnmatch
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError, ResourceError, SchemaError, SchemaMismatch
from fastbuf_spark.worker.lines import of_text
from fastbuf_spark.worker.reading import Piece, changed, check_calendar, check_variants

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

MOST_BYTES = 128 << 20  #: most bytes of a task's split, as in ``spark.sql.files.maxPartitionBytes``
LEAST_BYTES = 4 << 20  #: cost of opening a file, in bytes, as in Spark
#: If there are more files than this, none is split: the driver would have to read all their footers
MOST_FOOTERS = 4096
READERS = 16  #: threads that read footers
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
OTHER_CODECS = (".deflate", ".snappy", ".xz", ".zip")  #: ends of names of files that Arrow does not decompress
WILD = re.compile(r"[*?\[{]")  #: a path with one of these may be a pattern
_LOCAL = re.compile(r"file:(//(localhost)?(?=/)|(?=/(?!/)))", re.I)  #: how the URI of a local path begins
_WHOLE = re.compile(r"[+-]?\d+$")
_REAL = re.compile(r"[+-]?\d*\.\d+$|NaN$|-?Infinity$")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}$")
_INSTANT = re.compile(r"\d{4}-\d{1,2}-\d{1,2}[ T]")
#: Texts that Spark may parse as another type: times, timestamps, numbers with an exponent or a letter, years
_ODD = re.compile(r"\s|\d{1,2}:\d{2}|\d{4}-\d{1,2}.*[T ]|[+-]?[\d.]+([eE][+-]?\d+)?[dDfF]?\s*$|\d{4}-\d{2}$")


@dataclass(frozen=True)
class File:
    """A file, and the values in its directories' names, escaped."""

    path: str
    size: int
    changed: int
    values: tuple[tuple[str, str | None], ...]


def file_system(path: Any, given: Any) -> tuple[Any, list[str]]:
    """The file system of one or more paths, and the paths in it.

    Parameters
    ----------
    path
        One or more paths or URIs, of the same file system.
    given
        A file system of pyarrow or fsspec; None: that of the URI, else the local one.

    Raises
    ------
    ConfigError
        There is no path, one that is none, or there are several file systems.
    """
    from pyarrow import fs

    many = isinstance(path, Iterable) and not isinstance(path, str | bytes | os.PathLike)
    paths = []
    for each in path if many else [path]:
        if not isinstance(each, str | os.PathLike):
            raise ConfigError(f"path is {path!r:.100}: give a str or os.PathLike, not a {type(each).__name__}")
        paths.append(str(each))
    if not paths:
        raise ConfigError("path is an empty list: give one path or more")
    if not all(p.strip() for p in paths):
        raise ConfigError(f"path is {path!r}: give the path of a file or directory; '.' is the working directory")
    if given is not None:
        if not isinstance(given, fs.FileSystem):
            given = fs.PyFileSystem(fs.FSSpecHandler(given))
        return given, paths
    found: list[tuple[Any, str]] = []
    for each in paths:
        # Read as Spark and fsspec do: "%20" is no blank, and "#" and "?" end no path
        local_path = _LOCAL.sub("", each)
        if local_path.lower().startswith("file:"):
            raise ConfigError(f"{each} is no absolute path of this host: give file:///path, or the path alone")
        is_uri = local_path == each and "://" in each
        found.append(_by_uri(each) if is_uri else (fs.LocalFileSystem(), local_path))
    if any(system != found[0][0] for system, _ in found):
        raise ConfigError("the paths are of several file systems: read them one by one")
    local = isinstance(found[0][0], fs.LocalFileSystem)
    # Workers have other working directories; ".." is taken away as Spark does it, whatever is a link
    return found[0][0], [os.path.abspath(os.path.expanduser(p)) if local else p for _, p in found]


def _by_uri(uri: str) -> tuple[Any, str]:
    import pyarrow as pa
    from pyarrow import fs

    wild = WILD.search(uri)
    if wild:  # no URI has such characters, or they mean something else in it
        head, tail = uri[: wild.start()].rpartition("/")[0], uri[uri.rindex("/", 0, wild.start()) :]
        system, path = _by_uri(head)
        return system, path.rstrip("/") + tail
    try:
        system, path = fs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        try:
            import fsspec
        except ImportError:
            raise ConfigError(f"{uri}: {error}; pyarrow has no such file system, and fsspec is not there") from error
        try:
            handler, path = fsspec.core.url_to_fs(uri)
        except (ValueError, ImportError) as other:
            raise ConfigError(f"{uri}: {error}; nor has fsspec such a file system: {other}") from other
        return fs.PyFileSystem(fs.FSSpecHandler(handler)), path
    return system, path


def list_files(system: Any, paths: Sequence[str]) -> list[File]:
    """All files below these paths, in order, except empty files and those that Spark ignores too (``_...``, ``....``).

    Raises
    ------
    ResourceError
        There is nothing at a path.
    """
    from pyarrow import fs

    found: list[File] = []
    for path, pattern in [each for given in paths for each in _matched(system, given)]:
        info = system.get_file_info(path)
        if info.type == fs.FileType.NotFound:
            raise ResourceError(f"{path} does not exist")
        if info.type == fs.FileType.File:
            if info.size:
                found.append(File(info.path, info.size, changed(info), ()))
            continue
        base = info.path.rstrip("/") + "/"
        for each in _below(system, path):
            inside = each.path[len(base) :].split("/")
            if each.type == fs.FileType.File and each.size and not any(map(_hidden, inside)):
                values = _values(inside[:-1])
                if pattern and values:
                    # Spark refuses it too: the matched names would be columns or not, by their number
                    raise SchemaError(
                        f"{pattern} matches directories with others of {', '.join(key for key, _ in values)} in them: "
                        "give the directory above all of them, whose names become columns, and a filter"
                    )
                found.append(File(each.path, each.size, changed(each), values))
    return sorted(found, key=lambda file: file.path)


def list_lines(system: Any, paths: Sequence[str]) -> list[File]:
    """All files of lines below these paths.

    Raises
    ------
    ConfigError
        One is compressed in a way that Arrow does not read.
    """
    files = list_files(system, paths)
    for file in files:
        if file.path.endswith(OTHER_CODECS):
            raise ConfigError(
                f"{file.path}: lines may be compressed by gzip (.gz), bzip2 (.bz2), zstd (.zst) or lz4 (.lz4), and "
                "in no other way; use spark.read"
            )
    return files


def _below(system: Any, folder: str, above: tuple[str, ...] = ()) -> Iterator[Any]:
    """What is in a directory and below it; of a local one without what hidden directories have.

    Raises
    ------
    ResourceError
        A link leads to a directory above it.
    """
    from pyarrow import fs

    local = isinstance(system, fs.LocalFileSystem)
    here = os.path.realpath(folder) if local else ""
    if local and here in above:
        raise ResourceError(f"{folder} is a link to {here}, which it is in: take the link away, or name the files")
    for each in system.get_file_info(fs.FileSelector(folder, recursive=not local)):
        yield each
        if local and each.type == fs.FileType.Directory and not _hidden(each.base_name):
            yield from _below(system, each.path, (*above, here))


def _matched(system: Any, path: str) -> list[tuple[str, str]]:
    """The paths that a pattern matches, each with the pattern if there are several; a path that exists is no pattern.

    The wildcards are Spark's: ``*``, ``?``, ``[ab]``, ``[^a]``, ``{a,b}``.  As in Spark, each path that is matched is
    one to read: the names in it are no columns.

    Raises
    ------
    ResourceError
        Nothing matches.
    """
    from pyarrow import fs

    if not WILD.search(path) or system.get_file_info(path).type != fs.FileType.NotFound:
        return [(path, "")]
    found: list[str] = []
    for plain in _braced(path):
        parts = plain.rstrip("/").split("/")
        first = next((i for i, part in enumerate(parts) if WILD.search(part)), len(parts))
        here = ["/".join(parts[:first])]
        for part in parts[first:]:
            if WILD.search(part):
                fits = re.compile(fnmatch.translate(part.replace("[^", "[!"))).match
                here = [name for base in here for name in _names(system, base) if fits(name.rpartition("/")[2])]
            else:
                here = [f"{base}/{part}" for base in here]
        found += [each for each in here if system.get_file_info(each).type != fs.FileType.NotFound]
    if not found:
        raise ResourceError(f"{path} does not exist: nothing matches this pattern")
    made = sorted(set(found))
    return [(each, path if len(made) > 1 else "") for each in made]


def _names(system: Any, folder: str) -> list[str]:
    """Paths of what is in a directory, without hidden files; empty if it is not a directory."""
    from pyarrow import fs

    if system.get_file_info(folder).type != fs.FileType.Directory:
        return []
    within = system.get_file_info(fs.FileSelector(folder))
    return [each.path for each in within if not _hidden(each.path.rpartition("/")[2])]


def _braced(path: str) -> list[str]:
    """A path for each alternative of its braces."""
    found = re.search(r"\{([^{}]*)\}", path)
    if not found:
        return [path]
    head, tail = path[: found.start()], path[found.end() :]
    return [each for choice in found[1].split(",") for each in _braced(head + choice + tail)]


def summary(system: Any, paths: Sequence[str]) -> str | None:
    """The file that tells the schema of all Parquet files in one of these directories, if there is one."""
    from pyarrow import fs

    at = [f"{path.rstrip('/')}/{name}" for name in ("_common_metadata", "_metadata") for path in paths]
    return next((info.path for info in system.get_file_info(at) if info.type == fs.FileType.File), None)


def _hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def _values(folders: Sequence[str]) -> tuple[tuple[str, str | None], ...]:
    named = [folder.partition("=") for folder in folders if "=" in folder]
    if not all(key and value for key, _, value in named):
        raise SchemaError(f"{'/'.join(folders)}: a directory's name has nothing before or behind '='")
    places = [i for i, folder in enumerate(folders) if "=" in folder]
    if places and len(places) <= places[-1] - places[0]:
        raise SchemaError(
            f"{'/'.join(folders)}: a directory without '=' stands between others, and Spark takes no columns from "
            "those above it: give the path of a directory below it"
        )
    return tuple((unescaped(key), None if value == NO_VALUE else value) for key, _, value in named)


def unescaped(name: str) -> str:
    """Spark's names: ``%XX`` is one character, and so never a byte of UTF-8."""
    return re.sub("%([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), name)


def partition_types(files: Sequence[File], infer: bool, given: dict[str, DataType]) -> dict[str, DataType]:
    """Types of the columns given by directories' names, inferred as in Spark.

    Parameters
    ----------
    infer
        Spark's setting ``spark.sql.sources.partitionColumnTypeInference.enabled``.
    given
        Types that the user has given.

    Raises
    ------
    ConfigError
        A given type is of no directory.
    SchemaError
        Files have different depths, or only Spark can tell the type of a value.
    """
    from pyspark.sql import types as T

    names = [key for key, _ in files[0].values] if files else []
    for file in files:
        if [key for key, _ in file.values] != names:
            raise SchemaError(
                f"{file.path} is in directories of {[key for key, _ in file.values]}, and {files[0].path} of {names}: "
                "read them one by one"
            )
    odd_names = sorted(set(given) - set(names)) if files else []
    if odd_names:
        raise ConfigError(f"partition_types has {odd_names}: the directories are named by {names}")
    made: dict[str, DataType] = {}
    for at, name in enumerate(names):
        values = {value for file in files if (value := file.values[at][1]) is not None}
        texts = set(map(unescaped, values))  # Spark looks for numbers in what is escaped, for days in what is not
        if name in given or not infer:
            made[name] = given.get(name, T.StringType())
        elif not values:
            made[name] = T.NullType()
        elif all(map(_WHOLE.match, values)) and all(-(1 << 31) <= int(value) < 1 << 31 for value in values):
            made[name] = T.IntegerType()
        elif all(map(_WHOLE.match, values)) and all(-(1 << 63) <= int(value) < 1 << 63 for value in values):
            made[name] = T.LongType()
        elif all(_REAL.match(v) or _WHOLE.match(v) for v in values) and all(
            abs(float(v)) < 2e9 or not math.isfinite(float(v)) for v in values
        ):
            made[name] = T.DoubleType()
        elif all(map(_DATE.match, texts)):
            made[name] = T.DateType()
        else:
            odd = next((value for value in sorted(texts) if _ODD.match(value) and not _DATE.match(value)), None)
            plain = next((v for v in texts if not (_ODD.match(v) or _DATE.match(v) or _WHOLE.match(v))), None)
            if odd is not None and plain is None:
                kind = "timestamp" if _INSTANT.match(odd) else "string"
                raise SchemaError(
                    f"the directories of {name} have the value {odd!r}, whose type only Spark can infer: give the type "
                    f"(partition_types={{{name!r}: {kind!r}}})"
                )
            made[name] = T.StringType()
    return made


def fragments(system: Any, files: Sequence[File], layout: Any, types: dict[str, pa.DataType]) -> list[tuple[File, Any]]:
    """The files as fragments of ``pyarrow.dataset``, with the values of their directories."""
    import pyarrow.compute as pc

    made = []
    for file in files:
        known = pc.scalar(True)
        for name, value in file.values:
            if value is None:
                known = known & pc.field(name).is_null()
            else:
                known = known & (pc.field(name) == _of_text(unescaped(value), types[name], name))
        made.append((file, layout.make_fragment(file.path, system, partition_expression=known)))
    return made


def _of_text(value: str, kind: pa.DataType, name: str) -> pa.Scalar:
    """A directory's value, converted as Arrow does; instants without a zone are in that of their type."""
    import pyarrow as pa

    try:
        text = pa.array([value])
        return (text if pa.types.is_string(kind) else of_text(text, kind, getattr(kind, "tz", None) or "UTC", name))[0]
    except SchemaMismatch as error:
        raise SchemaError(
            f"a directory of {name} has the value {value!r}, which is no {kind}: give another type (partition_types=)"
        ) from error


def pieces(found: Sequence[tuple[File | None, Any]], schema: pa.Schema, needed: set[str], filter: Any) -> list[Piece]:
    """The row groups of Parquet files that may have rows matching the filter, and other files as a whole."""
    cut = len(found) <= MOST_FOOTERS
    wanted = {name.casefold() for name in needed}  # an estimate, so a name in another case may count

    def of(pair: tuple[File | None, Any]) -> list[Piece]:
        file, fragment = pair
        size, when = (-1, -1) if file is None else (file.size, file.changed)
        if not cut or not hasattr(fragment, "split_by_row_group"):
            return [Piece(fragment, 0, max(0, size), size, when)]
        made = []
        check_calendar(fragment, schema)
        check_variants(fragment, schema)
        for part in fragment.split_by_row_group(filter, schema=schema):
            about = fragment.metadata.row_group(part.row_groups[0].id)
            columns = (about.column(i) for i in range(about.num_columns))
            used = sum(c.total_uncompressed_size for c in columns if _top(c) in wanted)
            made.append(Piece(part, about.num_rows, used, size, when))
        return made

    with ThreadPoolExecutor(READERS) as readers:
        return [piece for made in readers.map(of, found) for piece in made]


def _top(column: Any) -> str:
    """The folded name of the column of a file that a column of its leaves belongs to."""
    return str(column.path_in_schema).partition(".")[0].casefold()


def shared_out(found: Sequence[Piece], tasks: int) -> tuple[tuple[Piece, ...], ...]:
    """Distribute pieces over splits of at most about 128 MB, enough to keep all tasks busy; at least one split."""
    total = sum(piece.nbytes for piece in found)
    each = max(LEAST_BYTES, min(MOST_BYTES, -(-total // max(1, tasks))))
    splits: list[list[Piece]] = [[]]
    held = 0
    for piece in found:
        # Round to the nearest: a split that is nearly full takes no more
        if splits[-1] and held + piece.nbytes // 2 >= each:
            splits.append([])
            held = 0
        splits[-1].append(piece)
        held += piece.nbytes
    return tuple(tuple(_joined(split)) for split in splits)


def _joined(split: list[Piece]) -> list[Piece]:
    """Join row groups of one file into one piece, whose footer is read once."""
    made: list[Piece] = []
    for piece in split:
        last = made[-1] if made else None
        if last is None or not _goes_on(last, piece):
            made.append(piece)
            continue
        ids = [group.id for part in (last, piece) for group in part.fragment.row_groups]
        both = piece.fragment.format.make_fragment(
            piece.fragment.path,
            piece.fragment.filesystem,
            partition_expression=piece.fragment.partition_expression,
            row_groups=ids,
        )
        made[-1] = Piece(both, last.rows + piece.rows, last.nbytes + piece.nbytes, piece.size, piece.changed)
    return made


def _goes_on(last: Piece, piece: Piece) -> bool:
    """Whether a piece has later row groups of the same file: a path may be of two file systems, or be given twice."""
    one, other = last.fragment, piece.fragment
    if not last.rows or not piece.rows or one.path != other.path or one.filesystem != other.filesystem:
        return False
    return bool(one.row_groups[-1].id < other.row_groups[0].id)

"""Finds the files below a path, with the values in their directories' names."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastbuf.errors import ConfigError, ResourceError, SchemaError
from fastbuf_spark.driver.directory_names import values_of
from fastbuf_spark.driver.file_systems import file_system
from fastbuf_spark.driver.reader_options import is_true
from fastbuf_spark.driver.store_options import Storage
from fastbuf_spark.driver.unfinished import complete
from fastbuf_spark.worker.reading import changed
from fastbuf_spark.worker.stores import children, errors_of_client, is_store, kinds

log = logging.getLogger("fastbuf_spark")

SLOW_S = 5.0  #: a store that takes longer to list files is named in the log
LISTINGS = 16  #: directories of a store that are listed at the same time
SUMMARIES = ("_common_metadata", "_metadata")  #: names of files with the schema of others, best first
WILD = re.compile(r"[*?\[{\\]")  #: a path with one of these may be a pattern


class NothingThere(ResourceError):
    """There is nothing at a path: a stream may wait for it."""


@dataclass(frozen=True)
class File:
    """A file, and the values in its directories' names, escaped.

    Attributes
    ----------
    changed
        When it was written, in nanoseconds; -1: files of this kind are not changed.
    mask
        Whether each of its first rows is one of the table's, as an Arrow array; the others are.  None: all are.
    """

    path: str
    size: int
    changed: int
    values: tuple[tuple[str, str | None], ...]
    mask: Any = None


class Listing(NamedTuple):
    """What is at some paths.

    Attributes
    ----------
    files
        To be read, in order.
    summaries
        Those that tell the schema of all Parquet files in one of the directories, best first.
    """

    system: Any
    files: list[File]
    summaries: list[str]


def listed(path: Any, filesystem: Any, options: Mapping[str, str], storage: Storage | None = None) -> Listing:
    """The file system of one or more paths, and the files of these."""
    system, paths = file_system(path, filesystem, storage)
    base = options.get("basePath")
    root = file_system(base, filesystem, storage)[1][0].rstrip("/") + "/" if base else ""
    began = time.monotonic()
    with errors_of_client(paths[0]):
        there = list_files(system, paths, options, root)
    seconds = time.monotonic() - began
    if is_store(system) and seconds > SLOW_S:  # clients say of no request how often it was tried
        log.info("%s: listed in %.1f s: a request that a store refuses or breaks off is tried again", paths[0], seconds)
    return there


def list_files(system: Any, paths: Sequence[str], options: Mapping[str, str] | None = None, root: str = "") -> Listing:
    """All files that Spark reads of these paths, in order, but for ``pathGlobFilter``.

    It ignores empty files, those whose names begin with a dot or an underscore, and directories in one of these paths,
    unless they are named ``key=value``.

    Parameters
    ----------
    options
        Of these, ``recursiveFileLookup`` and ``streaming.fileStreamSink.ignoreMetadata`` count.
    root
        ``basePath``; empty: the path itself.

    Raises
    ------
    ResourceError
        There is nothing at a path, or nothing but such directories.
    ConfigError
        A path is not below ``basePath``; it is what a stream wrote, of which Spark reads what its log names.
    """
    from pyarrow import fs

    options = options or {}
    recursive = is_true(options, "recursiveFileLookup")
    files: list[File] = []
    below: list[File] = []
    summaries: list[str] = []
    for path, pattern in [each for given in paths for each in _matched(system, given)]:
        info, there = _looked_at(system, path)
        base = info.path.rstrip("/") + "/"
        if not base.startswith(root):
            raise ConfigError(f"{path} is not below basePath, which is {root}")
        if info.type == fs.FileType.File:
            if info.size:
                values = values_of(info.path[len(root) :].split("/")[:-1]) if root and not recursive else ()
                files.append(File(info.path, info.size, changed(info), values))
            continue
        streamed = len(paths) == 1 and not is_true(options, "streaming.fileStreamSink.ignoreMetadata")
        for each in there:
            inside = each.path[len(base) :].split("/")
            is_below = len(inside) > 1 or each.type == fs.FileType.Directory  # which not all stores list themselves
            if streamed and inside[0] == "_spark_metadata" and is_below:
                raise ConfigError(
                    f"{base} was written by a stream, and Spark reads the files alone that its log (_spark_metadata) "
                    "names: let Spark read it (fbs.pipeline(spark.read...)), or set "
                    "spark.sql.streaming.fileStreamSink.ignoreMetadata=true to have all files read"
                )
            if len(inside) == 1 and inside[0] in SUMMARIES and each.type == fs.FileType.File and not pattern:
                summaries.append(each.path)
            if each.type == fs.FileType.File and each.size and not any(map(_hidden, inside)):
                values = () if recursive else values_of(each.path[len(root or base) :].split("/")[:-1])
                if pattern and values and not root:
                    # Spark refuses it too: the matched names would be columns or not, by their number
                    raise SchemaError(
                        f"{pattern} matches directories with others of {', '.join(key for key, _ in values)} in them: "
                        "give the directory above all of them, whose names become columns, and a filter"
                    )
                reached = recursive or len(inside) == 1 or any("=" in name for name in inside[:-1])
                (files if reached else below).append(File(each.path, each.size, changed(each), values))
    if not files and below:
        raise ResourceError(
            f"{paths[0]} has files in directories in it alone, as {below[0].path}, which Spark does not read either: "
            f"give the paths of these directories, a pattern ({paths[0].rstrip('/')}/*), or recursiveFileLookup=True"
        )
    if any(file.values for file in files):
        files += below  # refused by whoever looks for columns: some files have them, and these do not
    # Of several directories the first one's
    best = sorted(summaries, key=lambda path: SUMMARIES.index(path.rpartition("/")[2]))
    return Listing(system, sorted(files, key=lambda file: file.path), best)


def _looked_at(system: Any, path: str) -> tuple[Any, Iterable[Any]]:
    """What is at a path, and in it if it is a directory; a store is asked first for that, and so once.

    Raises
    ------
    ResourceError
        There is nothing.
    """
    from pyarrow import fs

    path = path.rstrip("/") or path  # to a store, a file with a slash behind it is another one
    if is_store(system):
        with suppress(NotADirectoryError):
            if inside := complete(system, lambda: _all_below(system, path)):
                return fs.FileInfo(path, fs.FileType.Directory), inside
    info = system.get_file_info(path)
    if info.type == fs.FileType.NotFound:
        raise NothingThere(f"{path} does not exist")
    return info, complete(system, lambda: _below(system, path)) if info.type == fs.FileType.Directory else ()


def _all_below(system: Any, folder: str) -> list[Any]:
    """What is below a directory of a store, which tells a thousand objects at a time, and the next ones when asked.

    So as soon as there are some directories, each is listed by itself, with all below it, beside the others.  Of
    Google's all is listed at once: there pyarrow sees no directories (:func:`~fastbuf_spark.worker.stores.children`).
    """
    from pyarrow import fs

    infos: list[Any] = []
    folders, deep = [folder], "gcs" in kinds(system)
    with ThreadPoolExecutor(LISTINGS, thread_name_prefix="fastbuf-lists") as threads:
        while folders:
            selectors = [fs.FileSelector(each, recursive=deep, allow_not_found=True) for each in folders]
            fresh = [info for part in threads.map(system.get_file_info, selectors) for info in part]
            infos += fresh
            inside = () if deep else fresh
            folders = [x.path for x in inside if x.type == fs.FileType.Directory and not _hidden(x.base_name)]
            deep = len(folders) >= LISTINGS // 2
    return infos


def matching(files: Sequence[File], options: Mapping[str, str]) -> list[File]:
    """Files whose names match ``pathGlobFilter``.  Those left out count for the types of directories' columns."""
    pattern = options.get("pathGlobFilter")
    if pattern is None:
        return list(files)
    forms = [_form(plain, pattern) for plain in _braced(pattern)]
    return [file for file in files if any(form.fullmatch(file.path.rpartition("/")[2]) for form in forms)]


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
    for each in system.get_file_info(fs.FileSelector(folder, recursive=not local, allow_not_found=not local)):
        yield each
        if local and each.type == fs.FileType.Directory and not _hidden(each.base_name):
            yield from _below(system, each.path, (*above, here))


def _matched(system: Any, path: str) -> list[tuple[str, str]]:
    """The paths that a pattern matches, each with the pattern if there are several; a path that exists is no pattern.

    The wildcards are Spark's: ``*``, ``?``, ``[ab]``, ``[^a]``, ``{a,b}``; behind a backslash they are none.  As in
    Spark, each path that is matched is one to read: the names in it are no columns.

    Raises
    ------
    ResourceError
        Nothing matches.
    ConfigError
        It is no pattern.
    """
    from pyarrow import fs

    if is_store(system) and WILD.search(path.partition("/")[0]):
        raise ConfigError(f"{path}: a pattern may be of what is in a bucket, and not of its name")
    if not WILD.search(path) or system.get_file_info(path).type != fs.FileType.NotFound:
        return [(path, "")]
    matches: list[str] = []
    for plain in _braced(path):
        parts = plain.rstrip("/").split("/")
        first = next((i for i, part in enumerate(parts) if WILD.search(part)), len(parts))
        here = ["/".join(parts[:first])]
        for part in parts[first:]:
            if WILD.search(part):
                fits = _form(part, path).fullmatch
                here = [name for base in here for name in _names(system, base) if fits(name.rpartition("/")[2])]
            else:
                here = [f"{base}/{part}" for base in here]
        matches += [each for each in here if system.get_file_info(each).type != fs.FileType.NotFound]
    if not matches:
        raise NothingThere(f"{path} does not exist: nothing matches this pattern")
    distinct = sorted(set(matches))
    return [(each, path if len(distinct) > 1 else "") for each in distinct]


def base_of(path: str, file: str) -> str:
    """The directory below which names are columns, of a file that was found by a path, which may be a pattern."""
    folder = path.rstrip("/") + "/"
    if not file.startswith(folder) and WILD.search(path):
        names = file.split("/")
        for plain in _braced(path):
            parts = plain.rstrip("/").split("/")
            pairs = zip(parts, names, strict=False)
            if len(parts) <= len(names) and all(_form(part, path).fullmatch(name) for part, name in pairs):
                return "/".join(names[: len(parts)]) + "/"
    return folder


def _names(system: Any, folder: str) -> list[str]:
    """Paths of what is in a directory, without hidden files; empty if it is not a directory."""
    from pyarrow import fs

    if system.get_file_info(folder).type != fs.FileType.Directory:
        return []
    return [each.path for each in children(system, folder) if not _hidden(each.path.rpartition("/")[2])]


def _braced(path: str) -> list[str]:
    """A path for each alternative of its braces."""
    match = re.search(r"(?<!\\)\{((?:[^{}\\]|\\.)*)\}", path)
    if not match:
        return [path]
    head, tail = path[: match.start()], path[match.end() :]
    return [each for choice in re.split(r"(?<!\\),", match[1]) for each in _braced(head + choice + tail)]


def _form(name: str, path: str) -> re.Pattern[str]:
    """The regular expression of a name with wildcards, of a path."""

    def of(match: re.Match[str]) -> str:
        plain, inverted, among = match.groups()
        if among:
            within = re.sub(r"(?<!\\)\[", r"\\[", among)
            return f"[{'^' if inverted else ''}{within}]"
        return {"*": ".*", "?": "."}.get(match[0]) or re.escape(plain or match[0])

    text = re.sub(r"\\(.)|\[([!^]?)((?:[^\]\\]|\\.)+)\]|.", of, name, flags=re.DOTALL)
    try:
        return re.compile(text, re.DOTALL)
    except re.error as error:
        raise ConfigError(f"{path} is no pattern: {name!r}: {error}") from error


def _hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")

"""Finds the files below a path, with the values in their directories' names."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

from fastbuf.errors import ConfigError, ResourceError, SchemaError
from fastbuf_spark.driver.directory_names import values_of
from fastbuf_spark.driver.reader_options import is_true
from fastbuf_spark.driver.store_options import AZURE, azure_of, environment_of_azure
from fastbuf_spark.worker.reading import changed
from fastbuf_spark.worker.stores import children, is_store, kinds, patient, reached

LISTINGS = 16  #: directories of a store that are listed at the same time
#: What a URI is opened with: a small file of S3 is one request, and never an upload that somebody left; of Google's a
#: request that fails is tried again for half a minute, not for a quarter of an hour
_ASKS = {"s3": "?allow_delayed_open=true", "gs": "?retry_limit_seconds=30"}
#: Hadoop's and fsspec's
_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "az": "abfs", "wasb": "abfs", "wasbs": "abfss"}
CONNECT_S = 10.0  #: that a host of HDFS may take: its clients try for minutes
_NO_LIBRARY = re.compile("lib(hdfs|jvm)")  #: in pyarrow's words where it finds none of HDFS's or Java's
SUMMARIES = ("_common_metadata", "_metadata")  #: names of files with the schema of others, best first
WILD = re.compile(r"[*?\[{\\]")  #: a path with one of these may be a pattern
#: Hadoop takes one slash too, and a local directory is not called so
_ONE_SLASH = re.compile("(s3[an]?|gc?s|abfss?|wasbs?|az|adl|hdfs|webhdfs|viewfs|dbfs|oss|https?):/(?!/)", re.I)
_LOCAL = re.compile(r"file:(//(localhost)?(?=/)|(?=/(?!/)))", re.I)  #: how the URI of a local path begins


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


def file_system(path: Any, filesystem: Any) -> tuple[Any, list[str]]:
    """The file system of one or more paths, and the paths in it.

    Parameters
    ----------
    path
        One or more paths or URIs, of the same file system.
    filesystem
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
    for each in paths:
        if "\0" in each or each.encode(errors="replace").decode() != each:
            raise ConfigError(f"path is {each!r}: no file can have a name with such a character")
    if filesystem is not None:
        if not isinstance(filesystem, fs.FileSystem):
            filesystem = fs.PyFileSystem(fs.FSSpecHandler(filesystem))
        if isinstance(filesystem, fs.PyFileSystem) and isinstance(filesystem.handler, fs.FSSpecHandler):
            # As it lists them: without its protocol, and some begin with a slash
            paths = [_stripped(filesystem.handler.fs, each) for each in paths]
        elif is_store(filesystem):
            paths = [_in_store(each) for each in paths]
        return filesystem, paths
    locations: list[tuple[Any, str]] = []
    for each in paths:
        # Read as Spark and fsspec do: "%20" is no blank, and "#" and "?" end no path
        local_path = _LOCAL.sub("", each)
        if local_path.lower().startswith("file:"):
            raise ConfigError(f"{each} is no absolute path of this host: give file:///path, or the path alone")
        if _ONE_SLASH.match(each):
            scheme, _, inside = each.partition(":/")
            raise ConfigError(f"{each} is no path of this host: give {scheme}://, the place (or /), then {inside}")
        is_uri = local_path == each and "://" in each
        locations.append(_by_uri(each) if is_uri else (fs.LocalFileSystem(), local_path))
    if any(system != locations[0][0] for system, _ in locations):
        raise ConfigError("the paths are of several file systems: read them one by one")
    local = isinstance(locations[0][0], fs.LocalFileSystem)
    # Workers have other working directories; ".." is removed as in Spark, before links are followed
    return locations[0][0], [os.path.abspath(os.path.expanduser(p)) if local else p for _, p in locations]


def shared_folder(name: str, path: str | os.PathLike[str], instead: str = "") -> str:
    """The path of a directory that all hosts have mounted.

    Parameters
    ----------
    name, instead
        In the error: of the argument, and what to do.

    Raises
    ------
    ConfigError
        It is a URI of a store, or of a file system that is not mounted.
    """
    local = _LOCAL.sub("", os.fspath(path))
    if "://" in local:
        raise ConfigError(
            f"{name} is {os.fspath(path)!r}: give the path of a directory that driver and all tasks have mounted, as "
            f"files are renamed there and kept on its disk (fsync), which a store does not do{instead}"
        )
    return local


def _in_store(path: str) -> str:
    """A path, or the path of a URI, as pyarrow's stores call it: the bucket or container, and what is in it."""
    scheme, is_uri, rest = path.rpartition("://")
    place, slash, inside = rest.partition("/")
    if is_uri and "@" in place:  # container@account, anonymous@bucket
        place = place.split("@")[0 if scheme.lower() in AZURE else 1]
    return f"{place}{slash}{inside}"


def _by_uri(uri: str) -> tuple[Any, str]:
    import pyarrow as pa
    from pyarrow import fs

    scheme, _, rest = uri.partition("://")
    if re.match(r"[^/]*:[^/]*@", rest):
        raise ConfigError(
            f"the {scheme} URI has credentials, which would be shown: give them by the environment, or filesystem="
        )
    place, _, inside = rest.partition("/")
    scheme = _NAMES.get(scheme.lower(), scheme.lower())
    base = f"{scheme}://{place}/"
    # What is in the base is taken as it stands: pyarrow would decode it, and refuse blanks
    if scheme == "hdfs":
        _check_connects(uri, place)
    try:
        if scheme in AZURE and (azure := azure_of(base, environment_of_azure())):
            system, root = azure
        else:
            try:
                system, root = fs.FileSystem.from_uri(f"{base}{_ASKS.get(scheme, '')}")
            except pa.ArrowInvalid:  # an older pyarrow
                if scheme not in _ASKS:
                    raise
                system, root = fs.FileSystem.from_uri(base)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        if scheme in AZURE and "account name" in str(error):
            raise ConfigError(
                f"{uri}: {error}: give container@account.dfs.core.windows.net, or set AZURE_STORAGE_ACCOUNT_NAME"
            ) from error
        why = str(error).partition("\n")[0]  # of HDFS all places follow where its library is not
        if isinstance(error, OSError) and not _NO_LIBRARY.search(why):
            raise ResourceError(f"{uri} cannot be reached: {why}") from error
        return _by_fsspec(uri, f"{scheme}://{rest}", why)
    slash = "/" if root and not root.endswith("/") else ""
    path = f"{root}{slash}{re.sub('/+', '/', inside).strip('/')}".rstrip("/") or root
    return patient(system), path.lstrip("/") if is_store(system) else path


def _check_connects(uri: str, place: str) -> None:
    """ResourceError if nobody listens at the port that a URI names; without one it is a name of Hadoop's settings."""
    match = re.fullmatch(r"(?:.*@)?\[?([^]@]+)]?:(\d+)", place)
    try:
        if match:
            socket.create_connection((match[1], int(match[2])), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ResourceError(f"{uri} cannot be reached: {match and match[0]}: {error}") from error


def _by_fsspec(uri: str, named: str, why: str) -> tuple[Any, str]:
    """What fsspec has, by its name of a URI, where pyarrow has nothing.

    Raises
    ------
    ConfigError
        Nor has fsspec, with what to install.
    """
    from pyarrow import fs

    if _NO_LIBRARY.search(why):
        if find_spec("hdfs_native") is None:
            raise ConfigError(
                f"{uri}: pyarrow has no client of HDFS: {why}. Install one, for the driver and all workers: "
                "pip install hdfs-native fsspec, or Hadoop's libhdfs.so, which is found by HADOOP_HOME, with JAVA_HOME "
                "and CLASSPATH (hadoop classpath --glob)"
            )
        why = "pyarrow has no client of HDFS"
    try:
        import fsspec
    except ImportError as error:
        raise ConfigError(f"{uri}: {why}; pyarrow has no such file system, and fsspec is not there") from error
    try:
        handler, _ = fsspec.core.url_to_fs(named)
    except Exception as error:  # each file system has its own
        raise ConfigError(f"{uri}: {why}; nor has fsspec such a file system: {error}") from error
    return fs.PyFileSystem(fs.FSSpecHandler(handler)), _stripped(handler, named)


def _stripped(system: Any, path: str) -> str:
    """A path as a file system of fsspec calls it.

    Raises
    ------
    ConfigError
        It would take another path.
    """
    stripped = str(system._strip_protocol(path))
    if lost := set(path) & set("#?") - set(stripped):
        raise ConfigError(f"{path}: {type(system).__name__} takes no path with {min(lost)}: rename it")
    return stripped


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


def listed(path: Any, filesystem: Any, options: Mapping[str, str]) -> Listing:
    """The file system of one or more paths, and the files of these."""
    system, paths = file_system(path, filesystem)
    base = options.get("basePath")
    root = file_system(base, filesystem)[1][0].rstrip("/") + "/" if base else ""
    with reached(paths[0]):
        return list_files(system, paths, options, root)


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
            if inside := _all_below(system, path):
                return fs.FileInfo(path, fs.FileType.Directory), inside
    info = system.get_file_info(path)
    if info.type == fs.FileType.NotFound:
        raise ResourceError(f"{path} does not exist")
    return info, _below(system, path) if info.type == fs.FileType.Directory else ()


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
        raise ResourceError(f"{path} does not exist: nothing matches this pattern")
    distinct = sorted(set(matches))
    return [(each, path if len(distinct) > 1 else "") for each in distinct]


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

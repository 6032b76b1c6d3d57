"""What a path or a URI names: a file system, and the path in it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastbuf.errors import ConfigError, ResourceError
from fastbuf_spark.driver.store_options import AZURE, Storage, azure_of, environment_of_azure, store_of
from fastbuf_spark.pyspark_private import default_file_system
from fastbuf_spark.worker.stores import is_store, patient

#: What a URI is opened with: a small file of S3 is one request, and never an upload that somebody left; of Google's a
#: request that fails is tried again for half a minute, not for a quarter of an hour
_ASKS = {"s3": "?allow_delayed_open=true", "gs": "?retry_limit_seconds=30"}
#: Hadoop's and fsspec's
_NAMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "az": "abfs", "wasb": "abfs", "wasbs": "abfss"}
CONNECT_S = 10.0  #: that a host of HDFS may take: its clients try for minutes
_NO_LIBRARY = re.compile("lib(hdfs|jvm)")  #: in pyarrow's words where it finds none of HDFS's or Java's
#: Hadoop takes one slash too, and a local directory is not called so
_ONE_SLASH = re.compile("(s3[an]?|gc?s|abfss?|wasbs?|az|adl|hdfs|webhdfs|viewfs|dbfs|oss|https?):/(?!/)", re.I)
_LOCAL = re.compile(r"file:(//(localhost)?(?=/)|(?=/(?!/)))", re.I)  #: how the URI of a local path begins


def file_system(path: Any, filesystem: Any, storage: Storage | None = None) -> tuple[Any, list[str]]:
    """The file system of one or more paths, and the paths in it.

    Parameters
    ----------
    path
        One or more paths or URIs, of the same file system.
    filesystem
        A file system of pyarrow or fsspec; None: that of the URI, else the local one.
    storage
        Gives options for a URI's store; what they leave out comes from the environment.

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
        if local_path == each and not is_uri and (place := default_file_system()):
            raise ConfigError(
                f"{each} has no scheme, and is in {place} for Spark (fs.defaultFS): say which is meant, "
                f"{place.rstrip('/')}/path or file:///path"
            )
        locations.append(_by_uri(each, storage) if is_uri else (fs.LocalFileSystem(), local_path))
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
        It is a URI of a store, or of a file system that is not mounted, or a file.
    """
    local = _LOCAL.sub("", os.fspath(path))
    if "://" in local:
        raise ConfigError(
            f"{name} is {os.fspath(path)!r}: give the path of a directory that driver and all tasks have mounted, as "
            f"files are renamed there and kept on its disk (fsync), which a store does not do{instead}"
        )
    there = next((each for each in (Path(local), *Path(local).absolute().parents) if each.exists()), None)
    if there is not None and not there.is_dir():
        raise ConfigError(f"{name} is {os.fspath(path)!r}: give a directory, and {there} is a file")
    return os.path.abspath(local)  # workers have other working directories


def absolute(path: str | os.PathLike[str]) -> str:
    """A path that is the same in workers, which have other working directories; URIs are as they are."""
    text = os.fspath(path)
    return text if re.match(r"\w+:", text) or not text.strip() else os.path.abspath(os.path.expanduser(text))


def _in_store(path: str) -> str:
    """A path, or the path of a URI, as pyarrow's stores call it: the bucket or container, and what is in it."""
    scheme, is_uri, rest = path.rpartition("://")
    place, slash, inside = rest.partition("/")
    if is_uri and "@" in place:  # container@account, anonymous@bucket
        place = place.split("@")[0 if scheme.lower() in AZURE else 1]
    return f"{place}{slash}{inside}"


def _by_uri(uri: str, storage: Storage | None) -> tuple[Any, str]:
    import pyarrow as pa
    from pyarrow import fs

    scheme, _, rest = uri.partition("://")
    if re.match(r"[^/]*:[^/]*@", rest):
        raise ConfigError(
            f"the {scheme} URI has credentials, which would be shown: give them by the environment, a job's "
            "ShuffleConf(storage_options=...), Spark's settings fs.s3a.*, or filesystem="
        )
    place, _, inside = rest.partition("/")
    scheme = _NAMES.get(scheme.lower(), scheme.lower())
    base = f"{scheme}://{place}/"
    # What is in the base is taken as it stands: pyarrow would decode it, and refuse blanks
    if scheme == "hdfs":
        _check_connects(uri, place)
    try:
        if storage is not None and (given := store_of(base, storage(base))) is not None:
            system, root = given, _in_store(base)
        elif scheme in AZURE and (azure := azure_of(base, environment_of_azure())):
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
        raise ConfigError(
            f"{uri}: {why}; pyarrow has no such file system, and fsspec is not there: pip install 'fastbuf[fsspec]', "
            "for the driver and all workers"
        ) from error
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

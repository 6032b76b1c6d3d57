"""Stores of objects: each request takes tens of milliseconds, and there are no directories to make and no renames."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ResourceError

if TYPE_CHECKING:
    from fastbuf_spark.worker.reading import Piece

#: Types of stores, as pyarrow and fsspec name them: an object is seen whole or not at all
STORES = frozenset(("s3", "s3a", "gcs", "gs", "abfs", "abfss", "az"))
UPLOAD_BYTES = 10 << 20  #: pyarrow sends what is shorter in one request
TRIES = 6  #: of a request of S3
AHEAD = 2  #: files whose footers are asked for while another one is read
#: What to do, by what clients say that find no credentials
_ADVICE = {
    "OAuth2 access token": "No credentials for Google's store can be had: set GOOGLE_APPLICATION_CREDENTIALS for the "
    "driver and the workers, or run gcloud auth application-default login; of a public bucket say gs://anonymous@bucket",
    "DefaultAzureCredential": "No credentials for Azure's store can be had: set AZURE_STORAGE_ACCOUNT_KEY for the "
    "driver, or AZURE_CLIENT_ID and its like for the workers too, or run az login. No SAS token is taken",
    "Base64": "The account's key is none: it is text in Base64, as the portal shows it",
}
_SECRET = re.compile(r"\bsig=[^&\s'\"]+")  #: of a SAS token, in URLs that Azure's client shows
_systems: deque[Any] = deque(maxlen=8)


def kinds(system: Any) -> set[str]:
    """What pyarrow or fsspec call a file system."""
    from pyarrow import fs

    if isinstance(system, fs.SubTreeFileSystem):
        return kinds(system.base_fs)
    if isinstance(system, fs.PyFileSystem) and isinstance(system.handler, fs.FSSpecHandler):
        protocol = system.handler.fs.protocol
        return {protocol} if isinstance(protocol, str) else set(protocol)
    return {getattr(system, "type_name", type(system).__name__)}


def is_store(system: Any) -> bool:
    """Whether a file system is known to be a store of objects."""
    return bool(kinds(system) & STORES)


def children(system: Any, folder: str) -> list[Any]:
    """What is in a directory; nothing if it is not there.

    pyarrow's client of Google's store sees below a directory the directories alone that somebody made as objects: there
    they follow from what is listed in them.
    """
    from pyarrow import fs

    if kinds(system) != {"gcs"}:
        return list(system.get_file_info(fs.FileSelector(folder, allow_not_found=True)))
    inside: dict[str, Any] = {}
    folder = folder.rstrip("/")
    for info in system.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=True)):
        name, slash, _ = info.path[len(folder) + 1 :].partition("/")
        path = f"{folder}/{name}"
        inside.setdefault(path, fs.FileInfo(path, fs.FileType.Directory) if slash else info)
    return list(inside.values())


def delete_dir(system: Any, folder: str) -> None:
    """Delete a directory and what is in it.

    Raises
    ------
    FileNotFoundError
        It is not there.  A store whose directories are no objects does not say so.
    """
    try:
        system.delete_dir(folder)
    except FileNotFoundError:  # Google's says so of the directory, when what was in it is deleted
        if kinds(system) != {"gcs"}:
            raise


def client_words(error: BaseException) -> str:
    """What a store's client says, in one line, with what gives it credentials if it has none."""
    text = _SECRET.sub("sig=...", re.split("\n| error_info=", str(error))[0]).rstrip(".")
    return text + next((f". {advice}" for sign, advice in _ADVICE.items() if sign in str(error)), "")


def cause_of(error: BaseException) -> BaseException | None:
    """The error, to be shown as a cause; None: there is a secret in it."""
    return None if _SECRET.search(str(error)) else error


@contextmanager
def errors_of_client(path: str) -> Iterator[None]:
    """What a store's client says when a path is asked for, as one of our errors; but not that it is not there.

    Raises
    ------
    ResourceError
        It cannot be reached.
    """
    import pyarrow as pa

    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, pa.ArrowException) as error:
        raise ResourceError(f"{path} cannot be reached: {client_words(error)}") from cause_of(error)


def same_system(system: Any) -> Any:
    """One object for all equal file systems of a process, so that they share their connections; see :func:`patient`."""
    for each in tuple(_systems):
        if type(each) is type(system) and each == system:
            return each
    _systems.append(patient(system))
    return _systems[-1]


def patient(system: Any) -> Any:
    """The same file system of S3's kind, with more tries of a request: twenty seconds, where pyarrow has two.

    A store that is asked for much says that it is busy, and how often a client asks again gets lost when it is pickled.
    """
    from pyarrow import fs

    if type(system) is not fs.S3FileSystem or not hasattr(fs, "AwsStandardS3RetryStrategy"):
        return system
    make, (options,) = system.__reduce__()[:2]
    return make({**options, "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=TRIES)})


def parts_of(fragment: Any) -> tuple[Any, list[Any]]:
    """What pyarrow pickles of a fragment of a dataset: what makes it again, and of what; with a shared file system."""
    from pyarrow import fs

    make, parts = fragment.__reduce__()[:2]
    return make, [same_system(each) if isinstance(each, fs.FileSystem) else each for each in parts]


def check_sizes(system: Any, folder: str, paths: Sequence[str], sizes: Sequence[int]) -> None:
    """Check that files somewhere below a directory have these bytes.  A store is asked once for all of them.

    Raises
    ------
    ResourceError
        The driver does not see a file as it was written: workers and driver do not share a file system.
    """
    from pyarrow import fs

    whole = [f"{folder}/{path}" for path in paths]
    if is_store(system) and len(whole) > 1:
        infos = system.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=True))
    else:
        infos = system.get_file_info(whole)
    seen = {info.path: info.size for info in infos if info.type == fs.FileType.File}
    for path, size in zip(whole, sizes, strict=True):
        if seen.get(path) != size:
            raise ResourceError(
                f"a task wrote {size} bytes to {path}, of which the driver sees {seen.get(path)}: the path must be on "
                "a file system that the driver and all workers share"
            )


def open_ahead(pieces: Sequence[Piece], missing_ok: bool = False) -> Iterator[Piece]:
    """Pieces that are checked, one after the other; those of stores are checked and opened while others are read.

    Raises
    ------
    ResourceError
        The file of a piece was replaced.
    """
    if not any(is_store(piece.fragment.filesystem) for piece in pieces):
        for piece in pieces:
            piece.check(missing_ok)
            yield piece
        return
    threads = ThreadPoolExecutor(2 * (1 + AHEAD), thread_name_prefix="fastbuf-opens")
    waiting: dict[int, tuple[Future[None], Future[None]]] = {}
    try:
        for at, piece in enumerate(pieces):
            for next_one in range(at, min(at + 1 + AHEAD, len(pieces))):
                if next_one not in waiting:
                    other = pieces[next_one]
                    waiting[next_one] = threads.submit(other.check, missing_ok), threads.submit(_open, other)
            check, footer = waiting[at]
            check.result()
            footer.result()
            yield piece
    finally:
        threads.shutdown(cancel_futures=True)


def _open(piece: Piece) -> None:
    """Read what a file tells of itself; what goes wrong does so again when it is read."""
    with suppress(Exception):
        piece.format.fields(piece.fragment)

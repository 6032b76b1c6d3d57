"""The directory of a job's checkpoints: state files, metadata that make a checkpoint exist, and who may write.

::

    <path>/job.json                  name of the job, key groups, version of this layout
    <path>/lock                      locked (flock) by the driver that runs the job; its text says who that is
    <path>/generations/0000000003    one for each run that was ever begun, made exclusively
    <path>/state/...                 state files, by name in the metadata
    <path>/rows/<sink>/...           rows that wait in front of a sink
    <path>/checkpoints/0000000042.json

A state file is durable before its task acknowledges.  The metadata come last, by a link to a file that was synced: with
them the checkpoint exists (Flink's ``PendingCheckpoint``; unlike there, the directory is synced too, and each piece has
a CRC32C that is looked at before a restore begins).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastbuf.errors import FastbufError
from fastbuf.fork_safe import child_closes
from fastbuf.serializers.checksum import crc32c

log = logging.getLogger("fastbuf")

FORMAT = 1  #: version of the layout; another one is refused
KEPT = 3  #: checkpoints kept besides savepoints
DIGITS = 10


class CheckpointError(FastbufError):
    """A checkpoint cannot be written, or none can be read."""


class CheckpointInUse(CheckpointError):
    """Another driver runs the job of these checkpoints, or has taken it over."""


@dataclass(frozen=True)
class Piece:
    """Bytes of a state file.

    Attributes
    ----------
    file
        Name below ``state/``.
    at, length
        Where they are.
    crc
        Their CRC32C.
    """

    file: str
    at: int
    length: int
    crc: int

    def entry(self) -> list[Any]:
        """For JSON."""
        return [self.file, self.at, self.length, self.crc]


class StateFile:
    """Writes one state file; a task of a checkpoint has one for all that is new.

    Parameters
    ----------
    folder
        The directory ``state``.
    prefix
        Begin of its name, which ends in random digits: an older attempt's file has another one.
    """

    def __init__(self, folder: str | os.PathLike[str], prefix: str) -> None:
        self.name = f"{prefix}-{secrets.token_hex(6)}"
        self._path = Path(folder, self.name)
        self._file: Any = None
        self._at = 0

    def add(self, data: bytes | memoryview) -> Piece:
        """Append bytes."""
        if self._file is None:
            self._file = open(self._path, "xb", buffering=1 << 20)  # noqa: SIM115
        size = memoryview(data).nbytes
        piece = Piece(self.name, self._at, size, crc32c(data))
        self._file.write(data)
        self._at += size
        return piece

    def close(self) -> int:
        """Make it durable; returns its bytes, 0 where nothing was added: then there is no file."""
        if self._file is None:
            return 0
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        sync_directory(self._path.parent)
        return self._at

    def abandon(self) -> None:
        """Remove what was written."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._path.unlink(missing_ok=True)


def read_piece(folder: str | os.PathLike[str], entry: Iterable[Any]) -> bytes:
    """The bytes of a piece.

    Raises
    ------
    CheckpointError
        The file is missing or too short, or the bytes are not those that were written.
    """
    piece = Piece(*entry)
    path = Path(folder, piece.file)
    try:
        with open(path, "rb") as file:
            file.seek(piece.at)
            data = file.read(piece.length)
    except OSError as error:
        raise CheckpointError(f"a state file cannot be read: {error}") from error
    if len(data) != piece.length:
        raise CheckpointError(f"{path} ends after {piece.at + len(data)} bytes, {piece.at + piece.length} were written")
    if crc32c(data) != piece.crc:
        raise CheckpointError(f"{path}: bytes {piece.at} to {piece.at + piece.length} are not those that were written")
    return data


def pieces_of(metadata: Any) -> Iterator[list[Any]]:
    """All entries of pieces in a checkpoint's metadata: values named ``pieces``, at any depth."""
    if isinstance(metadata, dict):
        for name, value in metadata.items():
            if name == "pieces":
                yield from value.values() if isinstance(value, dict) else value
            else:
                yield from pieces_of(value)
    elif isinstance(metadata, list):
        for value in metadata:
            yield from pieces_of(value)


class CheckpointStore:
    """The checkpoints of one job, as its driver sees them.

    Parameters
    ----------
    path
        Directory that the driver and all tasks see; made if it is missing.
    key_groups
        Of a new job; an older one keeps its own.
    kept
        Completed checkpoints to keep.

    Raises
    ------
    CheckpointError
        The directory belongs to something else, or to another version.
    """

    def __init__(self, path: str | os.PathLike[str], key_groups: int = 128, kept: int = KEPT) -> None:
        if "://" in os.fspath(path):
            raise CheckpointError(f"checkpoints cannot be kept in {path}: give a directory that all hosts have mounted")
        self.path = Path(path).absolute()
        self.kept = kept
        self.generation = 0
        self._lock: Any = None
        for name in ("checkpoints", "generations", "state", "rows"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        about = self.path / "job.json"
        if not about.exists():
            text = json.dumps({"format": FORMAT, "job": secrets.token_hex(16), "key_groups": key_groups})
            with contextlib.suppress(FileExistsError):  # another driver begins the same job
                _write(about, text.encode(), exclusive=True)
        try:
            job = json.loads(about.read_text())
            self.job: str = job["job"]
            self.key_groups: int = job["key_groups"]
            version = job["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{about} does not describe checkpoints of fastbuf's: {error!r}") from error
        if version != FORMAT:
            raise CheckpointError(f"{self.path} has checkpoints of format {version}; this version reads {FORMAT}")

    def is_there(self) -> bool:
        """Whether the directory is, and can be looked at."""
        return os.path.exists(self.path / "job.json")  # Path.exists raises for a mount that is stale

    @property
    def state_folder(self) -> str:
        """Where tasks write state files."""
        return str(self.path / "state")

    def rows_folder(self, sink: str) -> str:
        """Where rows wait in front of a sink."""
        folder = self.path / "rows" / sink
        folder.mkdir(exist_ok=True)
        return str(folder)

    def lock(self) -> None:
        """Take the job for this driver, for as long as it lives or until :meth:`unlock`.

        Raises
        ------
        CheckpointInUse
            Another driver has it.
        """
        file = child_closes(open(self.path / "lock", "a+"))  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            who = file.read().strip() or "another driver"
            file.close()
            raise CheckpointInUse(
                f"the checkpoints in {self.path} are in use by {who}: stop that query, or give this one another "
                "directory"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%F %T %z')}\n")
        file.flush()
        self._lock = file

    def unlock(self) -> None:
        """Let others have the job."""
        if self._lock is not None:
            with contextlib.suppress(OSError):  # its mount is stale: the lock is gone with it
                self._lock.close()
            self._lock = None

    def open_generation(self) -> int:
        """The number of a new run, above all that were begun before; what older ones do is refused from here on."""
        newest = max(self._generations(), default=0)
        while True:
            newest += 1
            try:
                _write(self.path / "generations" / f"{newest:0{DIGITS}}", f"{os.getpid()}".encode(), exclusive=True)
            except FileExistsError:
                continue
            self.generation = newest
            for old in self._generations():
                if old < newest - 10:  # a job that restarts for years leaves ten
                    (self.path / "generations" / f"{old:0{DIGITS}}").unlink(missing_ok=True)
            return newest

    def _generations(self) -> list[int]:
        return [int(name) for name in os.listdir(self.path / "generations") if name.isdigit()]

    def check_generation(self) -> None:
        """Raises :class:`CheckpointInUse` if a newer run has begun."""
        newest = max(self._generations(), default=0)
        if newest > self.generation:
            raise CheckpointInUse(f"run {newest} of the job in {self.path} has begun; this is run {self.generation}")

    def write(self, checkpoint: int, metadata: dict[str, Any]) -> None:
        """Make a checkpoint exist, and remove what no kept one needs.

        Raises
        ------
        CheckpointInUse
            A newer run has begun, or has written this checkpoint.
        OSError
            The disk is full, or the like: the checkpoint does not exist.
        """
        self.check_generation()
        body = {**metadata, "checkpoint": checkpoint, "generation": self.generation, "format": FORMAT}
        try:
            _write(self._file(checkpoint), _signed(body), exclusive=True)
        except FileExistsError:
            raise CheckpointInUse(f"checkpoint {checkpoint} is there already in {self.path}") from None

    def prune(self) -> None:
        """Keep the newest checkpoints, and the files that they name."""
        numbers = self.numbers()
        for number in numbers[: -self.kept]:
            self._file(number).unlink(missing_ok=True)
        # Files of the checkpoint in progress are not named yet, and have its number
        self._remove_unnamed(numbers[-self.kept :], numbers[-1] if numbers else 0)

    def sweep(self) -> None:
        """Remove all state files that no checkpoint names, and what writes left that were cut off; no task runs."""
        self._remove_unnamed(self.numbers(), None)
        for name in ("checkpoints", "generations", "state", "."):
            for path in (self.path / name).glob(".*-*"):
                path.unlink(missing_ok=True)

    def _remove_unnamed(self, numbers: Iterable[int], newest: int | None) -> None:
        """Remove the state files of checkpoints up to ``newest`` that none of ``numbers`` names."""
        needed = set()
        for number in numbers:
            try:
                needed |= {entry[0] for entry in pieces_of(self.read(number))}
            except CheckpointError as error:
                log.error("no state file is removed, since it is not known which are needed: %s", error)
                return
        for name in set(os.listdir(self.path / "state")) - needed:
            if newest is None or _checkpoint_of(name) <= newest:
                (self.path / "state" / name).unlink(missing_ok=True)

    def last(self) -> int:
        """The newest number that a checkpoint ever had here, broken ones too: none is given out twice."""
        names = (name[:DIGITS] for name in os.listdir(self.path / "checkpoints"))
        return max((int(name) for name in names if name.isdigit()), default=0)

    def numbers(self) -> list[int]:
        """The checkpoints that exist, oldest first."""
        return sorted(int(name[:-5]) for name in os.listdir(self.path / "checkpoints") if name[:-5].isdigit())

    def read(self, checkpoint: int) -> dict[str, Any]:
        """The metadata of a checkpoint.

        Raises
        ------
        CheckpointError
            They cannot be read, or are not what was written.
        """
        return read_metadata(self._file(checkpoint))

    def latest(self, verify: bool = True) -> dict[str, Any] | None:
        """The newest checkpoint whose files are all what was written; None if there is no checkpoint at all.

        Raises
        ------
        CheckpointError
            There are checkpoints, and none of them can be restored.
        """
        numbers = self.numbers()
        problems = []
        for number in reversed(numbers):
            try:
                metadata = self.read(number)
                if verify:
                    verify_pieces(self.state_folder, metadata)
            except CheckpointError as error:
                log.error(
                    "checkpoint %d cannot be restored, and rows that it committed will come again from the one before "
                    "it: %s",
                    number,
                    error,
                )
                problems.append(f"{number}: {error}")
                continue
            return metadata
        if numbers:
            raise CheckpointError(f"no checkpoint in {self.path} can be restored: {'; '.join(problems)}")
        return None

    def drop_after(self, checkpoint: int) -> None:
        """Take newer checkpoints, which could not be restored, out of use: their metadata stay, as ``.broken``."""
        for number in self.numbers():
            if number > checkpoint:
                path = self._file(number)
                path.rename(path.with_suffix(".broken"))

    def export(self, checkpoint: int, path: str | os.PathLike[str]) -> None:
        """Copy a checkpoint with all its files into a directory of its own, which is made; a savepoint.

        Raises
        ------
        CheckpointError
            The directory is there and not empty, or a file is not what was written.
        """
        target = Path(path)
        if target.exists() and any(target.iterdir()):
            raise CheckpointError(f"{target} is not empty: give a savepoint a directory of its own")
        metadata = self.read(checkpoint)
        try:
            for name in ("state", "checkpoints"):
                (target / name).mkdir(parents=True, exist_ok=True)
            for name in sorted({entry[0] for entry in pieces_of(metadata)}):
                _write(target / "state" / name, (self.path / "state" / name).read_bytes())
            verify_pieces(target / "state", metadata)
            _write(target / "job.json", (self.path / "job.json").read_bytes())
            _write(target / "checkpoints" / self._file(checkpoint).name, _signed(metadata))
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)  # so that it can be tried again
            raise

    def settle(self, checkpoint: int, savepoint: str | os.PathLike[str] | None = None) -> None:
        """Note that all rows that a checkpoint names are committed, or one that was exported as this savepoint."""
        path = self._file(checkpoint)
        if savepoint is not None:
            path = Path(savepoint) / "checkpoints" / path.name
        else:
            self.check_generation()
        metadata = read_metadata(path)
        if not metadata.get("committed"):
            _write(path, _signed({**metadata, "committed": True}))

    def begin_from(self, savepoint: str | os.PathLike[str]) -> None:
        """Take a savepoint as the first checkpoint of this job, if it has none yet.

        Raises
        ------
        CheckpointError
            It cannot be read, or names rows that are not known to be committed.
        """
        if self.numbers():
            return
        source = Path(savepoint)
        names = sorted(name for name in _names(source / "checkpoints") if name[:-5].isdigit())
        if not names:
            raise CheckpointError(f"{source} has no savepoint")
        metadata = read_metadata(source / "checkpoints" / names[-1])
        waits = any(some for waiting in metadata.get("rows", {}).values() for _, some in waiting)
        if waits and not metadata.get("committed"):
            raise CheckpointError(
                f"rows of checkpoint {metadata['checkpoint']} in {source} wait for their sink, and only the stream "
                "that wrote them can commit them: start it again with this directory as its checkpoint=, and take a "
                "savepoint then"
            )
        verify_pieces(source / "state", metadata)
        for name in sorted({entry[0] for entry in pieces_of(metadata)}):
            _write(self.path / "state" / name, (source / "state" / name).read_bytes())
        job = json.loads((source / "job.json").read_text())
        self.key_groups = job["key_groups"]
        text = json.dumps({"format": FORMAT, "job": self.job, "key_groups": self.key_groups})
        _write(self.path / "job.json", text.encode())
        _write(self._file(metadata["checkpoint"]), _signed({**metadata, "rows": {}}), exclusive=True)

    def _file(self, checkpoint: int) -> Path:
        return self.path / "checkpoints" / f"{checkpoint:0{DIGITS}}.json"


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def verify_pieces(folder: str | os.PathLike[str], metadata: dict[str, Any]) -> None:
    """Read all state files of a checkpoint.

    Raises
    ------
    CheckpointError
        One of them is not what was written.
    """
    for entry in pieces_of(metadata):
        read_piece(folder, entry)


def read_metadata(path: Path) -> dict[str, Any]:
    """Metadata from their file; raises :class:`CheckpointError`."""
    try:
        first, _, body = path.read_bytes().partition(b"\n")
        if int(first, 16) != crc32c(body):
            raise ValueError("its checksum is another one")
        metadata = json.loads(body)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path} is of format {metadata.get('format')}; this version reads {FORMAT}")
    return dict(metadata)


def _signed(body: dict[str, Any]) -> bytes:
    text = json.dumps(body, separators=(",", ":")).encode()
    return b"%08x\n%s" % (crc32c(text), text)


def _checkpoint_of(name: str) -> int:
    """The number at the begin of a state file's name."""
    number = name.partition("-")[0]
    return int(number) if number.isdigit() else 0


def _write(path: Path, data: bytes, exclusive: bool = False) -> None:
    """A durable file, all of it or nothing."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if exclusive:
            os.link(temporary, path)  # refuses a name that is there, which a rename would replace
            with contextlib.suppress(OSError):
                temporary.unlink()
        else:
            temporary.rename(path)
        sync_directory(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

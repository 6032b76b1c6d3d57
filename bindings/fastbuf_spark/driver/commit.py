"""Makes the files that tasks have written visible to readers, in one step.

Tasks write below a temporary directory that readers ignore.  The driver moves the files of the successful attempts into
place there, and renames the whole directory at once.  Files appended to an existing directory are renamed one by one: a
journal lists them and the driver's process, so that the next write can remove the remains of a driver that was killed
in between.  A store of objects has no rename: files are copied into place so, and a directory is not replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import logging
import os
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastbuf.errors import ConfigError, ResourceError
from fastbuf_spark.driver.unfinished import (
    FORGOTTEN_DAYS,
    INSIDE,
    JOURNAL,
    MARK,
    is_dead,
    is_forgotten,
    is_of_another_host,
    names_in,
    owner_of,
)
from fastbuf_spark.driver.uploads import end_uploads
from fastbuf_spark.worker import stores

log = logging.getLogger("fastbuf_spark")

MODES = ("error", "overwrite", "append")
OLD = "old"  #: the directory that is being replaced, until the new one is complete
GONE = "gone"  #: at the end of the name of what is being deleted
DONE = "_SUCCESS"
RUNNING = "running"  #: in a store, what is there as long as tasks may write
LONG_NAME = 100  #: bytes of a name; a longer one is hashed in that of its temporary directory, which may have 255
SHOWN = 10  #: files that the log names
COPIES = 16  #: threads that copy objects
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
#: Temporary directories that writes of this process could not take away, as with credentials that have ended
_left_over: set[str] = set()


class CommitUnknown(ResourceError):
    """It is not known whether a table has the files of a write: they stay."""


def copies(system: Any, path: str) -> bool:
    """Whether files are copied into place, as in a store of objects; else renames are atomic.

    Raises
    ------
    ConfigError
        Neither.
    """
    names = stores.kinds(system)
    if names & {"file", "local", "hdfs"}:
        return False
    if not names & stores.STORES:
        raise ConfigError(
            f"{path}: a rename on {min(names)} is not atomic, so readers could see some of the files. Write to a file "
            "system that has one (local, HDFS), to a store of objects, or let Spark write, by the committer of your "
            "store: to_df().write.parquet(path)"
        )
    return True


class Commit:
    """A write to a directory.

    Parameters
    ----------
    mode
        ``"error"``: the directory must be missing; ``"overwrite"``: replaces its content; ``"append"``: keeps
        it.

    Attributes
    ----------
    folder
        Where tasks write, each attempt in a directory of its own.
    mark
        An object of a store that is there as long as tasks may write; empty: ``folder`` is.
    """

    def __init__(self, system: Any, path: str, mode: str) -> None:
        from pyarrow import fs

        self._is_store = copies(system, path)
        self._system = system
        self._path = path.rstrip("/")
        self._mode = mode
        self._is_seen_in_part = self._is_over = False
        self._has_uploads = True  # until it is known that no file is long: a worker may be killed, and not its task
        if not self._path:
            raise ConfigError(f"path is {path!r}: give the path of a directory below it")
        parent, slash, name = self._path.rpartition("/")
        there = self._inside() if self._is_store else ()
        kind = fs.FileType.Directory if there else system.get_file_info(self._path).type
        if kind == fs.FileType.File:
            raise ResourceError(f"{path} is a file: give the path of a directory")
        if kind == fs.FileType.NotFound and isinstance(system, fs.LocalFileSystem) and os.path.islink(self._path):
            target = os.readlink(self._path)
            raise ResourceError(f"{path} is a link to {target}, which is not there: make it, or remove the link")
        self._is_there = kind == fs.FileType.Directory
        above = parent or slash
        if len(name.encode()) > LONG_NAME:
            name = hashlib.sha256(name.encode()).hexdigest()
        if self._is_store and mode == "overwrite":
            raise ConfigError(
                f"{path} is in a store of objects, where many files are not replaced in one step, and readers would "
                "see some of both: write to another path, or a Delta table (write_delta), or let Spark write: "
                "to_df().write.parquet(path)"
            )
        if self._is_store:
            there = self._inside() if self._clean(there, INSIDE) else there
            self._is_there = any(not info.base_name.startswith(INSIDE) for info in there)
        else:
            self._clean(self._inside(above), f".{name}{MARK}")
            self._clean(self._inside(), INSIDE)
        if self._is_there and mode == "error":
            raise ResourceError(f"{path} is there already: use mode='overwrite' or 'append', or another path")
        if self._is_there and mode == "overwrite" and isinstance(system, fs.LocalFileSystem) and os.path.ismount(path):
            raise ResourceError(
                f"{path} is where a file system is mounted, which no rename can replace: give a path below it"
            )
        self._adds = self._is_store or (self._is_there and mode == "append")
        mark = INSIDE if self._adds else f".{name}{MARK}"
        beside = self._path if self._adds else above
        named = f"{mark}{owner_of(os.getpid())}-{secrets.token_hex(8)}"
        self._temporary = f"{beside}/{named}" if beside.strip("/") else f"{slash}{named}"
        self.folder, self.mark = f"{self._temporary}/attempts", ""
        if self._is_store:
            self.mark = f"{self._temporary}/{RUNNING}"
            system.open_output_stream(self.mark).close()
        else:
            system.create_dir(self.folder, recursive=True)

    def _inside(self, folder: str | None = None) -> Sequence[Any]:
        """What is in a directory, if it is one: the one that is written, unless another is named."""
        try:
            return stores.children(self._system, self._path if folder is None else folder)
        except NotADirectoryError:
            return ()

    def commit(self, written: Sequence[tuple[str, str, int]]) -> None:
        """Make exactly these files visible to readers.

        Parameters
        ----------
        written
            Attempt, path in its directory, and bytes of each file.

        Raises
        ------
        ResourceError
            The driver does not see a file as it was written: workers and driver do not share a file system.
        """
        names = [f"{attempt}/{path}" for attempt, path, _ in written]
        self._has_uploads = any(size > stores.UPLOAD_BYTES for _, _, size in written)
        stores.check_sizes(self._system, self.folder, names, [size for _, _, size in written])
        paths = [f"{self.folder}/{name}" for name in names]
        if self._adds:
            self._add(paths, [path for _, path, _ in written])
        else:
            self._replace(paths, [path for _, path, _ in written])

    def lost(self, error: BaseException) -> ResourceError | None:
        """What to raise instead of an error, if another write has taken away what this one had written."""
        from pyarrow import fs

        still = self.mark or self.folder
        if self._temporary not in str(error) or self._system.get_file_info(still).type != fs.FileType.NotFound:
            return None
        return ResourceError(
            f"{self._path} was replaced or removed by another write while this one ran, and the files of this one with "
            "it: write again, and let overwrites run when no other write to the directory does"
        )

    def _add(self, paths: Sequence[str], names: Sequence[str]) -> None:
        self._note(JOURNAL, list(names))  # first: this fails, and makes nothing, if the directory is gone
        if self._is_store and self._mode == "error":
            self._check_alone()
        try:
            if self._is_store:
                targets = [f"{self._path}/{name}" for name in names]
                with ThreadPoolExecutor(COPIES) as threads:
                    list(threads.map(self._system.copy_file, paths, targets))
                self._system.copy_file(self.mark, f"{self._path}/{DONE}")  # empty too, and never an upload that is left
            else:
                self._folders(self._path, names)
                for path, name in zip(paths, names, strict=True):
                    self._move(path, f"{self._path}/{name}")
        except BaseException as error:
            seen, why = self._drop(names)
            if not seen:
                raise
            self._is_seen_in_part = True
            _left_over.add(self._temporary)
            raise ResourceError(
                f"{error}; and {len(seen)} of {len(names)} files of this write may be seen in {self._path}, since they "
                f"could not be taken away: {why}. The next write to it, of this process or another of this host, takes "
                "them away first"
            ) from error
        if self._is_store:
            self._note(JOURNAL, [])  # one request, and to delete it takes three
        else:
            self._system.delete_file(f"{self._temporary}/{JOURNAL}")
        self.close()

    def _replace(self, paths: Sequence[str], names: Sequence[str]) -> None:
        from pyarrow import fs

        directory = f"{self._temporary}/made-{secrets.token_hex(4)}"
        self._system.create_dir(directory)
        self._folders(directory, names)
        for path, name in zip(paths, names, strict=True):
            self._move(path, f"{directory}/{name}")
        with self._system.open_output_stream(f"{directory}/{DONE}"):
            pass
        # Looked at anew: another write may have made the directory since, and what was there may be gone
        missing = self._system.get_file_info(self._path).type == fs.FileType.NotFound
        if (missing or self._mode == "error") and self._makes(directory):
            self.close()
            return
        if self._mode == "append":  # another write has made the directory since
            self._add([f"{directory}/{name}" for name in names], names)
            return
        old = f"{self._temporary}/{OLD}"
        while not self._exchange(directory, self._path):
            self._move(self._path, old)
            if self._makes(directory):
                break
            # Another write has come between the two renames: it is replaced too
            self._move(old, f"{old}-{secrets.token_hex(4)}")
        self.close()

    def _makes(self, directory: str) -> bool:
        """Make this the directory; False if another write has made one since that is to be replaced or added to."""
        from pyarrow import fs

        try:
            if self._system.get_file_info(self._path).type != fs.FileType.NotFound:
                raise FileExistsError(self._path)
            self._move(directory, self._path)
            # Other file systems than the local one move a directory into one that has come meanwhile
            inside = f"{self._path}/{directory.rpartition('/')[2]}"
            if self._system.get_file_info(inside).type == fs.FileType.Directory:
                self._move(inside, directory)
                raise FileExistsError(self._path)
        except OSError:
            if self._system.get_file_info(self._path).type != fs.FileType.Directory:
                raise
            if self._mode == "error":
                raise self._too_late() from None
            return False
        return True

    def _check_alone(self) -> None:
        """Of several writes of a new directory in a store at most one may go on, where no rename decides which.

        Each has written its journal before it looks for those of others, so of two at least one sees the other; if both
        do, both give up.
        """
        own = self._temporary.rpartition("/")[2]
        for info in self._inside():
            if not info.base_name.startswith(INSIDE):
                raise self._too_late()
            if info.base_name != own and names_in(self._system, f"{info.path}/{JOURNAL}"):
                raise ResourceError(
                    f"{self._path} is being made by another write, {info.base_name}: run this one again, to another "
                    "path, or with mode='append'; if that one was killed on another host, remove its directory"
                )

    def _too_late(self) -> ResourceError:
        return ResourceError(
            f"{self._path} is there already: another write has made it meanwhile; use mode='append', or another path"
        )

    def close(self) -> None:
        """Take away what is not committed.

        Under another name first: tasks of a run that failed may write on for seconds, and new files in a directory that
        is being deleted would stop that.
        """
        if self._is_seen_in_part or self._is_over:
            return  # in part: the journal in it names the files that are to be taken away
        gone = f"{self._temporary}-{GONE}"
        try:
            if self._is_store:
                if self._has_uploads:
                    end_uploads(self._system, self._temporary)
                stores.delete_dir(self._system, self._temporary)
            else:
                self._brings_back(self._temporary)
                self._system.move(self._temporary, gone)
                self._system.delete_dir(gone)
            self._is_over = True
            _left_over.discard(self._temporary)
        except FileNotFoundError:
            pass
        except OSError as error:  # what was committed is
            _left_over.update((self._temporary, gone))
            log.warning("%s cannot be taken away, and no reader looks at it: %s", self._temporary, error)

    def _brings_back(self, temporary: str) -> bool:
        """Put back the directory that was to be replaced, if there is none in its place."""
        from pyarrow import fs

        old = f"{temporary}/{OLD}"
        there, aside = (info.type for info in self._system.get_file_info([self._path, old]))
        if there != fs.FileType.NotFound or aside != fs.FileType.Directory:
            return False
        self._move(old, self._path)
        return True

    def _folders(self, base: str, names: Sequence[str]) -> None:
        for folder in sorted({name.rpartition("/")[0] for name in names} - {""}):
            self._system.create_dir(f"{base}/{folder}", recursive=True)

    def _move(self, source: str, target: str) -> None:
        self._system.move(source, target)

    def _exchange(self, one: str, other: str) -> bool:
        """Exchange two directories atomically; False if not possible.  Linux can, on most of its file systems."""
        from pyarrow import fs

        call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if call is None or not isinstance(self._system, fs.LocalFileSystem):
            return False
        done = call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
        return bool(done == 0)

    def _note(self, name: str, what: list[str]) -> None:
        """Write a file of the temporary directory atomically."""
        draft = f"{self._temporary}/{name}{'' if self._is_store else '.draft'}"
        with self._system.open_output_stream(draft) as stream:
            stream.write(json.dumps(what).encode())
        if not self._is_store:
            self._move(draft, f"{self._temporary}/{name}")

    def _clean(self, infos: Sequence[Any], mark: str) -> bool:
        """Remove temporary files and half-finished appends of dead drivers of this host, and of this one's own.

        Those of other hosts are removed when nothing has come of them for :data:`FORGOTTEN_DAYS`, and told until then.
        Returns whether there were some.
        """
        cleans = False
        for info in infos:
            owner = info.base_name.removeprefix(mark).removesuffix(f"-{GONE}").rpartition("-")[0]
            if not info.base_name.startswith(mark):
                continue
            is_over = is_dead(owner) or info.path in _left_over
            if not is_over and not is_forgotten(self._system, owner, info.path):
                self._tell(info, owner)
                continue
            cleans = True
            added = names_in(self._system, f"{info.path}/{JOURNAL}") or []
            seen, why = self._drop(added)
            if seen:
                raise ResourceError(
                    f"{self._path} has {len(seen)} files of a write that failed, and they cannot be taken away: {why}"
                )
            self._is_there |= self._brings_back(info.path)
            ended = end_uploads(self._system, info.path)
            log.info("%s: removed the remains of a write, %d files of it visible%s", info.path, len(added), ended)
            with contextlib.suppress(OSError):
                stores.delete_dir(self._system, info.path)
                _left_over.discard(info.path)
        return cleans

    def _tell(self, info: Any, owner: str) -> None:
        """Warn of files that a killed write of another host may have left; readers but fastbuf's see them."""
        names = names_in(self._system, f"{info.path}/{JOURNAL}") if is_of_another_host(owner) else None
        if names:
            log.warning(
                "%s: a write of another host is putting %d files into place, or was killed as it did, and readers but "
                "fastbuf's may see some of them: if it does not run any more, delete the files that %s names "
                "(%s%s), and then %s; else a write that comes %d days later does",
                self._path,
                len(names),
                f"{info.path}/{JOURNAL}",
                ", ".join(f"{self._path}/{name}" for name in names[:SHOWN]),
                "" if len(names) <= SHOWN else ", ...",
                info.path,
                FORGOTTEN_DAYS,
            )

    def _drop(self, names: Sequence[str]) -> tuple[list[str], str]:
        """Take files out of the sight of readers; those that could not be, and why."""
        seen, why = [], ""
        for name in names:
            try:
                self._system.delete_file(f"{self._path}/{name}")
            except FileNotFoundError:
                pass
            except OSError as error:
                seen.append(name)
                why = str(error)
        return seen, why

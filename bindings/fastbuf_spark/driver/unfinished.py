"""Writes that are not at their end: whose they are, and which of their files readers pass over.

A write that adds files to a directory has one of its own there, with a journal in it: it names the files before the
first of them is put into place, and none once all are.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

MARK = "-fastbuf-write-"
INSIDE = f"_temporary{MARK}"  #: how the name of a write's directory begins, in the directory that it adds to
JOURNAL = "journal.json"
LOOKS = 5  #: at a directory in which a write comes to its end meanwhile
FORGOTTEN_DAYS = 7  #: after its newest file a write of another host counts as dead; stores drop uploads after as many
_WRITE = re.compile(rf"(?:.*/)?{INSIDE}[^/]*")


def names_in(system: Any, path: str) -> list[str] | None:
    """The files that a journal names; None: there is no such journal."""
    try:
        with system.open_input_stream(path) as stream:
            return [str(name) for name in json.loads(stream.read())]
    except (OSError, ValueError):
        return None


def complete(system: Any, listing: Callable[[], Iterable[Any]]) -> list[Any]:
    """What is listed, without the files of writes that are not at their end: all of a write's or none.

    Parameters
    ----------
    listing
        Lists a directory, and what is below it.

    Notes
    -----
    If there is no write's directory, nothing more is asked.
    """
    from pyarrow import fs

    def state(write: str) -> Any:
        names = names_in(system, f"{write}/{JOURNAL}")
        return system.get_file_info(write).type != fs.FileType.NotFound if names is None else names

    infos, before = list(listing()), None
    for _ in range(LOOKS):
        matches = (_WRITE.match(info.path) for info in infos)
        states = {write: state(write) for write in sorted({match[0] for match in matches if match})}
        # What a journal names now was listed or not: it does not count.  Else nothing may have changed since
        if states == before or all(isinstance(each, list) and each for each in states.values()):
            break
        infos, before = list(listing()), states
    hidden = {
        f"{write.rpartition('/')[0]}/{name}"
        for write, names in states.items()
        if isinstance(names, list)
        for name in names
    }
    return [info for info in infos if info.path not in hidden]


def is_forgotten(system: Any, owner: str, *paths: str) -> bool:
    """Whether a write of another host has written nothing for :data:`FORGOTTEN_DAYS` days.

    Parameters
    ----------
    paths
        What it has written: the newest file there counts.
    """
    from pyarrow import fs

    if not is_of_another_host(owner):
        return False
    infos = list(system.get_file_info(list(paths)))
    for path in paths:
        with suppress(NotADirectoryError):
            infos += system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    times = [info.mtime.timestamp() for info in infos if info.mtime is not None]
    return bool(times) and max(times) < time.time() - FORGOTTEN_DAYS * 86400


def is_of_another_host(owner: str) -> bool:
    """Whether a driver is none of this host's, or of this container's."""
    return owner.partition(".")[0] != _host()


def _host() -> str:
    """This host, and the space of its process ids: containers may share the name of a host without these."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return hashlib.sha256(f"{socket.gethostname()} {space}".encode()).hexdigest()[:12]


def owner_of(pid: int) -> str:
    """A process of this host, for directory names: host, pid and start time, since a pid can be used again."""
    return f"{_host()}.{pid}.{_began(pid)}"


def _began(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def is_dead(owner: str) -> bool:
    """Whether a driver is known to be dead; unknown for other hosts."""
    host, _, rest = owner.partition(".")
    pid, _, began = rest.partition(".")
    if host != _host() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's
        pass
    return _began(int(pid)) not in ("", began)

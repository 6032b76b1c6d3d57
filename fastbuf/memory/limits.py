"""How much memory this process may still take: address space, control group, free memory.

An arena is mapped at once but its pages are allocated one by one.  Without this check, a limit that is too low would
kill the process in the middle of a shuffle.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

from fastbuf.errors import ResourceError

_UNLIMITED = 1 << 60  #: cgroup v1 writes "no limit" as the largest multiple of a page


@dataclass(frozen=True)
class MemoryLimit:
    """One bound on the memory of this process.

    Parameters
    ----------
    name
        What sets the bound, as named in errors.
    limit, used
        Bytes.
    remedy
        How to raise the bound.
    """

    name: str
    limit: int
    used: int
    remedy: str

    @property
    def left(self) -> int:
        """Bytes that may still be taken."""
        return max(0, self.limit - self.used)


def _read_int(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _address_space(proc: Path) -> list[MemoryLimit]:
    try:
        soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    except OSError:  # a sandbox denies it
        return []
    if soft == resource.RLIM_INFINITY:
        return []
    try:
        pages = int((proc / "self/statm").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        pages = 0
    used = pages * resource.getpagesize()
    remedy = "ulimit -v, or spark.executor.pyspark.memory where Spark set it"
    return [MemoryLimit("RLIMIT_AS", soft, used, remedy)]


def _reclaimable(stat: Path, keys: tuple[str, ...]) -> int:
    """Bytes of page cache that the kernel frees before it kills a process: they count as used but can be had."""
    total = 0
    try:
        for line in stat.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key in keys:
                total += int(value)
    except (OSError, ValueError):
        return 0
    return total


def _control_groups(proc: Path, sys: Path) -> list[MemoryLimit]:
    """Memory limits of this process's control group and of each group above it, version 2 and version 1."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        number, controllers, group = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            root, limit, usage, keys = sys, "memory.max", "memory.current", ("inactive_file",)
        elif "memory" in controllers.split(","):
            root, limit, usage = sys / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            keys = ("total_inactive_file",)
        else:
            continue
        # In a container the group's path is often the host's, while the group itself is mounted as the root.  So look
        # at every part of the path, and always at the root.
        parts = [p for p in group.split("/") if p and p != ".."]
        for depth in range(len(parts), -1, -1):
            folder = root.joinpath(*parts[:depth])
            bound = _read_int(folder / limit)
            if bound is None or bound >= _UNLIMITED:
                continue
            used = (_read_int(folder / usage) or 0) - _reclaimable(folder / "memory.stat", keys)
            remedy = "the memory limit of the container or systemd unit"
            limits.append(MemoryLimit(f"control group limit {folder / limit}", bound, max(0, used), remedy))
    return limits


def _free_memory(proc: Path) -> list[MemoryLimit]:
    values = {}
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            key, _, rest = line.partition(":")
            values[key] = int(rest.split()[0]) * 1024
        total, available = values["MemTotal"], values["MemAvailable"]
    except (OSError, ValueError, IndexError, KeyError):
        return []
    return [MemoryLimit("free memory (MemAvailable)", total, total - available, "the memory of the machine")]


def memory_limits(
    proc: str | Path = "/proc", sys: str | Path = "/sys/fs/cgroup", address_only: bool = False
) -> list[MemoryLimit]:
    """Every bound on this process's memory that can be found.

    Parameters
    ----------
    proc, sys
        Where procfs and the control groups are mounted.
    address_only
        Only the bounds of address space: mapping another process's arena takes no new memory.

    Returns
    -------
    list of MemoryLimit
        In any order; empty if there is no bound or none can be read.
    """
    limits = _address_space(Path(proc))
    if not address_only:
        limits += _control_groups(Path(proc), Path(sys)) + _free_memory(Path(proc))
    return limits


def require_memory(length: int, segments: int, segment_size: int, limits: list[MemoryLimit] | None = None) -> None:
    """Check that an arena fits into memory before it is mapped.

    Parameters
    ----------
    length
        Bytes to be mapped.
    segments, segment_size
        Number and size of the segments, for the error message.
    limits
        The bounds; None: look them up.

    Raises
    ------
    ResourceError
        Less than `length` is left under one of the bounds.
    """
    for bound in memory_limits() if limits is None else limits:
        if length > bound.left:
            fitting = bound.left // segment_size
            raise ResourceError(
                f"an arena of {segments} segments of {segment_size} bytes takes {length} bytes, but {bound.name} "
                f"leaves {bound.left} ({bound.limit} bytes, {bound.used} used): set segments= to at most {fitting}, "
                f"or raise {bound.remedy}"
            )

"""The memory of a worker's environment: from the settings, or from the limit of its address space."""

from __future__ import annotations

import ctypes
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from fastbuf.errors import ConfigError

if TYPE_CHECKING:
    import fastbuf as fb
    from fastbuf_spark.conf import ShuffleConf

LEAST_SEGMENTS = 32
#: Address space reserved for the rest of the task: the environment's threads, and the user's own arrays
RESERVE_BYTES = 64 << 20
M_ARENA_MAX = -8  #: of glibc's mallopt: without it each thread's heap reserves 64 MiB of address space


def environment(conf: ShuffleConf) -> fb.ShuffleEnvironment:
    """The environment of a task.

    ``spark.executor.pyspark.memory`` limits a worker's address space, not its memory use, and memory shared by several
    processes counts in each of them.  So under such a limit nothing is shared, and at most half of the rest is
    reserved.

    Raises
    ------
    ConfigError
        Less is left than an exchange needs; the message has the figures.
    """
    import fastbuf as fb

    left = addresses_left()
    if left is None:
        shared = conf.transport != "tcp"
        return fb.ShuffleEnvironment(conf.segments, conf.segment_size, tls=conf.tls(), shared=shared)
    one_heap_for_all_threads()
    segments = min(conf.segments, max(0, left - RESERVE_BYTES) // 2 // conf.segment_size)
    if segments < min(LEAST_SEGMENTS, conf.segments):
        raise ConfigError(
            f"spark.executor.pyspark.memory leaves {left >> 20} MiB of addresses to this worker, too few for an "
            f"exchange: {RESERVE_BYTES >> 20} MiB stay free, and half of the rest must hold {LEAST_SEGMENTS} segments "
            f"of {conf.segment_size} bytes. Raise it, use fewer cores for each executor, or mode='blocking'"
        )
    shared = conf.transport == "memfd"
    return fb.ShuffleEnvironment(segments, conf.segment_size, tls=conf.tls(), shared=shared)


def addresses_left() -> int | None:
    """Bytes that this process may still map; None if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return None
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return max(0, soft - pages * resource.getpagesize())


def one_heap_for_all_threads() -> None:
    """Keep glibc from reserving a heap for each new thread."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)


def give_back() -> None:
    """Make the allocators return free memory to the system, as a limit applies to what the process has.

    glibc gives back by itself only what is free at the end of its heap, but the columns of batches lie there in turn.
    """
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

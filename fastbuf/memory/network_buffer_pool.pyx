"""The pool of all segments of a process: it gives limits to local pools, and segments within these limits."""

cimport cython
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort

import threading
import warnings
import weakref
from contextlib import contextmanager

from fastbuf._native.atomics cimport fb_u64_load_relaxed, fb_u64_load_seq_cst
from fastbuf.checks import instance, whole
from fastbuf.config import POOL_SEGMENTS, SEGMENT_BYTES
from fastbuf.errors import FastbufError, PoolDestroyed, ResourceError
from fastbuf.memory.arena cimport Arena
from fastbuf.memory.audit cimport pool_faults
from fastbuf.memory.free_list cimport list_depth
from fastbuf.memory.local_buffer_pool cimport local_adopt
from fastbuf.memory.pool_claims cimport local_destroy, local_set_limit
from fastbuf.memory.pool_core cimport local_destroyed, local_in_use, local_limit
from fastbuf.memory.pool_setup cimport fork_count, local_new, pool_free, pool_new
from fastbuf.memory.pool_types cimport LocalCore
from fastbuf.memory.pool_waking cimport pool_wake_waiting
from fastbuf.memory.redistribution cimport share_out
from fastbuf.memory.stats import NetworkPoolStats


cdef enum:
    LAG = 64                    # the limits of so many pools, or fewer, are always exact


cdef inline LocalCore *first(NetworkBufferPool self) noexcept nogil:
    return <LocalCore *><size_t>fb_u64_load_seq_cst(&self.core.locals)


cdef int older(const void *a, const void *b) noexcept nogil:
    cdef uint64_t one = (<LocalCore **>a)[0].born
    cdef uint64_t other = (<LocalCore **>b)[0].born
    return (one > other) - (one < other)


# Writes the live pools, oldest first, into `pools`, which has room for all; returns how many.
cdef size_t living(NetworkBufferPool self, LocalCore **pools) noexcept:
    cdef LocalCore *p = first(self)
    cdef LocalCore *other
    cdef size_t n = 0
    cdef size_t k
    cdef size_t rising = 0
    while p != NULL:
        if not local_destroyed(p):
            pools[n] = p
            rising += n != 0 and pools[n - 1].born < p.born
            n += 1
        p = p.following
    # New LocalCores come youngest first; those used again mostly come oldest first.
    if rising == 0:
        for k in range(n // 2):
            other = pools[k]
            pools[k] = pools[n - 1 - k]
            pools[n - 1 - k] = other
    elif rising != n - 1:
        qsort(pools, n, sizeof(LocalCore *), older)
    return n


@cython.final
@cython.no_gc_clear                 # __dealloc__ needs the arena
cdef class NetworkBufferPool:
    """NetworkBufferPool(segments=2048, segment_size=32768, *, memfd=False, prefault=False, huge_pages=True)\n--\n
    All segments of a process, in one arena, shared by local pools.

    Parameters
    ----------
    segments : int
        Number of segments.
    segment_size : int
        Bytes of each; a multiple of 64.
    memfd, prefault, huge_pages : bool
        See `Arena`.

    Attributes
    ----------
    arena : Arena
        The memory; ``arena.array`` has shape (segments, segment_size).

    Raises
    ------
    ConfigError, ResourceError
        See `Arena`.

    Notes
    -----
    Requests and recycles take no lock (see ``pool_core.pyx``); creating and destroying local pools takes one.  A forked
    child may read a memfd arena (see `Arena`), but every request in it raises FastbufError.
    """

    def __cinit__(
        self, segments=POOL_SEGMENTS, segment_size=SEGMENT_BYTES, *, memfd=False, prefault=False, huge_pages=True
    ):
        cdef Arena arena = Arena(segments, segment_size, memfd=memfd, prefault=prefault, huge_pages=huge_pages)
        self.arena = arena
        self.lock = threading.Lock()
        self.roomy = True
        self.core = pool_new(arena.base, arena.segments, arena.segment_size, arena.stride)
        if self.core == NULL:
            raise ResourceError(f"no memory for the metadata of {segments} segments: set segments= lower")
        self.core.exports = &arena.exports
        self.core.is_private = arena.fd < 0
        _LIVE.add(self)

    def __dealloc__(self):
        if self.core != NULL and list_depth(self.core, &self.core.free) == self.core.count:
            pool_free(self.core)

    def __del__(self):
        # Handles and local pools hold this object, so segments in use now are in native code that no longer holds the
        # pool.  That code may still use the memory: arena and core stay until the process ends.
        if self.core == NULL:
            return
        self.destroy()
        missing = self.core.count - list_depth(self.core, &self.core.free)
        if missing:
            _ORPHANS.append(self.arena)
            warnings.warn(f"{missing} segments were never recycled: the pool's memory is kept", ResourceWarning, 1)

    def create_local_pool(self, required, maximum=None, overdraft=0, name=""):
        """Make a pool for one result partition or one input gate; the limits of all pools are computed again.

        Parameters
        ----------
        required : int
            Segments guaranteed to it: at least its number of channels or subpartitions.
        maximum : int, optional
            Upper bound of its limit; None: none.
        overdraft : int
            Segments that may be lent to it beyond its limit.
        name : str
            For messages and figures.

        Returns
        -------
        LocalBufferPool

        Raises
        ------
        ConfigError
            A number is out of range.
        ResourceError
            The guarantees would exceed the number of segments.
        PoolDestroyed
            This pool was destroyed.
        """
        cdef LocalCore *p
        required, overdraft = whole("required", required, 0), whole("overdraft", overdraft, 0)
        if maximum is None:
            maximum = max(self.core.count, required)
        maximum = whole("maximum", maximum, max(1, required))
        name = instance("name", name, str)
        if fork_count() != self.core.forks:
            raise FastbufError("this is a fork of the process that made the pool: make a pool of its own after fork()")
        with self.lock:
            if self.ended:
                raise PoolDestroyed("the network pool was destroyed")
            taken = fb_u64_load_seq_cst(&self.core.guaranteed)
            if taken + required > self.core.count:
                raise ResourceError(
                    f"pool {name!r} requires {required} segments, but of {self.core.count} segments {taken} are "
                    f"guaranteed to other pools and {self.core.count - taken} are left: set segments= to at least "
                    f"{taken + required}"
                )
            p = local_new(self.core, required, maximum, overdraft)
            if p == NULL:
                raise ResourceError("no memory for another local pool")
            pool = local_adopt(p, self, name)
            self.living += 1
            self.most += <uint64_t> maximum
            if self.roomy and not self.dirty and self.most <= self.core.count:
                local_set_limit(p, maximum)     # no other limit changes
                return pool
            self.roomy = False
        self.redistribute_limits()
        return pool

    def pool_ended(self):
        """A local pool was destroyed: the limits of the others rise.

        With more than LAG pools they do so once for each LAG-th part of the pools that ends, as each time costs a look
        at every pool: thousands that end one by one would cost the square of that.
        """
        self.gone += 1
        if self.gone * LAG >= self.living - self.gone:
            self.redistribute_limits()

    def redistribute_limits(self):
        """Compute the limits again; called whenever a local pool is created, and when some were destroyed.

        Notes
        -----
        Never waits for the lock, since the garbage collector may destroy a pool in the thread that has the lock.  The
        holder of the lock reads `dirty` again after releasing it.
        """
        if self.roomy and not self.dirty:
            return
        self.dirty = True
        while self.dirty and not self.waiting and self.lock.acquire(False):
            try:
                self.dirty = False
                self.move_limits()
            finally:
                self.lock.release()

    @contextmanager
    def limits_at_the_end(self):
        """For making or ending many local pools: the limits are computed once, at the end of the block.

        Until then a new pool may hold its `required`, and the limits of the others stay as they are.
        """
        # guarded by the GIL, not the lock: the garbage collector may run this in the thread that has the lock
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1
            self.redistribute_limits()

    cdef move_limits(self):
        # A pool that is destroyed meanwhile is skipped below, and sets `dirty`.  Its LocalCore cannot be used again
        # meanwhile, since that takes the lock.
        cdef LocalCore **pools
        cdef LocalCore *p = first(self)
        cdef uint32_t *numbers
        cdef size_t n = 0
        cdef size_t k
        cdef int rising
        cdef uint64_t most = 0
        while p != NULL:
            n += 1
            p = p.following
        self.core.looks += n
        pools = <LocalCore **>malloc((n + 1) * sizeof(LocalCore *))
        numbers = <uint32_t *>malloc((3 * n + 1) * sizeof(uint32_t))
        try:
            if pools == NULL or numbers == NULL:
                raise ResourceError("no memory to work out the limits of the local pools")
            n = living(self, pools)
            for k in range(n):
                numbers[k] = pools[k].required
                numbers[n + k] = pools[k].maximum
                most += pools[k].maximum
            share_out(self.core.count, n, numbers, numbers + n, numbers + 2 * n)
            # lower the falling limits first, so that the sum never exceeds the segments
            for rising in range(2):
                for k in range(n):
                    p = pools[k]
                    if not local_destroyed(p) and (numbers[2 * n + k] > local_limit(p)) == rising:
                        local_set_limit(p, numbers[2 * n + k])
            self.most = most
            self.living = n
            self.gone = 0
            self.roomy = most <= self.core.count
        finally:
            free(pools)
            free(numbers)
        pool_wake_waiting(self.core)

    @property
    def total(self):
        """Number of all segments."""
        return self.core.count

    @property
    def segment_size(self):
        """Bytes of a segment."""
        return self.core.segment_size

    @property
    def available(self):
        """Segments that no local pool holds."""
        return list_depth(self.core, &self.core.free)

    @property
    def destroyed(self):
        """Whether `destroy` has run."""
        return bool(self.ended)

    def stats(self):
        """Figures at this moment.  Each is exact; together they are consistent only while no thread uses the pools.

        Returns
        -------
        NetworkPoolStats
        """
        cdef LocalCore *p = first(self)
        required = limits = in_use = pools = waits = wait_ns = 0
        while p != NULL:
            in_use += local_in_use(p)
            if not local_destroyed(p):
                pools += 1
                required += p.required
                limits += local_limit(p)
                waits += fb_u64_load_relaxed(&p.waits)
                wait_ns += fb_u64_load_relaxed(&p.wait_ns)
            p = p.following
        return NetworkPoolStats(
            total=self.core.count,
            segment_size=self.core.segment_size,
            available=self.available,
            required=required,
            limits=limits,
            in_use=in_use,
            pools=pools,
            looks=self.core.looks,
            waits=waits,
            wait_s=wait_ns / 1e9,
        )

    def leave_to_readers(self):
        """Call it before the pool ends if other processes may still read segments: none is poisoned then."""
        self.core.left_to_readers = True

    def audit(self):
        """Check that every segment is in exactly one place and that all counters agree.

        Call it only at rest: during a request or recycle a segment may be between two places.

        Raises
        ------
        FastbufError
            The message lists each fault, segment by segment.
        """
        faults = pool_faults(self.core, not self.arena.closed)
        if faults:
            shown = "; ".join(faults[:20])
            more = f"; and {len(faults) - 20} more" if len(faults) > 20 else ""
            raise FastbufError(f"audit of {self.core.count} segments: {shown}{more}")

    def destroy(self):
        """Destroy all local pools and refuse to make others.  A second call does nothing.

        The memory is freed once no segment is in use and no view of the arena is held, or with this object at the
        latest.
        """
        cdef LocalCore *p
        if fork_count() != self.core.forks:
            self.ended = True                           # the thread that had the lock does not exist in this fork
        else:
            with self.lock:                             # afterwards no thread is inside create_local_pool
                self.ended = True
        p = first(self)
        while p != NULL:
            local_destroy(p)
            p = p.following
        if self.available == self.core.count and not (<Arena>self.arena).exports:
            self.arena.close()

    close = destroy

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.destroy()

    def __reduce__(self):
        raise TypeError("a NetworkBufferPool belongs to its process and cannot be copied: make one in each process")

    def __repr__(self):
        s = self.stats()
        return (
            f"<NetworkBufferPool: {s.available} of {s.total} segments of {s.segment_size} bytes free, "
            f"{s.pools} local pools>"
        )


_ORPHANS = []                       # arenas of pools that ended with segments in use
_LIVE = weakref.WeakSet()           # all pools of the process, for live_pools


def live_pools():
    """The NetworkBufferPools of this process that still exist, for tests and diagnosis.

    Returns
    -------
    list of NetworkBufferPool
    """
    return list(_LIVE)

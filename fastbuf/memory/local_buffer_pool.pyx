"""A pool for one result partition or one input gate: segments up to a limit, which redistribution changes."""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport errno
from libc.stdint cimport int32_t, int64_t, uint32_t
from posix.unistd cimport close

import threading

from fastbuf._native.atomics cimport *
from fastbuf.checks import timeout_or_none, whole
from fastbuf.errors import FastbufError, PoolDestroyed, PoolTimeout, ResourceError, strerror
from fastbuf.memory.free_list cimport list_depth
from fastbuf.memory.memory_segment cimport segment_adopt, segments_adopt, segments_recycle
from fastbuf.memory.pool_claims cimport local_destroy, local_figures, raise_peak
from fastbuf.memory.pool_core cimport *
from fastbuf.memory.pool_setup cimport fork_count, local_abandon
from fastbuf.memory.pool_types cimport LocalCore
from fastbuf.memory.pool_waking cimport local_set_signal
from fastbuf.memory.stats import LocalPoolStats


# A signal that comes just before the main thread falls asleep does not end its sleep, so the sleep is at most this
# long.  Python handles signals in the main thread only; other threads sleep without this bound.
cdef int64_t SLICE_NS = 250_000_000


# no_gc_clear: __dealloc__ needs `network` alive: it owns the memory of core.
@cython.final
@cython.no_gc_clear
cdef class LocalBufferPool:
    """LocalBufferPool()\n--\n
    Segments for one result partition or one input gate.

    Made by `NetworkBufferPool.create_local_pool`.  All methods may be called from any thread.

    Attributes
    ----------
    name : str
        For messages and figures.
    """

    def __init__(self):
        raise TypeError("a LocalBufferPool comes from NetworkBufferPool.create_local_pool")

    def __del__(self):
        if self.core != NULL and not local_destroyed(self.core):
            self.destroy()

    def __cinit__(self):
        self.eventfd = -1

    def __dealloc__(self):
        if self.eventfd >= 0:
            local_set_signal(self.core, -1)
            close(self.eventfd)
        if self.core != NULL:
            local_abandon(self.core)

    def request(self, timeout=None):
        """A segment; waits for one, without the GIL, while the pool has none.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; None: for ever; 0: not at all.

        Returns
        -------
        MemorySegment
            With one reference, which `recycle` returns.  Its bytes are left over from its last use.

        Raises
        ------
        PoolTimeout
            No segment became free in time; the message has required, available, in use, total and the setting to raise.
        PoolDestroyed
            The pool is destroyed, or was destroyed during the wait.
        FastbufError
            This process is a fork of the one that made the pool.
        """
        cdef int32_t i
        if fork_count() != self.core.pool.forks:
            self.refuse_fork()
        i = local_try_acquire(self.core)
        if i < 0:
            return self.wait(timeout)
        return segment_adopt(self.core.pool, self, i)

    def try_request(self):
        """A segment, or None if none is free now.  Never waits.

        Returns
        -------
        MemorySegment or None

        Raises
        ------
        PoolDestroyed
            The pool was destroyed.
        FastbufError
            This process is a fork of the one that made the pool.
        """
        cdef int32_t i
        if fork_count() != self.core.pool.forks:
            self.refuse_fork()
        i = local_try_acquire(self.core)
        if i < 0:
            if local_destroyed(self.core):
                raise PoolDestroyed(f"the pool {self.name!r} was destroyed")
            return None
        return segment_adopt(self.core.pool, self, i)

    def try_request_overdraft(self):
        """As `try_request`, but up to `overdraft` segments beyond the limit, to finish a record that was begun.

        Never takes segments that are guaranteed to other pools.

        Returns
        -------
        MemorySegment or None
        """
        cdef int32_t i
        if fork_count() != self.core.pool.forks:
            self.refuse_fork()
        i = local_try_acquire_overdraft(self.core)
        if i < 0:
            if local_destroyed(self.core):
                raise PoolDestroyed(f"the pool {self.name!r} was destroyed")
            return None
        return segment_adopt(self.core.pool, self, i)

    def request_async(self, timeout=None):
        """As `request`, for tasks: ``segment = await pool.request_async()``, on any event loop of asyncio.

        Tasks are served in order of arrival; threads that wait in `request` may come in between.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; None: for ever; 0: not at all.

        Returns
        -------
        coroutine
            Its result is a MemorySegment, as from `request`.  A task cancelled while it waits gets no segment, and
            costs the tasks behind it none.

        Raises
        ------
        PoolTimeout, PoolDestroyed, FastbufError
            As for `request`, raised by the coroutine.
        ResourceError
            No file descriptor is left for the eventfd that wakes the tasks.  Each pool needs one, from its first wait
            on.
        """
        if fork_count() != self.core.pool.forks:
            self.refuse_fork()
        if self.eventfd < 0:
            self.open_eventfd()
        if self.tasks is None:
            # imported here: asyncio takes longer to import than fastbuf
            from fastbuf.memory.task_queue import TaskQueue
            queue = TaskQueue(self.eventfd)
            if self.tasks is None:                      # another thread may have set it meanwhile
                self.tasks = queue
        return self.tasks.request(self, timeout)

    cdef open_eventfd(self):
        cdef int fd = fb_event_fd()
        if fd < 0:
            raise ResourceError(f"no eventfd for the tasks that wait for pool {self.name!r}: {strerror(errno)}")
        self.eventfd = fd
        local_set_signal(self.core, fd)

    def _try_or_arm(self):
        # As try_request, but after None the eventfd is written as soon as a segment may be free.
        cdef int32_t i = local_try_or_arm(self.core)
        if i < 0:
            if local_destroyed(self.core):
                raise PoolDestroyed(f"the pool {self.name!r} was destroyed while a segment was waited for")
            return None
        return segment_adopt(self.core.pool, self, i)

    def _count_wait(self, int64_t ns):
        fb_u64_add_relaxed(&self.core.waits, 1)
        fb_u64_add_relaxed(&self.core.wait_ns, ns)

    def request_many(self, n):
        """Up to `n` segments, as many as are free now.  Never waits.

        Parameters
        ----------
        n : int
            Number wanted; at least 0.

        Returns
        -------
        list of MemorySegment
            Each as from `request`; fewer than `n`, possibly none, if the pool has no more now.

        Raises
        ------
        ConfigError
            `n` is no number from 0 up.
        PoolDestroyed
            The pool was destroyed.
        FastbufError
            This process is a fork of the one that made the pool.

        Notes
        -----
        It is not all or nothing: two callers that each wait for the rest of their batch could wait for each other for
        ever.
        """
        cdef int32_t numbers[MOST_AT_ONCE]
        cdef LocalCore *p = self.core
        cdef list handles
        cdef uint32_t got, wanted
        cdef Py_ssize_t left = whole("n", n, 0)
        if fork_count() != p.pool.forks:
            self.refuse_fork()
        wanted = MOST_AT_ONCE if left > MOST_AT_ONCE else <uint32_t>left
        got = local_try_acquire_many(p, wanted, numbers)
        if got == 0 and local_destroyed(p):
            raise PoolDestroyed(f"the pool {self.name!r} was destroyed")
        handles = segments_adopt(p.pool, self, numbers, got)
        if left <= MOST_AT_ONCE:
            return handles
        while got == wanted and left > got:
            left -= got
            wanted = MOST_AT_ONCE if left > MOST_AT_ONCE else <uint32_t>left
            got = local_try_acquire_many(p, wanted, numbers)
            handles += segments_adopt(p.pool, self, numbers, got)
        return handles

    def recycle_many(self, segments):
        """Return one reference of each segment, as `recycle` does; if one is refused, none is returned.

        Parameters
        ----------
        segments : iterable of MemorySegment
            Each goes back to its own pool.  A handle with several references may be listed that many times.

        Raises
        ------
        SegmentExported
            Views of a segment are still held.
        SegmentStateError
            A segment was recycled already, or is listed more often than its handle has references.
        TypeError
            An item is not a MemorySegment.
        """
        segments_recycle(segments if type(segments) is list else list(segments))

    cdef object wait(self, object timeout):
        cdef LocalCore *p = self.core
        cdef int64_t begin = fb_now_ns()
        cdef int64_t deadline = -1
        cdef int64_t until
        cdef bint in_slices = threading.get_ident() == threading.main_thread().ident
        cdef double seconds
        cdef int32_t i = LOCAL_EMPTY
        if local_destroyed(p):
            raise PoolDestroyed(f"the pool {self.name!r} was destroyed")
        timeout = timeout_or_none(timeout)
        if timeout is not None:
            seconds = timeout
            if seconds <= 0:
                raise self._refusal(timeout)
            if seconds < 1e9:                           # beyond 30 years: for ever
                deadline = begin + <int64_t>(seconds * 1e9)
        fb_u64_add_relaxed(&p.waits, 1)
        try:
            while i < 0:
                until = fb_now_ns() + SLICE_NS if in_slices else deadline
                if 0 <= deadline < until:
                    until = deadline
                with nogil:
                    i = local_wait(p, until)
                if i >= 0:
                    break
                if i == LOCAL_DESTROYED:
                    raise PoolDestroyed(f"the pool {self.name!r} was destroyed while a segment was waited for")
                PyErr_CheckSignals()
                if i == LOCAL_EMPTY and until == deadline:
                    raise self._refusal(timeout)
        finally:
            fb_u64_add_relaxed(&p.wait_ns, fb_now_ns() - begin)
        return segment_adopt(p.pool, self, i)

    def _refusal(self, timeout):
        cdef LocalCore *p = self.core
        stats = self.stats()
        total = p.pool.count
        free = list_depth(p.pool, &p.pool.free)
        if p.maximum <= stats.limit <= stats.in_use and p.maximum < total:
            remedy = f"raise maximum= (now {p.maximum}) of this pool"
        else:
            remedy = f"raise segments= (now {total}) of the NetworkBufferPool or the ShuffleEnvironment"
        return PoolTimeout(
            f"no segment within {timeout} s from pool {self.name!r}: required {p.required}, limit {stats.limit}, "
            f"available {stats.available}, in use {stats.in_use}; the network pool has {free} of total {total} free. "
            f"Recycle sooner, or {remedy}"
        )

    cdef refuse_fork(self):
        raise FastbufError(
            f"the pool {self.name!r} belongs to the process that made it, and this is a fork of that process: make a "
            f"NetworkBufferPool of its own after fork()"
        )

    def destroy(self):
        """End the pool: waiting requests raise PoolDestroyed, and free segments go to the network pool, as do segments
        in use once they are recycled.  The limits of other pools rise (among more than 64 pools, with every 64th part
        of them that ends).  A second call does nothing.
        """
        if not local_destroyed(self.core):
            local_destroy(self.core)
            self.network.pool_ended()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.destroy()

    @property
    def required(self):
        """Segments that are guaranteed to this pool."""
        return self.core.required

    @property
    def maximum(self):
        """Upper bound of `limit`."""
        return self.core.maximum

    @property
    def overdraft(self):
        """Segments that may be lent beyond the limit."""
        return fb_u32_load_relaxed(&self.core.overdraft)

    @property
    def limit(self):
        """Segments it may hold now; 0 once destroyed."""
        return local_limit(self.core)

    @property
    def in_use(self):
        """Segments requested and not yet recycled."""
        return local_in_use(self.core)

    @property
    def available(self):
        """Free segments in this pool; the network pool may give it more, up to `limit`."""
        cdef uint32_t held = 0
        cdef uint32_t home = 0
        local_figures(self.core, &held, &home)
        return home

    @property
    def usage(self):
        """`in_use` as a part of `limit`; above 1 with overdraft, or after the limit fell."""
        cdef uint32_t limit = local_limit(self.core)
        cdef uint32_t used = local_in_use(self.core)
        return used / <double>limit if limit else float(used > 0)

    @property
    def destroyed(self):
        """Whether `destroy` has run."""
        return bool(local_destroyed(self.core))

    def stats(self):
        """Figures at this moment.

        Returns
        -------
        LocalPoolStats
        """
        cdef LocalCore *p = self.core
        cdef uint32_t held = 0
        cdef uint32_t home = 0
        local_figures(p, &held, &home)
        raise_peak(p, held - home)          # the thread that took the last segment may not have recorded the peak yet
        return LocalPoolStats(
            name=self.name,
            required=p.required,
            maximum=p.maximum,
            overdraft=fb_u32_load_relaxed(&p.overdraft),
            limit=local_limit(p),
            held=held,
            in_use=held - home,
            available=home,
            peak=fb_u32_load_relaxed(&p.peak),
            waits=fb_u64_load_relaxed(&p.waits),
            wait_s=fb_u64_load_relaxed(&p.wait_ns) / 1e9,
            destroyed=bool(local_destroyed(p)),
        )

    def __reduce__(self):
        raise TypeError("a LocalBufferPool belongs to its process and cannot be copied: make one in each process")

    def __repr__(self):
        s = self.stats()
        return f"<LocalBufferPool {self.name!r}: {s.in_use} in use of limit {s.limit}, required {s.required}>"


cdef LocalBufferPool local_adopt(LocalCore *core, object network, str name):
    cdef LocalBufferPool pool = LocalBufferPool.__new__(LocalBufferPool)
    pool.core = core
    pool.network = network
    pool.name = name
    return pool

"""A result partition: the buffers that one producer writes for all its consumers, in segments of its own pool."""

import os
import time

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from fastbuf._native.activity cimport *
from fastbuf._native.atomics cimport *
from fastbuf.exchange.activity cimport activity_figures, activity_waited_s
from fastbuf.exchange.clock cimport seconds_ns
from fastbuf.exchange.doorbell cimport Doorbell, spin_ended, spin_init
from fastbuf.exchange.driver cimport Driver
from fastbuf.exchange.failure cimport (
    FAIL_ABORTED, failure_code, failure_init, failure_raise, failure_set, failure_text,
)
from fastbuf.exchange.result_subpartition cimport *
from fastbuf.exchange.shared_block cimport SHARED_EVENT_BYTES
from fastbuf.memory.network_buffer_pool cimport NetworkBufferPool
from fastbuf.memory.pool_core cimport *
from fastbuf.memory.pool_setup cimport fork_count
from fastbuf.memory.pool_waking cimport arm as pool_arm
from fastbuf.memory.pool_waking cimport local_set_listener, local_set_signal

from fastbuf.checks import MOST_SEGMENTS
from fastbuf.config import ON_SLOW_CONSUMER
from fastbuf.errors import ConfigError, ExchangeClosed, StallTimeout
from fastbuf.exchange.own_readers import reader_of, refuse_to_wait_for_oneself

cdef enum:
    SLICE_NS = 200000000        # how often signals are checked while waiting
    FIRST_SLICE_NS = 50000000   # the same without progress for the first time: does this thread wait for itself?
    PATIENCE_NS = 100000000     # of a broadcast without a buffer timeout, for slow consumers
    DRIVE_NS = 6000000          # longest time that a writer drives the transport before it sleeps


cdef inline void _add(fb_ai64 *counter, int64_t n) noexcept nogil:
    fb_i64_store_relaxed(counter, fb_i64_load_relaxed(counter) + n)


# no_gc_clear: the core uses the bell's memory until the end of __dealloc__.
@cython.no_gc_clear
cdef class ResultPartition:
    """All subpartitions of one producer, over one LocalBufferPool.

    Made by :meth:`ShuffleEnvironment.create_result_partition`, and written by a :class:`RecordWriter`.

    Parameters
    ----------
    environment : ShuffleEnvironment
    subpartitions : int
    channel : int
        This producer's number.
    config : ExchangeConfig
    maximum : int, optional
        Most segments its pool may hold; default: Flink's ``subpartitions * exclusive + floating``,
        and at least one more than there are subpartitions.
    """

    def __init__(self, environment, int subpartitions, unsigned int channel, config, maximum=None,
                 on_slow_consumer="wait", bint chunks=False):
        cdef NetworkBufferPool network = environment.pool
        self.environment = environment
        self.subpartitions = subpartitions
        self.channel = channel
        self.config = config
        self.flush_ns = -1 if config.buffer_timeout_s < 0 else seconds_ns(config.buffer_timeout_s)
        self.stall_ns = -1 if config.stall_timeout_s is None else seconds_ns(config.stall_timeout_s)
        self.transports = [None] * subpartitions
        self.gates = [None] * subpartitions
        spin_init(&self.spins, (os.cpu_count() or 1) == 1)
        self.notified = []
        self.unreached = {}
        self.waited_for = -1
        self.segment_size = network.core.segment_size
        self.pool_core = network.core
        # One segment to fill per subpartition, and one in flight, so that open buffers alone cannot use up the pool.
        required = subpartitions + 1
        # Who waits for longer breaks the promise of the buffer timeout to the other consumers.
        self.patience_ns = self.flush_ns if self.flush_ns >= 0 else PATIENCE_NS
        self.on_slow = <OnSlow> <int> ON_SLOW_CONSUMER.index(on_slow_consumer)
        if self.on_slow != SLOW_WAIT:       # a full queue must not keep the others from getting segments
            required += subpartitions * (config.max_buffers_per_channel + EVENT_SLOTS)
        if maximum is None:
            maximum = min(subpartitions * config.exclusive + config.floating, MOST_SEGMENTS)
        self.pool = environment.pool.create_local_pool(
            required=required, maximum=max(required, maximum), overdraft=config.overdraft, name=f"partition {channel}")
        self.core = <PartitionCore *> calloc(1, sizeof(PartitionCore))
        self.subs = <Subpartition *> calloc(subpartitions, sizeof(Subpartition))
        self.buffers = <OpenBuffer *> calloc(subpartitions + 1, sizeof(OpenBuffer))
        if self.core == NULL or self.subs == NULL or self.buffers == NULL:
            raise MemoryError
        fb_activity_init(&self.core.activity, fb_now_ns())
        self.core.blocked = <fb_ai64 *> calloc(2 * subpartitions, sizeof(fb_ai64))
        if self.core.blocked == NULL:
            raise MemoryError
        self.bell = Doorbell(environment.shared)
        self.core.event = &self.bell.bell.event
        failure_init(&self.core.failure)
        self.buffers[subpartitions].segment = -1
        for i in range(subpartitions):
            self.buffers[i].segment = -1
            if sub_init(&self.subs[i], config.max_buffers_per_channel, self.pool_core, self.core.event) != 0:
                raise MemoryError
            if self.on_slow == SLOW_DROP_OLDEST and sub_allow_drops(&self.subs[i], chunks) != 0:
                raise MemoryError
        self.stage = self.subs
        local_set_listener(self.pool.core, self.core.event)

    def __dealloc__(self):
        # Usually destroy() was called; this is for an __init__ that failed, and for objects that were not closed.
        if self.subs != NULL:
            for i in range(self.subpartitions):
                sub_free(&self.subs[i])
        if self.pool is not None and self.core != NULL and self.pool.core != NULL and not self.destroyed:
            local_set_listener(self.pool.core, NULL)
        free(self.subs)
        free(self.buffers)
        if self.core != NULL:
            free(self.core.blocked)
        free(self.core)

    # ---- writing (the writer's thread)

    cdef int begin_writing(self) except -1:
        """Marks that this thread writes to segments, perhaps without the GIL: none may be recycled meanwhile.

        The caller releases the GIL; when it has it again, it clears `unlocked` and `writing`.
        """
        if self.closed or self.ended:
            self.refuse_write()
        if self.writing:
            self.refuse_second()
        self.writing = self.written_by = <unsigned long> PyThread_get_thread_ident()
        self.unlocked = True
        return 0

    cdef int refuse_write(self) except -1:
        self.check()
        raise ExchangeClosed(f"writer {self.channel} has finished: its end of partition is written")

    cdef int refuse_second(self) except -1:
        # The caller is code of a record that is being encoded, or another thread meanwhile.  The open buffer is in use.
        raise RuntimeError(
            f"writer {self.channel} is encoding a record: use it from one thread, and for one record at a time")

    def wait_idle(self):
        """First step of closing: refuse new writes, and wait until one in another thread ends (soon: it never waits).

        Raises
        ------
        RuntimeError
            Called from code of a record that this thread is encoding, or from a signal handler meanwhile; nothing was
            done.
        """
        if self.writing == <unsigned long> PyThread_get_thread_ident():
            raise RuntimeError(f"writer {self.channel} is encoding a record in this thread: close it afterwards")
        self.closed = True
        while self.writing:
            time.sleep(0.0005)

    cdef WriteState open_buffer(self, int part, bint overdraft) noexcept nogil:
        """Makes sure that `part` has an open buffer with room."""
        cdef OpenBuffer *b = &self.buffers[part]
        cdef Subpartition *s = &self.subs[part]
        cdef int segment
        if part == self.subpartitions:
            return self.open_shared(overdraft)
        if fb_u32_load_acquire(&s.cancelled):
            self.drop(part)
            return WRITE_DROPPED
        if b.segment >= 0:
            return WRITE_OK
        if not self.has_room(part):
            return WRITE_BLOCKED
        segment = self.acquire(overdraft)
        if segment < 0:
            return WRITE_BLOCKED
        b.segment = segment
        b.fill = 0
        b.data = segment_data(self.pool_core, segment)
        sub_begin(&self.stage[part], segment)
        return WRITE_OK

    cdef bint has_room(self, int part) noexcept nogil:
        # A writer that waits for a segment must hear of the first one that any reader in another process gives back, so
        # it does not set a low-water mark.
        cdef bint until_low = not (self.short and self.shares)
        return sub_has_room(&self.stage[part], until_low) or \
            (self.make_room() and sub_has_room(&self.stage[part], until_low))

    cdef bint any_room(self) noexcept nogil:
        """Whether a record could be written to some consumer; if not, drainers notify for each buffer that leaves."""
        cdef int part
        cdef bint live = False
        for part in range(self.subpartitions):
            if not fb_u32_load_acquire(&self.subs[part].cancelled):
                live = True
                if self.buffers[part].segment >= 0 or sub_has_room(&self.stage[part], False):
                    return True
        return not live             # without any consumer, everything written is dropped

    cdef int most_free(self, int after) noexcept nogil:
        """The subpartition with the shortest queue; of equal ones the next after `after`."""
        cdef int i, part, best, _tries
        cdef uint32_t queued, least
        for _tries in range(2):
            best = (after + 1) % self.subpartitions
            least = 0xffffffff
            for i in range(1, self.subpartitions + 1):
                part = (after + i) % self.subpartitions
                queued = sub_queued(&self.stage[part])
                if queued < least and not fb_u32_load_acquire(&self.subs[part].cancelled):
                    best, least = part, queued
            if least == 0 or not self.shares:
                break
            self.collect_shared()   # readers in other processes may have read some meanwhile
        return best

    cdef int acquire(self, bint overdraft) noexcept nogil:
        cdef int part
        cdef int segment = local_try_acquire(self.pool.core)
        if segment < 0 and self.shares:
            for part in range(self.subpartitions):
                sub_wait_for_any(&self.stage[part])
            self.collect_shared()
            segment = local_try_acquire(self.pool.core)
        if segment < 0 and self.make_room():
            segment = local_try_acquire(self.pool.core)
        self.short = segment < 0
        if segment < 0 and overdraft:
            segment = local_try_acquire_overdraft(self.pool.core)
        return segment

    cdef bint spin(self, uint32_t epoch, Driver *driver) noexcept nogil:
        """Drives or spins, about as long as a sleep would cost; True: the event has moved since `epoch`.

        The caller has entered the driver.
        """
        cdef bint came
        if driver != NULL:
            # Only for DRIVE_NS, since notices of other threads do not wake a thread that drives.
            came = not self.shares and driver.drive(
                driver, &self.drive, self.core.event, epoch, fb_now_ns() + DRIVE_NS)
            driver.leave(driver, False)
            if came:
                return True
        if not self.shares or self.spins.most == 0:
            return False
        came = fb_event_spin(self.core.event, epoch, self.spins.ns) != 0
        spin_ended(&self.spins, not came)
        return came

    cdef void collect_shared(self) noexcept nogil:
        """Recycles segments that readers in other processes have given back, and notes which readers have ended."""
        cdef int part
        for part in range(self.subpartitions):
            if self.subs[part].shared != NULL:
                self.subs[part].shared.collect(self.subs[part].shared)

    cdef bint make_room(self) noexcept nogil:
        """Frees segments by writing what is queued to the file (blocking partitions); False: nothing was freed."""
        return False

    cdef WriteState open_shared(self, bint overdraft) noexcept nogil:
        """Like open_buffer, for all consumers that have not cancelled; blocked if one of them is blocked."""
        cdef OpenBuffer *b = &self.buffers[self.subpartitions]
        cdef int live = 0
        cdef int segment, part
        cdef WriteState state
        for part in range(self.subpartitions):
            if fb_u32_load_acquire(&self.subs[part].cancelled):
                self.drop(part)
                continue
            live += 1
            if b.segment < 0 and self.on_slow == SLOW_WAIT and not self.has_room(part):
                return WRITE_BLOCKED
        if live == 0:
            self.finish_shared()
            return WRITE_DROPPED
        if b.segment >= 0:
            return WRITE_OK
        if self.on_slow != SLOW_WAIT:
            state = self.choose(overdraft)
            if state != WRITE_OK:
                return state
        segment = self.acquire(overdraft)
        if segment < 0:
            return WRITE_BLOCKED
        b.segment = segment
        b.fill = 0
        b.data = segment_data(self.pool_core, segment)
        for part in range(self.subpartitions):
            # If a consumer cancels from here on, this is discarded like any other buffer, once it is finished.
            if self.buffers[part].skips:
                self.buffers[part].dropped += 1
            elif not fb_u32_load_acquire(&self.subs[part].cancelled):
                segment_retain(self.pool_core, segment)
                self.buffers[part].segment = segment
                sub_begin(&self.stage[part], segment)
        return WRITE_OK

    cdef WriteState choose(self, bint within) noexcept nogil:
        """Chooses which consumers get the next shared buffer, of those that have not cancelled; none waits for another.

        within: it begins within a record.  A consumer gets a record as a whole or not at all.
        """
        cdef OpenBuffer *b
        cdef int part, takes = 0
        cdef bint blocked = False
        if not within:
            self.lagging = False
        for part in range(self.subpartitions):
            b = &self.buffers[part]
            if fb_u32_load_acquire(&self.subs[part].cancelled):
                continue
            if self.on_slow == SLOW_DROP_OLDEST:
                blocked |= not sub_make_way(&self.subs[part], self.patience_ns, <uint32_t> self.left if within else 0,
                                            &b.dropped, &b.records)
                # Of a record whose beginning was dropped, the last buffer alone is queued.
                b.skips = self.subs[part].torn and self.subs[part].skip > self.segment_size
                takes += 1
                continue
            if within and b.skips:
                continue
            if self.has_room(part):
                b.skips = False
                b.full_ns = 0
            elif not b.skips and not self.is_slow(b):
                return WRITE_BLOCKED
            elif self.on_slow == SLOW_DISCONNECT:
                sub_cut(&self.subs[part])
                self.cut += 1
                continue
            elif not within:
                b.skips = True
                self.lagging = True
                continue
            elif sub_queued(&self.stage[part]) < self.stage[part].bound + EVENT_SLOTS:
                self.lagging = True         # the rest of its record still goes there
            else:
                return WRITE_BLOCKED
            takes += 1
        if takes:
            return WRITE_BLOCKED if blocked else WRITE_OK
        for part in range(self.subpartitions):
            self.buffers[part].dropped += self.buffers[part].skips
        return WRITE_DROPPED

    cdef bint is_slow(self, OpenBuffer *b) noexcept nogil:
        cdef int64_t now = fb_now_ns()
        if b.full_ns == 0:
            b.full_ns = now
        return now - b.full_ns >= self.patience_ns

    cdef void commit(self, int part, uint32_t n) noexcept nogil:
        if self.commit_early(part, n):
            self.tell(part)

    cdef bint commit_early(self, int part, uint32_t n) noexcept nogil:
        """Like commit, for a caller that goes on writing to `part`; True: it must call `tell` before it stops."""
        cdef OpenBuffer *b = &self.buffers[part]
        cdef int each
        b.fill += n
        if part == self.subpartitions:
            for each in range(self.subpartitions):
                if self.buffers[each].segment >= 0:
                    sub_commit(&self.stage[each], b.fill)
        else:
            sub_commit(&self.stage[part], b.fill)
        return b.fill == self.segment_size and self.finish_early(part)

    cdef void tell(self, int part) noexcept nogil:
        sub_tell(&self.stage[part])

    cdef void finish_shared(self) noexcept nogil:
        cdef OpenBuffer *b = &self.buffers[self.subpartitions]
        cdef int part
        cdef int segment = b.segment
        if segment < 0:
            return
        b.segment = -1
        for part in range(self.subpartitions):
            self.finish_buffer(part)
        segment_recycle(self.pool_core, segment)

    cdef void finish_buffer(self, int part) noexcept nogil:
        if self.finish_early(part):
            self.tell(part)

    cdef bint finish_early(self, int part) noexcept nogil:
        cdef bint owed = False
        if part == self.subpartitions:
            self.finish_shared()
        elif self.buffers[part].segment >= 0:
            self.buffers[part].segment = -1
            owed = sub_finish_early(&self.stage[part])
            if fb_u32_load_acquire(&self.subs[part].closed):
                sub_discard(&self.stage[part])
        return owed

    cdef int queue_event(self, bytes data) except -1:
        """Finishes all open buffers and queues the event for all consumers; 0: a queue is full, nothing was done."""
        cdef EventBlob *event
        cdef int part
        cdef const uint8_t *bytes_ = <const uint8_t *> <const char *> data
        cdef uint32_t n = <uint32_t> len(data)
        self.check()
        if self.ended:
            self.refuse_write()
        if self.writing:
            self.refuse_second()
        if n > SHARED_EVENT_BYTES:
            raise ConfigError(f"an event of {n} bytes: at most {SHARED_EVENT_BYTES}")
        for part in range(self.subpartitions):
            if fb_u32_load_acquire(&self.subs[part].cancelled) or self.on_slow == SLOW_DROP or \
                    self.on_slow == SLOW_DROP_OLDEST or sub_has_event_room(&self.stage[part]):
                continue
            if self.on_slow == SLOW_DISCONNECT:
                sub_cut(&self.subs[part])
                self.cut += 1
                continue
            if not (self.make_room() and sub_has_event_room(&self.stage[part])):
                return 0
        self.finish_shared()
        for part in range(self.subpartitions):
            self.finish_buffer(part)
            if fb_u32_load_acquire(&self.subs[part].cancelled):
                continue
            if self.on_slow != SLOW_WAIT and not sub_has_event_room(&self.stage[part]):
                self.buffers[part].dropped += 1
                continue
            event = event_new(bytes_, n)
            if event == NULL:
                raise MemoryError(f"no memory for an event of {n} bytes")
            sub_push_event(&self.stage[part], event)
            if fb_u32_load_acquire(&self.subs[part].closed):
                sub_discard(&self.stage[part])
        return 1

    cdef void drop(self, int part) noexcept nogil:
        # After `closed` no drainer is left: the writer clears the queue, including its open buffer.
        if self.buffers[part].segment >= 0:
            self.buffers[part].segment = -1
            sub_finish(&self.stage[part])
        if fb_u32_load_acquire(&self.subs[part].closed):
            sub_discard(&self.stage[part])

    # ---- overridden by BlockingPartition

    cdef int refill(self, int part) except -1:
        """Loads data for a local consumer whose queue is empty; 1: there is some now."""
        return 0

    cdef int reader_ended(self) except -1:
        """Called when a local consumer has closed its subpartition."""
        return 0

    cdef uint64_t stored(self) noexcept nogil:
        """Bytes stored before the partition is finished; a waiting consumer takes their growth for progress."""
        return 0

    # ---- waiting

    cdef uint64_t progress(self) noexcept nogil:
        # Grows whenever a drainer takes something; for stall detection.
        cdef uint64_t sum = 0
        cdef int i
        for i in range(self.subpartitions):
            sum += fb_u32_load_acquire(&self.subs[i].head) + fb_u32_load_acquire(&self.subs[i].closed)
        return sum

    cdef void waits(self, int part) noexcept nogil:
        """Notes what the writer waits for, now that `part` (-1: any) cannot be written; may be called again.

        If the queue of `part` has room, a segment is missing.  The wait then counts for the consumer with the longest
        queue, which holds most segments.
        """
        cdef uint32_t queued, most = 0, state = FB_WAIT_SEGMENT
        cdef int i
        cdef bint short = False
        if 0 <= part < self.subpartitions:      # a queue that was full is waited for until it is half empty
            short = sub_queued(&self.stage[part]) < self.stage[part].bound and not self.stage[part].full
        if short or part < 0 or part == self.subpartitions:
            part = -1
            for i in range(self.subpartitions):
                queued = sub_queued(&self.stage[i]) - (self.buffers[i].segment >= 0)
                if queued > most:
                    part, most = i, queued
            if part < 0 and self.ended:
                for i in range(self.subpartitions):
                    if not fb_u32_load_acquire(&self.subs[i].closed):
                        part = i        # everything was sent, and this consumer has not acknowledged it
                        break
        if part >= 0:
            state = FB_WAIT_LINK if fb_u32_load_relaxed(&self.subs[part].held) == HELD_LINK else FB_WAIT_CREDIT
        if part != self.waited_for or fb_activity_state(&self.core.activity) != state or short != self.waits_short:
            self.does(state, part)
            self.waits_short = short

    cdef void runs(self) noexcept nogil:
        if fb_activity_state(&self.core.activity) != FB_RUNS:
            self.does(FB_RUNS, -1)

    cdef void does(self, uint32_t state, int part) noexcept nogil:
        cdef int before = self.waited_for
        cdef bint full = fb_activity_state(&self.core.activity) == FB_WAIT_LINK
        cdef int64_t took = fb_activity_enter(&self.core.activity, state, part + 1, fb_now_ns())
        if before >= 0:
            _add(&self.core.blocked[before], took)
            if full:
                _add(&self.core.blocked[self.subpartitions + before], took)
        if self.waits_short:
            _add(&self.core.short_ns, took)
        self.waits_short = False
        self.waited_for = part

    cdef int wait(self, uint32_t key, int64_t deadline_ns, int64_t *blocked_since, uint64_t *seen) except -1:
        """Sleeps once on the event; `key` comes from fb_event_prepare, called before the last check of the condition.

        Raises the failure, StallTimeout, or a signal handler's error; -> 0: check again, 1: the deadline has passed.
        """
        cdef int64_t now = fb_now_ns()
        cdef int64_t until = now + SLICE_NS
        cdef uint64_t sum
        cdef bint alone
        if self.shares:
            self.collect_shared()
        sum = self.progress()
        if failure_code(&self.core.failure) or self.closed:
            self.check()
        if blocked_since[0] == 0 or sum != seen[0]:
            blocked_since[0] = now
            seen[0] = sum
            until = now + FIRST_SLICE_NS
        elif 0 <= self.stall_ns < now - blocked_since[0]:
            raise StallTimeout(self.describe_stall())
        elif self.on_slow == SLOW_WAIT or now - blocked_since[0] > self.subpartitions * self.patience_ns:
            refuse_to_wait_for_oneself(self, (now - blocked_since[0]) / 1e9)
        if 0 <= deadline_ns < until:
            until = deadline_ns
        if self.on_slow != SLOW_WAIT:
            until = min(until, now + self.patience_ns)
        alone = fb_activity_state(&self.core.activity) == FB_RUNS
        if alone:
            self.waits(-1)
        self.sleep(key, until)
        if alone:
            self.runs()
        PyErr_CheckSignals()
        self.check()
        return 1 if 0 <= deadline_ns <= fb_now_ns() else 0

    cdef void sleep(self, uint32_t key, int64_t until) noexcept:
        cdef Driver *driver = self.core.driver if not self.closed else NULL
        if driver != NULL:
            driver.enter(driver)
            driver.sleeps(driver)
        with nogil:
            fb_event_wait(self.core.event, key, until)
            if driver != NULL:
                driver.leave(driver, True)

    def check(self):
        """Raise if the exchange has failed, the partition is closed, or this process is a forked child."""
        if fork_count() != self.pool_core.forks:
            raise ExchangeClosed(
                f"writer {self.channel} belongs to the parent process: make a new one after the fork")
        failure_raise(&self.core.failure)
        if self.closed:
            raise ExchangeClosed(f"result partition {self.channel} is closed")

    cdef int check_quickly(self) except -1:
        """Like check, but fast, for every record."""
        if self.closed or failure_code(&self.core.failure) or fork_count() != self.pool_core.forks:
            self.check()
        return 0

    def describe_stall(self):
        """The state of a blocked writer as text: the fullest channel, the pool, and the settings to raise."""
        queued = [sub_queued(&self.subs[i]) for i in range(self.subpartitions)]
        worst = max(range(self.subpartitions), key=queued.__getitem__)
        read_by = " to ".join(self.transports[worst] or ("no consumer",))
        culprit = reader_of(self, worst) or "The consumer is slow or stuck"
        c = self.config
        return (
            f"writer {self.channel} made no progress for {c.stall_timeout_s} s: channel {worst} "
            f"({read_by}) has {queued[worst]} of {c.max_buffers_per_channel} buffers queued and no "
            f"credit; pool: {self.pool.in_use} segments in use, limit {self.pool.limit}. {culprit}; "
            f"raise stall_timeout_s ({c.stall_timeout_s}), or exclusive ({c.exclusive}) and floating "
            f"({c.floating})")

    def undrained(self):
        """The subpartitions whose consumers have buffers to take, besides those that the writer still fills."""
        return [i for i in range(self.subpartitions) if not fb_u32_load_acquire(&self.subs[i].closed)
                and <int> sub_queued(&self.subs[i]) > (self.buffers[i].segment >= 0)]

    # ---- in an event loop (see ``asynchronous_writer``)

    def arm_wake(self, int fd):
        """The next segment that comes home makes the eventfd `fd` readable; look once more before waiting for it.

        What no segment tells, such as a consumer that has ended, does not; nor does a reader of shared memory. -1: no
        more, and the writer does not wait any more.
        """
        if self.destroyed:
            fd = -1             # it may be closed now, and its number be another's
        local_set_signal(self.pool.core, fd)
        if fd < 0:
            self.runs()
        else:
            pool_arm(self.pool.core)
            self.waits(-1)

    def moved(self):
        """A figure that grows whenever a consumer takes something."""
        return self.progress()

    # ---- ending

    cpdef flush(self):
        """Send everything committed now, also from buffers that are not full."""
        self.check()
        for i in range(self.subpartitions):
            if not fb_u32_load_acquire(&self.subs[i].closed):
                sub_flush(&self.subs[i])

    cdef int end(self) except -1:
        """Finish all open buffers and queue the end of partition after them."""
        if self.ended:
            return 0
        if self.writing:
            self.refuse_second()
        self.ended = True
        self.finish_shared()
        for i in range(self.subpartitions):
            self.finish_buffer(i)
            sub_end(&self.subs[i])
        return 0

    cdef bint all_closed(self) noexcept nogil:
        cdef int i
        for i in range(self.subpartitions):
            if not fb_u32_load_acquire(&self.subs[i].closed):
                return False
        return True

    def remote_closed(self):
        """Whether every remote consumer has acknowledged the end of partition, or cancelled."""
        for i in range(self.subpartitions):
            if not fb_u32_load_acquire(&self.subs[i].closed) and not self._is_local(i):
                return False
        return True

    def _is_local(self, int part):
        # It is read in place: there is nothing to send, and the queue stays until it was read.
        transport = self.transports[part]
        return transport is not None and transport[0] in ("local", "memfd")

    @property
    def cancelled(self):
        """Whether every consumer has cancelled; False if the partition has failed."""
        if self.shares:
            self.collect_shared()
        for i in range(self.subpartitions):
            if not fb_u32_load_acquire(&self.subs[i].cancelled):
                return False
        return not failure_code(&self.core.failure)     # an abort sets it before it closes its subpartition

    def wait_closed(self, int64_t deadline):
        """Wait until every remote consumer has acknowledged the end, or cancelled; False: the time has passed."""
        cdef int64_t since = 0
        cdef uint64_t seen = 0
        cdef uint32_t key
        while True:
            key = fb_event_prepare(self.core.event)
            if self.remote_closed():
                failure_raise(&self.core.failure)
                return True
            if self.wait(key, deadline, &since, &seen):
                return False

    def fail(self, str reason):
        """Give up: all consumers and any further write fail with the reason."""
        cdef bytes text = failure_text(reason)
        failure_set(&self.core.failure, FAIL_ABORTED, text, len(text))
        fb_u32_store_release(&self.core.abort_asked, 1)
        for i in range(self.subpartitions):
            if not fb_u32_load_acquire(&self.subs[i].closed):
                self.subs[i].notify(self.subs[i].notify_context)

    def wait_aborted(self, double timeout_s):
        """Wait a short time for the drainers to send ABORT; never raises."""
        cdef int64_t deadline = fb_now_ns() + seconds_ns(timeout_s)
        cdef uint32_t key
        while fb_now_ns() < deadline:
            key = fb_event_prepare(self.core.event)
            if self.remote_closed():
                return
            self.sleep(key, deadline)

    cdef void *abort_key(self) noexcept nogil:
        # The address by which a transport identifies this partition.
        return &self.core.abort_asked

    def destroy(self):
        """Last step, after all transports have dropped it. Local readers recycle the rest as they read it."""
        if self.destroyed:
            return
        self.closed = True
        for i in range(self.subpartitions):
            if not self._is_local(i):
                sub_forget_drainer(&self.subs[i])       # before anything is finished, which would notify it
        self.finish_shared()
        for i in range(self.subpartitions):
            if not self._is_local(i):
                if not fb_u32_load_acquire(&self.subs[i].closed):
                    sub_close(&self.subs[i], True)
            self.drop(i)
        self.destroyed = True
        self.bell.keep_to_ourselves()
        local_set_listener(self.pool.core, NULL)
        self.pool.destroy()

    # ---- figures

    def totals(self):
        """Buffers sent, per subpartition; final once the partition is closed (see :meth:`RecordWriter.totals`)."""
        return [fb_u64_load_relaxed(&self.subs[i].buffers) for i in range(self.subpartitions)]

    def dropped(self, bint records=False):
        """Buffers and events, or records, that each consumer of a broadcast did not get, as it was too slow."""
        return [self.buffers[i].records if records else self.buffers[i].dropped for i in range(self.subpartitions)]

    @property
    def consumers_cut(self):
        """Consumers of a broadcast that were cut off, as they were too slow."""
        return self.cut

    @property
    def bytes_out(self):
        """Bytes written to buffers so far."""
        return sum([fb_u64_load_relaxed(&self.stage[i].bytes) for i in range(self.subpartitions)])

    @property
    def wait_s(self):
        """Seconds its writer was blocked."""
        return activity_waited_s(&self.core.activity)

    def activity(self):
        """What the writer is doing, and how long it spent in each state: see ``fastbuf.exchange.activity``."""
        return activity_figures(&self.core.activity)

    def blocked_s(self, bint link=False):
        """Seconds that the writer waited for each subpartition, including the current wait; link: only for its socket.
        """
        figures = activity_figures(&self.core.activity)
        cdef int first = self.subpartitions if link else 0
        blocked = [fb_i64_load_relaxed(&self.core.blocked[first + i]) / 1e9 for i in range(self.subpartitions)]
        if figures["target"] is not None and (figures["state"] == "link" or not link):
            blocked[figures["target"]] += figures["since_s"]
        return blocked

    def gauges(self):
        """Flink's gauges of its pool and queues, and how long the writer waited for segments (``short_s``)."""
        cdef int64_t limit = self.pool.limit if not self.destroyed else 0
        return {
            "outPoolUsage": min(1.0, self.pool.in_use / limit) if limit else 0.0,
            "outputQueueLength": sum([sub_queued(&self.subs[i]) for i in range(self.subpartitions)]),
            "short_s": fb_i64_load_relaxed(&self.core.short_ns) / 1e9,
        }

    def meets(self, int part, bytes gate, where):
        """Note the identifier ``gate`` (see ``gate_key``) of the consumer of `part`, and its address ``where``."""
        self.gates[part] = (gate, where)

    def set_transport(self, int part, kind, where):
        """Note who drains `part`: a transport's name, and the consumer's place."""
        self.transports[part] = (kind, where)
        self.shares = self.shares or kind == "memfd"

    def transports_used(self):
        """How many subpartitions each transport drains."""
        kinds = [transport[0] for transport in self.transports if transport is not None]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}

    def attached(self, int part):
        """Whether `part` has, or had, a consumer."""
        return self.transports[part] is not None or fb_u32_load_acquire(&self.subs[part].closed) != 0

    def forked(self):
        """Whether this process is a forked child, which must not use its parent's exchange."""
        return fork_count() != self.pool_core.forks

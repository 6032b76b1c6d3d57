"""Functions for tests and benches only: loops over the C cores without the GIL, and deliberate damage."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport *
from fastbuf.errors import FastbufError
from fastbuf.memory.debug_checks cimport POOL_DEBUG
from fastbuf.memory.lending cimport Borrower
from fastbuf.memory.local_buffer_pool cimport LocalBufferPool
from fastbuf.memory.memory_segment cimport MemorySegment
from fastbuf.memory.pool_core cimport *
from fastbuf.memory.pool_types cimport LocalCore, PoolCore
from fastbuf.memory.pool_waking cimport local_set_listener


cdef enum:
    MOST_HELD = 64

cdef extern from "<sched.h>" nogil:
    int sched_yield()


DEBUG_BUILD = bool(POOL_DEBUG)
cdef uint64_t POISONED = 0xDBDBDBDBDBDBDBDBu    # a debug build fills free segments with it
cdef uint64_t GIVEN_UP = <uint64_t>1 << 62
cdef int64_t PATIENCE_NS = 30 * <int64_t>1_000_000_000
cdef int64_t LISTEN_NS = 10 * <int64_t>1_000_000_000


def pair_loop(LocalBufferPool local, int64_t n):
    """Acquire and recycle one segment `n` times; returns nanoseconds."""
    cdef int64_t begin, _
    cdef int32_t i = 0
    cdef LocalCore *p = local.core
    cdef PoolCore *g = p.pool
    with nogil:
        begin = fb_now_ns()
        for _ in range(n):
            i = local_try_acquire(p)
            if i < 0:
                break
            segment_recycle(g, i)
        begin = fb_now_ns() - begin
    if i < 0:
        raise FastbufError("a request of the loop failed: the pool was empty")
    return begin


def batch_loop(LocalBufferPool local, int64_t n, uint32_t size):
    """Acquire and recycle `size` segments at once, `n` times; returns nanoseconds."""
    cdef int32_t numbers[MOST_HELD]
    cdef int64_t begin, _
    cdef uint32_t got = size
    if not 1 <= size <= MOST_HELD:
        raise ValueError(f"size is {size}")
    with nogil:
        begin = fb_now_ns()
        for _ in range(n):
            got = local_try_acquire_many(local.core, size, numbers)
            segment_recycle_many(local.core.pool, numbers, got)
            if got != size:
                break
        begin = fb_now_ns() - begin
    if got != size:
        raise FastbufError(f"a request of the loop had {got} of {size} segments")
    return begin


cdef inline uint64_t *mark_of(LocalCore *p, int32_t i) noexcept nogil:
    return <uint64_t *>segment_data(p.pool, i)


cdef inline uint32_t draw(uint64_t *seed) noexcept nogil:
    seed[0] = seed[0] * 6364136223846793005u + 1442695040888963407u     # Knuth's MMIX generator
    return <uint32_t>(seed[0] >> 33)


def churn(LocalBufferPool local, int64_t n, int most, uint64_t mark, bint wait=True, bint overdraft=False):
    """Request and recycle at random, `n` steps, holding at most `most` segments; needs a pool whose segments start
    with 0.

    Each segment held has `mark` in its first eight bytes; a free one has 0 there.  This is plain memory, so a sanitizer
    sees whether the pool orders one user's writes before those of the next user.

    Returns
    -------
    tuple of int
        Steps that found the mark of another thread, waits that timed out after 30 s, segments requested.  Ends early if
        the pool is destroyed.
    """
    cdef int32_t numbers[MOST_HELD]
    cdef int count = 0
    cdef int64_t _, faults = 0, timeouts = 0, got = 0
    cdef uint64_t seed = mark * 2654435761u
    cdef int32_t i
    cdef int at
    cdef LocalCore *p = local.core
    if not 1 <= most <= MOST_HELD or mark == 0:
        raise ValueError(f"most is {most}, mark {mark}")
    with nogil:
        for _ in range(n):
            if count < most and (count == 0 or draw(&seed) & 1):
                # Wait only while holding no segment: two threads that hold some could wait for each other for ever.
                if wait and count == 0:
                    i = local_acquire(p, fb_now_ns() + PATIENCE_NS)
                elif overdraft:
                    i = local_try_acquire_overdraft(p)
                else:
                    i = local_try_acquire(p)
                if i < 0:
                    if local_destroyed(p):
                        break
                    timeouts += wait and count == 0
                    fb_cpu_relax()
                    continue
                faults += mark_of(p, i)[0] != 0 and mark_of(p, i)[0] != POISONED
                mark_of(p, i)[0] = mark
                numbers[count] = i
                count += 1
                got += 1
            elif count:
                at = draw(&seed) % count
                i = numbers[at]
                count -= 1
                numbers[at] = numbers[count]
                if draw(&seed) & 7 == 0:                # sometimes through a second reference
                    segment_retain(p.pool, i)
                    segment_recycle(p.pool, i)
                faults += mark_of(p, i)[0] != mark
                mark_of(p, i)[0] = 0
                segment_recycle(p.pool, i)
        while count:
            count -= 1
            mark_of(p, numbers[count])[0] = 0
            segment_recycle(p.pool, numbers[count])
    return faults, timeouts, got


def churn_many(LocalBufferPool local, int64_t n, uint32_t most, uint64_t mark):
    """`churn` in batches: requests up to `most` segments at once and recycles them at once, `n` times.

    Every fourth batch contains a segment with a second reference, so that it is not freed as a whole.

    Returns
    -------
    tuple of int
        Steps that found the mark of another thread, refused references, segments requested.
    """
    cdef int32_t numbers[MOST_HELD]
    cdef int64_t _, faults = 0, refused = 0, got = 0
    cdef uint64_t seed = mark * 2654435761u
    cdef uint32_t count, k
    cdef LocalCore *p = local.core
    if not 1 <= most <= MOST_HELD or mark == 0:
        raise ValueError(f"most is {most}, mark {mark}")
    with nogil:
        for _ in range(n):
            count = local_try_acquire_many(p, 1 + draw(&seed) % most, numbers)
            if count == 0:
                if local_destroyed(p):
                    break
                fb_cpu_relax()
                continue
            got += count
            for k in range(count):
                faults += mark_of(p, numbers[k])[0] != 0 and mark_of(p, numbers[k])[0] != POISONED
                mark_of(p, numbers[k])[0] = mark
            for k in range(count):
                faults += mark_of(p, numbers[k])[0] != mark
                mark_of(p, numbers[k])[0] = 0
            if draw(&seed) & 3 == 0:
                k = draw(&seed) % count
                segment_retain(p.pool, numbers[k])
                refused += segment_recycle_many(p.pool, numbers, count)
                refused += segment_recycle_many(p.pool, &numbers[k], 1)
            else:
                refused += segment_recycle_many(p.pool, numbers, count)
    return faults, refused, got


def listen(LocalBufferPool local, int64_t n):
    """Request and recycle `n` times like an event loop: try, and sleep on a listener while there is no segment.

    Returns
    -------
    int
        Sleeps that ended after 10 s without a notification: lost wake-ups.
    """
    cdef fb_event event
    cdef uint32_t key
    cdef int32_t i
    cdef int64_t _, lost = 0
    fb_event_init(&event)
    with nogil:
        local_set_listener(local.core, &event)
        for _ in range(n):
            while True:
                key = fb_event_prepare(&event)
                i = local_try_acquire(local.core)
                if i >= 0 or local_destroyed(local.core):
                    break
                lost += fb_event_wait(&event, key, fb_now_ns() + LISTEN_NS) == 0
            if i < 0:
                break
            segment_recycle(local.core.pool, i)
        local_set_listener(local.core, NULL)
    return lost


cdef enum:
    PLACES = 256                    # entries of a Handover; a power of 2
    AHEAD = 64                      # entries that a waiting thread lets the other one get ahead
    # tries before fewer entries are accepted, and before the thread yields: some microseconds
    LOOKS = 100

cdef inline uint32_t waited(uint32_t turn) noexcept nogil:
    if turn < LOOKS:
        fb_cpu_relax()
    else:
        sched_yield()               # the other thread may have no core
    return turn + 1


cdef class Handover:
    """A ring of 256 entries through which one thread hands segments to another, as in ``benches/peers/pools.cpp``.

    Each side reads the other's index only when it has used up the entries it knew of, and then lets the other side get
    a quarter of the ring ahead.  Otherwise both would run in lockstep, and the bench would measure how the ring's cache
    lines move, not the pool.
    """
    cdef fb_pad room
    cdef fb_au64 put                # release by the giver, acquire by the taker
    cdef fb_pad room_of_put
    cdef fb_au64 got                # release by the taker, acquire by the giver
    cdef fb_pad room_of_got
    cdef uint64_t places[256]       # PLACES

    def give(self, LocalBufferPool local, int64_t n):
        """Acquire `n` segments and hand them over; returns nanoseconds, -1 if a segment did not come within 30 s."""
        cdef uint64_t k, end = PLACES
        cdef uint32_t turn
        cdef int64_t begin, until
        cdef int32_t i = 0
        with nogil:
            begin = fb_now_ns()
            until = begin + PATIENCE_NS
            for k in range(<uint64_t>n):
                i = local_acquire(local.core, until)
                if i < 0:               # ... or all segments together took that long
                    until = fb_now_ns() + PATIENCE_NS
                    i = local_acquire(local.core, until)
                if i < 0:
                    fb_u64_store_release(&self.put, GIVEN_UP)
                    break
                if k == end:
                    end = fb_u64_load_acquire(&self.got) + PLACES
                    turn = 0
                    while end < k + AHEAD:
                        turn = waited(turn)
                        end = fb_u64_load_acquire(&self.got) + PLACES
                self.places[k % PLACES] = <uint64_t>i
                fb_u64_store_release(&self.put, k + 1)
            begin = fb_now_ns() - begin
        return begin if i >= 0 else -1

    def take(self, LocalBufferPool local, int64_t n):
        """Recycle `n` segments that were handed over; fewer if the giver gives up."""
        cdef uint64_t k, put = 0
        cdef uint32_t turn
        with nogil:
            for k in range(<uint64_t>n):
                if k == put:
                    put = fb_u64_load_acquire(&self.put)
                    turn = 0
                    # The giver may wait for segments in this ring: after some tries accept fewer than AHEAD.
                    while put == k or (put < k + AHEAD and put < <uint64_t>n and turn < LOOKS):
                        turn = waited(turn)
                        put = fb_u64_load_acquire(&self.put)
                if put == GIVEN_UP:
                    break
                segment_recycle(local.core.pool, <int32_t>self.places[k % PLACES])
                fb_u64_store_release(&self.got, k + 1)


def borrow_for_ever(Borrower borrower):
    """Take loans, mark and return them until killed; without the GIL, so that the kill can come anywhere."""
    cdef uint64_t entry
    cdef uint64_t *mark
    cdef uint64_t loan = 0
    cdef uint64_t step = 0
    with nogil:
        while True:
            step += 1
            entry = borrower.next_loan()
            if entry == 0:
                sched_yield()
            else:
                mark = <uint64_t *>(borrower.arena.base + <size_t><uint32_t>entry * <size_t>borrower.arena.stride)
                mark[0] = entry
                if loan != 0:                           # one loan stays: the process dies with or without it
                    borrower.put_back(loan)
                loan = entry
            if step % 7 == 0 and loan != 0:
                borrower.put_back(loan)
                loan = 0


def recycle_behind(MemorySegment segment):
    """Recycle a reference that belongs to the handle `segment`, as faulty native code would; returns the result."""
    return segment_recycle(segment.core, segment.number)


def recycle_many_behind(list segments):
    """Recycle the segments of all handles in one call, as native code would; returns how many were refused."""
    cdef int32_t numbers[MOST_HELD]
    cdef MemorySegment segment
    cdef uint32_t n = 0
    for segment in segments[:MOST_HELD]:
        numbers[n] = segment.number
        n += 1
    return segment_recycle_many(segment.core, numbers, n)


def write_beyond(MemorySegment segment):
    """Write to the first byte after the segment, as faulty native code would."""
    segment_data(segment.core, segment.number)[segment.core.segment_size] = 1


def miscount(LocalBufferPool local, int64_t by):
    """Change the pool's count of held segments by `by`, which makes it wrong."""
    fb_u64_add_seq_cst(&local.core.word, <uint64_t>by)


def pin_listener(LocalBufferPool local, bint on):
    """Acts as a thread that is notifying the pool's listener, until called again with False."""
    if on:
        fb_u32_add_seq_cst(&local.core.listener_pins, 1)
    else:
        fb_u32_sub_seq_cst(&local.core.listener_pins, 1)

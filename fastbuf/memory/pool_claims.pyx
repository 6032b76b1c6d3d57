"""How many segments a pool may hold: claims, surplus, limits, and the counts of them.

The state is ``LocalCore.word`` = destroyed bit | claims in flight (31) | held (32), and ``PoolCore.spare``, a
semaphore.  A pool that takes a segment from the global list first adds a claim to its word; beyond its ``required`` it
also has to take one from ``spare``.  At rest

    spare = free on the global list - sum over pools of max(0, required - held)

so segments that a pool takes beyond its guarantee (up to its limit, or as overdraft) never use up another pool's
guarantee.  Every change of a word knows the total (held + in flight) before and after it, which decides whether
``spare`` has to change.

    atomic                                  pairs with
    ``word``, ``spare``, ``limit`` seq_cst  ``waiting`` (``pool_waking.pyx``: what frees one of them is its L1, a
                                            request that reads them its R2)
    ``word`` between two equal reads of     the CAS of push and pop: the list did not change in between, so both figures
    ``free.head`` (``local_figures``)       are of the moment when ``word`` was read
    ``peak`` acq_rel                        nothing else depends on it

Forbidden outcomes:
- held > limit + overdraft through an acquire (held > limit after the limit fell is allowed; each recycle reduces it);
- sum of held + free on the global list != count, at rest;
- a pool that cannot reach ``required`` after the pools over their limit have recycled;
- figures of different moments in one answer of ``local_figures``; a segment counted twice or not at all;
- a request that ends with a ``peak`` below what was in use when it counted.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport *
from fastbuf.memory.free_list cimport depth_at, empty, pop, push
from fastbuf.memory.pool_types cimport WORD_CLAIM, WORD_DESTROYED, LocalCore, PoolCore
from fastbuf.memory.pool_waking cimport pool_wake_waiting, wake


cdef inline uint32_t word_held(uint64_t w) noexcept nogil:
    return <uint32_t>w


cdef inline uint64_t word_total(uint64_t w) noexcept nogil:
    return <uint64_t><uint32_t>w + ((w >> 32) & 0x7FFFFFFF)


cdef bint spare_take(PoolCore *g) noexcept nogil:
    cdef int64_t s = fb_i64_load_seq_cst(&g.spare)
    while s > 0:
        if fb_i64_cas_seq_cst(&g.spare, &s, s - 1):
            return True
    return False


# Undoes a claim on `spare`.  A thread that saw the claim may have gone to sleep because of it, so waiting pools are
# woken.
cdef void spare_refund(PoolCore *g) noexcept nogil:
    fb_i64_add_seq_cst(&g.spare, 1)
    if not empty(&g.free):
        pool_wake_waiting(g)


cdef uint32_t trim(LocalCore *p) noexcept nogil:
    cdef PoolCore *g = p.pool
    cdef uint32_t moved = 0
    cdef uint32_t required
    cdef uint64_t w
    cdef int32_t i
    while True:
        w = fb_u64_load_seq_cst(&p.word)
        if word_held(w) <= fb_u32_load_seq_cst(&p.limit):
            break
        i = pop(g, &p.free)
        if i < 0:
            break
        required = p.required                           # p cannot be ended and used again while it counts this segment
        while word_held(w) > fb_u32_load_seq_cst(&p.limit):
            if fb_u64_cas_seq_cst(&p.word, &w, w - 1):
                break
        else:
            # The limit rose.  A request that found the list empty meanwhile may sleep although this segment is free.
            push(g, &p.free, i)
            if fb_u32_load_seq_cst(&p.waiting) != 0:
                wake(p)
            break
        # From now on p may serve another pool: it is not used again unless the loop finds a surplus.
        g.meta[i].owner = NULL
        push(g, &g.free, i)
        if w & WORD_DESTROYED or word_total(w) - 1 >= required:
            fb_i64_add_seq_cst(&g.spare, 1)
        moved += 1
    if moved != 0:
        pool_wake_waiting(g)
    return moved


# A pool below its limit that finds the global list empty takes free segments that other pools hold beyond their limits.
# The sum of the limits is at most the number of segments, so in that case some pool holds more than its limit.
cdef uint32_t reclaim(PoolCore *g) noexcept nogil:
    cdef uint32_t moved = 0
    cdef LocalCore *p = <LocalCore *><size_t>fb_u64_load_seq_cst(&g.locals)
    while p != NULL:
        if word_held(fb_u64_load_seq_cst(&p.word)) > fb_u32_load_seq_cst(&p.limit):
            moved += trim(p)
        p = p.following
    return moved


cdef void local_figures(LocalCore *p, uint32_t *held, uint32_t *home) noexcept nogil:
    cdef uint64_t h = fb_u64_load_seq_cst(&p.free.head)
    cdef uint64_t again
    while True:
        home[0] = depth_at(p.pool, h)
        held[0] = word_held(fb_u64_load_seq_cst(&p.word))
        again = fb_u64_load_seq_cst(&p.free.head)
        if again == h:
            return
        h = again


cdef void raise_peak(LocalCore *p, uint32_t used) noexcept nogil:
    cdef uint32_t peak = fb_u32_load_relaxed(&p.peak)
    while used > peak:
        if fb_u32_cas_acq_rel(&p.peak, &peak, used):
            return


cdef void note_peak(LocalCore *p) noexcept nogil:
    cdef uint32_t held = 0
    cdef uint32_t home = 0
    local_figures(p, &held, &home)
    raise_peak(p, held - home)


cdef int32_t take_global(LocalCore *p, uint32_t extra) noexcept nogil:
    cdef PoolCore *g = p.pool
    cdef uint64_t w, total
    cdef bint paid = False
    cdef bint beyond
    cdef int32_t i
    while True:
        # 1. Claim: add 1 to word's claims, and take 1 from spare if that exceeds the guarantee.
        w = fb_u64_load_seq_cst(&p.word)
        while True:
            total = word_total(w)
            if w & WORD_DESTROYED or total >= <uint64_t>fb_u32_load_seq_cst(&p.limit) + extra:
                if paid:
                    spare_refund(g)
                return -1
            beyond = total >= p.required
            if beyond and not paid:
                paid = not empty(&g.free) and spare_take(g)
                if not paid:
                    if reclaim(g) == 0:
                        return -1
                    w = fb_u64_load_seq_cst(&p.word)
                    continue
            elif paid and not beyond:
                paid = False
                spare_refund(g)
            if fb_u64_cas_seq_cst(&p.word, &w, w + WORD_CLAIM):
                break
        # The amount taken from spare now belongs to the word: a thread that undoes the claim decides by the word's
        # total.
        paid = False
        # 2. Take a segment.
        i = pop(g, &g.free)
        if i >= 0:
            fb_u64_add_seq_cst(&p.word, 1 - WORD_CLAIM)
            g.meta[i].owner = p
            fb_u32_store_relaxed(&g.meta[i].refs, 1)    # published when the segment is handed on
            note_peak(p)
            return i
        # 3. The list is empty: undo.  Threads that saw this claim may have missed a push since then.
        w = fb_u64_load_seq_cst(&p.word)
        while not fb_u64_cas_seq_cst(&p.word, &w, w - WORD_CLAIM):
            pass
        if w & WORD_DESTROYED or word_total(w) - 1 >= p.required:
            fb_i64_add_seq_cst(&g.spare, 1)
        if not empty(&g.free):
            pool_wake_waiting(g)
        elif reclaim(g) == 0:
            return -1


# --- limits and ends; the caller holds the NetworkBufferPool's lock ---------------------------------------------------

cdef void local_set_limit(LocalCore *p, uint32_t limit) noexcept nogil:
    # A read-modify-write only for its memory order (pool_waking.pyx, second pair): the lock's holder alone changes it.
    fb_u32_add_seq_cst(&p.limit, limit - fb_u32_load_relaxed(&p.limit))


cdef void local_destroy(LocalCore *p) noexcept nogil:
    cdef PoolCore *g = p.pool
    cdef uint64_t w = fb_u64_load_seq_cst(&p.word)
    while True:
        if w & WORD_DESTROYED:
            return
        if fb_u64_cas_seq_cst(&p.word, &w, w | WORD_DESTROYED):
            break
    fb_u64_add_seq_cst(&g.guaranteed, -<uint64_t>p.required)
    if word_total(w) < p.required:                      # its guarantee becomes free for all pools
        fb_i64_add_seq_cst(&g.spare, p.required - <int64_t>word_total(w))
    local_set_limit(p, 0)
    trim(p)
    pool_wake_waiting(g)                                # those who wait in p too

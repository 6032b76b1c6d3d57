"""Who may hold how many segments: claims, surplus, limits, the highest number out.

``LocalCore.word`` = destroyed bit | claims in flight (31) | held (32), and ``PoolCore.spare``, a semaphore.  A pool
that takes a segment from the global list first claims it in its word; beyond its ``required`` it also has to take one
from ``spare``.  At rest

    spare = free on the global list - sum over pools of max(0, required - held)

so that what one pool takes beyond its guarantee (up to its limit, or as overdraft) never eats another's guarantee.
Every change of a word knows its total (held + in flight) before and after, which says whether ``spare`` has to move.
All of them are seq_cst; what that is for stands in ``pool_waking.pyx``.

Forbidden outcomes:
- held > limit + overdraft by an acquire (held > limit by a falling limit is allowed, and shrinks with each recycle);
- sum of held + free on the global list != count, at rest;
- a pool that cannot reach ``required`` once those over their limit have recycled;
- more segments out than ``peak`` has ever said.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport (
    fb_event_notify,
    fb_i64_add_seq_cst,
    fb_i64_cas_seq_cst,
    fb_i64_load_seq_cst,
    fb_u32_add_seq_cst,
    fb_u32_cas_acq_rel,
    fb_u32_load_relaxed,
    fb_u32_load_seq_cst,
    fb_u64_add_seq_cst,
    fb_u64_cas_seq_cst,
    fb_u64_load_seq_cst,
)
from fastbuf.memory.free_list cimport empty, pop, push
from fastbuf.memory.magazines cimport SURE, Look, fetch, local_spread, seize, shut
from fastbuf.memory.pool_core cimport WORD_CLAIM, WORD_DESTROYED, LocalCore, PoolCore
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


# What was claimed is claimed no more.  Somebody who looked meanwhile may have gone to sleep over it.
cdef void spare_refund(PoolCore *g) noexcept nogil:
    fb_i64_add_seq_cst(&g.spare, 1)
    if not empty(&g.free):
        pool_wake_waiting(g)


cdef uint32_t trim(LocalCore *p, Look how) noexcept nogil:
    cdef PoolCore *g = p.pool
    cdef uint32_t moved = 0
    cdef uint32_t left = 0
    cdef uint32_t required
    cdef uint64_t w
    cdef int32_t i
    while True:
        w = fb_u64_load_seq_cst(&p.word)
        if word_held(w) <= fb_u32_load_seq_cst(&p.limit):
            break
        i = pop(g, &p.free, &left)
        if i < 0:
            if fetch(p, how):
                continue
            break
        required = p.required                           # p cannot change hands while it counts this segment
        while word_held(w) > fb_u32_load_seq_cst(&p.limit):
            if fb_u64_cas_seq_cst(&p.word, &w, w - 1):
                break
        else:
            # The limit rose.  A request that found the list empty meanwhile sleeps over this segment.
            push(g, &p.free, i)
            if fb_u32_load_seq_cst(&p.waiting) != 0:
                wake(p)
            break
        # From here on p may be serving another pool: it is not touched again unless the loop finds a surplus.
        g.meta[i].owner = NULL
        push(g, &g.free, i)
        if w & WORD_DESTROYED or word_total(w) - 1 >= required:
            fb_i64_add_seq_cst(&g.spare, 1)
        moved += 1
    if moved != 0:
        pool_wake_waiting(g)
    return moved


# A pool below its limit that finds nothing on the global list takes what others hold free beyond their limit: since the
# sum of the limits is the sum of the segments, somebody then holds more than his limit.
cdef uint32_t reclaim(PoolCore *g, Look how) noexcept nogil:
    cdef uint32_t moved = 0
    cdef LocalCore *p = <LocalCore *><size_t>fb_u64_load_seq_cst(&g.locals)
    while p != NULL:
        if word_held(fb_u64_load_seq_cst(&p.word)) > fb_u32_load_seq_cst(&p.limit):
            moved += trim(p, how)
        p = p.following
    return moved


cdef void raise_peak(LocalCore *p, uint32_t used) noexcept nogil:
    cdef uint32_t peak = fb_u32_load_relaxed(&p.peak)
    while used > peak:
        if fb_u32_cas_acq_rel(&p.peak, &peak, used):
            return


cdef void note_peak(LocalCore *p) noexcept nogil:
    # While held - (on the lists) <= peak, segments may come and go through magazines as they like: no more can be out.
    # So this is called by whoever takes from a list, or from the global one, and empties the magazines if that is not
    # so any more.
    cdef uint32_t used = local_spread(p)
    cdef uint32_t peak = fb_u32_load_relaxed(&p.peak)
    if used <= peak:
        return
    if fb_u32_load_seq_cst(&p.slots) != 0:
        used = seize(p)
    raise_peak(p, used)


cdef int32_t take_global(LocalCore *p, uint32_t extra, Look how) noexcept nogil:
    cdef PoolCore *g = p.pool
    cdef uint64_t w, total
    cdef uint32_t left = 0
    cdef bint paid = False
    cdef bint beyond
    cdef int32_t i
    while True:
        # 1. Claim: word's claims + 1, and one of spare if that goes beyond what is guaranteed.
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
                    if reclaim(g, how) == 0:
                        return -1
                    w = fb_u64_load_seq_cst(&p.word)
                    continue
            elif paid and not beyond:
                paid = False
                spare_refund(g)
            if fb_u64_cas_seq_cst(&p.word, &w, w + WORD_CLAIM):
                break
        # The payment now belongs to the word: who undoes the claim goes by the word's total, not by who paid.
        paid = False
        # 2. Take.
        i = pop(g, &g.free, &left)
        if i >= 0:
            w = fb_u64_add_seq_cst(&p.word, 1 - WORD_CLAIM)
            g.meta[i].owner = p
            # By overdraft, or as the limit fell meanwhile: this sees the limit, or local_set_limit sees this claim.
            if word_held(w) >= fb_u32_load_seq_cst(&p.limit):
                shut(p)
            return i
        # 3. Nothing there: undo.  A push since then may have been missed by those who saw this claim.
        w = fb_u64_load_seq_cst(&p.word)
        while not fb_u64_cas_seq_cst(&p.word, &w, w - WORD_CLAIM):
            pass
        if w & WORD_DESTROYED or word_total(w) - 1 >= p.required:
            fb_i64_add_seq_cst(&g.spare, 1)
        if not empty(&g.free):
            pool_wake_waiting(g)
        elif reclaim(g, how) == 0:
            return -1


# --- limits and ends; the caller holds the NetworkBufferPool's lock ---------------------------------------------------

cdef void local_set_limit(LocalCore *p, uint32_t limit) noexcept nogil:
    # A read-modify-write for its order alone (head comment, second pair): only the holder of the lock moves limits.
    fb_u32_add_seq_cst(&p.limit, limit - fb_u32_load_relaxed(&p.limit))
    if word_total(fb_u64_load_seq_cst(&p.word)) > limit:
        shut(p)


cdef void local_destroy(LocalCore *p) noexcept nogil:
    cdef PoolCore *g = p.pool
    cdef uint64_t w = fb_u64_load_seq_cst(&p.word)
    while True:
        if w & WORD_DESTROYED:
            return
        if fb_u64_cas_seq_cst(&p.word, &w, w | WORD_DESTROYED):
            break
    fb_u64_add_seq_cst(&g.guaranteed, -<uint64_t>p.required)
    if word_total(w) < p.required:                      # its guarantee is free for all now
        fb_i64_add_seq_cst(&g.spare, p.required - <int64_t>word_total(w))
    local_set_limit(p, 0)
    trim(p, SURE)
    wake(p)
    fb_event_notify(&p.available)
    pool_wake_waiting(g)

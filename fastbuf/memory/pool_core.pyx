"""The pool's C cores: lock-free free lists, claims under a limit, waiting and waking.

Three structures, all without a lock and all usable without the GIL:

1. *Free lists* (``FreeList``): the global one and one per local pool, all threaded through ``SegmentMeta.link``, so
   that a segment is on one list at most.  Treiber's stack (R. K. Treiber, "Systems Programming: Coping with
   Parallelism", IBM RJ 5118, 1986) with a tag of 32 bits beside the index against ABA (IBM System/370 Principles of
   Operation, appendix A). Each node also keeps its depth.  What lies below a node cannot change while the node is on
   the list, so the top's depth is the list's length: the number free costs no counter.  Several are taken, or put
   back, by one CAS (``free_list.pxd``).

   ======================== ===================================================================================
   atomic                   pairs with
   ======================== ===================================================================================
   ``head`` CAS in push     ``head`` load in pop: the popper sees the node's link, and all that the last user wrote
   ``link`` relaxed         nothing: a stale link is thrown away since the tag has moved and the CAS on head fails
   ``refs`` release         ``refs`` acquire of the last reference: it sees what the other holders wrote
   ======================== ===================================================================================

2. *Claims*: ``LocalCore.word`` = destroyed bit | claims in flight (31) | held (32), and ``PoolCore.spare``, a
   semaphore.  A pool that takes a segment from the global list first claims it in its word; beyond its ``required`` it
   also has to take one from ``spare``.  At rest

       spare = free on the global list - sum over pools of max(0, required - held)

   so that what one pool takes beyond its guarantee (up to its limit, or as overdraft) never eats another's guarantee.
   Every change of a word knows its total (held + in flight) before and after, which says whether ``spare`` has to move.

3. *Waiting*: ``hungry`` of a pool is set by a request that failed, and cleared by whoever then makes a segment, a
   limit or the end of the pool visible; ``PoolCore.hungry`` counts the pools in that state.  So a recycle that nobody
   waits for pays one load and no system call.  All steps named here are seq_cst, and they form two Dekker pairs:

       requester                                       releaser
       R1  global hungry += 1, pool's hungry = 1       L1  push / limit / destroyed bit
       R2  look again: list, limit, destroyed          L2  pool's hungry (own list), global hungry (global list)
       R3  sleep on the event (or return -1)           L3  clear it, notify (event, listener, eventfd of the tasks)

   Either R2 sees L1, or L2 sees R1.  The global count goes up before the pool's flag is set and down after it is
   cleared: whoever sees the flag set may rely on its being counted.  The second pair is a push to a local list against
   a falling limit: recycle pushes first and then reads ``limit``, redistribution stores ``limit`` first and then lists
   are looked at (``reclaim``); so a surplus is seen by the one or by the other.

Forbidden outcomes:
- one segment on two lists, or on a list and out; a segment on none and not out;
- held > limit + overdraft by an acquire (held > limit by a falling limit is allowed, and shrinks with each recycle);
- sum of held + free on the global list != count, at rest;
- a requester asleep although a segment it may have is free, and no wake-up is on its way;
- a pool that cannot reach ``required`` once those over their limit have recycled.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport (
    fb_cpu_relax,
    fb_event,
    fb_event_cancel,
    fb_event_notify,
    fb_event_prepare,
    fb_event_signal,
    fb_event_wait,
    fb_fence_seq_cst,
    fb_i64_add_seq_cst,
    fb_i64_cas_seq_cst,
    fb_i64_load_seq_cst,
    fb_now_ns,
    fb_u32_add_relaxed,
    fb_u32_add_seq_cst,
    fb_u32_cas_acq_rel,
    fb_u32_cas_seq_cst,
    fb_u32_load_acquire,
    fb_u32_load_relaxed,
    fb_u32_load_seq_cst,
    fb_u32_store_relaxed,
    fb_u32_store_release,
    fb_u32_sub_seq_cst,
    fb_u64_add_relaxed,
    fb_u64_add_seq_cst,
    fb_u64_cas_seq_cst,
    fb_u64_load_relaxed,
    fb_u64_load_seq_cst,
    fb_u64_store_release,
)
from fastbuf.memory.debug_checks cimport POOL_DEBUG, debug_poison
from fastbuf.memory.free_list cimport empty, pop, pop_many, push, push_many
from fastbuf.memory.pool_core cimport WORD_CLAIM, WORD_DESTROYED, FreeList, LocalCore, PoolCore, SegmentMeta


cdef enum:
    SPINS = 100                     # looks before sleeping, some microseconds


cdef inline uint32_t word_held(uint64_t w) noexcept nogil:
    return <uint32_t>w


cdef inline uint64_t word_total(uint64_t w) noexcept nogil:
    return <uint64_t><uint32_t>w + ((w >> 32) & 0x7FFFFFFF)


cdef uint32_t list_depth(PoolCore *g, FreeList *stack) noexcept nogil:
    cdef uint64_t h = fb_u64_load_seq_cst(&stack.head)
    cdef uint64_t again
    cdef uint32_t depth
    while True:
        depth = 0 if <uint32_t>h == 0 else <uint32_t>(fb_u64_load_relaxed(&g.meta[<uint32_t>h - 1].link) >> 32)
        again = fb_u64_load_seq_cst(&stack.head)
        if again == h:
            return depth
        h = again


# --- waking -----------------------------------------------------------------------------------------------------------

cdef inline LocalCore *first_local(PoolCore *g) noexcept nogil:
    return <LocalCore *><size_t>fb_u64_load_seq_cst(&g.locals)


# R1 of the head comment: from here on whoever makes something available to p will notify.
cdef void arm(LocalCore *p) noexcept nogil:
    cdef uint32_t expected
    if fb_u32_load_seq_cst(&p.hungry) != 0:
        return
    fb_u32_add_seq_cst(&p.pool.hungry, 1)
    while True:
        expected = 0
        if fb_u32_cas_seq_cst(&p.hungry, &expected, 1):
            return
        if expected != 0:                               # another thread was first, and is counted
            fb_u32_sub_seq_cst(&p.pool.hungry, 1)
            return


# L3: notifies everybody who waits for p, once per arming.
cdef void wake(LocalCore *p) noexcept nogil:
    cdef uint32_t expected, signal
    cdef fb_event *e
    while True:
        expected = 1
        if fb_u32_cas_seq_cst(&p.hungry, &expected, 0):
            break
        if expected == 0:
            return
    fb_u32_sub_seq_cst(&p.pool.hungry, 1)
    fb_event_notify(&p.available)
    # The pin and the load pair (seq_cst) with local_set_listener's store and its look at the pins: either this sees
    # the listener gone, or the setter waits until the pin is off.
    fb_u32_add_seq_cst(&p.listener_pins, 1)
    e = <fb_event *><size_t>fb_u64_load_seq_cst(&p.listener)
    if e != NULL:
        fb_event_notify(e)
    signal = fb_u32_load_seq_cst(&p.signal)
    if signal != 0:
        fb_event_signal(<int>signal - 1)
    fb_u32_sub_seq_cst(&p.listener_pins, 1)


cdef void pool_wake_hungry(PoolCore *g) noexcept nogil:
    # A pool that is at its limit is left asleep: what it holds falls only by its own recycle to the global list, which
    # comes here after it, and its limit rises only in redistribution, which comes here too.  Claims in flight do not
    # count in this look, since they may yet be undone.
    cdef LocalCore *p
    cdef uint64_t w, most
    if fb_u32_load_seq_cst(&g.hungry) == 0:
        return
    p = first_local(g)
    while p != NULL:
        if fb_u32_load_seq_cst(&p.hungry) != 0:
            w = fb_u64_load_seq_cst(&p.word)
            most = <uint64_t>fb_u32_load_seq_cst(&p.limit) + fb_u32_load_relaxed(&p.overdraft)
            if w & WORD_DESTROYED or word_held(w) < most:
                wake(p)
        p = p.following


cdef void local_set_listener(LocalCore *p, fb_event *e) noexcept nogil:
    fb_u64_store_release(&p.listener, <uint64_t><size_t>e)
    fb_fence_seq_cst()
    while fb_u32_load_seq_cst(&p.listener_pins) != 0:
        fb_cpu_relax()


cdef void local_set_signal(LocalCore *p, int fd) noexcept nogil:
    fb_u32_store_release(&p.signal, <uint32_t>(fd + 1))
    fb_fence_seq_cst()
    while fb_u32_load_seq_cst(&p.listener_pins) != 0:
        fb_cpu_relax()


# --- claims -----------------------------------------------------------------------------------------------------------

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
        pool_wake_hungry(g)


# Moves p's surplus (held beyond limit, and free) to the global list; returns how many.
cdef uint32_t trim(LocalCore *p) noexcept nogil:
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
            break
        required = p.required                           # p cannot change hands while it counts this segment
        while word_held(w) > fb_u32_load_seq_cst(&p.limit):
            if fb_u64_cas_seq_cst(&p.word, &w, w - 1):
                break
        else:
            # The limit rose.  A request that found the list empty meanwhile sleeps over this segment.
            push(g, &p.free, i)
            if fb_u32_load_seq_cst(&p.hungry) != 0:
                wake(p)
            break
        # From here on p may be serving another pool: it is not touched again unless the loop finds a surplus.
        g.meta[i].owner = NULL
        push(g, &g.free, i)
        if w & WORD_DESTROYED or word_total(w) - 1 >= required:
            fb_i64_add_seq_cst(&g.spare, 1)
        moved += 1
    if moved != 0:
        pool_wake_hungry(g)
    return moved


# A pool below its limit that finds nothing on the global list takes what others hold free beyond their limit: since the
# sum of the limits is the sum of the segments, somebody then holds more than his limit.
cdef uint32_t reclaim(PoolCore *g) noexcept nogil:
    cdef uint32_t moved = 0
    cdef LocalCore *p = first_local(g)
    while p != NULL:
        if word_held(fb_u64_load_seq_cst(&p.word)) > fb_u32_load_seq_cst(&p.limit):
            moved += trim(p)
        p = p.following
    return moved


cdef void note_peak(LocalCore *p) noexcept nogil:
    cdef uint32_t used = local_in_use(p)
    cdef uint32_t peak = fb_u32_load_relaxed(&p.peak)
    while used > peak:
        if fb_u32_cas_acq_rel(&p.peak, &peak, used):
            return


# The slow half of a request: the local list was empty.
cdef int32_t take_global(LocalCore *p, uint32_t extra) noexcept nogil:
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
                    if reclaim(g) == 0:
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
            fb_u64_add_seq_cst(&p.word, 1 - WORD_CLAIM)
            g.meta[i].owner = p
            return i
        # 3. Nothing there: undo.  A push since then may have been missed by those who saw this claim.
        w = fb_u64_load_seq_cst(&p.word)
        while not fb_u64_cas_seq_cst(&p.word, &w, w - WORD_CLAIM):
            pass
        if w & WORD_DESTROYED or word_total(w) - 1 >= p.required:
            fb_i64_add_seq_cst(&g.spare, 1)
        if not empty(&g.free):
            pool_wake_hungry(g)
        elif reclaim(g) == 0:
            return -1


cdef inline int32_t take(LocalCore *p, uint32_t extra) noexcept nogil:
    cdef PoolCore *g = p.pool
    cdef uint32_t left = 0
    cdef uint64_t w
    cdef int32_t i = pop(g, &p.free, &left)
    if i < 0:
        i = take_global(p, extra)
        if i < 0:
            return -1
        fb_u32_store_relaxed(&g.meta[i].refs, 1)
        note_peak(p)
        return i
    fb_u32_store_relaxed(&g.meta[i].refs, 1)            # published by whatever hands the segment on
    w = fb_u64_load_seq_cst(&p.word)
    if w & WORD_DESTROYED:
        segment_recycle(g, i)
        return -1
    if word_held(w) - left > fb_u32_load_relaxed(&p.peak):
        note_peak(p)
    return i


# --- requests ---------------------------------------------------------------------------------------------------------

cdef int32_t take_or_arm(LocalCore *p, uint32_t extra) noexcept nogil:
    if fb_u64_load_seq_cst(&p.listener) == 0:
        return -1
    arm(p)
    return take(p, extra)


cdef int32_t local_try_or_arm(LocalCore *p) noexcept nogil:
    cdef int32_t i = take(p, 0)
    if i >= 0:
        return i
    arm(p)
    return take(p, 0)


cdef int32_t local_try_acquire(LocalCore *p) noexcept nogil:
    cdef int32_t i = take(p, 0)
    return i if i >= 0 else take_or_arm(p, 0)


cdef int32_t local_try_acquire_overdraft(LocalCore *p) noexcept nogil:
    cdef uint32_t extra = fb_u32_load_relaxed(&p.overdraft)
    cdef int32_t i = take(p, extra)
    return i if i >= 0 else take_or_arm(p, extra)


cdef uint32_t local_try_acquire_many(LocalCore *p, uint32_t n, int32_t *segments) noexcept nogil:
    cdef PoolCore *g = p.pool
    cdef uint32_t left = 0
    cdef uint32_t got, k
    cdef uint64_t w
    cdef int32_t i
    if n == 0:
        return 0
    got = pop_many(g, &p.free, n, segments, &left)
    if got != 0:
        for k in range(got):
            fb_u32_store_relaxed(&g.meta[segments[k]].refs, 1)
        w = fb_u64_load_seq_cst(&p.word)
        if w & WORD_DESTROYED:
            segment_recycle_many(g, segments, got)
            return 0
        if word_held(w) - left > fb_u32_load_relaxed(&p.peak):
            note_peak(p)
    while got < n:                                      # each of these stays with p: the next batch finds them at home
        i = take(p, 0)
        if i < 0 and got == 0:
            i = take_or_arm(p, 0)
        if i < 0:
            break
        segments[got] = i
        got += 1
    return got


cdef int32_t local_wait(LocalCore *p, int64_t deadline_ns) noexcept nogil:
    cdef int32_t i
    cdef uint32_t key
    cdef int rc, _
    for _ in range(SPINS):
        if not empty(&p.free) or not empty(&p.pool.free):
            i = take(p, 0)
            if i >= 0:
                return i
        fb_cpu_relax()
    while True:
        key = fb_event_prepare(&p.available)
        arm(p)
        i = take(p, 0)
        if i >= 0:
            fb_event_cancel(&p.available)
            return i
        if local_destroyed(p):
            fb_event_cancel(&p.available)
            return LOCAL_DESTROYED
        rc = fb_event_wait(&p.available, key, deadline_ns)
        if rc == 1:
            continue
        if rc == 0:
            i = take(p, 0)                              # what came with the deadline is not refused
            if i >= 0:
                return i
            return LOCAL_DESTROYED if local_destroyed(p) else LOCAL_EMPTY
        return LOCAL_SIGNAL


cdef int32_t local_acquire(LocalCore *p, int64_t deadline_ns) noexcept nogil:
    cdef int64_t begin
    cdef int32_t i = take(p, 0)
    if i >= 0:
        return i
    if local_destroyed(p):
        return LOCAL_DESTROYED
    begin = fb_now_ns()
    fb_u64_add_relaxed(&p.waits, 1)
    i = local_wait(p, deadline_ns)
    fb_u64_add_relaxed(&p.wait_ns, <uint64_t>(fb_now_ns() - begin))
    return i


# --- segments ---------------------------------------------------------------------------------------------------------

cdef uint8_t *segment_data(PoolCore *g, int32_t i) noexcept nogil:
    return g.data + <size_t>i * g.stride


cdef uint32_t segment_refs(PoolCore *g, int32_t i) noexcept nogil:
    return fb_u32_load_acquire(&g.meta[i].refs)


cdef uint32_t segment_generation(PoolCore *g, int32_t i) noexcept nogil:
    # Relaxed: it changes only when nobody holds a reference, and the caller says he does.
    return fb_u32_load_relaxed(&g.meta[i].generation)


cdef void segment_retain(PoolCore *g, int32_t i) noexcept nogil:
    # Relaxed: the caller holds a reference, so nobody can bring the count to zero meanwhile.
    fb_u32_add_relaxed(&g.meta[i].refs, 1)


# One reference less: 1 with the last one (the caller puts the segment on its owner's list), 0, or -1 if it was not out.
cdef inline int let_go(PoolCore *g, int32_t i) noexcept nogil:
    cdef SegmentMeta *m = &g.meta[i]
    cdef uint32_t r = fb_u32_load_acquire(&m.refs)
    # Whoever sees 1 and owns it is alone: nobody else has a reference to copy (as in Arc::get_mut).  The acquire pairs
    # with the release of those who left before.  The debug build counts down atomically all the same, to catch two
    # threads that recycle one reference.
    if r == 1 and not POOL_DEBUG:
        fb_u32_store_relaxed(&m.refs, 0)                # published by push
    else:
        while True:
            if r == 0:
                return -1
            if fb_u32_cas_acq_rel(&m.refs, &r, r - 1):
                break
        if r > 1:
            return 0
    fb_u32_store_relaxed(&m.generation, fb_u32_load_relaxed(&m.generation) + 1)
    if POOL_DEBUG:
        debug_poison(g, i)
    return 1


# After a push to p's list.  The segment is somebody else's by now, and p may even serve another pool: these looks then
# do harmless work.
cdef inline void after_push(LocalCore *p) noexcept nogil:
    if word_held(fb_u64_load_seq_cst(&p.word)) > fb_u32_load_seq_cst(&p.limit):
        trim(p)
    if fb_u32_load_seq_cst(&p.hungry) != 0:
        wake(p)


cdef int segment_recycle(PoolCore *g, int32_t i) noexcept nogil:
    cdef int last = let_go(g, i)
    cdef LocalCore *p
    if last == 1:
        p = g.meta[i].owner
        push(g, &p.free, i)
        after_push(p)
    return last


cdef uint32_t segment_recycle_many(PoolCore *g, const int32_t *segments, uint32_t n) noexcept nogil:
    cdef int32_t run[MOST_AT_ONCE]                      # those that go home together: one owner, one CAS
    cdef LocalCore *owner = NULL
    cdef uint32_t length = 0
    cdef uint32_t refused = 0
    cdef uint32_t k
    cdef int last
    for k in range(n):
        last = let_go(g, segments[k])
        if last != 1:
            refused += last < 0
            continue
        if length != 0 and (g.meta[segments[k]].owner != owner or length == MOST_AT_ONCE):
            push_many(g, &owner.free, run, length)
            after_push(owner)
            length = 0
        owner = g.meta[segments[k]].owner
        run[length] = segments[k]
        length += 1
    if length != 0:
        push_many(g, &owner.free, run, length)
        after_push(owner)
    return refused


# --- figures ----------------------------------------------------------------------------------------------------------

cdef uint32_t local_held(LocalCore *p) noexcept nogil:
    return word_held(fb_u64_load_seq_cst(&p.word))


cdef uint32_t local_limit(LocalCore *p) noexcept nogil:
    return fb_u32_load_seq_cst(&p.limit)


cdef bint local_destroyed(LocalCore *p) noexcept nogil:
    return (fb_u64_load_seq_cst(&p.word) & WORD_DESTROYED) != 0


cdef uint32_t local_in_use(LocalCore *p) noexcept nogil:
    # The list did not move between the two looks at its head (the tag says so), and held was read in between: both
    # figures are of that moment.
    cdef PoolCore *g = p.pool
    cdef uint64_t h = fb_u64_load_seq_cst(&p.free.head)
    cdef uint64_t again
    cdef uint32_t held, depth
    while True:
        depth = 0 if <uint32_t>h == 0 else <uint32_t>(fb_u64_load_relaxed(&g.meta[<uint32_t>h - 1].link) >> 32)
        held = local_held(p)
        again = fb_u64_load_seq_cst(&p.free.head)
        if again == h:
            return held - depth
        h = again


# --- limits and ends; the caller holds the NetworkBufferPool's lock ---------------------------------------------------

cdef void local_set_limit(LocalCore *p, uint32_t limit) noexcept nogil:
    # A read-modify-write for its order alone (head comment, second pair): only the holder of the lock moves limits.
    fb_u32_add_seq_cst(&p.limit, limit - fb_u32_load_relaxed(&p.limit))


cdef void local_destroy(LocalCore *p) noexcept nogil:
    cdef PoolCore *g = p.pool
    cdef uint64_t w = fb_u64_load_seq_cst(&p.word)
    while True:
        if w & WORD_DESTROYED:
            return
        if fb_u64_cas_seq_cst(&p.word, &w, w | WORD_DESTROYED):
            break
    if word_total(w) < p.required:                      # its guarantee is free for all now
        fb_i64_add_seq_cst(&g.spare, p.required - <int64_t>word_total(w))
    local_set_limit(p, 0)
    trim(p)
    wake(p)
    fb_event_notify(&p.available)
    pool_wake_hungry(g)

"""The slow paths of magazines: chunks, seizing, counting, and the end of a thread.

A pool's free segments are on its list ``free``, in ``chunks``, and in the magazines of the threads that use it.  A
request looks in its own magazine, then in ``chunks`` and ``free``, then in other magazines, and only then in the global
list.  So magazines do not change how many segments a pool holds.

*Chunks.*  A full magazine gives ``FB_CHUNK`` segments away at once, and an empty one takes as many: one CAS for all of
them.  Their numbers are stored beside the links of the first two, so reading them touches two cache lines, not one per
segment.

*Gate.*  A thread that looks into other threads' magazines first closes the pool's gate and shuts the magazines
(``fb_magazine.h``).  The gate is a lock among such threads; no other thread waits for it: while it is closed, owners
use the lists.  Segments move between these places only while the gate is closed, or inside an owner's busy section.  So
a request that sees the gate open and no owner busy has seen every free segment.

*Open and shut.*  An owner reads only its magazine's `open`.  So every event that makes a pool's segments needed
elsewhere shuts all its magazines: a failed request (``SURE``, after setting ``waiting``), a pool that holds more than
its limit (``shut``), destruction (``SURE``, from ``trim``).  Each magazine is opened by its owner's next put or refill
after that need is over (``may_keep``).

*Penalty.*  A thread whose magazine was emptied by another one puts its next segments on the list, more of them after
each seizure, until chunks move again: two threads that use each other's segments should not pay for a fence each time.

Forbidden outcomes, besides those of ``fb_magazine.h``: a request fails, or takes from the global list, while a segment
that was put earlier is in a magazine; a segment is in the magazine of an ended thread or of a destroyed pool;
`local_figures` counts a segment twice or not at all.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memset

from fastbuf._native.atomics cimport (
    fb_prefetch_write,
    fb_u32_cas_seq_cst,
    fb_u32_load_relaxed,
    fb_u32_load_seq_cst,
    fb_u32_or_seq_cst,
    fb_u32_store_relaxed,
    fb_u32_store_release,
    fb_u32_sub_seq_cst,
    fb_u64_load_acquire,
    fb_u64_load_relaxed,
    fb_u64_load_seq_cst,
    fb_u64_store_relaxed,
    fb_u64_store_release,
)
from fastbuf.memory.free_list cimport depth_at, empty, pop, push, push_many
from fastbuf.memory.pool_core cimport FB_BESIDE, FB_CHUNK, LocalCore, PoolCore, SegmentMeta
from fastbuf.memory.pool_setup cimport fork_count, magazines_of_nobody, slot_claim, slots_start


cdef extern from "<stdlib.h>" nogil:
    void *aligned_alloc(size_t alignment, size_t size)


cdef extern from *:
    """
    #include <pthread.h>

    /* Held to add or remove a pool, and while an ending thread walks the list of all pools. */
    static pthread_mutex_t fb_pools_mutex = PTHREAD_MUTEX_INITIALIZER;
    static void fb_pools_lock(void) { pthread_mutex_lock(&fb_pools_mutex); }
    static void fb_pools_unlock(void) { pthread_mutex_unlock(&fb_pools_mutex); }
    /* Without this, a forked child could inherit it locked by a thread that it does not have. */
    static int fb_pools_watch_forks(void) {
        return pthread_atfork(fb_pools_lock, fb_pools_unlock, fb_pools_unlock); }
    """
    void fb_pools_lock() nogil
    void fb_pools_unlock() nogil
    int fb_pools_watch_forks()


cdef PoolCore *pools = NULL         # list of all pools; guarded by fb_pools_lock
# Magazines whose pools are gone, one block per pool, linked by `thread` of slot 0; guarded by fb_pools_lock.  They stay
# valid: a thread may still have one as its last used (fb_here).
cdef fb_magazine *kept_memory = NULL

cdef bint allowed = fb_fences_find_out()                # whether pools may have magazines
if slots_start(slot_flush) != 0:
    raise MemoryError("no thread key left: segments kept by ended threads could not be taken back")
if fb_pools_watch_forks() != 0:
    raise MemoryError("pthread_atfork refused the handler that keeps the list of pools whole in forked children")


cdef inline fb_magazine *magazine_at(LocalCore *p, uint32_t slot) noexcept nogil:
    return <fb_magazine *><size_t>fb_u64_load_acquire(&p.magazines) + slot


# In a fork of the process that made the pool: threads that used it or held its gate do not exist here.
cdef inline bint orphaned(LocalCore *p) noexcept nogil:
    return fork_count() != p.pool.forks


# Writes the numbers of a chunk: FB_BESIDE of them beside the link of its first segment, and as many beside its second.
cdef inline void chunk_write(SegmentMeta *meta, const int32_t *all) noexcept nogil:
    cdef int k
    for k in range(FB_BESIDE):
        meta[all[0]].more[k] = all[1 + k]
        meta[all[1]].more[k] = all[1 + FB_BESIDE + k]


# Reads all but the first.  The last ones in `rest` arrive in the cache first.
cdef inline void chunk_read(SegmentMeta *meta, int32_t first, int32_t *rest) noexcept nogil:
    cdef int k
    # Prefetch each for writing: another core wrote it last.
    for k in range(FB_BESIDE):
        rest[FB_BESIDE + k] = meta[first].more[k]
        fb_prefetch_write(&meta[rest[FB_BESIDE + k]])
    for k in range(FB_BESIDE):
        rest[k] = meta[rest[FB_BESIDE]].more[k]
        fb_prefetch_write(&meta[rest[k]])


# --- the owner --------------------------------------------------------------------------------------------------------

# Returns False if there is no memory.
cdef bint have_magazines(LocalCore *p) noexcept nogil:
    global kept_memory
    cdef uint64_t base = fb_u64_load_acquire(&p.magazines)
    cdef fb_magazine *made = NULL
    cdef uint32_t slot
    if base != magazines_of_nobody():
        return True
    fb_pools_lock()
    if fb_u64_load_acquire(&p.magazines) == magazines_of_nobody():     # no other thread has done it meanwhile
        made = kept_memory
        if made != NULL:
            kept_memory = <fb_magazine *><size_t>fb_u64_load_relaxed(&made.thread)
        else:
            made = <fb_magazine *>aligned_alloc(sizeof(fb_magazine), FB_SLOTS * sizeof(fb_magazine))
            if made != NULL:
                memset(made, 0, FB_SLOTS * sizeof(fb_magazine))
                for slot in range(FB_SLOTS):
                    fb_u32_store_relaxed(&made[slot].hot, NOTHING)
        if made != NULL:
            fb_u64_store_release(&p.magazines, <uint64_t><size_t>made)
    fb_pools_unlock()
    return fb_u64_load_acquire(&p.magazines) != base


cdef fb_magazine *magazine_own(LocalCore *p) noexcept nogil:
    cdef uint32_t slot = slot_claim()
    cdef fb_magazine *m
    if slot == 0 or not allowed or not have_magazines(p):
        return NULL
    m = magazine_at(p, slot)
    if fb_u64_load_relaxed(&m.thread) != fb_thread_id():
        # No seizer looks at it before its bit is set; its last owner has ended (slot_flush) and left it shut.  Setting
        # the bit, and the loads in may_keep after it, pair (seq_cst) with the store that makes a thread seize, and its
        # load of the bits.
        fb_u32_store_relaxed(&m.cool, 0)
        m.penalty = LEAST_PENALTY
        fb_u64_store_relaxed(&m.thread, fb_thread_id())
        fb_u32_or_seq_cst(&p.slots, <uint32_t>1 << slot)    # in a fork the bit may be set, for a thread of the parent
    return m


# Whether p's segments are not needed elsewhere: no thread waits, and p is alive and within its limit.  A claim in
# flight counts as held.
cdef inline bint may_keep(LocalCore *p) noexcept nogil:
    return (
        fb_u32_load_seq_cst(&p.waiting) == 0
        and fb_u64_load_seq_cst(&p.word) <= fb_u32_load_seq_cst(&p.limit)
    )


# O1, O6 to O8: True once the magazine is open and its owner is alone in it.  Call leave in both cases.
cdef bint enter_seldom(LocalCore *p, fb_magazine *m) noexcept nogil:
    cdef uint32_t cool
    fb_magazine_busy(m)
    if fb_u32_load_seq_cst(&p.gate) != 0:
        return False
    if fb_u64_load_relaxed(&m.open) != 0:
        return True
    cool = fb_u32_load_relaxed(&m.cool)
    if cool != 0:
        fb_u32_store_relaxed(&m.cool, cool - 1)
        return False
    if not may_keep(p):
        return False
    fb_magazine_open(m, <uint64_t><size_t>p)
    if fb_u32_load_seq_cst(&p.gate) == 0 and may_keep(p):
        return True
    fb_u64_store_relaxed(&m.open, 0)
    return False


cdef inline void relent(fb_magazine *m) noexcept nogil:
    if m.penalty > LEAST_PENALTY:
        m.penalty //= 2


cdef bint magazine_put_slowly(LocalCore *p, fb_magazine *m, int32_t i) noexcept nogil:
    cdef PoolCore *g = p.pool
    cdef bint put = False
    cdef uint32_t k, at
    cdef int32_t first
    if enter_seldom(p, m):
        at = fb_u32_load_relaxed(&m.count)
        if at == FB_MAGAZINE_ITEMS:                     # move the lower half, which was put first
            first = m.items[0]
            chunk_write(g.meta, m.items)
            at -= FB_CHUNK
            for k in range(at):
                m.items[k] = m.items[k + FB_CHUNK]
            push(g, &p.chunks, first)
            relent(m)
        m.items[at] = i
        fb_u32_store_relaxed(&m.count, at + 1)
        put = True
    fb_magazine_leave(m)
    return put


cdef bint magazine_put_many_slowly(
    LocalCore *p, fb_magazine *m, const int32_t *segments, uint32_t n
) noexcept nogil:
    cdef bint put = enter_seldom(p, m) and magazine_add(m, segments, n)
    fb_magazine_leave(m)
    return put


cdef int32_t magazine_refill(LocalCore *p, fb_magazine *m) noexcept nogil:
    cdef PoolCore *g = p.pool
    cdef uint32_t left = 0
    cdef int32_t i = -1
    # It may hold segments after all, if it was shut when the caller looked.
    if enter_seldom(p, m) and fb_u32_load_relaxed(&m.count) == 0:
        i = pop(g, &p.chunks, &left)
        if i >= 0:
            chunk_read(g.meta, i, m.items)
            fb_u32_store_relaxed(&m.count, FB_CHUNK - 1)
            relent(m)
    fb_magazine_leave(m)
    return i


# --- seizing ----------------------------------------------------------------------------------------------------------

# S1: also keeps other seizers out.
cdef void close_gate(LocalCore *p) noexcept nogil:
    cdef uint32_t turn = 0
    cdef uint32_t expected = 0
    while not fb_u32_cas_seq_cst(&p.gate, &expected, 1):
        if expected != 0 and orphaned(p):
            return
        expected = 0
        fb_wait_turn(turn)
        turn += 1


# S5.
cdef inline void open_gate(LocalCore *p) noexcept nogil:
    fb_u32_store_release(&p.gate, 0)


# The rest of S1, S2 and S3, with the gate closed: afterwards all magazines are shut and no owner is in one.  Returns
# the bits of those in use; `were_open`: the bits of those that were open.
# A magazine that is already shut has no owner in it and needs no fence: the thread that shut it also had the gate
# closed, and waited for the owner.  The owner gets in again only by opening it (O7) and then reading the gate (O8,
# pairs with S1); so if it were in, the magazine would be seen open here.
cdef uint32_t hush(LocalCore *p, uint32_t *were_open) noexcept nogil:
    cdef uint32_t slots = fb_u32_load_seq_cst(&p.slots)
    cdef uint32_t others = 0
    cdef uint32_t slot, bit
    were_open[0] = 0
    if orphaned(p):
        return slots
    for slot in range(1, FB_SLOTS):
        if slots >> slot & 1:
            bit = close_magazine(p, slot)
            were_open[0] |= bit
            if bit and fb_u64_load_relaxed(&magazine_at(p, slot).thread) != fb_thread_id():
                others |= bit
    if others:
        fb_fence_everybody()
        for slot in range(1, FB_SLOTS):
            if others >> slot & 1:
                fb_magazine_quiet(magazine_at(p, slot))
    return slots


cdef inline uint32_t close_magazine(LocalCore *p, uint32_t slot) noexcept nogil:
    cdef fb_magazine *m = magazine_at(p, slot)
    if fb_u64_load_seq_cst(&m.open) == 0:
        return 0
    fb_u64_store_relaxed(&m.open, 0)
    return <uint32_t>1 << slot


# S5, for magazines whose owners may go on.  A thread that needs segments from now on waits for the gate and shuts them.
# A thread that needed them earlier may have found shut a magazine that hush found open, at its owner's O7 (O8 undid
# that, as the gate was closed): so this function checks for such need.
cdef void open_magazines(LocalCore *p, uint32_t slots) noexcept nogil:
    cdef uint32_t slot
    if slots == 0 or not may_keep(p):
        return
    for slot in range(1, FB_SLOTS):
        if slots >> slot & 1:
            fb_u64_store_release(&magazine_at(p, slot).open, <uint64_t><size_t>p)


# Empties a magazine that no owner is in; returns how many segments it held.
cdef uint32_t gather(LocalCore *p, fb_magazine *m) noexcept nogil:
    cdef int32_t found[43]                              # FB_MAGAZINE_ITEMS + 1
    cdef uint32_t n = 0
    cdef uint32_t k
    if fb_u32_load_relaxed(&m.hot) != NOTHING:
        found[0] = <int32_t>fb_u32_load_relaxed(&m.hot)
        n = 1
    for k in range(fb_u32_load_relaxed(&m.count), 0, -1):
        found[n] = m.items[k - 1]
        n += 1
    if n != 0:
        fb_u32_store_relaxed(&m.hot, NOTHING)
        fb_u32_store_relaxed(&m.count, 0)
        push_many(p.pool, &p.free, found, n)
    return n


cdef uint32_t gather_all(LocalCore *p, Look how) noexcept nogil:
    cdef uint32_t open_again = 0
    cdef uint32_t slots = hush(p, &open_again)
    cdef uint32_t moved = 0
    cdef uint32_t slot, n
    cdef fb_magazine *m
    for slot in range(1, FB_SLOTS):
        if slots >> slot & 1:
            m = magazine_at(p, slot)
            n = gather(p, m)
            moved += n
            if n != 0 and fb_u64_load_relaxed(&m.thread) != fb_thread_id():
                open_again &= ~(<uint32_t>1 << slot)
                fb_u32_store_relaxed(&m.cool, m.penalty)
                if m.penalty < MOST_PENALTY:
                    m.penalty *= 2
    if how != SURE:
        open_magazines(p, open_again)
    return moved


cdef bint break_chunk(LocalCore *p) noexcept nogil:
    cdef PoolCore *g = p.pool
    cdef int32_t all[21]                                # FB_CHUNK
    cdef uint32_t left = 0
    all[0] = pop(g, &p.chunks, &left)
    if all[0] < 0:
        return False
    chunk_read(g.meta, all[0], &all[1])
    push_many(g, &p.free, all, FB_CHUNK)
    return True


cdef uint32_t seize(LocalCore *p) noexcept nogil:
    # The magazines stay shut while this counts: a segment that its owner puts into an open one would count as in use,
    # and so would a chunk on its way to one.
    cdef uint32_t out
    close_gate(p)
    gather_all(p, SURE)
    out = local_spread(p)
    open_gate(p)
    return out


cdef void shut(LocalCore *p) noexcept nogil:
    cdef uint32_t slots, slot, _
    if fb_u32_load_seq_cst(&p.slots) == 0:
        return
    close_gate(p)
    slots = fb_u32_load_seq_cst(&p.slots)
    for slot in range(1, FB_SLOTS):
        # A magazine that is shut stays shut: O8 sees the surplus, and only the owner opens it while the gate is closed.
        if slots >> slot & 1 and fb_u64_load_seq_cst(&magazine_at(p, slot).open) != 0:
            hush(p, &_)
            break
    open_gate(p)


# Whether a magazine holds segments, or its owner is in it now.
cdef bint seems_loaded(LocalCore *p) noexcept nogil:
    cdef uint32_t slots = fb_u32_load_seq_cst(&p.slots)
    cdef uint32_t slot
    cdef fb_magazine *m
    for slot in range(1, FB_SLOTS):
        if slots >> slot & 1:
            m = magazine_at(p, slot)
            if (
                fb_u32_load_relaxed(&m.busy) != 0
                or fb_u32_load_relaxed(&m.hot) != NOTHING
                or fb_u32_load_relaxed(&m.count) != 0
            ):
                return True
    return False


cdef bint fetch(LocalCore *p, Look how) noexcept nogil:
    cdef bint found
    if empty(&p.chunks) and (
        how == GLANCE
        or fb_u32_load_seq_cst(&p.slots) == 0
        or (how == LOOK and not seems_loaded(p))
    ):
        # A segment that moved during this look is on the list now, or the gate is closed.
        if fb_u32_load_seq_cst(&p.gate) == 0:
            return not empty(&p.free)
    close_gate(p)
    found = not empty(&p.free) or break_chunk(p)
    if not found and how != GLANCE:
        found = gather_all(p, how) != 0 or break_chunk(p) or not empty(&p.free)
    open_gate(p)
    return found


# --- counting ---------------------------------------------------------------------------------------------------------

cdef void local_figures(LocalCore *p, uint32_t *held, uint32_t *home) noexcept nogil:
    # The lists did not change between the two loads of their heads (the tags show it), magazines do not change while
    # the gate is closed, and `held` was read in between: so all figures are of that moment.
    cdef PoolCore *g = p.pool
    cdef uint32_t parked, slots, slot
    cdef uint32_t were_open = 0
    cdef uint64_t one, many
    cdef bint gated = fb_u32_load_seq_cst(&p.slots) != 0
    while True:
        parked = 0
        if gated:
            close_gate(p)
            slots = hush(p, &were_open)
            for slot in range(1, FB_SLOTS):
                if slots >> slot & 1:
                    parked += fb_u32_load_relaxed(&magazine_at(p, slot).hot) != NOTHING
                    parked += fb_u32_load_relaxed(&magazine_at(p, slot).count)
        while True:
            one = fb_u64_load_seq_cst(&p.free.head)
            many = fb_u64_load_seq_cst(&p.chunks.head)
            home[0] = parked + depth_at(g, one) + FB_CHUNK * depth_at(g, many)
            held[0] = <uint32_t>fb_u64_load_seq_cst(&p.word)
            if fb_u64_load_seq_cst(&p.free.head) == one and fb_u64_load_seq_cst(&p.chunks.head) == many:
                break
        if gated:
            open_magazines(p, were_open)
            open_gate(p)
            return
        gated = fb_u32_load_seq_cst(&p.slots) != 0      # the first magazine was made meanwhile
        if not gated:
            return


cdef uint32_t local_spread(LocalCore *p) noexcept nogil:
    cdef PoolCore *g = p.pool
    cdef uint64_t one, many
    cdef uint32_t spread
    while True:
        one = fb_u64_load_seq_cst(&p.free.head)
        many = fb_u64_load_seq_cst(&p.chunks.head)
        spread = <uint32_t>fb_u64_load_seq_cst(&p.word) - depth_at(g, one) - FB_CHUNK * depth_at(g, many)
        if fb_u64_load_seq_cst(&p.free.head) == one and fb_u64_load_seq_cst(&p.chunks.head) == many:
            return spread


# --- threads and pools end or start -----------------------------------------------------------------------------------

cdef void slot_flush(uint32_t slot) noexcept nogil:
    cdef PoolCore *g
    cdef LocalCore *p
    cdef fb_magazine *m
    fb_pools_lock()
    g = pools
    while g != NULL:
        p = <LocalCore *><size_t>fb_u64_load_seq_cst(&g.locals)
        while p != NULL:
            if fb_u32_load_seq_cst(&p.slots) >> slot & 1:
                # The gate is closed because of seizers.  No sleeping thread needs a notification: these segments were
                # put before it looked (SURE), or it was not waiting.
                close_gate(p)
                m = magazine_at(p, slot)
                gather(p, m)
                fb_u64_store_relaxed(&m.open, 0)
                fb_u64_store_relaxed(&m.thread, 0)
                fb_u32_sub_seq_cst(&p.slots, <uint32_t>1 << slot)
                open_gate(p)
            p = p.following
        g = g.next_pool
    fb_pools_unlock()


cdef void pools_add(PoolCore *g) noexcept nogil:
    global pools
    fb_pools_lock()
    g.next_pool = pools
    pools = g
    fb_pools_unlock()


cdef void pools_remove(PoolCore *g) noexcept nogil:
    global kept_memory
    cdef PoolCore **at
    cdef LocalCore *p
    cdef uint32_t slot
    fb_pools_lock()
    at = &pools
    while at[0] != NULL and at[0] != g:
        at = &at[0].next_pool
    if at[0] == g:
        at[0] = g.next_pool
    p = <LocalCore *><size_t>fb_u64_load_seq_cst(&g.locals)
    while p != NULL:
        if fb_u64_load_acquire(&p.magazines) != magazines_of_nobody():
            for slot in range(FB_SLOTS):
                fb_u64_store_relaxed(&magazine_at(p, slot).open, 0)
                fb_u64_store_relaxed(&magazine_at(p, slot).thread, 0)
            fb_u64_store_relaxed(&magazine_at(p, 0).thread, <uint64_t><size_t>kept_memory)
            kept_memory = magazine_at(p, 0)
        p = p.following
    fb_pools_unlock()

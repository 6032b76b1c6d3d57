/* A magazine: a few free segments that one thread takes and puts back with plain stores.
 *
 * Idea: J. Bonwick and J. Adams, "Magazines and Vmem: Extending the Slab Allocator to Many CPUs and Arbitrary Resources"
 * (USENIX 2001).  What keeps everybody else out while the owner is at it, and lets everybody else in when they need
 * what lies there, is Dekker's pair with all of its cost on the seldom side (an asymmetric fence: D. Dice, H. Huang and
 * M. Yang, "Asymmetric Dekker Synchronization", Sun 2001; membarrier(2), MEMBARRIER_CMD_PRIVATE_EXPEDITED):
 *
 *   owner (each take and put)                        seizer (holds the pool's gate, a lock among seizers)
 *   O1  busy = 1           (relaxed)                 S1  gate = 1          (seq_cst read-modify-write); open = 0
 *   O2  nothing but a compiler barrier               S2  membarrier: a full fence in every thread that runs
 *   O3  open ?             (acquire)                 S3  until busy == 0   (acquire)
 *   O4  take or put        (plain)                   S4  count or empty the magazine (plain)
 *   O5  busy = 0           (release)                 S5  open = 1, or not  (release); gate = 0 (release)
 *
 * Where O4 is no more than writing `hot`, it and O5 are one store of both (fb_magazine_leave_with), which is both of them
 * with nothing in between.
 *
 * `open` is the magazine's own word (it has the address of the pool, or 0), so that its owner, who looks at it each time,
 * looks at nothing that all owners share.
 * Pairing: O1/O3 with S1/S3.  The fence of S2 falls somewhere in the owner's run.  Before O1: O3 comes after it and
 * sees S1.  After O1: S3 sees O1, and waits for O5.  So never are both at O4 and S4.  O5 with S3: the seizer sees what
 * the owner did; S5 with O3 or O6: the owner sees what the seizer did.  A thread that does not run has been through a
 * fence when it was taken off its core.
 *
 * What was shut stays so while segments are wanted elsewhere, and then its owner opens it:
 *
 *   O1  busy = 1
 *   O6  gate == 0, and nothing is wanted elsewhere ? (seq_cst)
 *   O7  open = 1           (seq_cst read-modify-write)
 *   O8  O6 once more: if not, open = 0               (seq_cst)
 *   O5  busy = 0           (release)
 *
 * Pairing: O7/O8 with S1: either O8 sees the gate closed, or S1 comes after O7, and shuts it.  O7/O8 with whoever makes
 * segments wanted elsewhere (seq_cst), and then looks, with the gate closed, whether a magazine is open: he finds this
 * one open, and shuts it, or O8 sees what he wrote.  A seizer that finds it shut (seq_cst) needs neither S2 nor S3: its
 * owner is not at O4, or it would be open.
 *
 * Where membarrier is refused (old kernels, sandboxes; found out once, by trying) there are no magazines: a fence at O2
 * would cost the owner what the lists cost.  In a build for the thread sanitizer, which knows nothing of membarrier, O1
 * is a read-modify-write and S2 a fence; everything else that the sanitizer checks is what ships.
 *
 * Forbidden: a segment that owner and seizer both have; one that neither has; a put that a seizer neither finds nor
 * prevents although what made him seize was there first.
 */
#ifndef FB_MAGAZINE_H
#define FB_MAGAZINE_H

#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fb_atomic.h"

#define FB_BESIDE 10          /* numbers that fit beside a segment's link */
#define FB_CHUNK 21           /* segments that change hands together: the first, and what fits beside it and the second */
#define FB_MAGAZINE_ITEMS 42  /* two chunks: a thread at the edge of one does not pass it to and fro */

typedef struct {
    union {
        struct {
            fb_au32 hot;  /* the segment put last, -1: none.  Its own word, so that a put and the next take do not wait
                           * for each other's count.  First: of a store of both a processor passes the low half on as
                           * fast as all of it, the high half more slowly */
            fb_au32 busy; /* the owner is between O1 and O5; written by the owner alone */
        };
        fb_au64 hot_and_busy;
    };
    fb_au64 open;      /* LocalCore*: what is recycled there may be put here; 0: shut */
    /* `hot`, and from here on: the owner between O1 and O5, or a seizer between S3 and S5; who only counts reads it at any
     * time. */
    fb_au32 count;     /* in items */
    fb_au32 cool;      /* puts that are still to be refused after a seizure; of both at any time, and a guess: the owner
                        * of a magazine that is shut may overwrite what a seizer sets */
    fb_au64 thread;    /* pthread_self() of the owner; 0: it has ended */
    int32_t items[FB_MAGAZINE_ITEMS];
    uint32_t penalty;  /* what cool begins with next time */
    char room[52];
} fb_magazine;

_Static_assert(sizeof(fb_magazine) == 256, "whole cache lines, as they are fetched: by twos");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "fb_magazine_leave_with: hot is the low half, busy the high");

/* --- where a thread's magazines are --------------------------------------------------------------------------------*/

#define FB_SLOTS 32

/* What a thread knows of itself: a variable of each thread in one module (fb_slot.h), the same distance from the thread
 * pointer in all of them, so that code in any module gets at it without a call. */
typedef struct {
    /* The magazine of the pool that it used last: whether that is the one asked for says m->open, and a branch on that
     * is predicted.  Found by way of the pool, and the pool by way of the segment, the address would be known only
     * three loads after the segment's number, and a processor passes what was stored on to the next load only once it
     * knows both addresses: that cost more than all the rest.
     * The memory of magazines stays when a pool goes (magazines.pyx): so this may point to those of a pool that is no
     * more, which are shut. */
    fb_magazine *last;
    uint32_t slot; /* which of each pool's magazines are its own; 0: none */
} fb_here;

static inline fb_here *fb_here_at(int64_t distance) {
#if defined(__x86_64__)
    char *thread;
    __asm__("mov %%fs:0, %0" : "=r"(thread)); /* __builtin_thread_pointer, which came with GCC 11 */
#else
    char *thread = (char *)__builtin_thread_pointer();
#endif
    return (fb_here *)(thread + distance);
}

/* The calling thread's among the magazines of a pool, to be the last one; if thread or pool have none, one that is shut. */
static inline fb_magazine *fb_magazine_here(uint64_t base, int64_t distance) {
    fb_here *here = fb_here_at(distance);
    return here->last = (fb_magazine *)(uintptr_t)base + here->slot;
}

/* --- owner ---------------------------------------------------------------------------------------------------------*/

/* O1, O2. */
static inline void fb_magazine_busy(fb_magazine *m) {
#ifdef __SANITIZE_THREAD__
    atomic_exchange_explicit(&m->busy.v, 1, memory_order_seq_cst);
#else
    fb_u32_store_relaxed(&m->busy, 1);
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* O1 to O3: whether it is open to what is recycled in that pool. */
static inline int fb_magazine_enter(fb_magazine *m, uint64_t pool) {
    fb_magazine_busy(m);
#ifdef __SANITIZE_THREAD__
    return fb_u64_load_seq_cst(&m->open) == pool;
#else
    return __builtin_expect(fb_u64_is(&m->open, pool), 1);
#endif
}

/* O7. */
static inline void fb_magazine_open(fb_magazine *m, uint64_t pool) {
    atomic_exchange_explicit(&m->open.v, pool, memory_order_seq_cst);
}

static inline void fb_magazine_leave(fb_magazine *m) { fb_u32_store_release(&m->busy, 0); }

/* O4 and O5: hot = i, busy = 0 (release).  The thread sanitizer takes two halves of a word for strangers, and gets two
 * stores. */
static inline void fb_magazine_leave_with(fb_magazine *m, uint32_t i) {
#ifdef __SANITIZE_THREAD__
    fb_u32_store_relaxed(&m->hot, i);
    fb_magazine_leave(m);
#else
    atomic_store_explicit(&m->hot_and_busy.v, i, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst); /* a compiler may take it for a stranger to either half */
#endif
}

/* --- seizer --------------------------------------------------------------------------------------------------------*/

/* Whether S2 works here.  A process registers once; it and its forks may then use it. */
static inline int fb_fences_find_out(void) {
#ifdef __SANITIZE_THREAD__
    return 1;
#else
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0) == 0 &&
           syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0) == 0;
#endif
}

/* S2.  Where it worked once it is refused only to who is not registered any more: a sandbox may have come since. */
static inline void fb_fence_everybody(void) {
#ifndef __SANITIZE_THREAD__
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0) != 0 && !fb_fences_find_out()) {
        fputs("fastbuf: membarrier(2) worked when the process began, and is refused now: pools cannot go on\n", stderr);
        abort();
    }
#endif
    fb_fence_seq_cst();
}

/* Waits a moment: `turn` counts up from 0.  Who is waited for may be off its core. */
static inline void fb_wait_turn(uint32_t turn) {
    if (turn < 64) fb_cpu_relax();
    else sched_yield();
}

/* S3. */
static inline void fb_magazine_quiet(fb_magazine *m) {
    for (uint32_t turn = 0; fb_u32_load_acquire(&m->busy) != 0; turn++) fb_wait_turn(turn);
}

static inline uint64_t fb_thread_id(void) { return (uint64_t)(uintptr_t)pthread_self(); }

#endif

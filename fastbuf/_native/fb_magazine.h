/* A magazine: a few free segments that one thread takes and puts with plain stores.
 *
 * Idea: J. Bonwick and J. Adams, "Magazines and Vmem: Extending the Slab Allocator to Many CPUs and Arbitrary
 * Resources" (USENIX 2001).  Other threads must stay out while the owner uses its magazine, and must get in when they
 * need its segments.  This is done by Dekker's pair with all of the cost on the slow side (an asymmetric fence: D.
 * Dice, H. Huang and M. Yang, "Asymmetric Dekker Synchronization", Sun 2001; membarrier(2),
 * MEMBARRIER_CMD_PRIVATE_EXPEDITED):
 *
 *   owner (each take and put)                        seizer (holds the pool's gate, a lock among seizers)
 *   O1  busy = 1           (relaxed)                 S1  gate = 1          (seq_cst read-modify-write); open = 0
 *   O2  nothing but a compiler barrier               S2  membarrier: a full fence in every thread that runs
 *   O3  open ?             (acquire)                 S3  until busy == 0   (acquire)
 *   O4  take or put        (plain)                   S4  count or empty the magazine (plain)
 *   O5  busy = 0           (release)                 S5  open = 1, or not  (release); gate = 0 (release)
 *
 * If O4 only writes `hot`, one store does O4 and O5 (fb_magazine_leave_with): it is the same as both with nothing in
 * between.
 *
 * `open` is a word of the magazine (the address of the pool, or 0), so the owner, who reads it each time, reads no word
 * that all owners share.
 * Pairing: O1/O3 with S1/S3.  The fence of S2 is at some point of the owner's execution.  If before O1: O3 comes after
 * it and sees S1.  If after O1: S3 sees O1, and waits for O5.  So O4 and S4 never overlap.  O5 with S3: the seizer sees
 * the owner's writes; S5 with O3 or O6: the owner sees the seizer's.  A thread that is not running passed a fence when
 * the kernel took it off its core.
 *
 * A magazine stays shut while other threads need segments; afterwards its owner opens it:
 *
 *   O1  busy = 1
 *   O6  gate == 0, and nothing is wanted elsewhere ? (seq_cst)
 *   O7  open = 1           (seq_cst read-modify-write)
 *   O8  O6 once more: if not, open = 0               (seq_cst)
 *   O5  busy = 0           (release)
 *
 * Pairing: O7/O8 with S1: either O8 sees the gate closed, or S1 comes after O7 and shuts the magazine.  O7/O8 with a
 * thread that needs segments: it first writes so (seq_cst), then closes the gate and reads whether a magazine is open.
 * Either it finds this one open and shuts it, or O8 sees what it wrote.  A seizer that finds the magazine shut
 * (seq_cst) needs neither S2 nor S3: its owner is not at O4, or it would be open.
 *
 * Where membarrier is refused (old kernels, sandboxes; tried once) there are no magazines: with a real fence at O2 they
 * would cost as much as the lists.  In a build for the thread sanitizer, which does not know membarrier, O1 is a
 * read-modify-write and S2 a fence; all other code that the sanitizer checks is the code that ships.
 *
 * Forbidden: owner and seizer both have a segment; neither has it; a segment is put without being found or prevented by
 * a seizer, although the need for it came first.
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

#define FB_BESIDE 10          /* segment numbers that fit beside a segment's link */
#define FB_CHUNK 21           /* segments that move together: the first, and those beside it and the second */
#define FB_MAGAZINE_ITEMS 42  /* two chunks, so that a thread at the limit of one does not move it back and forth */

typedef struct {
    union {
        struct {
            fb_au32 hot;  /* the segment put last; -1: none.  It is a word of its own, so that a put and the next
                           * take do not wait for each other's count.  It comes first: of a combined store,
                           * processors forward the low half as fast as all of it, and the high half more slowly */
            fb_au32 busy; /* the owner is between O1 and O5; only the owner writes it */
        };
        fb_au64 hot_and_busy;
    };
    fb_au64 open;      /* LocalCore* whose segments may be put here; 0: shut */
    /* `hot` and the fields from here on belong to the owner between O1 and O5, or to a seizer between S3 and S5; a
     * thread that only counts may read them at any time. */
    fb_au32 count;     /* number of segments in items */
    fb_au32 cool;      /* puts still to be refused after a seizure; both sides write it at any time, so it is
                        * approximate: the owner of a shut magazine may overwrite a seizer's value */
    fb_au64 thread;    /* pthread_self() of the owner; 0: that thread has ended */
    int32_t items[FB_MAGAZINE_ITEMS];
    uint32_t penalty;  /* the next initial value of cool */
    char room[52];
} fb_magazine;

_Static_assert(sizeof(fb_magazine) == 256, "whole cache lines, as they are fetched: by twos");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "fb_magazine_leave_with: hot is the low half, busy the high");

/* --- where a thread's magazines are --------------------------------------------------------------------------------*/

#define FB_SLOTS 32

/* A thread's own record: a thread-local variable in one module (fb_slot.h).  Its offset from the thread pointer is
 * the same in all threads, so code in any module reaches it without a call. */
typedef struct {
    /* The magazine of the pool that the thread used last: m->open says whether that is the wanted pool, and a branch
     * on it is well predicted.  If the address were found through the segment and its pool, it would be known only
     * three loads after the segment's number, and a processor forwards a store to a later load only when it knows
     * both addresses: that cost more than all the rest. The memory of magazines stays when a pool ends
     * (magazines.pyx), so this may point to those of a pool that has ended, which are shut. */
    fb_magazine *last;
    uint32_t slot; /* index of its own magazine in each pool; 0: none */
} fb_here;

static inline fb_here *fb_here_at(int64_t distance) {
#if defined(__x86_64__)
    char *thread;
    __asm__("mov %%fs:0, %0" : "=r"(thread)); /* like __builtin_thread_pointer, which needs GCC 11 */
#else
    char *thread = (char *)__builtin_thread_pointer();
#endif
    return (fb_here *)(thread + distance);
}

/* Makes the calling thread's magazine in this pool its `last`; if the thread or the pool has none, one that is shut. */
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

/* O1 to O3: whether it is open for segments of that pool. */
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

/* O4 and O5: hot = i, busy = 0 (release).  The thread sanitizer treats two halves of a word as unrelated, so it gets
 * two stores. */
static inline void fb_magazine_leave_with(fb_magazine *m, uint32_t i) {
#ifdef __SANITIZE_THREAD__
    fb_u32_store_relaxed(&m->hot, i);
    fb_magazine_leave(m);
#else
    atomic_store_explicit(&m->hot_and_busy.v, i, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst); /* a compiler may treat the word as unrelated to its halves */
#endif
}

/* --- seizer --------------------------------------------------------------------------------------------------------*/

/* Whether S2 works here.  A process registers once; then it and its forks may use it. */
static inline int fb_fences_find_out(void) {
#ifdef __SANITIZE_THREAD__
    return 1;
#else
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0) == 0 &&
           syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0) == 0;
#endif
}

/* S2.  If it worked once, it fails only in a process that is no longer registered: a sandbox may have been set up
 * since. */
static inline void fb_fence_everybody(void) {
#ifndef __SANITIZE_THREAD__
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0) != 0 && !fb_fences_find_out()) {
        fputs("fastbuf: membarrier(2) worked when the process began, and is refused now: pools cannot go on\n", stderr);
        abort();
    }
#endif
    fb_fence_seq_cst();
}

/* Waits a moment: `turn` counts up from 0.  The other thread may not be running. */
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

/* A number for each thread that uses a pool, so that its magazines are found without a search.
 *
 * Slot 0 is nobody's: who asks when all others are taken does without a magazine.  A slot is given back when its thread
 * ends, after `flush` has emptied what the thread left; the next thread may have it then.
 * The pairing: a slot is claimed (acquire) after it was given back (release), so its new thread sees what the old one did.
 *
 * One module alone includes this file: what a thread knows of itself is a variable of that module.  Initial-exec: its
 * distance from the thread pointer is the same in all threads; the few bytes fit what the loader keeps in reserve for
 * libraries that come late.
 */
#ifndef FB_SLOT_H
#define FB_SLOT_H

#include <pthread.h>
#include <stdint.h>

#include "fb_magazine.h"

/* Where the threads of a pool look that has no magazines yet: shut ones. */
static _Alignas(128) fb_magazine fb_of_nobody[FB_SLOTS];
static __thread fb_here fb_mine __attribute__((tls_model("initial-exec"))) = {fb_of_nobody, 0};
static fb_au32 fb_slots_taken;               /* a bit each; 1: slot 0 */
static pthread_key_t fb_slot_key;            /* its destructor is what runs when a thread ends */
static void (*fb_slot_flush)(uint32_t slot);

static inline int64_t fb_here_distance(void) { return (char *)&fb_mine - (char *)fb_here_at(0); }

static void fb_slot_give_back(void *slot) {
    uint32_t mine = (uint32_t)(uintptr_t)slot;
    fb_slot_flush(mine);
    fb_mine.last = fb_of_nobody;
    fb_mine.slot = 0;
    atomic_fetch_and_explicit(&fb_slots_taken.v, ~(1u << mine), memory_order_acq_rel);
}

/* In a forked child: the others' threads are not there. */
static void fb_slot_child(void) { fb_u32_store_relaxed(&fb_slots_taken, 1u | 1u << fb_mine.slot); }

/* Before the first claim; 0, or what failed. */
static inline int fb_slot_start(void (*flush)(uint32_t)) {
    fb_slot_flush = flush;
    fb_u32_init(&fb_slots_taken, 1);
    int rc = pthread_key_create(&fb_slot_key, fb_slot_give_back);
    return rc != 0 ? rc : pthread_atfork(NULL, NULL, fb_slot_child);
}

/* The calling thread's slot, claimed now if need be; 0: there is none left. */
static inline uint32_t fb_slot_claim(void) {
    if (fb_mine.slot != 0) return fb_mine.slot;
    uint32_t taken = fb_u32_load_relaxed(&fb_slots_taken);
    while (taken != ~0u) {
        uint32_t slot = (uint32_t)__builtin_ctz(~taken);
        if (!fb_u32_cas_acq_rel(&fb_slots_taken, &taken, taken | 1u << slot)) continue;
        if (pthread_setspecific(fb_slot_key, (void *)(uintptr_t)slot) == 0) return fb_mine.slot = slot;
        atomic_fetch_and_explicit(&fb_slots_taken.v, ~(1u << slot), memory_order_acq_rel);
        break;
    }
    return 0;
}

#endif

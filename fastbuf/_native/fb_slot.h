/* A number for each thread that uses a pool, so that its magazines are found without a search.
 *
 * Slot 0 belongs to no thread: a thread that finds all others taken has no magazine.  A slot is freed when its thread
 * ends, after `flush` has emptied the thread's magazines; then another thread may claim it.
 * Pairing: a slot is claimed (acquire) after it was freed (release), so its new thread sees the writes of the old one.
 *
 * Only one module includes this file: a thread's record is a thread-local variable of that module.  Initial-exec: its
 * offset from the thread pointer is the same in all threads; its few bytes fit into the loader's reserve for libraries
 * loaded late.
 */
#ifndef FB_SLOT_H
#define FB_SLOT_H

#include <pthread.h>
#include <stdint.h>

#include "fb_magazine.h"

/* Shut magazines for threads of a pool that has none yet. */
static _Alignas(128) fb_magazine fb_of_nobody[FB_SLOTS];
static __thread fb_here fb_mine __attribute__((tls_model("initial-exec"))) = {fb_of_nobody, 0};
static fb_au32 fb_slots_taken;               /* one bit each; 1: slot 0 */
static pthread_key_t fb_slot_key;            /* its destructor runs when a thread ends */
static void (*fb_slot_flush)(uint32_t slot);

static inline int64_t fb_here_distance(void) { return (char *)&fb_mine - (char *)fb_here_at(0); }

static void fb_slot_give_back(void *slot) {
    uint32_t mine = (uint32_t)(uintptr_t)slot;
    fb_slot_flush(mine);
    fb_mine.last = fb_of_nobody;
    fb_mine.slot = 0;
    atomic_fetch_and_explicit(&fb_slots_taken.v, ~(1u << mine), memory_order_acq_rel);
}

/* In a forked child: the threads of the other slots do not exist. */
static void fb_slot_child(void) { fb_u32_store_relaxed(&fb_slots_taken, 1u | 1u << fb_mine.slot); }

/* Call it before the first claim; returns 0 or an error number. */
static inline int fb_slot_start(void (*flush)(uint32_t)) {
    fb_slot_flush = flush;
    fb_u32_init(&fb_slots_taken, 1);
    int rc = pthread_key_create(&fb_slot_key, fb_slot_give_back);
    return rc != 0 ? rc : pthread_atfork(NULL, NULL, fb_slot_child);
}

/* The calling thread's slot, claimed now if it has none; 0: none is left. */
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

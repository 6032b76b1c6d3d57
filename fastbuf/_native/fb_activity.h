/* What one participant of an exchange is doing now, and how long it has spent in each state.
 *
 * There is one writer (the thread that uses the exchange now) and any number of readers.  A reader adds the time since
 * the last change, so an unfinished wait counts too.
 *
 * Algorithm: seqlock, with the orders of Boehm, "Can seqlocks get along with programming language memory models?"
 * (MSPC 2012), in the form without fences.
 *
 * Pairing: the writer makes `seq` odd, stores each field with release, and makes `seq` even with release.  A reader
 * loads `seq` with acquire, each field with acquire, and `seq` again: if a field is of a later change, the second load
 * of `seq` sees that change's odd value or a later one, so it differs from the first.
 * Forbidden: a reader returns fields of two different changes.
 */
#ifndef FB_ACTIVITY_H
#define FB_ACTIVITY_H

#include <stdint.h>

#include "fb_atomic.h"

enum {
    FB_RUNS = 0,     /* none of the others */
    FB_WAIT_CREDIT,  /* the consumer takes nothing: no credit, or its full queue in shared memory */
    FB_WAIT_LINK,    /* the consumer gave credit, but the socket is full */
    FB_WAIT_SEGMENT, /* the pool has no segment, and no buffer of this writer is queued */
    FB_WAIT_INPUT,   /* a gate that has received nothing */
    FB_STATES
};

typedef struct {
    fb_au32 seq;
    fb_au32 state;
    fb_au32 target; /* index + 1 of the subpartition that it waits for; 0: no particular one */
    fb_ai64 since;  /* nanoseconds of CLOCK_MONOTONIC */
    fb_ai64 total[FB_STATES];
    fb_ai64 longest[FB_STATES];
    fb_ai64 coded; /* of FB_RUNS: in calls of ours that encode or decode batches; as `total`, but outside of `seq` */
} fb_activity;

typedef struct {
    uint32_t state;
    uint32_t target;
    int64_t since;
    int64_t total[FB_STATES];
    int64_t longest[FB_STATES];
    int64_t coded;
} fb_activity_picture;

static inline void fb_activity_init(fb_activity *a, int64_t now) {
    fb_u32_init(&a->seq, 0);
    fb_u32_init(&a->state, FB_RUNS);
    fb_u32_init(&a->target, 0);
    fb_i64_init(&a->since, now);
    for (int i = 0; i < FB_STATES; i++) {
        fb_i64_init(&a->total[i], 0);
        fb_i64_init(&a->longest[i], 0);
    }
    fb_i64_init(&a->coded, 0);
}

/* Writer only: the participant enters `state` at `now`.  Returns how long the previous state lasted. */
static inline int64_t fb_activity_enter(fb_activity *a, uint32_t state, uint32_t target, int64_t now) {
    uint32_t seq = fb_u32_load_relaxed(&a->seq);
    uint32_t before = fb_u32_load_relaxed(&a->state);
    int64_t took = now - fb_i64_load_relaxed(&a->since);
    fb_u32_store_relaxed(&a->seq, seq + 1);
    fb_i64_store_release(&a->total[before], fb_i64_load_relaxed(&a->total[before]) + took);
    if (took > fb_i64_load_relaxed(&a->longest[before])) fb_i64_store_release(&a->longest[before], took);
    fb_u32_store_release(&a->state, state);
    fb_u32_store_release(&a->target, target);
    fb_i64_store_release(&a->since, now);
    fb_u32_store_release(&a->seq, seq + 2);
    return took;
}

/* Writer only. */
static inline uint32_t fb_activity_state(fb_activity *a) { return fb_u32_load_relaxed(&a->state); }

/* Writer only: how long it was in FB_RUNS so far. */
static inline int64_t fb_activity_ran(fb_activity *a, int64_t now) {
    int64_t ran = fb_i64_load_relaxed(&a->total[FB_RUNS]);
    return fb_u32_load_relaxed(&a->state) == FB_RUNS ? ran + now - fb_i64_load_relaxed(&a->since) : ran;
}

/* Writer only: a call that coded a batch is over; it had run for `ran` when it began. */
static inline void fb_activity_coded(fb_activity *a, int64_t ran, int64_t now) {
    fb_i64_store_relaxed(&a->coded, fb_i64_load_relaxed(&a->coded) + fb_activity_ran(a, now) - ran);
}

/* Any thread: the picture at `now`, the state that has not ended counted up to it. */
static inline void fb_activity_read(fb_activity *a, int64_t now, fb_activity_picture *p) {
    uint32_t seq;
    do {
        while ((seq = fb_u32_load_acquire(&a->seq)) & 1) fb_cpu_relax();
        p->state = fb_u32_load_acquire(&a->state);
        p->target = fb_u32_load_acquire(&a->target);
        p->since = fb_i64_load_acquire(&a->since);
        for (int i = 0; i < FB_STATES; i++) {
            p->total[i] = fb_i64_load_acquire(&a->total[i]);
            p->longest[i] = fb_i64_load_acquire(&a->longest[i]);
        }
    } while (fb_u32_load_relaxed(&a->seq) != seq);
    if (now > p->since) {
        int64_t took = now - p->since;
        p->total[p->state] += took;
        if (took > p->longest[p->state]) p->longest[p->state] = took;
    }
    p->coded = fb_i64_load_relaxed(&a->coded);
    if (p->coded > p->total[FB_RUNS]) p->coded = p->total[FB_RUNS];
}

#endif

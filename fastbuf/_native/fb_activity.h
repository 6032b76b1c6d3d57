/* What one participant of an exchange is doing, exactly, and for how long it did each thing.
 *
 * One writer (the thread that writes or reads the exchange just now), any number of readers.  A reader adds the time
 * since the last change, so that a wait that has not ended counts.
 *
 * Algorithm: seqlock, with the orders of Boehm, "Can seqlocks get along with programming language memory models?"
 * (MSPC 2012), in the form without fences.
 *
 * Pairing: the writer makes `seq` odd, stores each field with release, and makes `seq` even with release.  A reader loads
 * `seq` with acquire (the fields as they were), each field with acquire, and `seq` again: a field of a later change
 * brings with it the odd `seq` of that change, so the second look differs from the first.
 * Forbidden: a reader gives out fields of two different changes.
 */
#ifndef FB_ACTIVITY_H
#define FB_ACTIVITY_H

#include <stdint.h>

#include "fb_atomic.h"

enum {
    FB_RUNS = 0,     /* none of the others */
    FB_WAIT_CREDIT,  /* the consumer has taken nothing: no credit, or a full queue that it reads in place */
    FB_WAIT_LINK,    /* the consumer gave credit, and the socket is full */
    FB_WAIT_SEGMENT, /* no segment in the pool, and nothing of this writer is queued */
    FB_WAIT_INPUT,   /* a gate to which nothing has come */
    FB_STATES
};

typedef struct {
    fb_au32 seq;
    fb_au32 state;
    fb_au32 target; /* the subpartition that is waited for, and one more; 0: none in particular */
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

/* Writer only: it does this from `now` on.  Returns how long it did what it did before. */
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

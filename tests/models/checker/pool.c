/* pool_core.pyx, pool_claims.pyx and pool_waking.pyx: requests that wait, recycles, limits that move, a pool's end.
 *
 * Who has a segment writes into it, so two users of one, or one who is not ordered behind the last, is a data race.
 *
 * WAY: 0 one waits for the segment that another recycles; 1 a pool beyond its limit recycles, one of another pool waits
 * for that; 2 the limits move meanwhile; 3 the pool is destroyed while one waits and another recycles; 4 it is destroyed
 * while one waits, and nobody recycles; 5 two come back at once, one is waited for; 6 one of two comes back to a pool
 * beyond its limit, and somebody counts.
 */
#include "fastbuf/memory/pool_core.c"

#include "checker.h"
#include "pool.h"

#define CORE(name) __pyx_f_7fastbuf_6memory_9pool_core_##name
#define CLAIMS(name) __pyx_f_7fastbuf_6memory_11pool_claims_##name
#define WAKING(name) __pyx_f_7fastbuf_6memory_11pool_waking_##name
#define LIST(name) __pyx_f_7fastbuf_6memory_9free_list_##name

#ifndef WAY
#define WAY 0
#endif

typedef struct __pyx_t_7fastbuf_6memory_10pool_types_LocalCore Local;

enum { SEGMENTS = WAY == 0 || WAY == 3 || WAY == 4 ? 1 : 2, POOLS = WAY == 1 || WAY == 2 ? 2 : 1 };
const int scenario_threads = WAY == 2 || WAY == 3 ? 3 : 2;

static struct __pyx_t_7fastbuf_6memory_10pool_types_PoolCore network;
static struct __pyx_t_7fastbuf_6memory_10pool_types_SegmentMeta meta[SEGMENTS];
static Local pools[POOLS];
static int contents[SEGMENTS];
static fb_au32 ended; /* 1: the pool's destruction is over */

static void make(Local *p, uint32_t required, uint32_t limit) {
    fb_event_init(&p->available);
    p->pool = &network;
    p->required = required;
    p->maximum = SEGMENTS;
    fb_u32_init(&p->limit, limit);
    p->following = (Local *)(uintptr_t)fb_u64_load_relaxed(&network.locals);
    fb_u64_init(&network.locals, (uint64_t)(uintptr_t)p);
}

/* Segment i is out, of pool p. */
static void give(Local *p, int32_t i) {
    meta[i].owner = p;
    fb_u32_init(&meta[i].refs, 1);
    fb_u64_init(&p->word, fb_u64_load_relaxed(&p->word) + 1);
}

void scenario_setup(void) {
    memset(&network, 0, sizeof network);
    memset(meta, 0, sizeof meta);
    memset(pools, 0, sizeof pools);
    memset(contents, 0, sizeof contents);
    fb_u32_init(&ended, 0);
    *(void **)&CLAIMS(take_global) = pool_take_global;
    *(void **)&CLAIMS(trim) = pool_trim;
    *(void **)&CLAIMS(note_peak) = pool_note_peak;
    *(void **)&CLAIMS(local_figures) = pool_figures;
    *(void **)&WAKING(arm) = pool_arm;
    *(void **)&WAKING(wake) = pool_wake;
    claims_setup();
    network.meta = meta;
    network.count = SEGMENTS;
    make(&pools[0], WAY != 2, WAY == 2 || WAY == 5 ? 2 : 1);
    if (POOLS == 2) make(&pools[1], 1, WAY == 1);
    for (int32_t i = 0; i < SEGMENTS; i++) give(&pools[0], i);
    fb_i64_init(&network.spare, POOLS == 2 ? -1 : 0); /* nothing is free; pool 1 has none of what it is guaranteed */
}

static void use(int32_t i) {
    check_that(i >= 0 && i < SEGMENTS, "no number of a segment");
    contents[i]++;
}

static void back(int32_t i) {
    use(i);
    check_that(CORE(segment_recycle)(&network, i) == 1, "a segment that nobody else has is not freed");
}

/* Waits for one, for ever if need be. */
static void user(Local *p) {
    int after_its_end = fb_u32_load_acquire(&ended) != 0;
    int32_t i = CORE(local_acquire)(p, -1);
    if (i >= 0) back(i);
    else check_that(i == __pyx_e_7fastbuf_6memory_9pool_core_LOCAL_DESTROYED, "a wait ended without a reason");
    check_that(i >= 0 || WAY == 3 || WAY == 4, "a pool that lives says that it does not");
    check_that(i < 0 || !after_its_end, "a destroyed pool gave a segment");
}

static void redistribute(void) {
    ((void (*)(Local *, uint32_t))pool_set_limit)(&pools[0], 1);
    ((void (*)(Local *, uint32_t))pool_set_limit)(&pools[1], 1);
    ((void (*)(void *))pool_wake_all)(&network);
}

static void destroy(void) {
    ((void (*)(Local *))pool_destroy)(&pools[0]);
    fb_u32_store_release(&ended, 1);
}

static void batches(void) {
    int32_t some[] = {0, 1};
    use(0), use(1);
    check_that(CORE(segment_recycle_many)(&network, some, 2) == 0, "a batch that is refused");
    uint32_t n = CORE(local_try_acquire_many)(&pools[0], 2, some);
    check_that(n == 1 || n == 2, "a batch that finds less than nobody has");
    for (uint32_t k = 0; k < n; k++) use(some[k]);
    check_that(CORE(segment_recycle_many)(&network, some, n) == 0, "a batch that is refused");
}

static void count(void) {
    uint32_t held = 0, home = 0;
    CLAIMS(local_figures)(&pools[0], &held, &home);
    check_that(held - home == 1 || held - home == 2, "figures that the pool never had");
}

void scenario_thread(int thread) {
    if (thread == 2 || (WAY == 4 && thread == 0)) {
        if (WAY == 2) redistribute();
        else destroy();
    } else if (thread == 0) {
        if (WAY == 5) batches();
        else back(0);
    } else if (WAY == 6) count();
    else user(&pools[POOLS - 1]);
}

void scenario_check(void) {
    uint32_t free = LIST(list_depth)(&network, &network.free), all = free, waiting = 0, used = 0;
    int64_t unmet = 0;
    for (int k = 0; k < SEGMENTS; k++) used += fb_u32_load_relaxed(&meta[k].refs) != 0;
    for (int k = 0; k < POOLS; k++) {
        uint64_t word = fb_u64_load_relaxed(&pools[k].word);
        uint32_t held = 0, home = 0;
        CLAIMS(local_figures)(&pools[k], &held, &home);
        check_that(((word >> 32) & 0x7FFFFFFF) == 0, "a claim is left");
        check_that(held >= home, "more home than held");
        all += held;
        used -= held - home;
        waiting += fb_u32_load_relaxed(&pools[k].waiting);
        if (!(word >> 63) && held < pools[k].required) unmet += pools[k].required - held;
    }
    check_that(all == SEGMENTS && used == 0, "a segment is lost, or counted twice");
    check_that(fb_u32_load_relaxed(&network.waiting) == waiting, "pools that wait are miscounted");
    check_that(fb_i64_load_relaxed(&network.spare) == (int64_t)free - unmet, "spare is wrong");
}

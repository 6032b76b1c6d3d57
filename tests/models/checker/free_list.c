/* free_list.pxd: three threads take and put segments, one or two at once.
 *
 * Who holds a segment writes into it, so two that hold the same one, or one who is not ordered behind its last user, is a
 * data race.
 */
#include "fastbuf/memory/pool_core.c" /* it has all of these inline functions */

#include "checker.h"

#define LIST(name) __pyx_f_7fastbuf_6memory_9free_list_##name

#ifndef SEGMENTS
#define SEGMENTS 3
#endif
#ifndef POPPERS
#define POPPERS 1 /* threads that take one, twice, and put both back */
#endif

const int scenario_threads = POPPERS + 1;

static struct __pyx_t_7fastbuf_6memory_10pool_types_PoolCore pool;
static struct __pyx_t_7fastbuf_6memory_10pool_types_SegmentMeta meta[SEGMENTS];
static struct __pyx_t_7fastbuf_6memory_10pool_types_FreeList list;
static int contents[SEGMENTS];

void scenario_setup(void) {
    memset(meta, 0, sizeof meta);
    memset(contents, 0, sizeof contents);
    pool.meta = meta;
    for (int i = 0; i < SEGMENTS; i++)
        fb_u64_init(&meta[i].link, (uint64_t)(SEGMENTS - i) << 32 | (uint64_t)(i + 1 < SEGMENTS ? i + 2 : 0));
    fb_u64_init(&list.head, 1);
}

static void use(int32_t i) {
    check_that(i >= 0 && i < SEGMENTS, "no number of a segment");
    contents[i]++;
}

void scenario_thread(int thread) {
    int32_t some[2];
    if (thread < POPPERS) {
        int32_t first = LIST(pop)(&pool, &list);
        if (first < 0) return;
        use(first);
        int32_t second = LIST(pop)(&pool, &list);
        if (second >= 0) use(second);
        LIST(push)(&pool, &list, first);
        if (second >= 0) LIST(push)(&pool, &list, second);
        return;
    }
    uint32_t n = LIST(pop_many)(&pool, &list, 2, some);
    for (uint32_t k = 0; k < n; k++) use(some[k]);
    if (n) LIST(push_many)(&pool, &list, some, n);
    n = LIST(list_depth)(&pool, &list);
    check_that(n <= SEGMENTS, "a length that the list never had");
}

void scenario_check(void) {
    uint32_t at = (uint32_t)fb_u64_load_relaxed(&list.head), seen = 0, n = 0;
    for (; at != 0 && n <= SEGMENTS; n++) {
        uint64_t link = fb_u64_load_relaxed(&meta[at - 1].link);
        check_that(!(seen >> at & 1), "a segment is on the list twice");
        check_that((link >> 32) == SEGMENTS - n, "a segment has another depth than it says");
        seen |= 1u << at;
        at = (uint32_t)link;
    }
    check_that(n == SEGMENTS, "a segment is lost");
}

/* result_subpartition.pyx: a writer that fills, flushes, waits for room and ends; a drainer that takes what it may. */
#include "fastbuf/exchange/result_subpartition.c"

#include "checker.h"

#define SUB(name) __pyx_f_7fastbuf_8exchange_19result_subpartition_##name
#define POOL(name) __pyx_f_7fastbuf_6memory_9pool_core_##name

#ifndef BUFFERS
#define BUFFERS 3
#endif
#ifndef BOUND
#define BOUND 2
#endif
#ifndef SEGMENTS
#define SEGMENTS 2
#endif
#ifndef FLUSHES
#define FLUSHES 0 /* 1: after the first byte of each buffer; 2: and waits until that was drained */
#endif
#ifndef ANY
#define ANY 0 /* 1: the writer waits as one that has other queues, too, and the drainer takes one and then has no credit */
#endif

const int scenario_threads = 2;

#define RECYCLED() \
    if (!ANY) fb_event_notify(&room) /* as a pool tells a writer that waits for it */
#include "subpartition.h"

static fb_au32 taken;
static int got;

void scenario_setup(void) {
    sub_setup();
    fb_u32_init(&taken, 0);
    got = 0;
}

static int32_t segment(void) {
    for (;;) {
        uint32_t key = fb_event_prepare(&room);
        for (int i = 0; i < SEGMENTS; i++)
            if (fb_u32_exchange_acq_rel(&home[i], 0)) return i;
        fb_event_wait(&room, key, -1);
    }
}

static void writer(void) {
    for (int n = 1; n <= BUFFERS; n++) {
        while (!SUB(sub_has_room)(&sub, 1)) {
            uint32_t key = fb_event_prepare(&room);
            if (SUB(sub_has_room)(&sub, !ANY)) break;
            fb_event_wait(&room, key, -1);
        }
        int32_t i = segment();
        SUB(sub_begin)(&sub, i);
        bytes[i][0] = (uint8_t)(2 * n);
        SUB(sub_commit)(&sub, 1);
        if (FLUSHES) SUB(sub_flush)(&sub);
        while (FLUSHES == 2) {
            uint32_t key = fb_event_prepare(&room);
            if (fb_u32_load_acquire(&taken) == 2 * (uint32_t)n - 1) break;
            fb_event_wait(&room, key, -1);
        }
        bytes[i][1] = (uint8_t)(2 * n + 1);
        SUB(sub_commit)(&sub, 2);
        SUB(sub_finish)(&sub);
    }
    SUB(sub_end)(&sub);
}

static void drainer(void) {
    int partial = 0;
    for (;;) {
        while (ANY && got == 2) {
            uint32_t key = fb_event_prepare(&news);
            if (fb_u32_load_acquire(&sub.tail) > BOUND) break;
            fb_event_wait(&news, key, -1);
        }
        uint8_t *data;
        uint32_t length, key = fb_event_prepare(&news);
        int last;
        if (fb_u32_exchange_acq_rel(&sub.flush_asked, 0)) partial = 1;
        if (SUB(sub_sendable)(&sub, partial, &data, &length, &last)) {
            for (uint32_t k = 0; k < length; k++) check_that(data[k] == got++ + 2, "bytes out of their order");
            SUB(sub_advance)(&sub, length, last);
            if (FLUSHES == 2) {
                fb_u32_store_release(&taken, (uint32_t)got);
                fb_event_notify(&room);
            }
            continue;
        }
        partial = 0;
        if (SUB(sub_exhausted)(&sub)) break;
        fb_event_wait(&news, key, -1);
    }
    SUB(sub_close)(&sub, 0);
}

void scenario_thread(int thread) {
    if (thread == 0) writer();
    else drainer();
}

void scenario_check(void) {
    check_that(got == 2 * BUFFERS, "bytes that were written were not drained");
    for (int i = 0; i < SEGMENTS; i++) check_that(fb_u32_load_relaxed(&home[i]), "a segment did not come home");
}

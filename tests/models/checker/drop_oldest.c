/* result_subpartition.pyx where the oldest are dropped: a writer that never waits takes back what its drainer has not
 * claimed; the drainer reads what it claims, in order, and is told how many it has missed.
 *
 * Each buffer is one element of one record: its length, and its number.  EVENTS: one stands behind the first buffer.
 */
#include "fastbuf/exchange/result_subpartition.c"

#include "checker.h"

#define SUB(name) __pyx_f_7fastbuf_8exchange_19result_subpartition_##name
#define POOL(name) __pyx_f_7fastbuf_6memory_9pool_core_##name

#ifndef BUFFERS
#define BUFFERS 3
#endif
#ifndef BOUND
#define BOUND 1
#endif
#ifndef EVENTS
#define EVENTS 0
#endif
#ifndef STOPS
#define STOPS 0 /* 1: the drainer has had enough after its first buffer */
#endif

const int scenario_threads = 2;
enum { SEGMENTS = BUFFERS, BYTES = 5 };

#include "subpartition.h"

static int got, came, events;
static uint64_t missed, dropped, buffers;

void scenario_setup(void) {
    sub_setup();
    check_that(SUB(sub_allow_drops)(&sub, 0) == 0, "no memory");
    got = came = events = 0;
    missed = dropped = 0;
}

static int32_t segment(void) {
    for (int i = 0; i < SEGMENTS; i++)
        if (fb_u32_exchange_acq_rel(&home[i], 0)) return i;
    check_that(0, "there is no segment, though no more are out than may be");
    return -1;
}

static void writer(void) {
    static const uint32_t length = BYTES - 4;
    for (int n = 1; n <= BUFFERS; n++) {
        check_that(SUB(sub_make_way)(&sub, 0, 0, &buffers, &dropped), "no slot is free");
        int32_t i = segment();
        memcpy(bytes[i], &length, 4);
        bytes[i][4] = (uint8_t)n;
        SUB(sub_begin)(&sub, i);
        SUB(sub_commit)(&sub, BYTES);
        SUB(sub_finish)(&sub);
        if (EVENTS && n == 1) SUB(sub_push_event)(&sub, SUB(event_new)((const uint8_t *)"e", 1));
        if (fb_u32_load_acquire(&sub.closed)) break;
    }
    SUB(sub_end)(&sub);
    for (;;) {
        uint32_t key = fb_event_prepare(&room);
        if (fb_u32_load_acquire(&sub.closed)) break;
        fb_event_wait(&room, key, -1);
    }
    SUB(sub_discard)(&sub);
}

static void drainer(void) {
    for (;;) {
        uint8_t *data;
        uint32_t length, key = fb_event_prepare(&news);
        int last;
        if (SUB(sub_sendable)(&sub, 0, &data, &length, &last)) {
            check_that(length == BYTES && data[4] > got, "bytes out of their order, or not all of them");
            check_that((int)missed == data[4] - 1 - came, "a gap that was not told before");
            got = data[4];
            came++;
            SUB(sub_advance)(&sub, length, last);
            if (STOPS) break;
            continue;
        }
        if (SUB(sub_event)(&sub) != NULL) {
            check_that(missed + came == 1, "an event out of its order");
            events++;
            SUB(sub_advance)(&sub, 0, 1);
            continue;
        }
        uint64_t gap = SUB(sub_gap)(&sub, -1);
        missed += gap;
        if (gap) continue;
        if (SUB(sub_exhausted)(&sub)) break;
        fb_event_wait(&news, key, -1);
    }
    SUB(sub_close)(&sub, STOPS);
}

void scenario_thread(int thread) {
    if (thread == 0) writer();
    else drainer();
}

void scenario_check(void) {
    if (!STOPS) {
        check_that(got == BUFFERS, "the newest was lost");
        check_that(missed == dropped && came + missed == BUFFERS, "a gap that nobody knows of");
        check_that(events == EVENTS, "an event was lost");
    }
    for (int i = 0; i < SEGMENTS; i++) check_that(fb_u32_load_relaxed(&home[i]), "a segment did not come home");
}

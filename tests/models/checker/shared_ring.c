/* shared_lender.pyx and shared_reader.pyx: a writer lends its queue to a reader of another process, who gives it back.
 *
 * ENDS: 0 the reader has everything; 1 it has had enough after one buffer; 2 the writer takes all back in the middle, and
 * writes into what has come home at once, so a reader that still looks there is a data race; 3 the reader's process may
 * die at any step, and the writer's is told so.
 * DROPS: the writer does not wait for room, but takes back what the reader has not claimed, and drops the oldest.
 */
#include "fastbuf/exchange/shared_reader.c"

#include "checker.h"
#include "shared_ring.h"

#define READER(name) __pyx_f_7fastbuf_8exchange_13shared_reader_12SharedReader_##name
#define BLOCK(name) __pyx_e_7fastbuf_8exchange_12shared_block_SHARED_##name

#ifndef ENDS
#define ENDS 0
#endif
#ifndef BUFFERS
#define BUFFERS 2
#endif
#ifndef BOUND
#define BOUND 2
#endif
#ifndef SEGMENTS
#define SEGMENTS 2
#endif
#ifndef FLUSHES
#define FLUSHES 0
#endif

#ifndef BURSTS
#define BURSTS 0 /* 1: only the last buffer tells a reader that is not known to sleep */
#endif

#ifndef DRAINS
#define DRAINS 0 /* 1: the writer waits until all has come home before it says that it has ended */
#endif

#ifndef DROPS
#define DROPS 0
#endif

const int scenario_threads = ENDS == 3 ? 3 : 2;
enum { SLOTS = DROPS ? 32 : 16 };

uint8_t segments[SEGMENTS][8];
fb_event *writer_event;

static _Alignas(64) char block[sizeof(struct __pyx_t_7fastbuf_8exchange_12shared_block_SharedBlock) +
                               SLOTS * sizeof(struct __pyx_t_7fastbuf_8exchange_12shared_block_SharedSlot)];
static uint8_t events[16];
static _Alignas(64) char writer_bell[64], reader_bell[64];
static struct __pyx_obj_7fastbuf_8exchange_13shared_reader_SharedReader reader;
static struct __pyx_vtabstruct_7fastbuf_8exchange_13shared_reader_SharedReader table;
static struct __pyx_obj_7fastbuf_6memory_5arena_Arena arena;
static struct __pyx_obj_7fastbuf_8exchange_8doorbell_Doorbell bell;
static fb_au32 home[SEGMENTS], abort_asked;
static int got, came;
static uint64_t missed, dropped;

static int recycle(void *pool, int32_t i) {
    (void)pool;
    check_that(fb_u32_exchange_acq_rel(&home[i], 1) == 0, "a segment went home twice");
    return 1;
}

static uint8_t *data_of(void *pool, int32_t i) {
    (void)pool;
    return segments[i];
}

void scenario_setup(void) {
    memset(block, 0, sizeof block);
    memset(writer_bell, 0, sizeof writer_bell);
    memset(reader_bell, 0, sizeof reader_bell);
    check_that(bell_size <= sizeof writer_bell, "a doorbell is larger than thought");
    writer_event = (fb_event *)writer_bell;
    fb_event_init_shared(writer_event);
    fb_event_init_shared((fb_event *)reader_bell);
    fb_u32_init(&abort_asked, 0);
    for (int i = 0; i < SEGMENTS; i++) fb_u32_init(&home[i], 1);
    queue_setup(BOUND, lender, lender_told, recycle);
    if (DROPS) queue_allow_drops(lender_ends(block), data_of);
    check_that(queue_slots() == SLOTS, "another number of slots than thought");
    lender_setup(block, events, SLOTS, reader_bell, &abort_asked, recycle);
    table.next = READER(next);
    table.advance = READER(advance);
    table.enter = READER(enter);
    table.leave = READER(leave);
    table.claim = READER(claim);
    table.tell = READER(tell);
    table.writer_ended = READER(writer_ended);
    table.exhausted = READER(exhausted);
    table.end = READER(end);
    memset(&reader, 0, sizeof reader);
    reader.__pyx_vtab = &table;
    reader.block = (void *)block;
    reader.events = events;
    reader.arena = &arena;
    reader.bell = &bell;
    reader.slots = SLOTS;
    reader.drops = DROPS;
    arena.base = segments[0];
    arena.segments = SEGMENTS;
    arena.segment_size = 2;
    arena.stride = 8;
    bell.bell = (void *)writer_bell;
    got = came = 0;
    missed = dropped = 0;
    check_mortal = ENDS == 3 ? 1 : -1;
}

static int32_t segment(void) {
    for (;;) {
        uint32_t key = fb_event_prepare(writer_event);
        for (int i = 0; i < SEGMENTS; i++)
            if (fb_u32_exchange_acq_rel(&home[i], 0)) return i;
        queue_wait_for_any();
        lender_take_home();
        for (int i = 0; i < SEGMENTS; i++)
            if (fb_u32_exchange_acq_rel(&home[i], 0)) return i;
        if (queue_closed()) return -1;
        fb_event_wait(writer_event, key, -1);
    }
}

static void fill(int32_t i, int n) {
    queue_begin(i);
    segments[i][0] = (uint8_t)(2 * n);
    queue_commit(1);
    if (FLUSHES) queue_flush();
    segments[i][1] = (uint8_t)(2 * n + 1);
    queue_commit(2);
    if (BURSTS && n < BUFFERS) queue_finish_in_a_row();
    else queue_finish();
    if (queue_closed()) queue_discard();
}

static void writer(void) {
    for (int n = 1; n <= BUFFERS; n++) {
        if (DROPS && queue_unread() >= BOUND) queue_drop_oldest(BOUND - 1, &dropped);
        while (!DROPS && !queue_closed() && !queue_has_room()) {
            uint32_t key = fb_event_prepare(writer_event);
            if (queue_has_room() || queue_closed()) break;
            fb_event_wait(writer_event, key, -1);
        }
        int32_t i = queue_closed() ? -1 : segment();
        if (i < 0) break;
        fill(i, n);
    }
    while (DRAINS) {
        int32_t found = 0;
        uint32_t key = fb_event_prepare(writer_event);
        queue_wait_for_any();
        lender_take_home();
        for (int i = 0; i < SEGMENTS; i++) found += (int32_t)fb_u32_load_acquire(&home[i]);
        if (found == SEGMENTS) break;
        fb_event_wait(writer_event, key, -1);
    }
    if (ENDS == 2) lender_give_up();
    else queue_end();
    for (;;) {
        uint32_t key = fb_event_prepare(writer_event);
        lender_take_home();
        if (queue_closed()) break;
        fb_event_wait(writer_event, key, -1);
    }
    queue_discard();
    for (int i = 0; i < SEGMENTS; i++)
        if (fb_u32_exchange_acq_rel(&home[i], 0)) {
            segments[i][0] = segments[i][1] = 0; /* whoever has it may write there */
            fb_u32_store_release(&home[i], 1);
        }
}

static void reads(void) {
    const uint8_t *data;
    uint32_t length;
    int last;
    for (;;) {
        uint32_t key = fb_event_prepare((fb_event *)reader_bell);
        int revoked = 0;
        for (;;) {
            int news = READER(next)(&reader, FLUSHES, &data, &length, &last);
            if (news == __pyx_e_7fastbuf_8exchange_13shared_reader_NEWS_GAP) {
                missed += *(const uint64_t *)data;
                continue;
            }
            if (news != __pyx_e_7fastbuf_8exchange_13shared_reader_NEWS_BYTES) {
                check_that(news == __pyx_e_7fastbuf_8exchange_13shared_reader_NEWS_NONE, "the reader takes its writer for broken");
                break;
            }
            if (!READER(enter)(&reader)) {
                revoked = 1;
                break;
            }
            if (DROPS) {
                check_that(length == 2 && data[0] >= got + 2 && data[1] == data[0] + 1, "bytes that are not of one buffer");
                check_that(data[0] / 2 == ++came + (int)missed, "a gap that was not told before");
                got = data[0];
            } else
            for (uint32_t k = 0; k < length; k++) check_that(data[k] == got++ + 2, "bytes out of their order");
            READER(advance)(&reader, length, last);
            if (ENDS == 1 && got >= 2) break;
        }
        READER(leave)(&reader);
        if (ENDS == 1 && got >= 2) {
            READER(end)(&reader, BLOCK(CANCELLED), "", 0);
            return;
        }
        if (revoked || READER(writer_ended)(&reader) == BLOCK(ABORTED)) {
            READER(end)(&reader, BLOCK(CANCELLED), "", 0);
            return;
        }
        if (READER(exhausted)(&reader)) {
            READER(end)(&reader, BLOCK(DONE), "", 0);
            return;
        }
        fb_event_wait((fb_event *)reader_bell, key, -1);
    }
}

void scenario_thread(int thread) {
    if (thread == 0) writer();
    else if (thread == 1) reads();
    else {
        check_wait_for_the_end_of(1);
        lender_lost();
    }
}

void scenario_check(void) {
    if (DROPS && ENDS == 0) {
        check_that(missed == dropped && came + missed == BUFFERS, "a gap that nobody knows of");
        check_that(got == 2 * BUFFERS, "the newest was lost");
    }
    check_that(ENDS != 0 || DROPS || got == 2 * BUFFERS, "bytes that were written were not read");
    for (int i = 0; i < SEGMENTS; i++) check_that(fb_u32_load_relaxed(&home[i]), "a segment did not come home");
}

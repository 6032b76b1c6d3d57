/* Part of shared_ring.c: what the writer's process shows of its queue, and takes home. */
#include "fastbuf/exchange/shared_lender.c"

#include "shared_ring.h"

#define LEND(name) __pyx_f_7fastbuf_8exchange_13shared_lender_##name

static struct __pyx_t_7fastbuf_8exchange_12shared_block_SharedLender x;
static fb_au32 *asked;
void *const lender = &x;
void (*const lender_told)(void *) = LEND(lender_notify);

static int no_failure(struct __pyx_t_7fastbuf_8exchange_7failure_Failure *f) {
    (void)f;
    return 0;
}

void lender_setup(void *block, uint8_t *events, uint32_t slots, void *reader_bell, fb_au32 *abort_asked,
                  int (*recycle)(void *, int32_t)) {
    *(void **)&__pyx_f_7fastbuf_6memory_9pool_core_segment_recycle = (void *)recycle;
    *(void **)&__pyx_f_7fastbuf_8exchange_19result_subpartition_sub_close = (void *)queue_close;
    *(void **)&__pyx_f_7fastbuf_8exchange_8doorbell_bell_ring = (void *)ring_bell;
    __pyx_f_7fastbuf_8exchange_7failure_failure_code = no_failure;
    memset(&x, 0, sizeof x);
    x.block = block;
    x.events = events;
    x.mask = slots - 1;
    x.collect = LEND(lender_collect);
    x.reader_bell = reader_bell;
    fb_u32_init(&x.reader_fd, (uint32_t)-1);
    x.sub = queue;
    x.abort_asked = asked = abort_asked;
}

void lender_take_home(void) { LEND(lender_collect)(&x); }

static void take_back(void) {
    checked_mutex_lock(&x.lock);
    if (!queue_closed()) queue_close(queue, 1);
    checked_mutex_unlock(&x.lock);
}

void lender_lost(void) {
    LEND(lender_collect)(&x);
    if (!queue_closed()) take_back();
}

void lender_give_up(void) {
    checked_mutex_lock(&x.lock);
    LEND(_collect)(&x, queue);
    LEND(_say_abort)(&x, "the producer gave up");
    checked_mutex_unlock(&x.lock);
    if (LEND(lender_revoke)(&x)) take_back();
    LEND(lender_notify)(&x);
}

void *lender_ends(void *block) {
    return &((struct __pyx_t_7fastbuf_8exchange_12shared_block_SharedBlock *)block)->ends;
}

size_t block_size(uint32_t slots) {
    return sizeof(*x.block) + slots * sizeof(struct __pyx_t_7fastbuf_8exchange_12shared_block_SharedSlot);
}

/* Part of shared_ring.c: the writer's queue. */
#include "fastbuf/exchange/result_subpartition.c"

#include "shared_ring.h"

#define SUB(name) __pyx_f_7fastbuf_8exchange_19result_subpartition_##name
#define POOL(name) __pyx_f_7fastbuf_6memory_9pool_core_##name

static struct __pyx_t_7fastbuf_8exchange_19result_subpartition_Subpartition sub;
void *const queue = &sub;
void (*const queue_close)(void *, int) = (void (*)(void *, int))SUB(sub_close);
void (*const queue_forget)(void *) = (void (*)(void *))SUB(sub_forget_drainer);

void queue_setup(uint32_t bound, void *x, void (*notify)(void *), int (*recycle)(void *, int32_t)) {
    *(void **)&POOL(segment_recycle) = (void *)recycle;
    SUB(sub_free)(&sub);
    SUB(sub_init)(&sub, bound, NULL, writer_event);
    sub.notify = notify;
    sub.notify_context = x;
    sub.shared = x;
}

int queue_has_room(void) { return SUB(sub_has_room)(&sub, 1); }
void queue_wait_for_any(void) { SUB(sub_wait_for_any)(&sub); }
void queue_begin(int32_t segment) { SUB(sub_begin)(&sub, segment); }
void queue_commit(uint32_t position) { SUB(sub_commit)(&sub, position); }
void queue_finish(void) { SUB(sub_finish)(&sub); }
void queue_finish_in_a_row(void) { SUB(sub_finish_early)(&sub); }
void queue_flush(void) { SUB(sub_flush)(&sub); }
void queue_end(void) { SUB(sub_end)(&sub); }
int queue_closed(void) { return (int)fb_u32_load_acquire(&sub.closed); }
void queue_discard(void) { SUB(sub_discard)(&sub); }
uint32_t queue_slots(void) { return sub.mask + 1; }

void queue_allow_drops(void *ends, uint8_t *(*data_of)(void *, int32_t)) {
    *(void **)&POOL(segment_data) = (void *)data_of;
    SUB(sub_allow_drops)(&sub, 0);
    sub.ends = ends;
}

uint32_t queue_unread(void) { return SUB(sub_unread)(&sub); }
void queue_drop_oldest(uint32_t keep, uint64_t *records) { SUB(sub_drop_oldest)(&sub, keep, records); }

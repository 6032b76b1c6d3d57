/* A subpartition and its segments, for the scenarios of result_subpartition.pyx.  SEGMENTS and BOUND are defined before;
 * RECYCLED: what happens when a segment has come home.
 */
#ifndef RECYCLED
#define RECYCLED() (void)0
#endif

static struct __pyx_t_7fastbuf_8exchange_19result_subpartition_Subpartition sub;
static fb_event room, news;
static fb_au32 home[SEGMENTS];
static uint8_t bytes[SEGMENTS][8];

static int recycle(struct __pyx_t_7fastbuf_6memory_10pool_types_PoolCore *pool, int32_t i) {
    (void)pool;
    check_that(fb_u32_exchange_acq_rel(&home[i], 1) == 0, "a segment went home twice");
    RECYCLED();
    return 1;
}

static uint8_t *data_of(struct __pyx_t_7fastbuf_6memory_10pool_types_PoolCore *pool, int32_t i) {
    (void)pool;
    return bytes[i];
}

static void told(void *context) {
    (void)context;
    fb_event_notify(&news);
}

static void sub_setup(void) {
    POOL(segment_recycle) = recycle;
    POOL(segment_data) = data_of;
    fb_event_init(&room);
    fb_event_init(&news);
    for (int i = 0; i < SEGMENTS; i++) fb_u32_init(&home[i], 1);
    SUB(sub_free)(&sub);
    SUB(sub_init)(&sub, BOUND, NULL, &room);
    sub.notify = told;
}

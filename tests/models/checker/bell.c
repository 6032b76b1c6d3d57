/* doorbell.pyx: an event loop sleeps on its eventfd, armed before it looks for the last time; two ring. */
#include "fastbuf/exchange/doorbell.c"

#include "checker.h"

#define BELL(name) __pyx_f_7fastbuf_8exchange_8doorbell_##name

const int scenario_threads = 3;

static struct __pyx_t_7fastbuf_8exchange_8doorbell_Bell bell;
static fb_au32 fd, condition;

void scenario_setup(void) {
    fb_event_init_shared(&bell.event);
    fb_u32_init(&bell.armed, 0);
    fb_u32_init(&fd, 3);
    fb_u32_init(&condition, 0);
}

void scenario_thread(int thread) {
    if (thread > 0) {
        fb_u32_add_relaxed(&condition, 1);
        BELL(bell_ring)(&bell, &fd);
        return;
    }
    for (;;) {
        BELL(bell_arm)(&bell);
        if (fb_u32_load_relaxed(&condition) == 2) return;
        check_wait_for_eventfd(3);
    }
}

void scenario_check(void) {}

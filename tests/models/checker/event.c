/* fb_event.h: two notices to waiters that look, announce themselves and sleep.
 *
 * The condition is a plain number, so a waiter that sees it without being ordered behind the notifier is a data race.
 */
#include "checker.h"

#include "fb_event.h"

#ifndef NOTIFIERS
#define NOTIFIERS 1
#endif
#ifndef WAITERS
#define WAITERS 1
#endif

const int scenario_threads = WAITERS + NOTIFIERS;

static fb_event event;
static fb_au32 condition;
static int message[NOTIFIERS];

void scenario_setup(void) {
    fb_event_init(&event);
    fb_u32_init(&condition, 0);
    for (int i = 0; i < NOTIFIERS; i++) message[i] = 0;
}

void scenario_thread(int thread) {
    if (thread >= WAITERS) {
        message[thread - WAITERS] = 1;
        fb_u32_add_relaxed(&condition, 1); /* N1: any store */
        fb_event_notify(&event);
        return;
    }
    for (;;) {
        uint32_t key = thread == 0 ? fb_event_prepare(&event) : fb_event_epoch(&event);
        if (fb_u32_load_relaxed(&condition) == NOTIFIERS) break;
        if (thread != 0 && fb_event_prepare(&event) != key) continue;
        fb_event_wait(&event, key, -1);
    }
}

void scenario_check(void) { check_that(fb_u32_load_relaxed(&condition) == NOTIFIERS, "a notice was lost"); }

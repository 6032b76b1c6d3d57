/* fb_activity.h: one writer goes through three states, a reader takes pictures: each is of one change. */
#include "checker.h"

#include "fb_activity.h"

const int scenario_threads = 2;

static fb_activity activity;

void scenario_setup(void) { fb_activity_init(&activity, 0); }

void scenario_thread(int thread) {
    if (thread == 0) {
        fb_activity_enter(&activity, FB_WAIT_CREDIT, 2, 100);
        fb_activity_enter(&activity, FB_RUNS, 0, 300);
        fb_activity_enter(&activity, FB_WAIT_LINK, 3, 600);
        return;
    }
    fb_activity_picture p;
    fb_activity_read(&activity, 1000, &p);
    int64_t sum = 0;
    for (int i = 0; i < FB_STATES; i++) sum += p.total[i];
    check_that(sum == 1000, "a picture of two changes: the times do not add up to all there was");
    int change = p.since == 0 ? 0 : p.since == 100 ? 1 : p.since == 300 ? 2 : 3;
    static const uint32_t state[] = {FB_RUNS, FB_WAIT_CREDIT, FB_RUNS, FB_WAIT_LINK}, target[] = {0, 2, 0, 3};
    check_that(p.state == state[change] && p.target == target[change], "a picture of two changes");
    check_that(p.total[FB_WAIT_CREDIT] == (change == 0 ? 0 : change == 1 ? 900 : 200), "the waits of another change");
    check_that(p.longest[FB_WAIT_CREDIT] == p.total[FB_WAIT_CREDIT], "the longest wait of another change");
}

void scenario_check(void) {}

/* EventCount: waiting without a lock and without a lost wake-up.
 *
 * Algorithm: eventcount of Reed and Kanodia (CACM 22(2), 1979), in the form folly::EventCount and
 * Vyukov's description have it: the waiter announces itself, reads the epoch, looks at its
 * condition again and only then sleeps on the epoch; the notifier changes the condition first and
 * then looks for waiters.
 *
 *   waiter                                notifier
 *   W1  waiters += 1      (seq_cst)       N1  condition = true     (any store)
 *   W2  key = epoch       (seq_cst)       N2  waiters += 0 == 0 ?  (seq_cst) -> return, no system call
 *   W3  condition? -> no                  N3  epoch += 1; futex_wake
 *   W4  futex_wait(epoch, key)
 *   W5  waiters -= 1
 *
 * Pairing: W1 with N2, two read-modify-writes of one word, so one comes first.  W1 first: N2 sees the
 * waiter.  N2 first: W1 reads what N2 wrote, so N1 happens before W3, which sees the condition.
 * (A read-modify-write that adds nothing costs what a fence costs, and the thread sanitizer knows it.)
 * N3's epoch += 1 makes W4 return at once when it came after W2.
 * Forbidden: the condition holds, the waiter sleeps, and no wake-up is on its way.
 */
#ifndef FB_EVENT_H
#define FB_EVENT_H

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fb_atomic.h"

typedef struct {
    fb_au32 epoch;
    fb_au32 waiters;
} fb_event;

static inline int64_t fb_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void fb_event_init(fb_event *e) {
    fb_u32_init(&e->epoch, 0);
    fb_u32_init(&e->waiters, 0);
}

static inline uint32_t fb_event_prepare(fb_event *e) {
    fb_u32_add_seq_cst(&e->waiters, 1);
    return fb_u32_load_seq_cst(&e->epoch);
}

static inline void fb_event_cancel(fb_event *e) { fb_u32_sub_seq_cst(&e->waiters, 1); }

/* Sleeps until notified or until deadline_ns (CLOCK_MONOTONIC; negative: for ever).
 * Returns 1 when woken (or by chance), 0 when the deadline has passed, -1 when a signal came. */
static inline int fb_event_wait(fb_event *e, uint32_t key, int64_t deadline_ns) {
    int result = 1;
    if (fb_u32_load_seq_cst(&e->epoch) == key) {
        struct timespec t, *tp = NULL;
        if (deadline_ns >= 0) {
            t.tv_sec = deadline_ns / 1000000000;
            t.tv_nsec = deadline_ns % 1000000000;
            tp = &t;
        }
        /* WAIT_BITSET takes an absolute CLOCK_MONOTONIC time, so a wake by chance costs no drift. */
        long rc = syscall(SYS_futex, &e->epoch.v, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, key, tp, NULL,
                          FUTEX_BITSET_MATCH_ANY);
        if (rc == -1) {
            if (errno == ETIMEDOUT) result = 0;
            else if (errno == EINTR) result = -1;
        }
    }
    fb_u32_sub_seq_cst(&e->waiters, 1);
    return result;
}

static inline void fb_event_notify(fb_event *e) {
    if (fb_u32_add_seq_cst(&e->waiters, 0) == 0) return;
    fb_u32_add_seq_cst(&e->epoch, 1);
    syscall(SYS_futex, &e->epoch.v, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, NULL, NULL, 0);
}

/* For those who wait in epoll or an event loop instead: -1 with errno set. */
static inline int fb_event_fd(void) { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }

/* Readable from here on until it is read.  A counter that is full (EAGAIN) is readable already. */
static inline void fb_event_signal(int fd) {
    uint64_t one = 1;
    ssize_t rc = write(fd, &one, sizeof one);
    (void)rc;
}

#endif

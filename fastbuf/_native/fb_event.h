/* EventCount: waiting without a lock and without a lost wake-up, between threads and, in shared memory, processes.
 *
 * Algorithm: eventcount of Reed and Kanodia (CACM 22(2), 1979), in the form folly::EventCount and
 * Vyukov's description have it, with a bit in place of the number of waiters: the epoch, and whether anybody may sleep,
 * are one word, so that a notifier moves the one and learns and clears the other by one read-modify-write.
 *
 *   waiter                                        notifier
 *   W1  key = (word |= ASLEEP).epoch (seq_cst)    N1  condition = true                             (any store)
 *   W2  condition? -> no                          N2  old = word, word = old + 1 epoch - ASLEEP    (seq_cst)
 *   W3  futex_wait(epoch, key)                    N3  not old.ASLEEP -> return, no system call
 *                                                 N4  futex_wake, all
 *
 * Pairing: W1 with N2, two read-modify-writes of one word, so one comes first.  W1 first: N2, or a notifier between
 * them, sees the bit and moves the epoch, so W3 returns at once or is woken.  N2 first: W1 reads what N2 wrote, so N1
 * happens before W2, which sees the condition.
 * Of many notices to a sleeper only the first one makes a system call: a woken thread takes long to run again, and those
 * that come meanwhile find no bit.  The bit is cleared by the read-modify-write that moves the epoch: cleared by one of
 * its own, it could be that of a waiter that came between the two, and whom nobody wakes then.  A waiter that does not
 * sleep after all, or that wakes by itself, leaves the bit behind, which costs the next notice a system call in vain.
 * A waiter that may find something before it sleeps (or spins first) reads the epoch at W0 by fb_event_epoch (acquire),
 * looks (W2), and announces itself only then: it sleeps if W1 gives the epoch of W0, which says that no N2 came
 * between; one that came before W0 is in the release sequence that W0 reads from, so W2 saw its N1.
 * Forbidden: the condition holds, the waiter sleeps, and no wake-up is on its way.
 *
 * A notifier that is about to notify again may leave out what comes before the last where nobody sleeps
 * (fb_event_asleep): a load, and no fence. A waiter that announces itself while the condition is still on its way is
 * missed by such a look. The next one finds the bit; so does the notice that ends them, which must come soon, by the
 * same thread, before it waits for anything.
 *
 * An event in memory that processes share (fb_event_init_shared) has a bit of the word for it: its futex is then keyed by
 * the page, not by the address.  What another process writes into the word can delay a wake-up and do nothing else, so
 * whoever waits on such an event waits in slices.
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
    fb_au64 word; /* epoch << 32 | FB_EVENT_SHARED or 0 | FB_EVENT_ASLEEP or 0 */
} fb_event;

#define FB_EVENT_SHARED 0x80000000u
#define FB_EVENT_ASLEEP 1u
#define FB_EVENT_ONE_EPOCH 0x100000000ull

static inline int64_t fb_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void fb_event_init(fb_event *e) { fb_u64_init(&e->word, 0); }

/* In memory that other processes map too. */
static inline void fb_event_init_shared(fb_event *e) { fb_u64_init(&e->word, FB_EVENT_SHARED); }

/* The futex is the word's upper half. */
static inline uint32_t *fb_event_futex(fb_event *e) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return (uint32_t *)&e->word + 1;
#else
    return (uint32_t *)&e->word;
#endif
}

static inline uint32_t fb_event_epoch(fb_event *e) { return (uint32_t)(fb_u64_load_acquire(&e->word) >> 32); }

static inline uint32_t fb_event_prepare(fb_event *e) {
    return (uint32_t)(fb_u64_or_seq_cst(&e->word, FB_EVENT_ASLEEP) >> 32);
}

/* Instead of fb_event_wait after all: there is nothing to take back. */
static inline void fb_event_cancel(fb_event *e) { (void)e; }

/* Sleeps until notified or until deadline_ns (CLOCK_MONOTONIC; negative: for ever).
 * Returns 1 when woken (or by chance), 0 when the deadline has passed, -1 when a signal came. */
static inline int fb_event_wait(fb_event *e, uint32_t key, int64_t deadline_ns) {
    int result = 1;
    uint64_t word = fb_u64_load_seq_cst(&e->word);
    if ((uint32_t)(word >> 32) == key) {
        struct timespec t, *tp = NULL;
        if (deadline_ns >= 0) {
            t.tv_sec = deadline_ns / 1000000000;
            t.tv_nsec = deadline_ns % 1000000000;
            tp = &t;
        }
        /* WAIT_BITSET takes an absolute CLOCK_MONOTONIC time, so a wake by chance costs no drift. */
        long rc = syscall(SYS_futex, fb_event_futex(e),
                          FUTEX_WAIT_BITSET | (word & FB_EVENT_SHARED ? 0 : FUTEX_PRIVATE_FLAG), key, tp, NULL,
                          FUTEX_BITSET_MATCH_ANY);
        if (rc == -1) {
            if (errno == ETIMEDOUT) result = 0;
            else if (errno == EINTR) result = -1;
        }
    }
    return result;
}

static inline void fb_event_notify(fb_event *e) {
    uint64_t word = fb_u64_load_relaxed(&e->word);
    while (!fb_u64_cas_seq_cst(&e->word, &word, (word + FB_EVENT_ONE_EPOCH) & ~(uint64_t)FB_EVENT_ASLEEP)) {
    }
    if (!(word & FB_EVENT_ASLEEP)) return;
    syscall(SYS_futex, fb_event_futex(e), FUTEX_WAKE | (word & FB_EVENT_SHARED ? 0 : FUTEX_PRIVATE_FLAG), INT_MAX, NULL,
            NULL, 0);
}

/* Whether anybody has announced itself, as far as can be seen without a fence. */
static inline int fb_event_asleep(fb_event *e) { return (fb_u64_load_relaxed(&e->word) & FB_EVENT_ASLEEP) != 0; }

/* Looks for at most `limit_ns` whether the epoch is no longer `epoch`: 1 if so.  A short wait of a few microseconds costs
 * less than a sleep and a wake-up. */
static inline int fb_event_spin(fb_event *e, uint32_t epoch, int64_t limit_ns) {
    int64_t until = -1;
    for (;;) {
        for (int k = 0; k < 64; k++) {
            if (fb_event_epoch(e) != epoch) return 1;
            fb_cpu_relax();
        }
        int64_t now = fb_now_ns();
        if (until < 0) until = now + limit_ns;
        else if (now >= until) return 0;
    }
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

/* EventCount: waiting without a lock and without lost wake-ups, between threads and, in shared memory, processes.
 *
 * Algorithm: eventcount of Reed and Kanodia (CACM 22(2), 1979), as in folly::EventCount and Vyukov's description, but
 * with a bit instead of the number of waiters.  The epoch and the bit (a thread may sleep) are in one word, so a
 * notifier increments the epoch and reads and clears the bit by one read-modify-write.
 *
 *   waiter                                        notifier
 *   W1  key = (word |= ASLEEP).epoch (seq_cst)    N1  condition = true                             (any store)
 *   W2  condition? -> no                          N2  old = word, word = old + 1 epoch - ASLEEP    (seq_cst)
 *   W3  futex_wait(epoch, key)                    N3  not old.ASLEEP -> return, no system call
 *                                                 N4  futex_wake, all
 *
 * Pairing: W1 with N2, two read-modify-writes of one word, so one comes first.  If W1 is first: N2, or another notifier
 * between them, sees the bit and increments the epoch, so W3 returns at once or is woken.  If N2 is first: W1 reads
 * what N2 wrote, so N1 happens before W2, which sees the condition.
 * Of many notifications to a sleeping thread only the first one makes a system call: the thread takes long to run
 * again, and later notifications find no bit.  The read-modify-write that increments the epoch must also clear the bit:
 * a separate step could clear the bit of a waiter that came between the two, which nobody would wake then.  A waiter
 * that does not sleep after all, or that wakes by itself, leaves the bit set; the next notification then makes a
 * useless system call.
 * A waiter that may find the condition true before it sleeps (or spins first) reads the epoch at W0 by fb_event_epoch
 * (acquire), checks the condition (W2), and only then announces itself.  It sleeps if W1 returns the epoch of W0, which
 * means that no N2 came between; an N2 before W0 is in the release sequence that W0 reads from, so W2 saw its N1.
 * Forbidden: the condition holds, the waiter sleeps, and no wake-up is on its way.
 *
 * A notifier that will notify again soon may skip all but the last notification while no thread sleeps
 * (fb_event_asleep): a load, and no fence. This check may miss a waiter that announces itself while the condition is
 * still becoming visible. The next check finds the bit; so does the final notification, which the same thread must send
 * soon, before it waits for anything.
 *
 * An event in shared memory (fb_event_init_shared) has a bit of the word for that: its futex is then keyed by the page,
 * not by the address.  Wrong values written by another process can only delay a wake-up, so waiters on such an event
 * wait in slices.
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

/* For memory that other processes map too. */
static inline void fb_event_init_shared(fb_event *e) { fb_u64_init(&e->word, FB_EVENT_SHARED); }

/* The futex is the upper half of the word. */
static inline uint32_t *fb_event_futex(fb_event *e) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return (uint32_t *)&e->word + 1;
#else
    return (uint32_t *)&e->word;
#endif
}

static inline uint32_t fb_event_epoch(fb_event *e) { return (uint32_t)(fb_u64_load_acquire(&e->word) >> 32); }

/* W1.  A thread that need not wait after all has nothing to undo. */
static inline uint32_t fb_event_prepare(fb_event *e) {
    return (uint32_t)(fb_u64_or_seq_cst(&e->word, FB_EVENT_ASLEEP) >> 32);
}

/* Sleeps until notified or until deadline_ns (CLOCK_MONOTONIC; negative: no limit). Returns 1 when woken (or
 * spuriously), 0 when the deadline has passed, -1 when a signal came. */
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
        /* WAIT_BITSET takes an absolute CLOCK_MONOTONIC time, so spurious wake-ups do not extend the wait. */
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

/* Whether a thread has announced itself, as far as can be seen without a fence. */
static inline int fb_event_asleep(fb_event *e) { return (fb_u64_load_relaxed(&e->word) & FB_EVENT_ASLEEP) != 0; }

/* Spins for at most `limit_ns`; returns 1 as soon as the epoch is not `epoch`.  A wait of a few microseconds costs
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

/* For threads that wait in epoll or an event loop: an eventfd, or -1 with errno set. */
static inline int fb_event_fd(void) { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }

/* Makes it readable until it is read.  A full counter (EAGAIN) is readable already. */
static inline void fb_event_signal(int fd) {
    uint64_t one = 1;
    ssize_t rc = write(fd, &one, sizeof one);
    (void)rc;
}

#endif

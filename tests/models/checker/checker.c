/* Runs the code that ships under every schedule, and every value that a load may give, within bounds.
 *
 * A scenario and the shipped code are compiled with -fsanitize=thread, which turns each atomic operation, and each plain
 * access to memory, into a call; linked with this file instead of the sanitizer's own runtime, those calls come here.
 * Threads are coroutines; before each atomic operation another one may go on.  One execution after the other is run from
 * its beginning, each with the next sequence of choices, depth first, until there is none left (stateless search:
 * P. Godefroid, "Model checking for programming languages using VeriSoft", POPL 1997; a bound on preemptions: M. Musuvathi
 * and S. Qadeer, "Iterative context bounding", PLDI 2007).
 *
 * Memory is C11's, operationally: each location has the list of its stores, and a load may give each of them that is not
 * older than what the thread has seen (its view).  A release store takes its thread's view along, an acquire load takes
 * it over; sequentially consistent fences exchange views by a common one (O. Lahav et al., "Repairing sequential
 * consistency in C/C++11", PLDI 2017).  The order of the stores to a location is that in which they are executed, so a
 * store that takes effect late is not seen here.  Happens-before is kept in vector clocks beside the views: two plain
 * accesses to the same bytes that it does not order, one of them a write, are a fault (as C11Tester finds them: W. Luo
 * and B. Demsky, ASPLOS 2021).
 *
 * Faults: check_that, a data race, a thread that sleeps or spins for ever, more steps than an execution may have.
 */
#define _GNU_SOURCE
#include "checker.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum {
    THREADS = 5, /* the last one: who sets up and checks */
    MAIN = THREADS - 1,
    LOCATIONS = 192,
    PER_LOCATION = 400,
    STORES = 4000,
    SHADOW = 1 << 16,
    STACK = 256 * 1024,
    STEPS = 4000,
    RECENT = 64,
    PATIENCE = 40, /* rounds of a loop that nobody else can end, before it is taken for endless */
    SHARED = 1024
};
enum { RELAXED, CONSUME, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST };

typedef struct { uint32_t at[THREADS]; } Clock;
typedef struct { uint16_t at[LOCATIONS]; } View;
typedef struct { uint64_t value; Clock clock; View view; } Store;
typedef struct { uintptr_t address; int size, count; uint16_t store[PER_LOCATION]; } Location;
typedef struct { uintptr_t pc, address; int index; } Seen;
typedef struct {
    ucontext_t context;
    char *stack;
    enum { RUNS, SLEEPS, LOCKS, SPINS, ENDED, DIED } state;
    uintptr_t waits_for;    /* SLEEPS: a futex, an eventfd, a thread; LOCKS: a mutex */
    Clock clock, acquired, released;
    View view, acquired_view, released_view;
    Seen recent[RECENT];
    int seen, rounds;
    uint32_t stores_before; /* SPINS: how many stores there were */
} Thread;
typedef struct { uintptr_t address; uint32_t execution, written; int writer; uint32_t read[THREADS]; } Shadow;
typedef struct { int thread; const char *what; uintptr_t address; uint64_t value; int behind; } Event;
typedef struct { uint8_t taken, of; } Choice;
typedef struct { uintptr_t address; int owner; Clock clock; View view; } Mutex;

int check_mortal;
static int preemptions_allowed = 2, stale_allowed = 2;
static long executions_allowed = 3000000;

static Thread threads[THREADS];
static Location locations[LOCATIONS];
static Store stores[STORES];
static Shadow shadow[SHADOW];
static Event events[STEPS + 1];
static Choice choices[STEPS * 2];
static Mutex mutexes[16];
static View common; /* of sequentially consistent fences and stores */
static int n_locations, n_stores, n_events, n_choices, at_choice, n_mutexes, current, preemptions, stale, running;
static int cut; /* some choice was left out by a bound */
static uint32_t execution;
static ucontext_t main_context;
static int written[16]; /* eventfds */

/* Addresses that more than one thread has used in some execution: nothing is gained by a change of threads elsewhere. */
static uintptr_t shared[SHARED];
static int n_shared, shared_grew;
static struct { uintptr_t address; int thread; } first_user[SHARED];
static int n_first;

/* ---- telling */

static void fault(const char *text) {
    printf("FAULT in execution %u: %s\n", execution, text);
    int from = n_events > 200 ? n_events - 200 : 0;
    for (int i = from; i < n_events; i++)
        printf("  %d  %-22s %#lx  %#lx%s\n", events[i].thread, events[i].what, (unsigned long)events[i].address,
               (unsigned long)events[i].value, events[i].behind ? "  (not the newest)" : "");
    for (int t = 0; t < scenario_threads; t++)
        printf("  thread %d: %s\n", t, (const char *[]){"runs", "sleeps", "waits for a lock", "spins", "has ended", "has died"}[threads[t].state]);
    fflush(stdout);
    _exit(1);
}

void check_that(int ok, const char *text) {
    if (!ok) fault(text);
}

static void event(const char *what, uintptr_t address, uint64_t value, int behind) {
    if (n_events >= STEPS) fault("an execution that does not end");
    events[n_events++] = (Event){current, what, address, value, behind};
}

/* ---- choosing */

static int choose(int n) {
    if (n <= 1) return 0;
    if (at_choice == n_choices) {
        if (n_choices >= STEPS * 2) fault("too many choices");
        choices[n_choices++] = (Choice){0, (uint8_t)n};
    }
    if (choices[at_choice].of != n) fault("the scenario does not do the same twice: memory or time from outside?");
    return choices[at_choice++].taken;
}

static int next_choices(void) {
    while (n_choices && choices[n_choices - 1].taken + 1 == choices[n_choices - 1].of) n_choices--;
    if (!n_choices) return 0;
    choices[n_choices - 1].taken++;
    return 1;
}

/* ---- threads */

static int may_run(int t) {
    Thread *x = &threads[t];
    return x->state == RUNS || (x->state == SPINS && x->stores_before != (uint32_t)n_stores);
}

static void go(int to) {
    int from = current;
    if (threads[to].state == SPINS) {
        threads[to].state = RUNS;
        threads[to].seen = 0;
    }
    if (from == to) return;
    current = to;
    swapcontext(from == MAIN ? &main_context : &threads[from].context, to == MAIN ? &main_context : &threads[to].context);
}

/* Somebody goes on; the one that asks, too, if it may. */
static void turn(void) {
    int options[THREADS], n = 0;
    int mine = current != MAIN && may_run(current);
    if (mine) options[n++] = current;
    if (!mine || preemptions < preemptions_allowed) {
        for (int t = 0; t < scenario_threads; t++)
            if (t != current && may_run(t)) options[n++] = t;
    } else {
        for (int t = 0; t < scenario_threads; t++) cut |= t != current && may_run(t);
    }
    if (n == 0) {
        /* Who spins may only look as if: it reads the same again on a way that has an end. */
        for (int t = 0; t < scenario_threads; t++)
            if (threads[t].state == SPINS && threads[t].rounds++ < PATIENCE) {
                go(t);
                return;
            }
        int waiting = 0;
        for (int t = 0; t < scenario_threads; t++) waiting |= threads[t].state < ENDED;
        if (waiting) fault("nobody can go on");
        go(MAIN);
        return;
    }
    int picked = options[choose(n)];
    if (mine && picked != current) preemptions++;
    go(picked);
}

static void wake(uintptr_t what) {
    for (int t = 0; t < scenario_threads; t++)
        if (threads[t].state == SLEEPS && threads[t].waits_for == what) threads[t].state = RUNS;
}

static void sleeps(uintptr_t what) {
    event("sleeps", what, 0, 0);
    threads[current].state = SLEEPS;
    threads[current].waits_for = what;
    threads[current].seen = 0;
    turn();
}

/* The mortal thread may die instead of its next step. */
static void may_die(void) {
    if (current != check_mortal || !choose(2)) return;
    event("dies", 0, 0, 0);
    threads[current].state = DIED;
    wake((uintptr_t)&threads[current]);
    turn();
}

static void note_user(uintptr_t address) {
    for (int i = 0; i < n_shared; i++)
        if (shared[i] == address) return;
    for (int i = 0; i < n_first; i++)
        if (first_user[i].address == address) {
            if (first_user[i].thread != current && n_shared < SHARED) {
                shared[n_shared++] = address;
                shared_grew = 1;
            }
            return;
        }
    if (n_first < SHARED) {
        first_user[n_first].address = address;
        first_user[n_first++].thread = current;
    }
}

static int is_shared(uintptr_t address) {
    for (int i = 0; i < n_shared; i++)
        if (shared[i] == address) return 1;
    return 0;
}

static void step(uintptr_t address) {
    if (address) note_user(address);
    if (!address || is_shared(address)) {
        turn();
        may_die();
    }
    threads[current].clock.at[current]++;
}

static void entry(int t) {
    scenario_thread(t);
    threads[t].state = ENDED;
    wake((uintptr_t)&threads[t]);
    turn();
}

/* ---- memory */

static void join(Clock *a, const Clock *b) {
    for (int t = 0; t < THREADS; t++)
        if (b->at[t] > a->at[t]) a->at[t] = b->at[t];
}

static void join_view(View *a, const View *b) {
    for (int i = 0; i < n_locations; i++)
        if (b->at[i] > a->at[i]) a->at[i] = b->at[i];
}

static uint64_t peek(uintptr_t a, int size) {
    return size == 1 ? *(uint8_t *)a : size == 2 ? *(uint16_t *)a : size == 4 ? *(uint32_t *)a : *(uint64_t *)a;
}

static void poke(uintptr_t a, int size, uint64_t x) {
    if (size == 1) *(uint8_t *)a = (uint8_t)x;
    else if (size == 2) *(uint16_t *)a = (uint16_t)x;
    else if (size == 4) *(uint32_t *)a = (uint32_t)x;
    else *(uint64_t *)a = x;
}

static int new_store(void) {
    if (n_stores >= STORES) fault("too many stores");
    memset(&stores[n_stores], 0, sizeof(Store));
    return n_stores++;
}

static int location(uintptr_t address, int size) {
    for (int i = 0; i < n_locations; i++)
        if (locations[i].address == address) {
            if (locations[i].size != size) fault("one location is used in two sizes");
            return i;
        }
    if (n_locations >= LOCATIONS) fault("too many locations");
    Location *l = &locations[n_locations];
    l->address = address;
    l->size = size;
    l->count = 1;
    l->store[0] = (uint16_t)new_store();
    stores[l->store[0]].value = peek(address, size);
    return n_locations++;
}

static Store *newest(int l) { return &stores[locations[l].store[locations[l].count - 1]]; }

static void take_over(Thread *x, const Store *s, int order) {
    join(&x->acquired, &s->clock);
    join_view(&x->acquired_view, &s->view);
    if (order == ACQUIRE || order == CONSUME || order >= ACQ_REL) {
        join(&x->clock, &s->clock);
        join_view(&x->view, &s->view);
    }
}

/* After it was stored at the end of l; `behind`: the store that a read-modify-write read, whose release goes on. */
static void hand_over(Thread *x, int l, Store *s, const Store *behind, int order) {
    uint16_t index = (uint16_t)(locations[l].count - 1);
    x->view.at[l] = index;
    s->clock = x->released;
    s->view = x->released_view;
    if (order >= RELEASE) {
        s->clock = x->clock;
        s->view = x->view;
    }
    if (behind) {
        join(&s->clock, &behind->clock);
        join_view(&s->view, &behind->view);
    }
    s->view.at[l] = index;
    if (order == SEQ_CST && index > common.at[l]) common.at[l] = index;
    x->clock.at[current]++; /* what comes after a release is not released by it */
    x->seen = 0;
}

static Store *append(int l, uint64_t value) {
    Location *x = &locations[l];
    if (x->count >= PER_LOCATION) fault("too many stores to one location");
    int s = new_store();
    x->store[x->count++] = (uint16_t)s;
    stores[s].value = value;
    poke(x->address, x->size, value);
    return &stores[s];
}

static uint64_t load(uintptr_t a, int size, int order, uintptr_t pc) {
    if (!running) return peek(a, size);
    step(a);
    Thread *x = &threads[current];
    int l = location(a, size);
    int last = locations[l].count - 1;
    int least = x->view.at[l];
    if (order == SEQ_CST && common.at[l] > least) least = common.at[l];
    int again = 0;
    for (int i = 0; i < x->seen; i++) again |= x->recent[i].pc == pc && x->recent[i].address == a;
    if (again) least = last; /* a loop sees a store in the end */
    if (stale >= stale_allowed && least < last) {
        cut = 1;
        least = last;
    }
    int index = last - choose(last - least + 1);
    stale += index != last;
    if (again) {
        int same = 0;
        for (int i = 0; i < x->seen; i++)
            same |= x->recent[i].pc == pc && x->recent[i].address == a && x->recent[i].index == index;
        if (same && x->rounds < PATIENCE) {
            x->state = SPINS;
            x->stores_before = (uint32_t)n_stores;
            turn();
            x->seen = 0;
        } else if (!same) x->rounds = 0;
    }
    if (x->seen < RECENT) x->recent[x->seen++] = (Seen){pc, a, index};
    Store *s = &stores[locations[l].store[index]];
    x->view.at[l] = (uint16_t)index;
    take_over(x, s, order);
    event("load", a, s->value, index != last);
    return s->value;
}

static void store(uintptr_t a, int size, uint64_t value, int order) {
    if (!running) {
        poke(a, size, value);
        return;
    }
    step(a);
    int l = location(a, size);
    event("store", a, value, 0);
    hand_over(&threads[current], l, append(l, value), NULL, order);
}

enum { XCHG, ADD, SUB, AND, OR, XOR };

static uint64_t mask(uint64_t x, int size) { return size == 8 ? x : x & ((1ull << (8 * size)) - 1); }

static uint64_t changed(int how, uint64_t old, uint64_t x) {
    switch (how) {
    case ADD: return old + x;
    case SUB: return old - x;
    case AND: return old & x;
    case OR: return old | x;
    case XOR: return old ^ x;
    default: return x;
    }
}

static uint64_t modify(uintptr_t a, int size, int how, uint64_t operand, int order) {
    if (!running) {
        uint64_t old = peek(a, size);
        poke(a, size, mask(changed(how, old, operand), size));
        return old;
    }
    step(a);
    Thread *x = &threads[current];
    int l = location(a, size);
    Store *behind = newest(l);
    uint64_t old = behind->value, value = mask(changed(how, old, operand), size);
    take_over(x, behind, order);
    event("read-modify-write", a, value, 0);
    hand_over(x, l, append(l, value), behind, order);
    return old;
}

/* A weak one fails by chance, too, on some processors: the loop around it goes once more, and nothing else. */
static int exchange_if(uintptr_t a, int size, uint64_t *expected, uint64_t value, int order, int failed) {
    if (!running) {
        uint64_t old = peek(a, size);
        if (old == *expected) poke(a, size, value);
        int ok = old == *expected;
        *expected = old;
        return ok;
    }
    step(a);
    Thread *x = &threads[current];
    int l = location(a, size);
    Store *behind = newest(l);
    if (behind->value != *expected) {
        /* It could fail with an older value as well; every loop here goes by what it sees then, as after a load */
        *expected = behind->value;
        x->view.at[l] = (uint16_t)(locations[l].count - 1);
        take_over(x, behind, failed);
        event("compare-exchange fails", a, behind->value, 0);
        return 0;
    }
    take_over(x, behind, order);
    event("compare-exchange", a, value, 0);
    hand_over(x, l, append(l, value), behind, order);
    return 1;
}

static void fence(int order) {
    if (!running) return;
    if (order == SEQ_CST) turn();
    Thread *x = &threads[current];
    x->clock.at[current]++;
    event("fence", 0, (uint64_t)order, 0);
    if (order != RELEASE) {
        join(&x->clock, &x->acquired);
        join_view(&x->view, &x->acquired_view);
    }
    if (order == SEQ_CST) {
        join_view(&x->view, &common);
        join_view(&common, &x->view);
    }
    if (order >= RELEASE) {
        x->released = x->clock;
        x->released_view = x->view;
        x->clock.at[current]++;
    }
}

/* ---- plain accesses */

static void plain(uintptr_t a, int size, int writes) {
    if (!running) return;
    Thread *x = &threads[current];
    for (int t = 0; t < scenario_threads; t++)
        if (a >= (uintptr_t)threads[t].stack && a < (uintptr_t)threads[t].stack + STACK) return;
    for (uintptr_t at = a; at < a + (uintptr_t)size; at++) {
        Shadow *s = &shadow[(at * 0x9E3779B97F4A7C15ull) >> 48];
        int looked = 0;
        while (s->execution == execution && s->address != at) {
            if (++looked == SHADOW) fault("too much plain memory");
            s = s + 1 == shadow + SHADOW ? shadow : s + 1;
        }
        if (s->execution != execution) *s = (Shadow){at, execution, 0, MAIN, {0}};
        if (s->written > x->clock.at[s->writer]) {
            event(writes ? "plain write" : "plain read", at, peek(at, 1), 0);
            fault("a data race: what another thread has written is not ordered before this access");
        }
        if (writes) {
            for (int t = 0; t < THREADS; t++)
                if (s->read[t] > x->clock.at[t]) {
                    event("plain write", at, peek(at, 1), 0);
                    fault("a data race: another thread's read is not ordered before this write");
                }
            s->writer = current;
            s->written = x->clock.at[current] ? x->clock.at[current] : 1;
        } else s->read[current] = x->clock.at[current];
    }
}

/* ---- what the shipped code calls of the system */

static Mutex *mutex(pthread_mutex_t *m) {
    for (int i = 0; i < n_mutexes; i++)
        if (mutexes[i].address == (uintptr_t)m) return &mutexes[i];
    if (n_mutexes == 16) fault("too many locks");
    mutexes[n_mutexes].address = (uintptr_t)m;
    mutexes[n_mutexes].owner = -1;
    memset(&mutexes[n_mutexes].clock, 0, sizeof(Clock));
    memset(&mutexes[n_mutexes].view, 0, sizeof(View));
    return &mutexes[n_mutexes++];
}

int checked_mutex_lock(pthread_mutex_t *m) {
    if (!running) return 0;
    Mutex *x = mutex(m);
    step(0);
    while (x->owner >= 0) {
        if (x->owner == current) fault("a lock that this thread has already");
        threads[current].state = LOCKS;
        threads[current].waits_for = (uintptr_t)m;
        turn();
    }
    x->owner = current;
    event("lock", (uintptr_t)m, 0, 0);
    join(&threads[current].clock, &x->clock);
    join_view(&threads[current].view, &x->view);
    threads[current].seen = 0;
    return 0;
}

int checked_mutex_trylock(pthread_mutex_t *m) {
    if (!running) return 0;
    Mutex *x = mutex(m);
    step(0);
    if (x->owner >= 0) return EBUSY;
    return checked_mutex_lock(m);
}

int checked_mutex_unlock(pthread_mutex_t *m) {
    if (!running) return 0;
    Mutex *x = mutex(m);
    if (x->owner != current) fault("a lock that this thread does not have");
    x->owner = -1;
    event("unlock", (uintptr_t)m, 0, 0);
    x->clock = threads[current].clock;
    x->view = threads[current].view;
    threads[current].clock.at[current]++;
    for (int t = 0; t < scenario_threads; t++)
        if (threads[t].state == LOCKS && threads[t].waits_for == (uintptr_t)m) threads[t].state = RUNS;
    return 0;
}

/* The kernel compares and sleeps, and wakes, under a lock of its own. */
long checked_syscall(long number, ...) {
    va_list list;
    va_start(list, number);
    uintptr_t address = va_arg(list, uintptr_t);
    int what = va_arg(list, int) & FUTEX_CMD_MASK;
    uint32_t value = va_arg(list, uint32_t);
    va_end(list);
    if (!running) return 0;
    if (number != SYS_futex) fault("a system call that the checker does not know");
    fence(SEQ_CST);
    if (what == FUTEX_WAIT || what == FUTEX_WAIT_BITSET) {
        if (*(uint32_t *)address != value) {
            errno = EAGAIN;
            return -1;
        }
        sleeps(address);
        fence(SEQ_CST);
        return 0;
    }
    event("wakes", address, 0, 0);
    wake(address);
    return 0;
}

int checked_eventfd_write(int fd, uint64_t value) {
    (void)value;
    fence(SEQ_CST);
    event("writes to an eventfd", (uintptr_t)fd, 0, 0);
    written[fd] = 1;
    wake((uintptr_t)&written[fd]);
    return 0;
}

void check_wait_for_eventfd(int fd) {
    while (!written[fd]) sleeps((uintptr_t)&written[fd]);
    written[fd] = 0;
    fence(SEQ_CST);
}

void check_wait_for_the_end_of(int thread) {
    while (threads[thread].state < ENDED) sleeps((uintptr_t)&threads[thread]);
    join(&threads[current].clock, &threads[thread].clock);
    join_view(&threads[current].view, &threads[thread].view);
}

int checked_clock_gettime(clockid_t clock, struct timespec *t) {
    (void)clock;
    t->tv_sec = 1;
    t->tv_nsec = n_events;
    return 0;
}

int checked_sched_yield(void) { return 0; }

void *checked_memcpy(void *to, const void *from, size_t n) {
    if (n) {
        plain((uintptr_t)from, (int)n, 0);
        plain((uintptr_t)to, (int)n, 1);
    }
    return memcpy(to, from, n);
}

void *checked_memset(void *to, int c, size_t n) {
    if (n) plain((uintptr_t)to, (int)n, 1);
    return memset(to, c, n);
}

/* ---- what the compiler calls */

#define PC ((uintptr_t)__builtin_return_address(0))

#define ATOMICS(BITS, T)                                                                                              \
    T __tsan_atomic##BITS##_load(const volatile T *a, int o) { return (T)load((uintptr_t)a, BITS / 8, o, PC); }       \
    void __tsan_atomic##BITS##_store(volatile T *a, T x, int o) { store((uintptr_t)a, BITS / 8, x, o); }              \
    T __tsan_atomic##BITS##_exchange(volatile T *a, T x, int o) {                                                     \
        return (T)modify((uintptr_t)a, BITS / 8, XCHG, x, o); }                                                       \
    T __tsan_atomic##BITS##_fetch_add(volatile T *a, T x, int o) {                                                    \
        return (T)modify((uintptr_t)a, BITS / 8, ADD, x, o); }                                                        \
    T __tsan_atomic##BITS##_fetch_sub(volatile T *a, T x, int o) {                                                    \
        return (T)modify((uintptr_t)a, BITS / 8, SUB, x, o); }                                                        \
    T __tsan_atomic##BITS##_fetch_and(volatile T *a, T x, int o) {                                                    \
        return (T)modify((uintptr_t)a, BITS / 8, AND, x, o); }                                                        \
    T __tsan_atomic##BITS##_fetch_or(volatile T *a, T x, int o) {                                                     \
        return (T)modify((uintptr_t)a, BITS / 8, OR, x, o); }                                                         \
    T __tsan_atomic##BITS##_fetch_xor(volatile T *a, T x, int o) {                                                    \
        return (T)modify((uintptr_t)a, BITS / 8, XOR, x, o); }                                                        \
    int __tsan_atomic##BITS##_compare_exchange_strong(volatile T *a, T *c, T x, int o, int f) {                       \
        uint64_t e = *c;                                                                                              \
        int ok = exchange_if((uintptr_t)a, BITS / 8, &e, x, o, f);                                                \
        *c = (T)e;                                                                                                    \
        return ok; }                                                                                                  \
    int __tsan_atomic##BITS##_compare_exchange_weak(volatile T *a, T *c, T x, int o, int f) {                         \
        return __tsan_atomic##BITS##_compare_exchange_strong(a, c, x, o, f); }

ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)

void __tsan_atomic_thread_fence(int o) { fence(o); }
void __tsan_atomic_signal_fence(int o) { (void)o; }
void __tsan_init(void) {}
void __tsan_func_entry(void *pc) { (void)pc; }
void __tsan_func_exit(void) {}

#define PLAIN(BYTES)                                                                                                  \
    void __tsan_read##BYTES(void *a) { plain((uintptr_t)a, BYTES, 0); }                                               \
    void __tsan_write##BYTES(void *a) { plain((uintptr_t)a, BYTES, 1); }                                              \
    void __tsan_unaligned_read##BYTES(void *a) { plain((uintptr_t)a, BYTES, 0); }                                     \
    void __tsan_unaligned_write##BYTES(void *a) { plain((uintptr_t)a, BYTES, 1); }

PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

void __tsan_read_range(void *a, size_t n) { plain((uintptr_t)a, (int)n, 0); }
void __tsan_write_range(void *a, size_t n) { plain((uintptr_t)a, (int)n, 1); }

/* ---- the search */

static void execute(void) {
    execution++;
    n_locations = n_stores = n_events = at_choice = preemptions = stale = n_mutexes = 0;
    memset(written, 0, sizeof written);
    memset(&common, 0, sizeof common);
    check_mortal = -1;
    current = MAIN;
    scenario_setup();
    for (int t = 0; t < scenario_threads; t++) {
        Thread *x = &threads[t];
        char *stack = x->stack;
        memset(x, 0, sizeof *x);
        x->stack = stack;
        getcontext(&x->context);
        x->context.uc_stack.ss_sp = stack;
        x->context.uc_stack.ss_size = STACK;
        makecontext(&x->context, (void (*)(void))entry, 1, t);
    }
    memset(&threads[MAIN].clock, 0, sizeof(Clock));
    running = 1;
    turn();
    running = 0;
    current = MAIN;
    scenario_check();
}

int main(int n, char **arguments) {
    if (n > 1) preemptions_allowed = atoi(arguments[1]);
    if (n > 2) stale_allowed = atoi(arguments[2]);
    if (n > 3) executions_allowed = atol(arguments[3]);
    for (int t = 0; t < scenario_threads; t++) threads[t].stack = malloc(STACK);
    long count = 0;
    do {
        execute();
        count++;
        if (shared_grew) { /* from the beginning: turns were left out where one is needed */
            shared_grew = n_choices = 0;
            cut = 0;
            continue;
        }
        if (!next_choices()) {
            printf("%ld executions, %s\n", count, cut ? "all within the bounds" : "all there are");
            return 0;
        }
    } while (count < executions_allowed);
    printf("%ld executions, and there are more\n", count);
    return 2;
}

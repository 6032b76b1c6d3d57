/* Atomics with the memory order in the name.
 *
 * Cython cannot write _Atomic, so each operation is a static inline function here and a plain function in atomics.pxd.
 * Use only these functions on fields of these types.  The code that uses an atomic says what it pairs with.
 */
#ifndef FB_ATOMIC_H
#define FB_ATOMIC_H

#include <stdatomic.h>
#include <stdint.h>

#define FB_CACHE_LINE 64

typedef struct { _Atomic uint32_t v; } fb_au32;
typedef struct { _Atomic uint64_t v; } fb_au64;
typedef struct { _Atomic int64_t v; } fb_ai64;

/* Keeps two hot fields of different owners in different cache lines. */
typedef struct { char bytes[FB_CACHE_LINE]; } fb_pad;

#define FB_DEFINE(NAME, A, T)                                                                         \
    static inline void fb_##NAME##_init(A *a, T x) { atomic_init(&a->v, x); }                         \
    static inline T fb_##NAME##_load_relaxed(A *a) {                                                  \
        return atomic_load_explicit(&a->v, memory_order_relaxed); }                                   \
    static inline T fb_##NAME##_load_acquire(A *a) {                                                  \
        return atomic_load_explicit(&a->v, memory_order_acquire); }                                   \
    static inline T fb_##NAME##_load_seq_cst(A *a) {                                                  \
        return atomic_load_explicit(&a->v, memory_order_seq_cst); }                                   \
    static inline void fb_##NAME##_store_relaxed(A *a, T x) {                                         \
        atomic_store_explicit(&a->v, x, memory_order_relaxed); }                                      \
    static inline void fb_##NAME##_store_release(A *a, T x) {                                         \
        atomic_store_explicit(&a->v, x, memory_order_release); }                                      \
    static inline T fb_##NAME##_add_relaxed(A *a, T x) {                                              \
        return atomic_fetch_add_explicit(&a->v, x, memory_order_relaxed); }                           \
    static inline T fb_##NAME##_add_acq_rel(A *a, T x) {                                              \
        return atomic_fetch_add_explicit(&a->v, x, memory_order_acq_rel); }                           \
    static inline T fb_##NAME##_add_seq_cst(A *a, T x) {                                              \
        return atomic_fetch_add_explicit(&a->v, x, memory_order_seq_cst); }                           \
    static inline T fb_##NAME##_sub_acq_rel(A *a, T x) {                                              \
        return atomic_fetch_sub_explicit(&a->v, x, memory_order_acq_rel); }                           \
    static inline T fb_##NAME##_sub_seq_cst(A *a, T x) {                                              \
        return atomic_fetch_sub_explicit(&a->v, x, memory_order_seq_cst); }                           \
    static inline T fb_##NAME##_or_seq_cst(A *a, T x) {                                               \
        return atomic_fetch_or_explicit(&a->v, x, memory_order_seq_cst); }                            \
    static inline T fb_##NAME##_exchange_acq_rel(A *a, T x) {                                         \
        return atomic_exchange_explicit(&a->v, x, memory_order_acq_rel); }                            \
    /* On failure *expected gets the current value. */                                                  \
    static inline int fb_##NAME##_cas_acq_rel(A *a, T *expected, T x) {                               \
        return atomic_compare_exchange_weak_explicit(&a->v, expected, x, memory_order_acq_rel,        \
                                                     memory_order_acquire); }                         \
    static inline int fb_##NAME##_cas_seq_cst(A *a, T *expected, T x) {                               \
        return atomic_compare_exchange_weak_explicit(&a->v, expected, x, memory_order_seq_cst,        \
                                                     memory_order_seq_cst); }                         \
    static inline int fb_##NAME##_cas_strong(A *a, T *expected, T x) {                                \
        return atomic_compare_exchange_strong_explicit(&a->v, expected, x, memory_order_acq_rel,      \
                                                       memory_order_acquire); }

FB_DEFINE(u32, fb_au32, uint32_t)
FB_DEFINE(u64, fb_au64, uint64_t)
FB_DEFINE(i64, fb_ai64, int64_t)

/* The line will be written soon, and is probably in another core's cache. */
static inline void fb_prefetch_write(const void *p) {
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)p)); /* without -mprfchw the builtin only reads */
#else
    __builtin_prefetch(p, 1);
#endif
}

static inline void fb_fence_seq_cst(void) { atomic_thread_fence(memory_order_seq_cst); }

static inline void fb_cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif

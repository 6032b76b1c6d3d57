/* Loops over offsets: check that they do not decrease, find the longest value, and shift them. Every reader of a
 * batch or chunk needs all offsets, so each loop exists for AVX2 and for the baseline, chosen at run time. */
#ifndef FB_OFFSETS_H
#define FB_OFFSETS_H

#include "fb_columns.h"

/* The sign bit of b, and of b - a. */
static inline uint32_t fb_step(const uint8_t *pair) {
    uint32_t a = fb_load32(pair), b = fb_load32(pair + 4);
    return b | (b - a);
}

/* Whether one of n + 1 offsets, at any address, is below the one before it. While all are below 2^31, a difference is
 * negative exactly if they decrease; only if there are others, as in lists of bits, is each pair compared.
 *
 * Reads four ranges side by side: if the offsets are in no cache, the hardware fetches four streams a quarter faster
 * than one, since it prefetches each only up to the end of its page. */
static inline __attribute__((always_inline)) int fb_fall_body(const uint8_t *offsets, int64_t n) {
    uint32_t high = fb_load32(offsets), falls = 0;
    int64_t lane = n / 4;
    const uint8_t *p0 = offsets, *p1 = p0 + 4 * lane, *p2 = p1 + 4 * lane, *p3 = p2 + 4 * lane;
    for (int64_t i = 0; i < lane; i++)
        high |= fb_step(p0 + 4 * i) | fb_step(p1 + 4 * i) | fb_step(p2 + 4 * i) | fb_step(p3 + 4 * i);
    for (int64_t i = 4 * lane; i < n; i++) high |= fb_step(offsets + 4 * i);
    if (!(high >> 31)) return 0;
    for (int64_t i = 0; i < n; i++) falls |= fb_load32(offsets + 4 * i + 4) < fb_load32(offsets + 4 * i);
    return falls != 0;
}

/* The longest of n values as an unsigned difference of offsets: for a decreasing pair it is huge. */
static inline __attribute__((always_inline)) uint32_t fb_longest_body(const int32_t *offsets, int64_t n) {
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t length = (uint32_t)offsets[i + 1] - (uint32_t)offsets[i];
        most = length > most ? length : most;
    }
    return most;
}

/* Adds `base` to n offsets of a chunk. The two arrays do not overlap, so the compiler can vectorise this. */
static inline void fb_shift_offsets(uint8_t *restrict dst, const uint8_t *restrict src, int64_t n, uint32_t base) {
    for (int64_t i = 0; i < n; i++) fb_store32(dst + 4 * i, fb_load32(src + 4 * i) + base);
}

static inline void fb_widen_offsets(int64_t *restrict dst, const uint8_t *restrict src, int64_t n, int64_t base) {
    for (int64_t i = 0; i < n; i++) dst[i] = base + fb_load32(src + 4 * i);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static int fb_fall_avx2(const uint8_t *offsets, int64_t n) {
    return fb_fall_body(offsets, n);
}
__attribute__((target("avx2"))) static uint32_t fb_longest_avx2(const int32_t *offsets, int64_t n) {
    return fb_longest_body(offsets, n);
}
#endif

static inline int fb_offsets_fall(const uint8_t *offsets, int64_t n) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return fb_fall_avx2(offsets, n);
#endif
    return fb_fall_body(offsets, n);
}

static inline uint32_t fb_longest32(const int32_t *offsets, int64_t n) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return fb_longest_avx2(offsets, n);
#endif
    return fb_longest_body(offsets, n);
}

#endif

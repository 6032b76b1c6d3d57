/* memcpy for long copies.
 *
 * glibc copies 2 KiB and more with `rep movsb`. On AMD's Zen 3 that is three to ten times slower if the target's offset
 * in its page is 1 to 63 bytes above the source's, which is common here: parts of chunks start at any multiple of 8. A
 * loop over vectors of 32 bytes, two lines per turn, is as fast as `rep movsb` at its best, for all offsets. Well
 * placed copies of more than a megabyte use glibc, which bypasses caches that cannot hold them.
 */
#ifndef FB_COPY_H
#define FB_COPY_H

#include <stdint.h>
#include <string.h>

#define FB_COPY_LONG 2048
#define FB_COPY_HUGE ((int64_t)1 << 20)

static inline int fb_copy_lies_badly(const void *dst, const void *src) {
    return (((uintptr_t)dst - (uintptr_t)src) & 4095) - 1 < 63;
}

#if defined(__x86_64__)
typedef long long fb_vector __attribute__((vector_size(32), aligned(1), may_alias));

__attribute__((target("avx"), noinline)) static void fb_copy_avx(uint8_t *restrict d, const uint8_t *restrict s,
                                                                 int64_t bytes) {
    for (; bytes >= 128; bytes -= 128, d += 128, s += 128) {
        const fb_vector *from = (const fb_vector *)s;
        fb_vector *to = (fb_vector *)d, v0 = from[0], v1 = from[1], v2 = from[2], v3 = from[3];
        to[0] = v0;
        to[1] = v1;
        to[2] = v2;
        to[3] = v3;
    }
    memcpy(d, s, (size_t)bytes);
}
#endif

static inline void fb_copy(void *dst, const void *src, int64_t bytes) {
    uint8_t *d = (uint8_t *)dst;
    const uint8_t *s = (const uint8_t *)src;
    if (bytes >= FB_COPY_LONG && (bytes <= FB_COPY_HUGE || fb_copy_lies_badly(d, s))) {
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx")) {
            fb_copy_avx(d, s, bytes);
            return;
        }
#endif
        if (fb_copy_lies_badly(d, s))
            for (; bytes > 1024; bytes -= 1024, d += 1024, s += 1024) memcpy(d, s, 1024);
    }
    memcpy(d, s, (size_t)bytes);
}

/* After this many bytes the hardware prefetcher works by itself. */
#define FB_SOON_MOST 8192

/* Prefetches bytes that are read soon, and that another core wrote or that were written long ago. They go into the
 * second-level cache, since bytes read until then fill the first. */
static inline void fb_ask_for(const void *p, int64_t bytes) {
    for (int64_t i = 0; i < bytes && i < FB_SOON_MOST; i += 64) __builtin_prefetch((const uint8_t *)p + i, 0, 2);
}

#endif

/* memcpy for what may be long.
 *
 * glibc copies 2 KiB and more by `rep movsb`, which AMD's Zen 3 does three to ten times slower where the target's place
 * in its page is 1 to 63 bytes behind the source's: parts of chunks begin at any multiple of 8, so that is common here.
 * A loop over vectors of 32 bytes, two lines a turn, is as fast as `rep movsb` at its best, wherever the two lie.
 * Copies of more than a megabyte that lie well are glibc's, which passes the caches by when they cannot hold them.
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

/* More than this the processor sees coming by itself. */
#define FB_SOON_MOST 8192

/* Asks for what is read soon, and has perhaps been written by another core, or long ago: into the second cache, since
 * what is read until then fills the first. */
static inline void fb_ask_for(const void *p, int64_t bytes) {
    for (int64_t i = 0; i < bytes && i < FB_SOON_MOST; i += 64) __builtin_prefetch((const uint8_t *)p + i, 0, 2);
}

#endif

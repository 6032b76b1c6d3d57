/* Whether text is UTF-8, as Python, Arrow and the Unicode standard have it: no overlong forms, no surrogates, nothing
 * above U+10FFFF. Bytes below 128 are looked at many at a time; where there are no others, that is all there is to do. */
#ifndef FB_UTF8_H
#define FB_UTF8_H

#include "fb_columns.h"

/* In the eighth bit of the result: whether any byte is above 127. */
static inline __attribute__((always_inline)) uint64_t fb_high_body(const uint8_t *p, int64_t n) {
    uint64_t high = 0;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        high |= fb_load64(p + i) | fb_load64(p + i + 8) | fb_load64(p + i + 16) | fb_load64(p + i + 24);
    for (; i < n; i++) high |= p[i];
    return high & 0x8080808080808080u;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static uint64_t fb_high_avx2(const uint8_t *p, int64_t n) { return fb_high_body(p, n); }
#endif

static inline int fb_is_ascii(const uint8_t *p, int64_t n) {
#if defined(__x86_64__)
    if (n >= 256 && __builtin_cpu_supports("avx2")) return !fb_high_avx2(p, n);
#endif
    return !fb_high_body(p, n);
}

/* One text. Table 3-7 of the Unicode standard: what the second byte may be depends on the first. */
static int fb_is_utf8(const uint8_t *p, int64_t n) {
    const uint8_t *end = p + n;
    while (p < end) {
        if (end - p >= 8 && !(fb_load64(p) & 0x8080808080808080u)) {
            p += 8;
            continue;
        }
        uint8_t a = *p;
        if (a < 0x80) {
            p++;
            continue;
        }
        int more = a < 0xC2 ? 0 : a < 0xE0 ? 1 : a < 0xF0 ? 2 : a < 0xF5 ? 3 : 0;
        if (!more || end - p <= more) return 0;
        uint8_t low = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80, high = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
        if (p[1] < low || p[1] > high) return 0;
        for (int k = 2; k <= more; k++)
            if ((p[k] & 0xC0) != 0x80) return 0;
        p += more + 1;
    }
    return 1;
}

/* -1, or the first of n texts that is not UTF-8. Nulls are not looked at: their bytes are nobody's. The offsets have been
 * checked, and the last of them is the number of bytes. */
static int64_t fb_not_utf8(const uint8_t *bytes, const uint8_t *offsets, int64_t n, const uint8_t *validity) {
    int64_t total = fb_load32(offsets + 4 * n), i = 0;
    if (fb_is_ascii(bytes, total)) return -1;
    /* All in one go, if no text begins within a character: whoever cuts valid text between characters has valid texts. */
    if (fb_is_utf8(bytes, total)) {
        while (i < n && (fb_load32(offsets + 4 * i) == total || (bytes[fb_load32(offsets + 4 * i)] & 0xC0) != 0x80)) i++;
        if (i == n) return -1;
    }
    for (i = 0; i < n; i++) {
        uint32_t from = fb_load32(offsets + 4 * i), to = fb_load32(offsets + 4 * i + 4);
        if ((!validity || fb_bit(validity, i)) && !fb_is_utf8(bytes + from, to - from)) return i;
    }
    return -1;
}

#endif

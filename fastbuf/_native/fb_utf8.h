/* Whether text is UTF-8 as defined by Python, Arrow and the Unicode standard: no overlong forms, no surrogates,
 * nothing above U+10FFFF. Bytes below 128 are checked many at a time; if there are no others, that is enough. */
#ifndef FB_UTF8_H
#define FB_UTF8_H

#include "fb_columns.h"
#include "fb_cpu.h"

/* The top bit of each byte of the result: whether any byte is above 127. */
static inline __attribute__((always_inline)) uint64_t fb_high_body(const uint8_t *p, int64_t n) {
    uint64_t high = 0;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        high |= fb_load64(p + i) | fb_load64(p + i + 8) | fb_load64(p + i + 16) | fb_load64(p + i + 24);
    for (; i < n; i++) high |= p[i];
    return high & 0x8080808080808080u;
}

/* One text. Table 3-7 of the Unicode standard: the allowed second bytes depend on the first. */
static int fb_is_utf8_plain(const uint8_t *p, int64_t n) {
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

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx2"))) static uint64_t fb_high_avx2(const uint8_t *p, int64_t n) { return fb_high_body(p, n); }

/* 32 bytes and the 32 before them; bits set in the result are errors.
 *
 * Source: Keiser and Lemire, "Validating UTF-8 In Less Than One Instruction Per Byte" (2021). Each kind of error has
 * a bit. Three tables, indexed by the two halves of a byte and the upper half of the next, give the errors that each
 * may be part of; an error in all three is real. The eighth bit means two continuation bytes in a row, which is
 * right exactly after the first bytes of long characters. */
__attribute__((target("avx2"))) static inline __m256i fb_utf8_errors(__m256i now, __m256i before) {
    enum { SHORT = 1, LONG = 2, OVER3 = 4, LARGE = 8, SURROGATE = 16, OVER2 = 32, LARGE1000 = 64, OVER4 = 64, TWO = -128 };
    enum { ANY = SHORT | LONG | TWO };
#define FB_TWICE(...) _mm256_setr_epi8(__VA_ARGS__, __VA_ARGS__)
    const __m256i first_high = FB_TWICE(LONG, LONG, LONG, LONG, LONG, LONG, LONG, LONG, TWO, TWO, TWO, TWO,
        SHORT | OVER2, SHORT, SHORT | OVER3 | SURROGATE, SHORT | LARGE | LARGE1000 | OVER4);
    const __m256i first_low = FB_TWICE(ANY | OVER3 | OVER2 | OVER4, ANY | OVER2, ANY, ANY, ANY | LARGE,
        ANY | LARGE | LARGE1000, ANY | LARGE | LARGE1000, ANY | LARGE | LARGE1000, ANY | LARGE | LARGE1000,
        ANY | LARGE | LARGE1000, ANY | LARGE | LARGE1000, ANY | LARGE | LARGE1000, ANY | LARGE | LARGE1000,
        ANY | LARGE | LARGE1000 | SURROGATE, ANY | LARGE | LARGE1000, ANY | LARGE | LARGE1000);
    const __m256i second_high = FB_TWICE(SHORT, SHORT, SHORT, SHORT, SHORT, SHORT, SHORT, SHORT,
        LONG | OVER2 | TWO | OVER3 | LARGE1000 | OVER4, LONG | OVER2 | TWO | OVER3 | LARGE,
        LONG | OVER2 | TWO | SURROGATE | LARGE, LONG | OVER2 | TWO | SURROGATE | LARGE, SHORT, SHORT, SHORT, SHORT);
#undef FB_TWICE
    const __m256i half = _mm256_set1_epi8(0x0F);
    __m256i shifted = _mm256_permute2x128_si256(before, now, 0x21);
    __m256i prev1 = _mm256_alignr_epi8(now, shifted, 15), prev2 = _mm256_alignr_epi8(now, shifted, 14),
            prev3 = _mm256_alignr_epi8(now, shifted, 13);
    __m256i found = _mm256_and_si256(
        _mm256_and_si256(_mm256_shuffle_epi8(first_high, _mm256_and_si256(_mm256_srli_epi16(prev1, 4), half)),
                         _mm256_shuffle_epi8(first_low, _mm256_and_si256(prev1, half))),
        _mm256_shuffle_epi8(second_high, _mm256_and_si256(_mm256_srli_epi16(now, 4), half)));
    __m256i third = _mm256_subs_epu8(prev2, _mm256_set1_epi8(0xE0 - 0x80)),
            fourth = _mm256_subs_epu8(prev3, _mm256_set1_epi8(0xF0 - 0x80));
    __m256i expected = _mm256_and_si256(_mm256_or_si256(third, fourth), _mm256_set1_epi8((char)0x80));
    return _mm256_xor_si256(expected, found);
}

__attribute__((target("avx2"))) static int fb_is_utf8_avx2(const uint8_t *p, int64_t n) {
    __m256i before = _mm256_setzero_si256(), errors = before;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i now = _mm256_loadu_si256((const __m256i *)(p + i));
        errors = _mm256_or_si256(errors, fb_utf8_errors(now, before));
        before = now;
    }
    /* The rest, filled up with zeros: a character cut off at the end then lacks a byte. */
    uint8_t rest[32] = {0};
    memcpy(rest, p + i, (size_t)(n - i));
    errors = _mm256_or_si256(errors, fb_utf8_errors(_mm256_loadu_si256((const __m256i *)rest), before));
    return _mm256_testz_si256(errors, errors);
}
#endif

static inline int fb_is_ascii(const uint8_t *p, int64_t n) {
#if defined(__x86_64__)
    if (n >= 256 && fb_has_avx2()) return !fb_high_avx2(p, n);
#endif
    return !fb_high_body(p, n);
}

static inline int fb_is_utf8(const uint8_t *p, int64_t n) {
#if defined(__x86_64__)
    if (n >= 32 && fb_has_avx2()) return fb_is_utf8_avx2(p, n);
#endif
    return fb_is_utf8_plain(p, n);
}

/* The first of n texts that is not UTF-8, or -1. Nulls are not checked: their bytes belong to no value. The offsets
 * were checked, and the last one is the number of bytes. */
static int64_t fb_not_utf8(const uint8_t *bytes, const uint8_t *offsets, int64_t n, const uint8_t *validity) {
    int64_t total = fb_load32(offsets + 4 * n), i = 0;
    if (fb_is_ascii(bytes, total)) return -1;
    /* Check all bytes at once, then that no text begins inside a character: valid text cut between characters is
     * valid. */
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

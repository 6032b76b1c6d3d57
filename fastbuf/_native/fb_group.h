/* Groups rows by partition: a stable counting sort, so that gathers run forwards through the batch.
 *
 * With few partitions, neighbouring rows increment the same counter, and each increment would wait for the store of
 * the one before. So the rows are cut into FB_LANES ranges with counters of their own, which are walked side by
 * side; joining the ranges of a partition in order keeps the sort stable. */
#ifndef FB_GROUP_H
#define FB_GROUP_H

#include <stdint.h>
#include <string.h>

#include "fb_cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define FB_LANES 4
/* Extra room that `order` needs after the last row: stores of several rows at once run past the end. */
#define FB_ORDER_SLACK 8

/* The first row whose id is not in [0, parts), or -1. */
static int64_t fb_bad_partition(const int32_t *pids, int64_t rows, uint32_t parts) {
    uint32_t bad = 0;
    for (int64_t i = 0; i < rows; i++) bad |= (uint32_t)pids[i] >= parts;
    if (bad)
        for (int64_t i = 0; i < rows; i++)
            if ((uint32_t)pids[i] >= parts) return i;
    return -1;
}

/* Up to this many partitions, one pass for each, with its counter in a register and no branch, is even faster. */
#define FB_PASSES 4

#if defined(__x86_64__)
/* Positions of the ones in a byte, ascending, one byte each. */
#define FB_ONE_AT(M, K) \
    (((uint64_t)((M) >> (K) & 1) * (uint64_t)(K)) << (8 * __builtin_popcount((unsigned)(M) & ((1u << (K)) - 1))))
#define FB_ONES(M)                                                                               \
    (FB_ONE_AT(M, 1) | FB_ONE_AT(M, 2) | FB_ONE_AT(M, 3) | FB_ONE_AT(M, 4) | FB_ONE_AT(M, 5) | \
     FB_ONE_AT(M, 6) | FB_ONE_AT(M, 7))
#define FB_ONES_4(M) FB_ONES(M), FB_ONES((M) + 1), FB_ONES((M) + 2), FB_ONES((M) + 3)
#define FB_ONES_16(M) FB_ONES_4(M), FB_ONES_4((M) + 4), FB_ONES_4((M) + 8), FB_ONES_4((M) + 12)
#define FB_ONES_64(M) FB_ONES_16(M), FB_ONES_16((M) + 16), FB_ONES_16((M) + 32), FB_ONES_16((M) + 48)
static const uint64_t fb_ones[256] = {FB_ONES_64(0), FB_ONES_64(64), FB_ONES_64(128), FB_ONES_64(192)};

/* Writes the rows of `part` among the first `rows` rows, a multiple of 8, to order[n] and on: compares eight at once
 * and packs the equal ones. Returns n after the last one. */
__attribute__((target("avx2,popcnt"))) static int64_t fb_pass_avx2(const int32_t *restrict pids, int64_t rows,
                                                                   int32_t part, uint32_t *restrict order, int64_t n) {
    const __m256i wanted = _mm256_set1_epi32(part);
    for (int64_t i = 0; i < rows; i += 8) {
        __m256i equal = _mm256_cmpeq_epi32(_mm256_loadu_si256((const __m256i *)(pids + i)), wanted);
        unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(equal));
        __m256i found = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)fb_ones[mask]));
        _mm256_storeu_si256((__m256i *)(order + n), _mm256_add_epi32(found, _mm256_set1_epi32((int)i)));
        n += __builtin_popcount(mask);
    }
    return n;
}
#endif

/* As fb_group, for parts <= FB_PASSES. A pass stores every row, or eight at once, but advances only for its own
 * rows. So rows of other partitions remain after its end; the next pass starts there and overwrites them, and
 * `order` needs room for FB_ORDER_SLACK rows more than `rows`. */
static int64_t fb_group_passes(const int32_t *restrict pids, int64_t rows, int32_t parts, uint32_t *restrict order,
                               int64_t *restrict at, int64_t *restrict stop) {
    int64_t n = 0;
    for (int32_t p = 0; p < parts; p++) {
        int64_t i = 0;
        at[p] = n;
#if defined(__x86_64__)
        if (fb_has_avx2()) {
            i = rows & ~(int64_t)7;
            n = fb_pass_avx2(pids, i, p, order, n);
        }
#endif
        for (; i < rows; i++) {
            order[n] = (uint32_t)i;
            n += pids[i] == p;
        }
        stop[p] = n;
        if (n - at[p] == rows) return p;
    }
    return -1;
}

/* Counts rows and computes where each partition begins and ends: counts[l * parts + p] becomes the first place of
 * range l's rows of p. Returns the partition that has all rows, or -1. */
static inline int64_t fb_count_rows(const int32_t *restrict pids, int64_t rows, int32_t parts,
                                    uint32_t *restrict counts, int64_t *restrict at, int64_t *restrict stop) {
    uint32_t *c0 = counts, *c1 = c0 + parts, *c2 = c1 + parts, *c3 = c2 + parts;
    int64_t lane = rows / FB_LANES;
    const int32_t *p0 = pids, *p1 = p0 + lane, *p2 = p1 + lane, *p3 = p2 + lane;
    memset(counts, 0, (size_t)parts * FB_LANES * sizeof *counts);
    for (int64_t i = 0; i < lane; i++) {
        c0[p0[i]]++;
        c1[p1[i]]++;
        c2[p2[i]]++;
        c3[p3[i]]++;
    }
    for (int64_t i = lane; i < rows - 3 * lane; i++) c3[p3[i]]++;
    uint32_t sum = 0;
    for (int32_t p = 0; p < parts; p++) {
        at[p] = sum;
        for (int l = 0; l < FB_LANES; l++) {
            uint32_t n = counts[(int64_t)l * parts + p];
            counts[(int64_t)l * parts + p] = sum;
            sum += n;
        }
        stop[p] = sum;
        if (sum - at[p] == rows && rows) return p;
    }
    return -1;
}

/* counts: FB_LANES * parts of uint32, overwritten. order: gets the rows, grouped (rows + FB_ORDER_SLACK entries are
 * written). at[p], stop[p]: p's range in it. Returns the partition that has all rows, or -1. */
static int64_t fb_group(const int32_t *restrict pids, int64_t rows, int32_t parts, uint32_t *restrict counts,
                        uint32_t *restrict order, int64_t *restrict at, int64_t *restrict stop) {
    if (parts <= FB_PASSES) return fb_group_passes(pids, rows, parts, order, at, stop);
    int64_t all_in = fb_count_rows(pids, rows, parts, counts, at, stop);
    if (all_in >= 0) return all_in;
    uint32_t *c0 = counts, *c1 = c0 + parts, *c2 = c1 + parts, *c3 = c2 + parts;
    int64_t lane = rows / FB_LANES;
    const int32_t *p0 = pids, *p1 = p0 + lane, *p2 = p1 + lane, *p3 = p2 + lane;
    uint32_t r0 = 0, r1 = (uint32_t)lane, r2 = (uint32_t)(2 * lane), r3 = (uint32_t)(3 * lane);
    for (int64_t i = 0; i < lane; i++) {
        order[c0[p0[i]]++] = r0++;
        order[c1[p1[i]]++] = r1++;
        order[c2[p2[i]]++] = r2++;
        order[c3[p3[i]]++] = r3++;
    }
    for (int64_t i = lane; i < rows - 3 * lane; i++) order[c3[p3[i]]++] = r3++;
    return -1;
}

#endif

/* Rows grouped by partition: a counting sort, stable, so that gathers run forwards through the batch.
 *
 * With few partitions the count of row i is the count of row i + 1, and each increment would wait for the one
 * before it to come back from the store buffer. So the rows are cut into FB_LANES stretches with counters of
 * their own, walked side by side; laying the stretches of a partition end to end keeps the order. */
#ifndef FB_GROUP_H
#define FB_GROUP_H

#include <stdint.h>
#include <string.h>

#define FB_LANES 4

/* The first row whose id is not in [0, parts), or -1. */
static int64_t fb_bad_partition(const int32_t *pids, int64_t rows, uint32_t parts) {
    uint32_t bad = 0;
    for (int64_t i = 0; i < rows; i++) bad |= (uint32_t)pids[i] >= parts;
    if (bad)
        for (int64_t i = 0; i < rows; i++)
            if ((uint32_t)pids[i] >= parts) return i;
    return -1;
}

/* Up to this many partitions one pass each, with its counter in a register and no branch, is faster still. */
#define FB_PASSES 4

/* As fb_group, for parts <= FB_PASSES. A pass stores every row and steps on only past its own, so it may leave
 * one row too many behind its end: the next pass begins there, and `order` has room for one more than `rows`. */
static int64_t fb_group_passes(const int32_t *restrict pids, int64_t rows, int32_t parts, uint32_t *restrict order,
                               int64_t *restrict at, int64_t *restrict stop) {
    int64_t n = 0;
    for (int32_t p = 0; p < parts; p++) {
        at[p] = n;
        for (int64_t i = 0; i < rows; i++) {
            order[n] = (uint32_t)i;
            n += pids[i] == p;
        }
        stop[p] = n;
        if (n - at[p] == rows) return p;
    }
    return -1;
}

/* Counts, and where each partition begins and ends: counts[l * parts + p] is then the first place of stretch l's rows
 * of p. Returns the partition that has all rows, or -1. */
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

/* counts: FB_LANES * parts of uint32, overwritten. order: the rows, grouped (rows + 1 of it are written).
 * at[p], stop[p]: p's place in it. Returns the partition that has all rows, or -1. */
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

/* As fb_group, but places[row] says where in that order a row is: written front to back. */
static int64_t fb_group_places(const int32_t *restrict pids, int64_t rows, int32_t parts, uint32_t *restrict counts,
                               uint32_t *restrict places, int64_t *restrict at, int64_t *restrict stop) {
    int64_t all_in = fb_count_rows(pids, rows, parts, counts, at, stop);
    if (all_in >= 0) return all_in;
    uint32_t *c0 = counts, *c1 = c0 + parts, *c2 = c1 + parts, *c3 = c2 + parts;
    int64_t lane = rows / FB_LANES;
    const int32_t *p0 = pids, *p1 = p0 + lane, *p2 = p1 + lane, *p3 = p2 + lane;
    uint32_t *q0 = places, *q1 = q0 + lane, *q2 = q1 + lane, *q3 = q2 + lane;
    for (int64_t i = 0; i < lane; i++) {
        q0[i] = c0[p0[i]]++;
        q1[i] = c1[p1[i]]++;
        q2[i] = c2[p2[i]]++;
        q3[i] = c3[p3[i]]++;
    }
    for (int64_t i = lane; i < rows - 3 * lane; i++) q3[i] = c3[p3[i]]++;
    return -1;
}

#endif

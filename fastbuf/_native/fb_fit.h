/* The size of rows, and how many of them fit into a room: computed in bits, before a byte is written. */
#ifndef FB_FIT_H
#define FB_FIT_H

#include "fb_bind.h"

/* If the rows of a schema have no bits at all (nulls only), a few bytes could claim any number of rows. */
#define FB_MAX_EMPTY_ROWS ((int64_t)1 << 20)

/* Bits of the variable part of rows lo .. lo + n of `node`: for a range, the first and last offset tell. */
static int64_t fb_range_bits(const fb_node *nodes, const fb_column *cols, int node, int64_t lo, int64_t n) {
    const fb_node *t = &nodes[node];
    int64_t sum = 0;
    if (!t->dynamic || n <= 0) return 0;
    switch (t->kind) {
    case FB_VAR32:
    case FB_VAR64: return 8 * (fb_var_start(t, &cols[node], lo + n) - fb_var_start(t, &cols[node], lo));
    case FB_LIST32:
    case FB_LIST64: {
        int64_t from = fb_var_start(t, &cols[node], lo), length = fb_var_start(t, &cols[node], lo + n) - from;
        return length * cols[node + 1].bits + fb_range_bits(nodes, cols, node + 1, from, length);
    }
    case FB_FSL: return fb_range_bits(nodes, cols, node + 1, lo * t->width, n * t->width);
    case FB_STRUCT:
        for (int k = node + 1; k < t->next; k = nodes[k].next) sum += fb_range_bits(nodes, cols, k, lo, n);
        return sum;
    }
    return 0;
}

/* cost[i] += the variable bits of the rows idx[0..n). */
static inline void fb_add_costs(const fb_batch *b, int node, const uint32_t *idx, int n, int64_t *cost) {
    const fb_node *t = &b->nodes[node];
    const fb_column *c = &b->cols[node];
    if (t->kind == FB_VAR32 || (t->kind == FB_LIST32 && !b->nodes[node + 1].dynamic)) {
        const int32_t *o = (const int32_t *)c->offsets;
        int64_t unit = t->kind == FB_VAR32 ? 8 : b->cols[node + 1].bits;
        for (int i = 0; i < n; i++) cost[i] += unit * (o[(int64_t)idx[i] + 1] - o[idx[i]]);
        return;
    }
    for (int i = 0; i < n; i++) cost[i] += fb_range_bits(b->nodes, b->cols, node, idx[i], 1);
}

#define FB_FIT_BLOCK 64
/* A chunk of this many rows hardly gains from one more row in the same room. */
#define FB_MANY_ROWS 64

static inline int64_t fb_budget(const fb_batch *b, int64_t room) {
    if (room > b->max_element) room = b->max_element;
    return ((room & ~(int64_t)7) - b->overhead) * 8;
}

/* How many of n rows fit in `room` bytes, if that is known without reading row lengths; else -1. */
static int64_t fb_fit_blind(const fb_batch *b, int by_number, int64_t n, int64_t room) {
    int64_t all, budget = fb_budget(b, room);
    if (budget < 0 || n <= 0) return 0;
    if (b->max_row_bits < 0) return -1;
    if (b->max_row_bits == 0) return n < FB_MAX_EMPTY_ROWS ? n : FB_MAX_EMPTY_ROWS;
    if (!__builtin_mul_overflow(n, b->max_row_bits, &all) && all <= budget) return n;
    if (b->max_row_bits == b->row_bits) return budget / b->row_bits;
    /* If rows are of similar size, the rows that certainly fit are nearly all that do: leave the rest of the room to
     * the next chunk, and read no row lengths. */
    int64_t sure = budget / b->max_row_bits;
    if (by_number && sure >= FB_MANY_ROWS && b->max_row_bits - b->mean_row_bits <= b->max_row_bits / 8) return sure;
    return -1;
}

/* Whether any single row fits in `room` bytes, as far as that is known without reading its length. */
static inline int fb_any_fits(const fb_batch *b, int64_t room) { return fb_fit_blind(b, 0, 1, room) == 1; }

/* How many of the n rows from place lo on, in columns sorted by partition, fit. */
static int64_t fb_fit_sorted(const fb_batch *b, int64_t lo, int64_t n, int64_t budget) {
    for (int64_t i = 0; i < n; i++) {
        budget -= b->row_bits;
        for (int k = 1; k < b->nodes[0].next; k = b->nodes[k].next)
            if (b->nodes[k].dynamic) {
                const fb_sorted *s = &b->sorted[k];
                budget -= 8 * (int64_t)s->values[(lo + i) * s->apart + s->slot - 1];
            }
        if (budget < 0) return i;
    }
    return n;
}

/* How many of the n rows fit in `room` bytes. */
static int64_t fb_fit(const fb_batch *b, const uint32_t *idx, int64_t lo, int64_t n, int64_t room) {
    int64_t blind = fb_fit_blind(b, idx != NULL, n, room), budget = fb_budget(b, room);
    if (blind >= 0) return blind;
    if (idx && b->sorted && b->all_sorted) return fb_fit_sorted(b, lo, n, budget);
    if (!idx) { /* the most rows that fit: all, or by binary search */
        int64_t fits = 0, over = n + 1;
        for (int64_t m = n; over - fits > 1; m = fits + (over - fits) / 2)
            if (m * b->row_bits + fb_range_bits(b->nodes, b->cols, 0, lo, m) <= budget)
                fits = m;
            else
                over = m;
        return fits;
    }
    int64_t cost[FB_FIT_BLOCK], done = 0;
    while (done < n) {
        int m = n - done < FB_FIT_BLOCK ? (int)(n - done) : FB_FIT_BLOCK;
        for (int i = 0; i < m; i++) cost[i] = b->row_bits;
        for (int k = 1; k < b->nodes[0].next; k = b->nodes[k].next)
            if (b->nodes[k].dynamic) fb_add_costs(b, k, idx + done, m, cost);
        for (int i = 0; i < m; i++) {
            budget -= cost[i];
            if (budget < 0) return done + i;
        }
        done += m;
    }
    return n;
}

/* Bytes of an element with exactly these rows: never less than what fb_encode writes for them. */
static int64_t fb_element_bytes(const fb_batch *b, const uint32_t *idx, int64_t lo, int64_t n) {
    int64_t bits = n * b->row_bits;
    if (idx)
        for (int64_t i = 0; i < n; i++) bits += fb_range_bits(b->nodes, b->cols, 0, idx[i], 1);
    else
        bits += fb_range_bits(b->nodes, b->cols, 0, lo, n);
    return fb_whole(b->overhead + (bits + 7) / 8);
}

#endif

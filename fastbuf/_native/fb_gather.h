/* Rows out of a bound batch into one element: columnar.pyx draws the layout.
 *
 * Rows are named by an array of row numbers, or by a range (idx == NULL), which is copied straight. The fit
 * is found in bits before a byte is written, so the gather itself checks no room. */
#ifndef FB_GATHER_H
#define FB_GATHER_H

#include "fb_bind.h"

/* A schema whose rows take no bits at all (nulls only) could claim any number of rows in a few bytes. */
#define FB_MAX_EMPTY_ROWS ((int64_t)1 << 20)

typedef struct {
    const fb_node *nodes;
    const fb_column *cols;
    uint8_t *flags;
    uint8_t *limit; /* end of the room: copies of 16 bytes may run on to here, later columns overwrite it */
} fb_gather_state;

/* ---- what rows take ------------------------------------------------------------------------------------ */

/* Bits of the variable part of rows lo .. lo + n of `node`: of a range, offsets tell by their two ends. */
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

/* How many of the n rows fit in `room` bytes. */
static int64_t fb_fit(const fb_batch *b, const uint32_t *idx, int64_t lo, int64_t n, int64_t room) {
    if (room > b->max_element) room = b->max_element;
    int64_t budget = ((room & ~(int64_t)7) - b->overhead) * 8;
    if (budget < 0 || n <= 0) return 0;
    if (b->max_row_bits >= 0) {
        if (b->max_row_bits == 0) return n < FB_MAX_EMPTY_ROWS ? n : FB_MAX_EMPTY_ROWS;
        if (budget / b->max_row_bits >= n) return n;
        if (b->max_row_bits == b->row_bits) return budget / b->row_bits;
    }
    if (!idx) { /* the most rows that fit: all, or found by halving */
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

/* Bytes of the element that holds just these rows: never less than what fb_encode writes for them. */
static int64_t fb_element_bytes(const fb_batch *b, const uint32_t *idx, int64_t lo, int64_t n) {
    int64_t bits = n * b->row_bits;
    if (idx)
        for (int64_t i = 0; i < n; i++) bits += fb_range_bits(b->nodes, b->cols, 0, idx[i], 1);
    else
        bits += fb_range_bits(b->nodes, b->cols, 0, lo, n);
    return fb_whole(b->overhead + (bits + 7) / 8);
}

/* ---- gathering ----------------------------------------------------------------------------------------- */

/* Bits of the rows into dst; returns how many are 1. */
static int64_t fb_gather_bits(const uint8_t *bits, int64_t bit0, const uint32_t *idx, int64_t lo, int64_t n,
                              uint8_t *dst) {
    if (!idx) {
        fb_copy_bits(dst, 0, bits, bit0 + lo, n);
        return fb_count_bits(bits, bit0 + lo, n);
    }
    int64_t ones = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        unsigned b = 0;
        for (int k = 0; k < 8; k++) b |= (unsigned)fb_bit(bits, bit0 + idx[i + k]) << k;
        dst[i >> 3] = (uint8_t)b;
        ones += __builtin_popcount(b);
    }
    if (i < n) {
        unsigned b = 0;
        for (int k = 0; k < (int)(n - i); k++) b |= (unsigned)fb_bit(bits, bit0 + idx[i + k]) << k;
        dst[i >> 3] = (uint8_t)b;
        ones += __builtin_popcount(b);
    }
    return ones;
}

#define FB_GATHER_LOOP(T)                                                      \
    for (int64_t i = 0; i < n; i++) {                                          \
        memcpy(dst + i * sizeof(T), src + (int64_t)idx[i] * (int64_t)sizeof(T), sizeof(T)); \
    }                                                                          \
    break

typedef struct { uint64_t a, b; } fb_pair;

static inline void fb_gather_fixed(const uint8_t *restrict src, int64_t width, const uint32_t *restrict idx, int64_t n,
                                   uint8_t *restrict dst) {
    switch (width) {
    case 1: FB_GATHER_LOOP(uint8_t);
    case 2: FB_GATHER_LOOP(uint16_t);
    case 4: FB_GATHER_LOOP(uint32_t);
    case 8: FB_GATHER_LOOP(uint64_t);
    case 16: FB_GATHER_LOOP(fb_pair);
    default:
        for (int64_t i = 0; i < n; i++) memcpy(dst + i * width, src + (int64_t)idx[i] * width, (size_t)width);
    }
}

#define FB_VAR_BLOCK 64

/* The bytes of up to FB_VAR_BLOCK values. First where they lie and their ends, so that the loads run ahead of
 * the copies; then the copies, without a branch when all are short and 16 bytes may be read and written. */
#define FB_DEFINE_VAR_BLOCK(NAME, T)                                                                             \
    static uint8_t *NAME(const fb_gather_state *g, const fb_column *c, const uint32_t *idx, int64_t lo, int n,   \
                         const uint8_t *valid, int64_t valid0, uint8_t *ends, uint32_t base, uint8_t *o) {       \
        const T *off = (const T *)c->offsets;                                                                    \
        const uint8_t *data = c->data;                                                                           \
        T from[FB_VAR_BLOCK];                                                                                    \
        uint32_t lengths[FB_VAR_BLOCK], any = 0;                                                                 \
        for (int i = 0; i < n; i++) {                                                                            \
            int64_t p = idx ? (int64_t)idx[i] : lo + i;                                                          \
            T s = off[p];                                                                                        \
            uint32_t l = (uint32_t)(off[p + 1] - s);                                                             \
            if (valid) l = fb_bit(valid, valid0 + i) ? l : 0;                                                    \
            from[i] = s;                                                                                         \
            lengths[i] = l;                                                                                      \
            any |= l;                                                                                            \
            base += l;                                                                                           \
            fb_store32(ends + 4 * i, base);                                                                      \
        }                                                                                                        \
        /* Rows ascend, so the last one lies furthest. */                                                        \
        if (any <= 16 && (int64_t)from[n - 1] + 16 <= c->data_bytes && g->limit - o >= 16 * (int64_t)n) {        \
            for (int i = 0; i < n; i++) {                                                                        \
                memcpy(o, data + from[i], 16);                                                                   \
                o += lengths[i];                                                                                 \
            }                                                                                                    \
            return o;                                                                                            \
        }                                                                                                        \
        for (int i = 0; i < n; i++) {                                                                            \
            int64_t s = from[i], l = lengths[i];                                                                 \
            if (l <= 32 && s + 32 <= c->data_bytes && g->limit - o >= 32) {                                      \
                memcpy(o, data + s, 16);                                                                         \
                memcpy(o + 16, data + s + 16, 16);                                                               \
            } else if (l)                                                                                        \
                memcpy(o, data + s, (size_t)l);                                                                  \
            o += l;                                                                                              \
        }                                                                                                        \
        return o;                                                                                                \
    }

FB_DEFINE_VAR_BLOCK(fb_var_block32, int32_t)
FB_DEFINE_VAR_BLOCK(fb_var_block64, int64_t)

/* Offsets of a range: those of the batch less the first of them. */
static uint8_t *fb_range_offsets(const fb_node *t, const fb_column *c, int64_t lo, int64_t n, uint8_t *dst) {
    int64_t from = fb_var_start(t, c, lo);
    if (t->kind == FB_VAR32 || t->kind == FB_LIST32) {
        const int32_t *o = (const int32_t *)c->offsets + lo;
        if (from)
            for (int64_t i = 0; i <= n; i++) fb_store32(dst + 4 * i, (uint32_t)(o[i] - (int32_t)from));
        else
            memcpy(dst, o, (size_t)(4 * (n + 1)));
    } else {
        const int64_t *o = (const int64_t *)c->offsets + lo;
        for (int64_t i = 0; i <= n; i++) fb_store32(dst + 4 * i, (uint32_t)(o[i] - from));
    }
    return fb_fill_up(dst, 4 * (n + 1));
}

/* Strings: n + 1 u32 offsets, then the bytes. `valid`: the validity bits just shipped, or NULL. */
static uint8_t *fb_gather_var(const fb_gather_state *g, int node, const uint32_t *idx, int64_t lo, int64_t n,
                              const uint8_t *valid, uint8_t *dst) {
    const fb_node *t = &g->nodes[node];
    const fb_column *c = &g->cols[node];
    if (!idx && !valid) { /* the bytes of a range are one piece */
        int64_t from = fb_var_start(t, c, lo), bytes = fb_var_start(t, c, lo + n) - from;
        uint8_t *start = fb_range_offsets(t, c, lo, n, dst);
        if (bytes) memcpy(start, c->data + from, (size_t)bytes);
        return fb_fill_up(start, bytes);
    }
    fb_store32(dst, 0);
    uint8_t *ends = dst + 4, *start = fb_fill_up(dst, 4 * (n + 1)), *o = start;
    for (int64_t i = 0; i < n; i += FB_VAR_BLOCK) {
        int m = n - i < FB_VAR_BLOCK ? (int)(n - i) : FB_VAR_BLOCK;
        const uint32_t *rows = idx ? idx + i : NULL;
        if (t->kind == FB_VAR32)
            o = fb_var_block32(g, c, rows, lo + i, m, valid, i, ends + 4 * i, (uint32_t)(o - start), o);
        else
            o = fb_var_block64(g, c, rows, lo + i, m, valid, i, ends + 4 * i, (uint32_t)(o - start), o);
    }
    return fb_fill_up(start, o - start);
}

static uint8_t *fb_gather(const fb_gather_state *g, int node, const uint32_t *idx, int64_t lo, int64_t n, uint8_t *dst);

/* Lists: n + 1 u32 offsets in elements, then the child with as many rows as the last one says. */
static uint8_t *fb_gather_list(const fb_gather_state *g, int node, const uint32_t *idx, int64_t lo, int64_t n,
                               const uint8_t *valid, uint8_t *dst) {
    const fb_node *t = &g->nodes[node], *u = &g->nodes[node + 1];
    const fb_column *c = &g->cols[node], *child = &g->cols[node + 1];
    int straight = u->kind == FB_FIXED && !child->validity; /* a row's elements are one piece of memory */
    int64_t total = 0, width = u->width;
    if (!idx && !valid) {
        int64_t from = fb_var_start(t, c, lo), length = fb_var_start(t, c, lo + n) - from;
        return fb_gather(g, node + 1, NULL, from, length, fb_range_offsets(t, c, lo, n, dst));
    }
    fb_store32(dst, 0);
    uint8_t *ends = dst + 4, *o = fb_fill_up(dst, 4 * (n + 1));
    for (int64_t i = 0; i < n; i++) {
        int64_t p = idx ? (int64_t)idx[i] : lo + i, s = fb_var_start(t, c, p), l = fb_var_start(t, c, p + 1) - s;
        if (valid && !fb_bit(valid, i)) l = 0;
        if (straight) {
            if (l) memcpy(o + total * width, child->values + s * width, (size_t)(l * width));
        } else
            for (int64_t k = 0; k < l; k++) c->scratch[total + k] = (uint32_t)(s + k);
        total += l;
        fb_store32(ends + 4 * i, (uint32_t)total);
    }
    return straight ? fb_fill_up(o, total * width) : fb_gather(g, node + 1, c->scratch, 0, total, o);
}

static uint8_t *fb_gather(const fb_gather_state *g, int node, const uint32_t *idx, int64_t lo, int64_t n,
                          uint8_t *dst) {
    const fb_node *t = &g->nodes[node];
    const fb_column *c = &g->cols[node];
    const uint8_t *valid = NULL;
    if (n <= 0) return dst;
    if (c->validity && fb_gather_bits(c->validity, c->bit0, idx, lo, n, dst) < n) {
        g->flags[node >> 3] |= (uint8_t)(1 << (node & 7));
        valid = dst;
        dst = fb_fill_up(dst, (n + 7) >> 3);
    }
    switch (t->kind) {
    case FB_BOOL: fb_gather_bits(c->values, c->bit0, idx, lo, n, dst); return fb_fill_up(dst, (n + 7) >> 3);
    case FB_FIXED:
        if (idx)
            fb_gather_fixed(c->values, t->width, idx, n, dst);
        else if (t->width)
            memcpy(dst, c->values + lo * t->width, (size_t)(n * t->width));
        return fb_fill_up(dst, n * t->width);
    case FB_VAR32:
    case FB_VAR64: return fb_gather_var(g, node, idx, lo, n, valid, dst);
    case FB_LIST32:
    case FB_LIST64: return fb_gather_list(g, node, idx, lo, n, valid, dst);
    case FB_FSL: {
        const fb_node *u = &g->nodes[node + 1];
        const fb_column *child = &g->cols[node + 1];
        if (!idx) return fb_gather(g, node + 1, NULL, lo * t->width, n * t->width, dst);
        if (u->kind == FB_FIXED && !child->validity) {
            int64_t bytes = (int64_t)t->width * u->width;
            if (bytes) fb_gather_fixed(child->values, bytes, idx, n, dst);
            return fb_fill_up(dst, n * bytes);
        }
        int64_t total = 0;
        for (int64_t i = 0; i < n; i++)
            for (int64_t k = 0; k < t->width; k++) c->scratch[total++] = (uint32_t)((int64_t)idx[i] * t->width + k);
        return fb_gather(g, node + 1, c->scratch, 0, total, dst);
    }
    case FB_STRUCT:
        for (int k = node + 1; k < t->next; k = g->nodes[k].next) dst = fb_gather(g, k, idx, lo, n, dst);
        return dst;
    }
    return dst; /* FB_NULL: its rows are nothing */
}

/* One element with as many of the n rows as fit in `room`; returns its bytes (0: not one row fits) and the rows. */
static int64_t fb_encode(const fb_batch *b, const uint32_t *idx, int64_t lo, int64_t n, uint8_t *dst, int64_t room,
                         int64_t *rows) {
    int64_t fit = fb_fit(b, idx, lo, n, room);
    *rows = fit;
    if (!fit) return 0;
    fb_gather_state g = {b->nodes, b->cols, dst + 8, dst + room};
    int64_t head = fb_whole(8 + b->flag_bytes);
    memset(g.flags, 0, (size_t)(head - 8));
    fb_store32(dst + 4, (uint32_t)fit);
    uint8_t *o = dst + head;
    for (int k = 1; k < b->nodes[0].next; k = b->nodes[k].next) o = fb_gather(&g, k, idx, lo, fit, o);
    fb_store32(dst, (uint32_t)(o - dst - 4));
    return o - dst;
}

#endif

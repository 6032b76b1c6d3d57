/* Gathers rows of a bound batch into the parts of an element; columnar.pyx draws the layout.
 *
 * Rows are given as an array of row numbers, or as a range (idx == NULL), which is copied directly. The caller has
 * computed in bits how many rows fit, so the gather itself checks no room; fb_put.h calls both. */
#ifndef FB_GATHER_H
#define FB_GATHER_H

#include "fb_fit.h"

typedef struct {
    const fb_node *nodes;
    const fb_column *cols;
    uint8_t *flags;
    uint8_t *limit; /* end of the room: copies of 16 bytes may run up to here; later columns overwrite the excess */
} fb_gather_state;

/* ---- gathering ----------------------------------------------------------------------------------------- */

/* Copies the bits of the rows into dst; returns how many are 1. */
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
        for (int64_t i = 0; i < n; i++) fb_copy(dst + i * width, src + (int64_t)idx[i] * width, width);
    }
}

/* Neighbouring columns of 8 bytes, all at once: each row number is read once, and the branch at the end of such a
 * short loop is mispredicted once. */
static inline __attribute__((always_inline)) void fb_gather_eights_body(const fb_column *cols, int m,
                                                                        const uint32_t *restrict idx, int64_t n,
                                                                        uint8_t *restrict dst) {
    const uint8_t *src[FB_MAX_RUN];
    for (int j = 0; j < m; j++) src[j] = cols[j].values;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = (int64_t)idx[i] * 8;
        for (int j = 0; j < m; j++) memcpy(dst + 8 * (j * n + i), src[j] + at, 8);
    }
}

static uint8_t *fb_gather_eights(const fb_column *cols, int m, const uint32_t *idx, int64_t n, uint8_t *dst) {
    switch (m) {
    case 2: fb_gather_eights_body(cols, 2, idx, n, dst); break;
    case 3: fb_gather_eights_body(cols, 3, idx, n, dst); break;
    default: fb_gather_eights_body(cols, FB_MAX_RUN, idx, n, dst);
    }
    return dst + 8 * n * m;
}

#define FB_VAR_BLOCK 64
/* Up to this size a call of memcpy costs more than a loop. */
#define FB_SHORT_COPY 1024

/* Values of at most `width` bytes, each by one copy of `width` bytes, which may be read and written: no branch, and
 * the address of the next copy depends on one addition only. */
static inline __attribute__((always_inline)) uint8_t *fb_short_body(const fb_column *c, const uint32_t *restrict idx,
                                                                    int n, int width, uint8_t *restrict ends,
                                                                    uint32_t base, uint8_t *restrict o) {
    const uint8_t *offsets = (const uint8_t *)c->offsets, *data = c->data;
    for (int i = 0; i < n; i++) {
        uint64_t two = fb_load64(offsets + 4 * (int64_t)idx[i]);
        uint32_t from = (uint32_t)two, length = (uint32_t)(two >> 32) - from;
        memcpy(o, data + from, (size_t)width);
        o += length;
        base += length;
        fb_store32(ends + 4 * i, base);
    }
    return o;
}

/* The width that fb_short_body may use for these rows: 16 or 32; 0: neither. Rows ascend, so the last has the
 * highest address. */
static inline int fb_short_width(const fb_gather_state *g, const fb_column *c, const uint32_t *idx, int n,
                                 const uint8_t *o) {
    int64_t room = g->limit - o, behind = c->data_bytes - ((const int32_t *)c->offsets)[idx[n - 1]];
    if ((uint64_t)c->max_bits <= 8 * 16 && room >= 16 * n && behind >= 16) return 16;
    return (uint64_t)c->max_bits <= 8 * 32 && room >= 32 * n && behind >= 32 ? 32 : 0;
}

/* The bytes of up to FB_VAR_BLOCK values. The first loop loads their starts and ends, so that these loads run ahead
 * of the copies; the second copies, without branches if all are short and 16 bytes may be read and written. */
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
        /* Rows ascend, so the last address is highest. */                                                        \
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
                fb_copy(o, data + s, l);                                                                         \
            o += l;                                                                                              \
        }                                                                                                        \
        return o;                                                                                                \
    }

FB_DEFINE_VAR_BLOCK(fb_var_block32, int32_t)
FB_DEFINE_VAR_BLOCK(fb_var_block64, int64_t)

/* Offsets of a range: the batch's offsets minus the first of them. */
static uint8_t *fb_range_offsets(const fb_gather_state *g, const fb_node *t, const fb_column *c, int64_t lo, int64_t n,
                                 uint8_t *dst) {
    int64_t from = fb_var_start(t, c, lo);
    if (t->kind == FB_VAR32 || t->kind == FB_LIST32) {
        const int32_t *o = (const int32_t *)c->offsets + lo;
        if (from)
            fb_shift_offsets(dst, (const uint8_t *)o, n + 1, (uint32_t)-from);
        else
            fb_copy(dst, o, 4 * (n + 1));
    } else {
        const int64_t *o = (const int64_t *)c->offsets + lo;
        for (int64_t i = 0; i <= n; i++) fb_store32(dst + 4 * i, (uint32_t)(o[i] - from));
    }
    return fb_fill_up(dst, 4 * (n + 1), g->limit);
}

/* Strings: n + 1 u32 offsets, then the bytes. `valid`: the validity bits just written, or NULL. */
static uint8_t *fb_gather_var(const fb_gather_state *g, int node, const uint32_t *idx, int64_t lo, int64_t n,
                              const uint8_t *valid, uint8_t *dst) {
    const fb_node *t = &g->nodes[node];
    const fb_column *c = &g->cols[node];
    if (!idx && !valid) { /* the bytes of a range are contiguous */
        int64_t from = fb_var_start(t, c, lo), bytes = fb_var_start(t, c, lo + n) - from;
        uint8_t *start = fb_range_offsets(g, t, c, lo, n, dst);
        if (bytes) fb_copy(start, c->data + from, bytes);
        return fb_fill_up(start, bytes, g->limit);
    }
    fb_store32(dst, 0);
    uint8_t *ends = dst + 4, *start = fb_fill_up(dst, 4 * (n + 1), g->limit), *o = start;
    for (int64_t i = 0; i < n; i += FB_VAR_BLOCK) {
        int m = n - i < FB_VAR_BLOCK ? (int)(n - i) : FB_VAR_BLOCK;
        const uint32_t *rows = idx ? idx + i : NULL;
        int width = t->kind == FB_VAR32 && rows && !valid ? fb_short_width(g, c, rows, m, o) : 0;
        if (width == 16)
            o = fb_short_body(c, rows, m, 16, ends + 4 * i, (uint32_t)(o - start), o);
        else if (width)
            o = fb_short_body(c, rows, m, 32, ends + 4 * i, (uint32_t)(o - start), o);
        else if (t->kind == FB_VAR32)
            o = fb_var_block32(g, c, rows, lo + i, m, valid, i, ends + 4 * i, (uint32_t)(o - start), o);
        else
            o = fb_var_block64(g, c, rows, lo + i, m, valid, i, ends + 4 * i, (uint32_t)(o - start), o);
    }
    return fb_fill_up(start, o - start, g->limit);
}

static uint8_t *fb_gather(const fb_gather_state *g, int node, const uint32_t *idx, int64_t lo, int64_t n, uint8_t *dst);

/* Lists: n + 1 u32 offsets in elements, then the child with as many rows as the last offset says. */
static uint8_t *fb_gather_list(const fb_gather_state *g, int node, const uint32_t *idx, int64_t lo, int64_t n,
                               const uint8_t *valid, uint8_t *dst) {
    const fb_node *t = &g->nodes[node], *u = &g->nodes[node + 1];
    const fb_column *c = &g->cols[node], *child = &g->cols[node + 1];
    int straight = u->kind == FB_FIXED && !child->validity; /* a row's elements are contiguous */
    int64_t total = 0, width = u->width;
    if (!idx && !valid) {
        int64_t from = fb_var_start(t, c, lo), length = fb_var_start(t, c, lo + n) - from;
        return fb_gather(g, node + 1, NULL, from, length, fb_range_offsets(g, t, c, lo, n, dst));
    }
    fb_store32(dst, 0);
    uint8_t *ends = dst + 4, *o = fb_fill_up(dst, 4 * (n + 1), g->limit);
    for (int64_t i = 0; i < n; i++) {
        int64_t p = idx ? (int64_t)idx[i] : lo + i, s = fb_var_start(t, c, p), l = fb_var_start(t, c, p + 1) - s;
        if (valid && !fb_bit(valid, i)) l = 0;
        if (straight) {
            if (l) fb_copy(o + total * width, child->values + s * width, l * width);
        } else
            for (int64_t k = 0; k < l; k++) c->scratch[total + k] = (uint32_t)(s + k);
        total += l;
        fb_store32(ends + 4 * i, (uint32_t)total);
    }
    return straight ? fb_fill_up(o, total * width, g->limit) : fb_gather(g, node + 1, c->scratch, 0, total, o);
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
        dst = fb_fill_up(dst, (n + 7) >> 3, g->limit);
    }
    switch (t->kind) {
    case FB_BOOL: fb_gather_bits(c->values, c->bit0, idx, lo, n, dst); return fb_fill_up(dst, (n + 7) >> 3, g->limit);
    case FB_FIXED:
        if (idx)
            fb_gather_fixed(c->values, t->width, idx, n, dst);
        else if (t->width)
            fb_copy(dst, c->values + lo * t->width, n * t->width);
        return fb_fill_up(dst, n * t->width, g->limit);
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
            return fb_fill_up(dst, n * bytes, g->limit);
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
    return dst; /* FB_NULL: its rows take no bytes */
}

#endif

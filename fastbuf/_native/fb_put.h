/* Writes elements from a bound batch; columnar.pyx draws the layout. Columns that fb_sort.h has sorted by partition
 * are copied, all others are gathered. */
#ifndef FB_PUT_H
#define FB_PUT_H

#include "fb_band.h"
#include "fb_gather.h"

/* Copies from `src`; 31 more bytes of it may be read. */
static inline void fb_copy_over(uint8_t *restrict dst, const uint8_t *restrict src, int64_t bytes,
                                const uint8_t *limit) {
    if (bytes > FB_SHORT_COPY || limit - dst < bytes + 31) {
        fb_copy(dst, src, bytes);
        return;
    }
    for (int64_t i = 0; i < bytes; i += 32) {
        fb_pair low, high;
        memcpy(&low, src + i, 16);
        memcpy(&high, src + i + 16, 16);
        memcpy(dst + i, &low, 16);
        memcpy(dst + i + 16, &high, 16);
    }
}

static inline __attribute__((always_inline)) uint8_t *fb_close_up(const uint8_t *restrict slots, int slot, int64_t n,
                                                                  uint8_t *restrict ends, uint8_t *restrict start,
                                                                  const uint8_t *limit) {
    uint8_t *o = start;
    int64_t i = 0;
    for (; i < n && limit - o >= slot; i++, slots += slot) {
        memcpy(o, slots, (size_t)slot);
        o += slots[slot - 1];
        fb_store32(ends + 4 * i, (uint32_t)(o - start));
    }
    for (; i < n; i++, slots += slot) {
        memcpy(o, slots, slots[slot - 1]);
        o += slots[slot - 1];
        fb_store32(ends + 4 * i, (uint32_t)(o - start));
    }
    return o;
}

/* As fb_gather, for a column sorted by partition: its rows lo .. lo + n. `idx` is read only for a bitmap. */
static uint8_t *fb_put_sorted(const fb_gather_state *g, const fb_sorted *s, int node, const uint32_t *idx, int64_t lo,
                              int64_t n, uint8_t *dst) {
    const fb_column *c = &g->cols[node];
    if (c->validity && fb_gather_bits(c->validity, c->bit0, idx, 0, n, dst) < n) {
        g->flags[node >> 3] |= (uint8_t)(1 << (node & 7));
        dst = fb_fill_up(dst, (n + 7) >> 3, g->limit);
    }
    const uint8_t *slots = s->values + lo * s->slot; /* outside of bands, slots are contiguous */
    if (g->nodes[node].kind == FB_FIXED) {
        fb_copy_over(dst, slots, n * s->slot, g->limit);
        return fb_fill_up(dst, n * s->slot, g->limit);
    }
    fb_store32(dst, 0);
    uint8_t *ends = dst + 4, *start = fb_fill_up(dst, 4 * (n + 1), g->limit);
    uint8_t *o = s->slot == 16 ? fb_close_up(slots, 16, n, ends, start, g->limit)
                               : fb_close_up(slots, 32, n, ends, start, g->limit);
    return fb_fill_up(start, o - start, g->limit);
}

/* As fb_encode, for a batch that is one band: with many partitions an element has few rows, so the cost per element
 * counts. */
static inline int64_t fb_encode_band(const fb_batch *b, const uint32_t *idx, int64_t lo, int64_t n, uint8_t *dst,
                                     int64_t room, int64_t *rows) {
    const fb_sorted *s = &b->sorted[1];
    int64_t fit = n * b->max_row_bits <= fb_budget(b, room) ? n : fb_fit(b, idx, lo, n, room);
    *rows = fit;
    if (!fit) return 0;
    fb_store64(dst + 8, 0); /* the flags of at most six nodes: no column has a bitmap */
    uint8_t *o = fb_empty_band(s->values + lo * s->apart, s->eights, s->text, fit, dst + 16, dst + room);
    fb_store32(dst + 4, (uint32_t)fit);
    fb_store32(dst, (uint32_t)(o - dst - 4));
    return o - dst;
}

/* Writes one element with as many of the n rows as fit in `room`; returns its bytes (0: not one row fits) and the
 * number of rows. `idx` lists the rows; NULL: they are lo and the following ones. With columns sorted by partition,
 * idx[0] is the row at place lo of them; if all columns are, idx is not read. */
static int64_t fb_encode(const fb_batch *b, const uint32_t *idx, int64_t lo, int64_t n, uint8_t *dst, int64_t room,
                         int64_t *rows) {
    if (idx && b->sorted && b->all_sorted == FB_ONE_BAND) return fb_encode_band(b, idx, lo, n, dst, room, rows);
    int64_t fit = fb_fit(b, idx, lo, n, room);
    *rows = fit;
    if (!fit) return 0;
    fb_gather_state g = {b->nodes, b->cols, dst + 8, dst + room};
    int64_t head = fb_whole(8 + b->flag_bytes);
    for (uint8_t *p = g.flags; p < dst + head; p += 8) fb_store64(p, 0);
    fb_store32(dst + 4, (uint32_t)fit);
    uint8_t *o = dst + head;
    for (int k = 1; k < b->nodes[0].next;) {
        int run = b->cols[k].run;
        if (idx && b->sorted && b->sorted[k].eights) {
            const fb_sorted *s = &b->sorted[k];
            o = fb_empty_band(s->values + lo * s->apart, s->eights, s->text, fit, o, g.limit);
            k += s->eights + (s->text != 0);
        } else if (idx && b->sorted && b->sorted[k].values) {
            o = fb_put_sorted(&g, &b->sorted[k], k, idx, lo, fit, o);
            k = b->nodes[k].next;
        } else if (idx && run > 1) {
            o = fb_gather_eights(&b->cols[k], run, idx, fit, o);
            k += run;
        } else {
            o = fb_gather(&g, k, idx, lo, fit, o);
            k = b->nodes[k].next;
        }
    }
    fb_store32(dst, (uint32_t)(o - dst - 4));
    return o - dst;
}

#endif

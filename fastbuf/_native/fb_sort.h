/* Sorts a batch's columns by partition in one pass through its rows, so that a chunk is copied from ranges.
 *
 * A gather of one partition after the other reads every cache line of the batch once for each of its values: with eight
 * partitions or more that is the whole batch eight times. Here all is read once, in order, and written to as many
 * places as there are partitions, whose lines stay in the first-level cache for up to a few hundred partitions. Strings
 * of up to 31 bytes go to slots of 16 or 32 bytes with their length in the last byte, in the same cache line; they are
 * packed when copied out. Columns that get no slot here are gathered.
 *
 * Neighbouring columns of 8 bytes, and a column of strings after them, share a band: a row's values are stored
 * together, so each partition has one place that is written to, not one per column, and a partition of few rows takes
 * few cache lines (fb_band.h).
 *
 * The same pass that fills the first band finds the place of each row in the sorted order: a separate loop for that
 * costs half as much again. It is stored in `places[row]`; fb_spell_order turns it into the row numbers that a
 * gather needs.
 *
 * Memory that will be written soon is prefetched (fb_soon, fb_expect). What that gains: without it a batch takes 9 %
 * longer to be put into 200 partitions, half as long again into 1,000; up to 16 no difference beyond the noise
 * (docs/explanation/what-stays.md). */
#ifndef FB_SORT_H
#define FB_SORT_H

#include "fb_band.h"
#include "fb_gather.h"
#include "fb_group.h"

/* Bytes after the last slot that copies may read. */
#define FB_SORT_SLACK 64
/* Larger batches are gathered: more memory than this is not worth keeping. */
#define FB_SORT_BYTES ((int64_t)16 << 20)

/* Bytes of a row's slot of top-level node k, or 0: the column is gathered. */
static inline int fb_slot_of(const fb_batch *b, int k) {
    const fb_node *t = &b->nodes[k];
    int64_t bits = b->cols[k].max_bits;
    if (t->kind == FB_FIXED) return t->width == 1 || t->width == 2 || t->width == 4 || t->width == 8 || t->width == 16
                                        ? t->width
                                        : 0;
    return t->kind != FB_VAR32 || bits < 0 || bits >= 8 * 32 ? 0 : bits < 8 * 16 ? 16 : 32;
}

static inline int64_t fb_room_of(int slot, int64_t rows) {
    return (rows * slot + FB_SORT_SLACK + 63) & ~(int64_t)63;
}

/* Upper bound of the bytes of all slots of a batch; 0: no column has slots. */
static int64_t fb_sort_bytes(const fb_batch *b) {
    int64_t bytes = 0;
    for (int k = 1; k < b->nodes[0].next; k = b->nodes[k].next)
        if (fb_slot_of(b, k)) bytes += fb_room_of(fb_slot_of(b, k), b->rows);
    return bytes;
}

#define FB_SORT_LOOP(T)                                                                    \
    for (int64_t i = 0; i < n; i++) {                                                      \
        memcpy(to + (int64_t)places[i] * (int64_t)sizeof(T), src + i * (int64_t)sizeof(T), sizeof(T)); \
    }                                                                                      \
    break

static void fb_sort_fixed(const uint8_t *restrict src, int width, int64_t n, const uint32_t *restrict places,
                          uint8_t *restrict to) {
    switch (width) {
    case 1: FB_SORT_LOOP(uint8_t);
    case 2: FB_SORT_LOOP(uint16_t);
    case 4: FB_SORT_LOOP(uint32_t);
    case 8: FB_SORT_LOOP(uint64_t);
    default: FB_SORT_LOOP(fb_pair);
    }
}

static inline __attribute__((always_inline)) void fb_sort_texts(const fb_column *c, int slot, int64_t n,
                                                                const uint32_t *restrict places,
                                                                uint8_t *restrict to) {
    const int32_t *o = (const int32_t *)c->offsets;
    int64_t whole = fb_whole_slots(c, slot, n);
    for (int64_t i = 0; i < n; i++) {
        uint8_t *at = to + (int64_t)places[i] * slot;
        int32_t length = o[i + 1] - o[i];
        if (i < whole)
            memcpy(at, c->data + o[i], (size_t)slot);
        else if (length)
            memcpy(at, c->data + o[i], (size_t)length);
        at[slot - 1] = (uint8_t)length;
    }
}

static void fb_sort_var(const fb_column *c, int slot, int64_t n, const uint32_t *places, uint8_t *to) {
    if (slot == 16)
        fb_sort_texts(c, 16, n, places, to);
    else
        fb_sort_texts(c, 32, n, places, to);
    if (c->validity) /* a null string has no bytes */
        for (int64_t i = 0; i < n; i++)
            if (!fb_bit(c->validity, c->bit0 + i)) to[((int64_t)places[i] + 1) * slot - 1] = 0;
}

/* Slot size of a column that may end a band, or 0; such columns are strings without a bitmap. */
static inline int fb_text_at(const fb_batch *b, int k) {
    if (k >= b->nodes[0].next || b->nodes[k].kind != FB_VAR32 || b->cols[k].validity) return 0;
    return fb_slot_of(b, k);
}

/* Whether all columns share the first one's band: then no other code needs the place of a row. */
static int fb_one_band(const fb_batch *b) {
    int m = b->n_nodes > 1 ? b->cols[1].run : 0, text = m ? fb_text_at(b, 1 + m) : 0;
    return (m > 1 || text) && 1 + m + (text != 0) == b->n_nodes;
}

/* Computes the places, if no band did. */
static inline const uint32_t *fb_known_places(fb_where *w, int64_t n) {
    if (w->next)
        for (int64_t i = 0; i < n; i++) w->places[i] = w->next[w->pids[i]]++;
    w->next = NULL;
    return w->places;
}

/* A partition's share of a batch is prefetched before its place is known if it has this many bytes, up to
 * FB_SOON_MOST: a smaller share has few lines. */
#define FB_SOON_LEAST 512

/* Fills `room`, which has fb_sort_bytes(b) bytes, and makes `sorted` point into it. `next`: where partitions begin;
 * overwritten. `places` is filled, and may be NULL if all columns share a band. `soon`, of `parts`: see fb_go_on.
 * Returns `all_sorted`. */
static int fb_sort(const fb_batch *b, const int32_t *pids, uint32_t *next, uint32_t *places, uint8_t *room,
                   fb_sorted *sorted, const fb_soon *soon, int32_t parts) {
    int64_t share = b->rows * b->mean_row_bits / 8 / parts;
    int ask = share >= FB_SOON_LEAST && share <= FB_SOON_MOST;
    fb_where w = {places, pids, next, soon, ask ? soon + parts : soon};
    int all = 1;
    for (int k = 1; k < b->nodes[0].next; k = b->nodes[k].next) {
        const fb_column *c = &b->cols[k];
        int slot = fb_slot_of(b, k), m = c->run, text = m ? fb_text_at(b, k + m) : 0;
        memset(&sorted[k], 0, sizeof sorted[k]);
        if (!slot || c->validity) all = 0;
        if (!slot) continue;
        sorted[k].values = room;
        sorted[k].slot = sorted[k].apart = slot;
        if (m > 1 || text) {
            int apart = 8 * m + text, last = k + m - !text;
            sorted[k].eights = m;
            sorted[k].text = text;
            sorted[k].apart = apart;
            for (int j = k + 1; j <= last; j++) {
                memset(&sorted[j], 0, sizeof sorted[j]);
                sorted[j].values = room + 8 * (j - k);
                sorted[j].slot = j < k + m ? 8 : text;
                sorted[j].apart = apart;
            }
            if (w.next && !places)
                for (int32_t p = 0; p < parts; p++) next[p] *= (unsigned)apart;
            fb_fill_band(c, m, text, b->rows, &w, room);
            w.next = NULL;
            w.soon = w.soon_end;
            room += fb_room_of(apart, b->rows);
            k = last;
            continue;
        }
        if (b->nodes[k].kind == FB_FIXED)
            fb_sort_fixed(c->values, slot, b->rows, fb_known_places(&w, b->rows), room);
        else
            fb_sort_var(c, slot, b->rows, fb_known_places(&w, b->rows), room);
        room += fb_room_of(slot, b->rows);
    }
    return all && fb_one_band(b) ? FB_ONE_BAND : all;
}

/* Most bytes that are prefetched. */
#define FB_EXPECT_BYTES 4096

/* Prefetches lines that will be written soon: a store to a missing line holds up all later stores. Two lines per
 * turn: one prefetch too many costs less than the loop. */
static inline void fb_expect(const void *dst, int64_t bytes) {
    const uint8_t *p = (const uint8_t *)dst;
    if (bytes > FB_EXPECT_BYTES) bytes = FB_EXPECT_BYTES;
    for (int64_t i = 0; i < bytes; i += 128) {
        __builtin_prefetch(p + i, 1);
        __builtin_prefetch(p + i + 64, 1);
    }
}

/* A partition's share of a batch, `bytes` bytes, was written at `dst`: expect the next one to be as long and to
 * follow directly, if there is room. This is a guess: the memory there is only prefetched until the place is known. */
static inline void fb_go_on(fb_soon *soon, const uint8_t *dst, int64_t bytes, int64_t room) {
    soon->at = dst + bytes;
    soon->bytes = bytes < room - bytes ? bytes : room - bytes;
}

/* Computes the rows by partition from their places. */
static void fb_spell_order(const uint32_t *restrict places, int64_t rows, uint32_t *restrict order) {
    for (int64_t i = 0; i < rows; i++) order[places[i]] = (uint32_t)i;
}

/* The same if no places were stored: `stop` is where partitions end; `next` of uint32 is overwritten. */
static void fb_order_again(const int32_t *restrict pids, int64_t rows, int32_t parts, const int64_t *restrict stop,
                           uint32_t *restrict next, uint32_t *restrict order) {
    for (int32_t p = 0; p < parts; p++) next[p] = p ? (uint32_t)stop[p - 1] : 0;
    for (int64_t i = 0; i < rows; i++) order[next[pids[i]]++] = (uint32_t)i;
}

#endif

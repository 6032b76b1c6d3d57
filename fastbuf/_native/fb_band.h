/* A band stores a row's values side by side: columns of 8 bytes that are neighbours, then a column of strings.
 *
 * fb_sort.h writes each row of a batch to its place in a band; fb_put.h turns the rows of a chunk into columns
 * again. Both do so in one pass, and with AVX2 for four rows at a time: the number of stores decides the speed.
 *
 * What it gains: without bands a batch takes 17 % longer to be put into 200 partitions, 25 % longer into 1,000, 8 %
 * longer into 16 (docs/explanation/what-stays.md). */
#ifndef FB_BAND_H
#define FB_BAND_H

#include "fb_bind.h"
#include "fb_cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* How far ahead the source is prefetched: the hardware prefetcher fails with so many streams among scattered stores. */
#define FB_BAND_AHEAD 1024

/* How many rows have `slot` bytes that may be read, whatever their length: all but the last few. */
static inline int64_t fb_whole_slots(const fb_column *c, int slot, int64_t n) {
    const int32_t *o = (const int32_t *)c->offsets;
    while (n && o[n - 1] + (int64_t)slot > c->data_bytes) n--;
    return n;
}

#define FB_BAND_BODY static inline __attribute__((always_inline))

/* ---- columns to rows ----------------------------------------------------------------------------------- */

FB_BAND_BODY void fb_band_text(const int32_t *o, const uint8_t *data, int slot, int64_t i, uint8_t *to) {
    memcpy(to, data + o[i], (size_t)slot);
    to[slot - 1] = (uint8_t)(o[i + 1] - o[i]);
}

/* Memory that chunks will be written to once all rows are in place, as far as it is known by then. */
typedef struct {
    const uint8_t *at;
    int64_t bytes;
} fb_soon;

/* Where rows go: to places[row]. The pass that fills the first band computes these places and stores them for later
 * columns: next[p] is the place of the next row of partition p; NULL: the places are known. If there is no later
 * column, there are no `places`, and `next` counts bytes. */
typedef struct {
    uint32_t *places;
    const int32_t *pids;
    uint32_t *next;
    const fb_soon *soon, *soon_end;
} fb_where;

/* Whether the band is the first one, whether places are stored, and whether `soon` is used: constant when a loop is
 * compiled. */
enum { FB_THERE, FB_FIND, FB_BYTES, FB_BYTES_AND_ASK };

/* Bytes from the start of the band to row i. */
FB_BAND_BODY uint64_t fb_place_of(uint32_t *restrict places, const int32_t *restrict pids, uint32_t *restrict next,
                                  int find, int apart, int64_t i) {
    if (!find) return (uint64_t)places[i] * (unsigned)apart;
    uint32_t place = next[pids[i]];
    if (find == FB_FIND) {
        next[pids[i]] = place + 1;
        places[i] = place;
        return (uint64_t)place * (unsigned)apart;
    }
    next[pids[i]] = place + (unsigned)apart;
    return place;
}

/* Moves rows i .. n to their places; for rows before `whole`, all bytes of a slot may be read. */
FB_BAND_BODY void fb_fill_band_body(const fb_column *cols, int m, int slot, int find, int64_t i, int64_t whole,
                                    int64_t n, const fb_where *w, uint8_t *restrict to) {
    uint32_t *restrict places = w->places, *restrict next = w->next;
    const int32_t *restrict pids = w->pids;
    const int apart = 8 * m + slot;
    const int32_t *o = slot ? (const int32_t *)cols[m].offsets : NULL;
    const uint8_t *src[FB_MAX_RUN], *data = slot ? cols[m].data : NULL;
    for (int j = 0; j < m; j++) src[j] = cols[j].values;
    for (; i < n; i++) {
        uint8_t *at = to + fb_place_of(places, pids, next, find, apart, i);
        if (!(i & 7)) {
            for (int j = 0; j < m; j++) __builtin_prefetch(src[j] + 8 * i + FB_BAND_AHEAD);
            if (slot) __builtin_prefetch(data + o[i] + FB_BAND_AHEAD);
        }
        for (int j = 0; j < m; j++) memcpy(at + 8 * j, src[j] + 8 * i, 8);
        if (slot && i < whole)
            fb_band_text(o, data, slot, i, at + 8 * m);
        else if (slot) {
            if (o[i + 1] > o[i]) memcpy(at + 8 * m, data + o[i], (size_t)(o[i + 1] - o[i]));
            at[apart - 1] = (uint8_t)(o[i + 1] - o[i]);
        }
    }
}

/* ---- rows to columns ----------------------------------------------------------------------------------- */

/* Turns n rows from `rows` on into columns: numbers go to `dst`, one column after the other, the ends of strings to
 * `ends`, and their bytes to `start`. */
typedef struct {
    const uint8_t *rows, *limit;
    uint8_t *dst, *ends, *start;
    int64_t n;
} fb_band_out;

/* Rows i .. n, with the strings' bytes from `o` on; returns where they end. */
FB_BAND_BODY uint8_t *fb_empty_band_body(const fb_band_out *b, int m, int slot, int64_t i, uint8_t *o) {
    const int apart = 8 * m + slot;
    const uint8_t *rows = b->rows + i * apart, *limit = b->limit;
    uint8_t *dst = b->dst, *ends = b->ends, *start = b->start;
    for (int64_t n = b->n; i < n; i++, rows += apart) {
        for (int j = 0; j < m; j++) memcpy(dst + 8 * (j * n + i), rows + 8 * j, 8);
        if (!slot) continue;
        if (limit - o >= slot)
            memcpy(o, rows + 8 * m, (size_t)slot);
        else
            memcpy(o, rows + 8 * m, rows[apart - 1]);
        o += rows[apart - 1];
        fb_store32(ends + 4 * i, (uint32_t)(o - start));
    }
    return o;
}

/* ---- four rows at once --------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#define FB_BAND_AVX2 __attribute__((target("avx2")))

/* Transposes four words of four rows: word j of row k becomes word k of row j. */
FB_BAND_AVX2 FB_BAND_BODY void fb_turn(__m256i r[4]) {
    __m256i a = _mm256_unpacklo_epi64(r[0], r[1]), b = _mm256_unpackhi_epi64(r[0], r[1]);
    __m256i c = _mm256_unpacklo_epi64(r[2], r[3]), d = _mm256_unpackhi_epi64(r[2], r[3]);
    r[0] = _mm256_permute2x128_si256(a, c, 0x20);
    r[1] = _mm256_permute2x128_si256(b, d, 0x20);
    r[2] = _mm256_permute2x128_si256(a, c, 0x31);
    r[3] = _mm256_permute2x128_si256(b, d, 0x31);
}

/* Whether a row has at least 32 bytes: its numbers are moved together with the start of its string. */
#define FB_BAND_WIDE(M, SLOT) (8 * (M) + (SLOT) >= 32)

/* Handles the first `whole` rows in groups of four; returns how many rows. A row's string overwrites what the move
 * of its numbers wrote after them. The lines that will be written soon are prefetched into the second-level cache,
 * four lines for four rows, which need fewer: here most time is spent in the first-level cache, while later code
 * does nothing but wait for these lines. */
FB_BAND_AVX2 FB_BAND_BODY int64_t fb_fill_band_wide(const fb_column *cols, int m, int slot, int find, int64_t whole,
                                                    const fb_where *w, uint8_t *restrict to) {
    uint32_t *restrict places = w->places, *restrict next = w->next;
    const int32_t *restrict pids = w->pids;
    const int apart = 8 * m + slot;
    const int32_t *o = slot ? (const int32_t *)cols[m].offsets : NULL;
    const uint8_t *src[FB_MAX_RUN], *data = slot ? cols[m].data : NULL;
    int64_t i = 0;
    const fb_soon *soon = w->soon, *soon_end = w->soon_end;
    const uint8_t *line = NULL, *stop = NULL;
    const __m128i last = _mm_set_epi8(-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    for (int j = 0; j < m; j++) src[j] = cols[j].values;
    for (; i + 4 <= whole; i += 4) {
        __m256i r[4];
        uint64_t place[4];
        for (int k = 0; k < 4; k++) place[k] = fb_place_of(places, pids, next, find, apart, i + k);
        for (int j = 0; j < 4; j++)
            r[j] = j < m ? _mm256_loadu_si256((const __m256i *)(src[j] + 8 * i)) : _mm256_setzero_si256();
        for (int j = 0; j < m; j++) __builtin_prefetch(src[j] + 8 * i + FB_BAND_AHEAD);
        if (slot) __builtin_prefetch(data + o[i] + FB_BAND_AHEAD);
        if (find == FB_FIND || find == FB_BYTES_AND_ASK) {
            if (line < stop) {
                for (int k = 0; k < 4; k++) __builtin_prefetch(line + 64 * k, 0, 2);
                line += 256;
            } else if (soon < soon_end) {
                line = soon->at;
                stop = line + soon->bytes;
                soon++;
            }
        }
        fb_turn(r);
        for (int k = 0; k < 4; k++) _mm256_storeu_si256((__m256i *)(to + place[k]), r[k]);
        if (!slot) continue;
        const int32_t *from = o + i;
        __m128i lengths = _mm_sub_epi32(_mm_loadu_si128((const __m128i *)(from + 1)),
                                        _mm_loadu_si128((const __m128i *)from));
        for (int k = 0; k < 4; k++) {
            uint8_t *at = to + place[k] + 8 * m;
            if (slot == 32) memcpy(at, data + from[k], 16);
            /* The last byte of the slot is the length. */
            __m128i text = _mm_loadu_si128((const __m128i *)(data + from[k] + slot - 16));
            __m128i length = _mm_shuffle_epi8(lengths, _mm_set1_epi8((char)(4 * k)));
            _mm_storeu_si128((__m128i *)(at + slot - 16), _mm_blendv_epi8(text, length, last));
        }
    }
    return i;
}

/* Handles groups of four rows while there is room; returns how many rows, and moves *o past their strings. */
FB_BAND_AVX2 FB_BAND_BODY int64_t fb_empty_band_wide(const fb_band_out *b, int m, int slot, uint8_t **o) {
    const int apart = 8 * m + slot;
    const uint8_t *rows = b->rows, *limit = b->limit;
    uint8_t *dst = b->dst, *ends = b->ends, *start = b->start, *at = *o;
    int64_t i = 0, n = b->n;
    for (; i + 4 <= n && limit - at >= 4 * slot; i += 4, rows += 4 * apart) {
        __m256i r[4];
        for (int k = 0; k < 4; k++) r[k] = _mm256_loadu_si256((const __m256i *)(rows + k * apart));
        fb_turn(r);
        for (int j = 0; j < m; j++) _mm256_storeu_si256((__m256i *)(dst + 8 * (j * n + i)), r[j]);
        if (!slot) continue;
        uint32_t end[4], last = (uint32_t)(at - start);
        for (int k = 0; k < 4; k++) {
            memcpy(start + last, rows + k * apart + 8 * m, (size_t)slot);
            end[k] = last += rows[(k + 1) * apart - 1];
        }
        memcpy(ends + 4 * i, end, 16);
        at = start + last;
    }
    *o = at;
    return i;
}
#endif

/* ---- one function per number of columns and size of slot ------------------------------------------------ */

/* Columns of 8 bytes, and the slot size of the strings after them: all combinations that fb_sort makes. */
#define FB_BANDS(BAND) \
    BAND(2, 0) BAND(3, 0) BAND(4, 0) BAND(1, 16) BAND(2, 16) BAND(3, 16) BAND(4, 16) BAND(1, 32) BAND(2, 32) \
    BAND(3, 32) BAND(4, 32)

#define FB_FILL_BAND(M, SLOT) \
    case M + SLOT:                                                        \
        if (!w->next)                                                       \
            fb_fill_band_body(cols, M, SLOT, FB_THERE, 0, whole, n, w, to); \
        else if (w->places)                                                 \
            fb_fill_band_body(cols, M, SLOT, FB_FIND, 0, whole, n, w, to);  \
        else                                                                \
            fb_fill_band_body(cols, M, SLOT, FB_BYTES, 0, whole, n, w, to); \
        break;
#define FB_EMPTY_BAND(M, SLOT) \
    case M + SLOT: return fb_empty_band_body(b, M, SLOT, 0, b->start);

static void fb_fill_band_base(const fb_column *cols, int m, int slot, int64_t whole, int64_t n, const fb_where *w,
                              uint8_t *to) {
    switch (m + slot) { FB_BANDS(FB_FILL_BAND) }
}

static uint8_t *fb_empty_band_base(const fb_band_out *b, int m, int slot) {
    switch (m + slot) { FB_BANDS(FB_EMPTY_BAND) }
    return b->start;
}

#if defined(__x86_64__)
#define FB_FILL_BAND_WAY(M, SLOT, FIND)                                                                        \
    fb_fill_band_body(cols, M, SLOT, FIND,                                                                     \
                      FB_BAND_WIDE(M, SLOT) ? fb_fill_band_wide(cols, M, SLOT, FIND, whole, w, to) : 0, whole, \
                      n, w, to)
#define FB_FILL_BAND_WIDE(M, SLOT)                      \
    case M + SLOT:                                      \
        if (!w->next)                                   \
            FB_FILL_BAND_WAY(M, SLOT, FB_THERE);        \
        else if (w->places)                             \
            FB_FILL_BAND_WAY(M, SLOT, FB_FIND);         \
        else if (w->soon == w->soon_end)                \
            FB_FILL_BAND_WAY(M, SLOT, FB_BYTES);        \
        else                                            \
            FB_FILL_BAND_WAY(M, SLOT, FB_BYTES_AND_ASK); \
        break;
#define FB_EMPTY_BAND_WIDE(M, SLOT)                                                   \
    case M + SLOT: {                                                                  \
        uint8_t *o = b->start;                                                        \
        int64_t i = FB_BAND_WIDE(M, SLOT) ? fb_empty_band_wide(b, M, SLOT, &o) : 0;   \
        return fb_empty_band_body(b, M, SLOT, i, o);                                  \
    }

FB_BAND_AVX2 static void fb_fill_band_avx2(const fb_column *cols, int m, int slot, int64_t whole, int64_t n,
                                           const fb_where *w, uint8_t *to) {
    switch (m + slot) { FB_BANDS(FB_FILL_BAND_WIDE) }
}

FB_BAND_AVX2 static uint8_t *fb_empty_band_avx2(const fb_band_out *b, int m, int slot) {
    switch (m + slot) { FB_BANDS(FB_EMPTY_BAND_WIDE) }
    return b->start;
}
#endif

/* Moves n rows of m columns of 8 bytes, and of the strings after them if `slot` is not 0, to their places. */
static void fb_fill_band(const fb_column *cols, int m, int slot, int64_t n, const fb_where *w, uint8_t *to) {
    int64_t whole = slot ? fb_whole_slots(cols + m, slot, n) : n;
#if defined(__x86_64__)
    if (fb_has_avx2()) {
        fb_fill_band_avx2(cols, m, slot, whole, n, w, to);
        return;
    }
#endif
    fb_fill_band_base(cols, m, slot, whole, n, w, to);
}

/* Writes n rows of a band, from `rows` on, as parts of a chunk at `dst`; returns where they end. */
static uint8_t *fb_empty_band(const uint8_t *rows, int m, int slot, int64_t n, uint8_t *dst, const uint8_t *limit) {
    fb_band_out b = {rows, limit, dst, dst + 8 * m * n + 4, dst + 8 * m * n, n};
    uint8_t *o;
    if (slot) {
        fb_store32(b.start, 0);
        b.start = fb_fill_up(b.start, 4 * (n + 1), limit);
    }
#if defined(__x86_64__)
    if (fb_has_avx2())
        o = fb_empty_band_avx2(&b, m, slot);
    else
#endif
        o = fb_empty_band_base(&b, m, slot);
    return slot ? fb_fill_up(b.start, o - b.start, limit) : b.start;
}

#endif

/* Columns as small C structs: the plan of a schema (fb_node), and where the buffers of a batch are (fb_column).
 *
 * A schema is an array of nodes in preorder: the children of node k begin at k + 1, and node k's subtree ends before
 * nodes[k].next. The scatter, the assembler and the hash all walk this array, so none of them needs special code for
 * nested types.
 *
 * Bits are numbered as in Arrow: bit i is (byte[i / 8] >> (i % 8)) & 1, and 1 means valid.
 */
#ifndef FB_COLUMNS_H
#define FB_COLUMNS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fb_arrow_abi.h"
#include "fb_copy.h"

enum fb_kind { FB_NULL, FB_BOOL, FB_FIXED, FB_VAR32, FB_VAR64, FB_LIST32, FB_LIST64, FB_FSL, FB_STRUCT };

/* Buffers of an Arrow array, by kind. */
static const uint8_t fb_buffers_of[] = {0, 2, 2, 3, 3, 2, 2, 1, 1};

typedef struct {
    uint8_t kind;     /* enum fb_kind */
    uint8_t no_nulls; /* nulls are refused: a field that is not nullable, a map's entries and keys */
    uint8_t dynamic;  /* row sizes differ (there is a string or list in the subtree) */
    uint8_t hash;     /* enum fb_hash: how Spark hashes it */
    int32_t width;    /* FB_FIXED: bytes of a value; FB_FSL: elements of a row */
    int32_t next;     /* the node after this subtree */
    int32_t text;     /* FB_VAR: the bytes must be UTF-8 */
    int64_t bits; /* bits of the fixed part of one row, including children of structs and fixed-size lists, without
                   * validity */
} fb_node;

#define FB_MAX_RUN 4

typedef struct {
    const uint8_t *validity; /* NULL: no nulls among the rows of this batch */
    const uint8_t *values;   /* FB_FIXED: value of row 0; FB_BOOL: the bits, row 0 at bit `bit0` */
    const uint8_t *data;     /* FB_VAR: the bytes that the offsets refer to */
    const void *offsets;     /* FB_VAR, FB_LIST: offset of row 0 (int32 or int64) */
    int64_t bit0;            /* bit of row 0 in `validity` and in a bool's `values` */
    int64_t rows;            /* rows that may be read */
    int64_t data_bytes;      /* FB_VAR: bytes at `data` that may be read */
    int64_t bits;            /* as fb_node.bits, plus this batch's validity bits */
    int64_t max_bits;        /* variable part of the longest row, for top-level VAR; -1: not known */
    int32_t run;             /* number of columns from this one on that have 8 bytes and no nulls: FB_MAX_RUN at most */
    uint32_t *scratch;       /* FB_LIST, FB_FSL: row numbers of the child, if they must be listed */
} fb_column;

static inline int fb_bit(const uint8_t *bits, int64_t i) { return (bits[i >> 3] >> (i & 7)) & 1; }

static inline uint64_t fb_load64(const void *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static inline uint32_t fb_load32(const void *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static inline void fb_store32(void *p, uint32_t v) { memcpy(p, &v, 4); }

static inline void fb_store64(void *p, uint64_t v) { memcpy(p, &v, 8); }

/* Bytes of a part of a chunk with its padding: every part starts at a multiple of 8 in its element. */
static inline int64_t fb_whole(int64_t bytes) { return (bytes + 7) & ~(int64_t)7; }

/* Writes zeros after a part of `bytes` bytes, up to the next part. Writes a whole word if there is room before
 * `limit`: the next part overwrites it. Nothing is read back: a load of bytes just written by many small stores
 * would wait until all of them are in the cache, and the next part would wait too. */
static inline uint8_t *fb_fill_up(uint8_t *part, int64_t bytes, const uint8_t *limit) {
    uint8_t *next = part + fb_whole(bytes);
    if (limit - next >= 8)
        fb_store64(part + bytes, 0);
    else
        for (uint8_t *p = part + bytes; p < next; p++) *p = 0;
    return next;
}

/* Number of ones among `n` bits from bit `from` on. Reads only bytes that contain one of these bits. */
static inline int64_t fb_count_bits(const uint8_t *bits, int64_t from, int64_t n) {
    int64_t ones = 0, i = 0;
    while (i < n && ((from + i) & 7)) ones += fb_bit(bits, from + i++);
    const uint8_t *p = bits + ((from + i) >> 3);
    for (; i + 64 <= n; i += 64, p += 8) ones += __builtin_popcountll(fb_load64(p));
    for (; i + 8 <= n; i += 8, p++) ones += __builtin_popcount(*p);
    for (; i < n; i++) ones += fb_bit(bits, from + i);
    return ones;
}

/* Copies `n` bits between any two bit positions. Bits of `dst` before `to` keep their value; later bits in the last
 * byte become 0. `dst` is written up to byte (to + n - 1) / 8, and `src` is read likewise. */
static inline void fb_copy_bits(uint8_t *dst, int64_t to, const uint8_t *src, int64_t from, int64_t n) {
    int64_t i = 0;
    if (n <= 0) return;
    if (to & 7) {
        uint8_t *d = dst + (to >> 3);
        int at = (int)(to & 7);
        unsigned b = *d & ((1u << at) - 1);
        for (; i < n && at < 8; i++, at++) b |= (unsigned)fb_bit(src, from + i) << at;
        *d = (uint8_t)b;
    }
    if (i == n) return;
    uint8_t *d = dst + ((to + i) >> 3);
    const uint8_t *s = src + ((from + i) >> 3);
    int shift = (int)((from + i) & 7);
    int64_t left = n - i;
    if (!shift) {
        fb_copy(d, s, left >> 3);
        d += left >> 3;
        s += left >> 3;
    } else {
        for (int64_t k = left >> 3; k > 0; k--, d++, s++) *d = (uint8_t)((s[0] >> shift) | (s[1] << (8 - shift)));
    }
    if (left & 7) {
        unsigned b = 0;
        for (int k = 0; k < (int)(left & 7); k++) b |= (unsigned)fb_bit(s, shift + k) << k;
        *d = (uint8_t)b;
    }
}

/* Sets `n` bits from bit `to` on; earlier bits keep their value, later ones in the last byte are undefined. */
static inline void fb_set_bits(uint8_t *dst, int64_t to, int64_t n) {
    if (n <= 0) return;
    uint8_t *d = dst + (to >> 3), *last = dst + ((to + n - 1) >> 3);
    *d = (uint8_t)((*d & ((1u << (to & 7)) - 1)) | (0xFFu << (to & 7)));
    if (last > d) memset(d + 1, 0xFF, (size_t)(last - d));
}

static inline int64_t fb_var_start(const fb_node *t, const fb_column *c, int64_t i) {
    return (t->kind == FB_VAR32 || t->kind == FB_LIST32) ? ((const int32_t *)c->offsets)[i]
                                                         : ((const int64_t *)c->offsets)[i];
}

static inline int fb_is_valid(const fb_column *c, int64_t i) {
    return !c->validity || fb_bit(c->validity, c->bit0 + i);
}

#endif

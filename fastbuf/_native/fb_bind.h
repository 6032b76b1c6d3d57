/* Binds the arrays of an imported batch to the nodes of a plan: pointers are moved to row 0 once, so the gather
 * needs no offsets, and the bits per row are counted for the fit. */
#ifndef FB_BIND_H
#define FB_BIND_H

#include "fb_offsets.h"

/* A column sorted by partition: see fb_sort.h. */
typedef struct {
    uint8_t *values; /* slots of `slot` bytes, one for each row; NULL: the column is gathered */
    int64_t slot;    /* FB_VAR: the last byte of a slot is the length of its string */
    int64_t apart;   /* bytes from one row's slot to the next */
    int32_t eights;  /* for the first column of a band: its number of columns of 8 bytes; else 0 */
    int32_t text;    /* the slot size of the strings after them; 0: there are none */
} fb_sorted;

#define FB_ONE_BAND 2

typedef struct {
    const fb_node *nodes;
    fb_column *cols;
    const fb_sorted *sorted; /* one per node; NULL: all columns are gathered */
    int32_t all_sorted;      /* no column is gathered or has a bitmap, so row numbers are not read; FB_ONE_BAND: all
                              * share one band */
    int32_t n_nodes;
    int32_t flag_bytes;   /* one bit for each node: it sends a validity bitmap */
    int64_t rows;
    int64_t row_bits;     /* bits that every row takes */
    int64_t max_row_bits; /* upper bound of a row's bits; -1: not known */
    int64_t mean_row_bits; /* average bits of a row, from top-level strings and fixed columns; only a guess */
    int64_t overhead;     /* bytes of a chunk besides its rows, including the padding of each part */
    int64_t slack;        /* the part of it that is not in the bits of rows */
    int64_t max_element;  /* most bytes of an element: its u32 ends must be able to hold all elements of a list */
    int32_t bad_node;     /* for the error */
    int32_t needs_scratch;
} fb_batch;

enum fb_bind_error {
    FB_BIND_OK = 0,
    FB_BIND_SHAPE = -1,   /* buffers, children or lengths do not match the format */
    FB_BIND_NULLS = -2,   /* nulls where the schema allows none */
    FB_BIND_LARGE = -3,   /* more rows than a uint32 can number */
    FB_BIND_OFFSETS = -4  /* offsets in use decrease, or are negative */
};

/* The longest of n values: the largest difference of n + 1 offsets. A decrease gives a huge unsigned length. */
static inline int64_t fb_longest(const fb_node *t, const void *offsets, int64_t n) {
    uint64_t most = 0;
    if (t->kind == FB_VAR32 || t->kind == FB_LIST32) {
        most = fb_longest32((const int32_t *)offsets, n);
        if (most > INT32_MAX) return -1;
    } else {
        const int64_t *o = (const int64_t *)offsets;
        for (int64_t i = 0; i < n; i++) {
            uint64_t l = (uint64_t)o[i + 1] - (uint64_t)o[i];
            most = l > most ? l : most;
        }
        if (most > (uint64_t)INT64_MAX) return -1;
    }
    return (int64_t)most;
}

static inline int fb_bad(fb_batch *b, int node, int error) {
    b->bad_node = node;
    return error;
}

/* Upper bounds of what parts take besides the bits of their rows: a bitmap is rounded up to bytes, every part to a
 * multiple of 8, and there is one offset more than rows. */
enum { FB_SLACK_BITS = 8, FB_SLACK_OFFSETS = 8, FB_SLACK_BYTES = 7 };

/* Row r of `node` is element a->offset + base + r of the array; rows lo <= r < hi are in use. */
static int fb_bind(fb_batch *b, int node, const struct ArrowArray *a, int64_t base, int64_t lo, int64_t hi) {
    const fb_node *t = &b->nodes[node];
    fb_column *c = &b->cols[node];
    int children = 0, error;
    for (int k = node + 1; k < t->next; k = b->nodes[k].next) children++;
    memset(c, 0, sizeof *c);
    c->max_bits = t->dynamic ? -1 : 0;
    if (a->release == NULL || a->dictionary || a->n_children != children || a->offset < 0 || lo < 0 || hi < lo)
        return fb_bad(b, node, FB_BIND_SHAPE);
    /* Some old writers give a null array one buffer. */
    if (t->kind == FB_NULL ? a->n_buffers > 1 : a->n_buffers != fb_buffers_of[t->kind])
        return fb_bad(b, node, FB_BIND_SHAPE);
    if (base + hi > a->length) return fb_bad(b, node, FB_BIND_SHAPE);
    c->rows = hi;
    int64_t first = a->offset + base;
    c->bit0 = first;
    if (t->kind != FB_NULL && a->null_count != 0 && hi > lo && a->buffers[0] &&
        fb_count_bits((const uint8_t *)a->buffers[0], first + lo, hi - lo) != hi - lo)
        c->validity = (const uint8_t *)a->buffers[0];
    if (t->no_nulls && (c->validity || (t->kind == FB_NULL && hi > lo))) return fb_bad(b, node, FB_BIND_NULLS);
    if (c->validity) {
        c->bits++;
        b->slack += FB_SLACK_BITS;
    }
    switch (t->kind) {
    case FB_NULL: break;
    case FB_BOOL:
        c->bits += 1;
        b->slack += FB_SLACK_BITS;
        c->values = (const uint8_t *)a->buffers[1];
        if (hi > lo && !c->values) return fb_bad(b, node, FB_BIND_SHAPE);
        break;
    case FB_FIXED:
        c->bits += 8 * (int64_t)t->width;
        b->slack += t->width % 8 ? FB_SLACK_BYTES : 0;
        c->values = (const uint8_t *)a->buffers[1];
        if (c->values)
            c->values += first * t->width;
        else if (hi > lo && t->width)
            return fb_bad(b, node, FB_BIND_SHAPE);
        break;
    case FB_VAR32:
    case FB_VAR64:
    case FB_LIST32:
    case FB_LIST64: {
        int wide = t->kind == FB_VAR64 || t->kind == FB_LIST64;
        const uint8_t *offsets = (const uint8_t *)a->buffers[1];
        int64_t from = 0, to = 0, longest = 0;
        c->bits += 32;
        b->slack += FB_SLACK_OFFSETS;
        if (hi > lo) {
            if (!offsets) return fb_bad(b, node, FB_BIND_SHAPE);
            c->offsets = offsets + first * (wide ? 8 : 4);
            from = fb_var_start(t, c, lo);
            to = fb_var_start(t, c, hi);
            longest = fb_longest(t, (const uint8_t *)c->offsets + lo * (wide ? 8 : 4), hi - lo);
            if (from < 0 || to < from || longest < 0) return fb_bad(b, node, FB_BIND_OFFSETS);
        }
        if (t->kind == FB_VAR32 || t->kind == FB_VAR64) {
            b->slack += FB_SLACK_BYTES;
            c->data = (const uint8_t *)a->buffers[2];
            c->data_bytes = to;
            if (to > from && !c->data) return fb_bad(b, node, FB_BIND_SHAPE);
            c->max_bits = longest > INT64_MAX / 8 ? -1 : longest * 8;
        } else {
            if ((error = fb_bind(b, node + 1, a->children[0], 0, from, to))) return error;
            const fb_column *child = &b->cols[node + 1];
            if (b->nodes[node + 1].kind != FB_FIXED || child->validity) {
                if (to > UINT32_MAX) return fb_bad(b, node, FB_BIND_LARGE);
                b->needs_scratch = 1;
            }
            if (!b->nodes[node + 1].dynamic && longest < (INT64_MAX >> 40) && child->bits < ((int64_t)1 << 38))
                c->max_bits = longest * child->bits;
        }
        break;
    }
    case FB_FSL:
        error = fb_bind(b, node + 1, a->children[0], first * t->width, lo * t->width, hi * t->width);
        if (error) return error;
        c->bits += t->width * b->cols[node + 1].bits;
        if (b->nodes[node + 1].kind != FB_FIXED || b->cols[node + 1].validity) {
            if (hi * t->width > UINT32_MAX) return fb_bad(b, node, FB_BIND_LARGE);
            b->needs_scratch = 1;
        }
        break;
    case FB_STRUCT:
        for (int k = node + 1, i = 0; k < t->next; k = b->nodes[k].next, i++) {
            if ((error = fb_bind(b, k, a->children[i], first, lo, hi))) return error;
            c->bits += b->cols[k].bits;
        }
        break;
    }
    return FB_BIND_OK;
}

/* Rows of the child for which a chunk may need a list of row numbers; the caller allocates `scratch` for them. */
static inline int64_t fb_scratch_rows(const fb_batch *b, int node) {
    const fb_node *t = &b->nodes[node];
    if (t->kind != FB_LIST32 && t->kind != FB_LIST64 && t->kind != FB_FSL) return 0;
    if (b->nodes[node + 1].kind == FB_FIXED && !b->cols[node + 1].validity) return 0;
    return b->cols[node + 1].rows;
}

/* Node 0 is the batch itself, a struct without nulls. */
static int fb_bind_batch(fb_batch *b, const struct ArrowArray *a) {
    b->slack = 0;
    b->needs_scratch = 0;
    b->rows = a->length;
    if (a->length < 0 || a->length > UINT32_MAX) return fb_bad(b, 0, FB_BIND_LARGE);
    int error = fb_bind(b, 0, a, 0, 0, a->length);
    if (error) return error;
    b->row_bits = b->cols[0].bits;
    b->max_row_bits = b->mean_row_bits = b->row_bits;
    for (int k = 1; k < b->nodes[0].next; k = b->nodes[k].next) {
        const fb_node *t = &b->nodes[k];
        const fb_column *c = &b->cols[k];
        if (b->max_row_bits >= 0)
            b->max_row_bits = c->max_bits < 0 || c->max_bits > (int64_t)1 << 40 ? -1 : b->max_row_bits + c->max_bits;
        if ((t->kind == FB_VAR32 || t->kind == FB_VAR64) && b->rows)
            b->mean_row_bits += 8 * (c->data_bytes - fb_var_start(t, c, 0)) / b->rows;
    }
    for (int k = b->n_nodes - 1; k > 0; k--) {
        int wide = b->nodes[k].kind == FB_FIXED && b->nodes[k].width == 8 && !b->cols[k].validity;
        int next = k + 1 < b->n_nodes ? b->cols[k + 1].run : 0;
        b->cols[k].run = !wide ? 0 : next < FB_MAX_RUN ? next + 1 : FB_MAX_RUN;
    }
    b->flag_bytes = (b->n_nodes + 7) / 8;
    b->overhead = fb_whole(8 + b->flag_bytes) + b->slack;
    return FB_BIND_OK;
}

#endif

/* Appends elements to growing columns, and hands the columns over as an ArrowArray.
 *
 * A trust boundary: the payload may be anything. fb_parse walks all of it and compares every length with the bytes
 * left before anything is copied or allocated, so a refused payload leaves the columns unchanged. */
#ifndef FB_APPEND_H
#define FB_APPEND_H

#include "fb_fit.h"
#include "fb_utf8.h"

/* So that one large batch does not make every later one large. */
#define FB_MAX_HINT ((int64_t)4 << 20)

typedef struct {
    uint8_t *data;
    int64_t bytes; /* allocated */
    int64_t hint;  /* first allocation: size of the last batch */
} fb_buffer;

typedef struct {
    fb_buffer validity; /* allocated with the first chunk that has nulls */
    fb_buffer values;   /* FB_FIXED, FB_BOOL: values; FB_VAR: the bytes */
    fb_buffer offsets;  /* FB_VAR, FB_LIST: rows + 1 of int32 or int64 */
    int64_t rows;
    int64_t nulls;
    int64_t end; /* FB_VAR: bytes so far; FB_LIST: rows of the child so far */
} fb_out;

typedef struct {
    const uint8_t *validity; /* NULL: the chunk has no nulls in this column */
    const uint8_t *body;     /* values, or offsets: rows + 1 of uint32, the first is 0 */
    const uint8_t *bytes;    /* FB_VAR: the bytes that the offsets refer to */
    int64_t rows;
    int64_t total; /* the last offset */
} fb_piece;

enum fb_append_error {
    FB_APPEND_OK = 0,
    FB_APPEND_SHORT = -1,  /* a column needs more bytes than are left */
    FB_APPEND_FALL = -2,   /* an offset is below the one before it, or the first is not 0 */
    FB_APPEND_NULLS = -3,  /* nulls where the schema allows none */
    FB_APPEND_FLAGS = -4,  /* a flag of a node that has no bitmap */
    FB_APPEND_EXTRA = -5,  /* bytes after the last column */
    FB_APPEND_ROWS = -6,   /* more rows than a chunk may claim */
    FB_APPEND_OFFSETS = -7, /* int32 offsets would pass 2 GiB */
    FB_APPEND_MEMORY = -8,
    FB_APPEND_PADDING = -9, /* padding that is not 0 */
    FB_APPEND_TEXT = -10    /* text that is not UTF-8 */
};

typedef struct {
    const fb_node *nodes;
    fb_out *outs;
    fb_piece *pieces;
    int32_t n_nodes;
    int32_t believed; /* the caller vouches for offsets, padding and text: only lengths are checked */
    int32_t own;      /* this process wrote it, from batches: text is not checked */
    const uint8_t *flags;
    const uint8_t *cur, *end;
    int32_t bad_node; /* for the error: the node, the bytes it needed and the bytes left */
    int64_t need, left;
} fb_assembly;

static inline int fb_refuse(fb_assembly *s, int node, int error, int64_t need) {
    s->bad_node = node;
    s->need = need;
    s->left = s->end - s->cur;
    return error;
}

/* Steps over a part of `bytes` bytes and its padding, and sets *part to its start. */
static inline int fb_part(fb_assembly *s, int node, int64_t bytes, const uint8_t **part) {
    int64_t whole = fb_whole(bytes);
    if (s->end - s->cur < whole) return fb_refuse(s, node, FB_APPEND_SHORT, whole);
    *part = s->cur;
    s->cur += whole;
    if (s->believed || !(bytes & 7)) return FB_APPEND_OK;
    if (fb_load64(s->cur - 8) >> (8 * (bytes & 7))) return fb_refuse(s, node, FB_APPEND_PADDING, 0);
    return FB_APPEND_OK;
}

static int fb_check(fb_assembly *s, int node, int64_t n) {
    const fb_node *t = &s->nodes[node];
    fb_piece *p = &s->pieces[node];
    int error;
    p->rows = n;
    if (!n) return FB_APPEND_OK;
    /* This check also keeps every product below in range: n * bits <= 8 * (a u32 length). */
    int64_t bits;
    if (__builtin_mul_overflow(n, t->bits, &bits)) bits = INT64_MAX;
    if (bits > (s->end - s->cur) * 8) return fb_refuse(s, node, FB_APPEND_SHORT, (bits >> 3) + ((bits & 7) != 0));
    if (fb_bit(s->flags, node)) {
        if (t->no_nulls) return fb_refuse(s, node, FB_APPEND_NULLS, 0);
        if (t->kind == FB_NULL) return fb_refuse(s, node, FB_APPEND_FLAGS, 0);
        if ((error = fb_part(s, node, (n + 7) >> 3, &p->validity))) return error;
    }
    switch (t->kind) {
    case FB_BOOL: return fb_part(s, node, (n + 7) >> 3, &p->body);
    case FB_FIXED: return fb_part(s, node, n * t->width, &p->body);
    case FB_VAR32:
    case FB_VAR64:
    case FB_LIST32:
    case FB_LIST64: {
        int narrow = t->kind == FB_VAR32 || t->kind == FB_LIST32;
        if ((error = fb_part(s, node, 4 * (n + 1), &p->body))) return error;
        if (!s->believed && (fb_load32(p->body) || fb_offsets_fall(p->body, n)))
            return fb_refuse(s, node, FB_APPEND_FALL, 0);
        p->total = fb_load32(p->body + 4 * n);
        if (t->kind == FB_LIST32 || t->kind == FB_LIST64)
            error = fb_check(s, node + 1, p->total);
        else
            error = fb_part(s, node, p->total, &p->bytes);
        if (error) return error;
        if (t->text && !s->believed && !s->own && p->total) {
            int64_t row = fb_not_utf8(p->bytes, p->body, n, p->validity);
            if (row >= 0) return fb_refuse(s, node, FB_APPEND_TEXT, row);
        }
        /* Check this last: a total without the bytes to match is corrupt data, and no reason to take batches
         * earlier. */
        if (narrow && s->outs[node].end + p->total > INT32_MAX)
            return fb_refuse(s, node, FB_APPEND_OFFSETS, s->outs[node].end + p->total);
        return FB_APPEND_OK;
    }
    case FB_FSL: return fb_check(s, node + 1, n * t->width);
    case FB_STRUCT:
        for (int k = node + 1; k < t->next; k = s->nodes[k].next)
            if ((error = fb_check(s, k, n))) return error;
    }
    return FB_APPEND_OK;
}

/* Finds the parts of one payload (an element without its prefix), or an error in it. */
static int fb_parse(fb_assembly *s, const uint8_t *payload, int64_t bytes) {
    int error, flag_bytes = (s->n_nodes + 7) / 8;
    int64_t head = fb_whole(8 + flag_bytes) - 4;
    s->cur = payload;
    s->end = payload + bytes;
    if (bytes < head) return fb_refuse(s, 0, FB_APPEND_SHORT, head);
    int64_t rows = fb_load32(payload);
    s->flags = payload + 4;
    s->cur = payload + head;
    if (!s->nodes[0].bits && rows > FB_MAX_EMPTY_ROWS) return fb_refuse(s, 0, FB_APPEND_ROWS, rows);
    if (fb_bit(s->flags, 0)) return fb_refuse(s, 0, FB_APPEND_FLAGS, 0);
    /* Flag bits beyond the last node must be 0: the flags are whole words, and only the last one has such bits. */
    if (s->n_nodes & 63 && fb_load64(s->cur - 8) >> (s->n_nodes & 63)) return fb_refuse(s, 0, FB_APPEND_FLAGS, 0);
    memset(s->pieces, 0, (size_t)s->n_nodes * sizeof(fb_piece)); /* fb_check skips nodes below an empty list */
    if ((error = fb_check(s, 0, rows))) return error;
    if (s->cur < s->end) return fb_refuse(s, 0, FB_APPEND_EXTRA, 0);
    return FB_APPEND_OK;
}

/* ---- growing ------------------------------------------------------------------------------------------- */

static int fb_reserve(fb_buffer *b, int64_t used, int64_t need) {
    if (need <= b->bytes) return 0;
    int64_t bytes = b->bytes ? 2 * b->bytes : (b->hint > 1024 ? b->hint : 1024);
    if (bytes < need) bytes = need;
    bytes = (bytes + 63) & ~(int64_t)63;
    uint8_t *data = (uint8_t *)aligned_alloc(64, (size_t)bytes);
    if (!data) return -1;
    if (b->data) fb_copy(data, b->data, used);
    free(b->data);
    b->data = data;
    b->bytes = bytes;
    return 0;
}

static int fb_reserve_node(const fb_node *t, fb_out *o, const fb_piece *p) {
    int64_t all = o->rows + p->rows, now = o->rows;
    int wide = t->kind == FB_VAR64 || t->kind == FB_LIST64;
    if ((p->validity || o->validity.data) && all && fb_reserve(&o->validity, (now + 7) >> 3, (all + 7) >> 3)) return -1;
    switch (t->kind) {
    case FB_BOOL: return all ? fb_reserve(&o->values, (now + 7) >> 3, (all + 7) >> 3) : 0;
    case FB_FIXED: return all && t->width ? fb_reserve(&o->values, now * t->width, all * t->width) : 0;
    case FB_VAR32:
    case FB_VAR64:
        if (o->end + p->total && fb_reserve(&o->values, o->end, o->end + p->total)) return -1;
        /* fall through */
    case FB_LIST32:
    case FB_LIST64: {
        int fresh = !o->offsets.data, size = wide ? 8 : 4;
        if (fb_reserve(&o->offsets, (now + 1) * size, (all + 1) * size)) return -1;
        if (fresh) memset(o->offsets.data, 0, 8);
        return 0;
    }
    default: return 0;
    }
}

static void fb_append_node(const fb_node *t, fb_out *o, const fb_piece *p) {
    int64_t n = p->rows, now = o->rows;
    if (!n) return;
    if (p->validity) {
        if (o->nulls == 0) fb_set_bits(o->validity.data, 0, now);
        fb_copy_bits(o->validity.data, now, p->validity, 0, n);
        o->nulls += n - fb_count_bits(p->validity, 0, n);
    } else if (o->validity.data)
        fb_set_bits(o->validity.data, now, n);
    switch (t->kind) {
    case FB_NULL: o->nulls += n; break;
    case FB_BOOL: fb_copy_bits(o->values.data, now, p->body, 0, n); break;
    case FB_FIXED:
        if (t->width) fb_copy(o->values.data + now * t->width, p->body, n * t->width);
        break;
    case FB_VAR32:
    case FB_LIST32: {
        uint32_t base = (uint32_t)o->end;
        uint8_t *off = o->offsets.data + 4 * now;
        if (base)
            fb_shift_offsets(off + 4, p->body + 4, n, base);
        else
            fb_copy(off, p->body, 4 * (n + 1));
        break;
    }
    case FB_VAR64:
    case FB_LIST64: {
        fb_widen_offsets((int64_t *)o->offsets.data + now + 1, p->body + 4, n, o->end);
        break;
    }
    }
    if (p->bytes && p->total) fb_copy(o->values.data + o->end, p->bytes, p->total);
    o->end += p->total;
    o->rows = now + n;
}

/* Appends one payload. All or nothing. */
static int fb_append(fb_assembly *s, const uint8_t *payload, int64_t bytes) {
    int error = fb_parse(s, payload, bytes);
    if (error) return error;
    for (int k = 0; k < s->n_nodes; k++)
        if (fb_reserve_node(&s->nodes[k], &s->outs[k], &s->pieces[k])) return fb_refuse(s, k, FB_APPEND_MEMORY, 0);
    for (int k = 0; k < s->n_nodes; k++) fb_append_node(&s->nodes[k], &s->outs[k], &s->pieces[k]);
    return FB_APPEND_OK;
}

/* ---- handing over to Arrow ----------------------------------------------------------------------------- */

typedef struct {
    const void *buffers[3];
    struct ArrowArray *child_arrays;
    struct ArrowArray **child_pointers;
} fb_export;

static void fb_free_export(fb_export *e) {
    if (!e) return;
    for (int i = 0; i < 3; i++) free((void *)e->buffers[i]);
    free(e->child_arrays);
    free(e->child_pointers);
    free(e);
}

/* The consumer may have moved children out: their release is NULL then. */
static void fb_release_array(struct ArrowArray *a) {
    for (int64_t i = 0; i < a->n_children; i++)
        if (a->children[i]->release) a->children[i]->release(a->children[i]);
    fb_free_export((fb_export *)a->private_data);
    a->release = NULL;
}

static int fb_children(const fb_node *nodes, int node) {
    int n = 0;
    for (int k = node + 1; k < nodes[node].next; k = nodes[k].next) n++;
    return n;
}

static void fb_link(const fb_assembly *s, int node, fb_export **exports, struct ArrowArray *a) {
    const fb_node *t = &s->nodes[node];
    fb_out *o = &s->outs[node];
    fb_export *e = exports[node];
    memset(a, 0, sizeof *a);
    a->length = o->rows;
    a->null_count = o->nulls;
    a->n_buffers = fb_buffers_of[t->kind];
    a->buffers = e->buffers;
    a->private_data = e;
    a->release = fb_release_array;
    e->buffers[0] = o->validity.data;
    e->buffers[1] = t->kind <= FB_FIXED ? o->values.data : o->offsets.data;
    e->buffers[2] = t->kind <= FB_FIXED ? NULL : o->values.data;
    a->children = e->child_pointers;
    int i = 0;
    for (int k = node + 1; k < t->next; k = s->nodes[k].next, i++) {
        e->child_pointers[i] = &e->child_arrays[i];
        fb_link(s, k, exports, &e->child_arrays[i]);
    }
    a->n_children = i;
    int64_t v = o->validity.data ? (o->rows + 7) / 8 : 0;
    int64_t w = t->kind == FB_BOOL ? (o->rows + 7) / 8 : t->kind == FB_FIXED ? o->rows * t->width : o->end;
    int64_t f = o->offsets.data ? (o->rows + 1) * (t->kind == FB_VAR64 || t->kind == FB_LIST64 ? 8 : 4) : 0;
    memset(o, 0, sizeof *o);
    o->validity.hint = v < FB_MAX_HINT ? v : FB_MAX_HINT;
    o->values.hint = w < FB_MAX_HINT ? w : FB_MAX_HINT;
    o->offsets.hint = f < FB_MAX_HINT ? f : FB_MAX_HINT;
}

/* Hands all columns over to *a and starts anew; -1: no memory, and nothing is lost. */
static int fb_take(fb_assembly *s, struct ArrowArray *a) {
    fb_export **exports = (fb_export **)calloc((size_t)s->n_nodes, sizeof *exports);
    if (!exports) return -1;
    static const fb_piece none;
    for (int k = 0; k < s->n_nodes; k++) {
        int children = fb_children(s->nodes, k);
        fb_export *e = exports[k] = (fb_export *)calloc(1, sizeof *e);
        if (e && children) {
            e->child_arrays = (struct ArrowArray *)calloc((size_t)children, sizeof *e->child_arrays);
            e->child_pointers = (struct ArrowArray **)calloc((size_t)children, sizeof *e->child_pointers);
        }
        /* An array without rows still needs one offset. */
        if (!e || (children && (!e->child_arrays || !e->child_pointers)) ||
            fb_reserve_node(&s->nodes[k], &s->outs[k], &none)) {
            for (int i = 0; i <= k; i++) fb_free_export(exports[i]);
            free(exports);
            return -1;
        }
    }
    fb_link(s, 0, exports, a);
    free(exports);
    return 0;
}

static void fb_free_outs(fb_out *outs, int32_t n_nodes) {
    for (int32_t k = 0; k < n_nodes; k++) {
        free(outs[k].validity.data);
        free(outs[k].values.data);
        free(outs[k].offsets.data);
    }
}

#endif

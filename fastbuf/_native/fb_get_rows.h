/* Reads records of plain fields as written by fb_put_rows.h.
 *
 * Several records are read together, field by field: the kind of a field is then checked once for all of them, in a
 * short loop. A record with anything unusual (a wrong length, text that is not UTF-8) is left as a whole to the
 * general decoder, which reports errors; the records after it wait for that. Every length is compared with the
 * remaining bytes before it is used. row_decode.pyx calls both and has the layout. */
#ifndef FB_GET_ROWS_H
#define FB_GET_ROWS_H

#include "fb_put_rows.h"

#define FB_TOGETHER 16 /* records read together: their objects stay in the first-level cache until they are complete */

/* A record being read. */
typedef struct {
    const uint8_t *p;       /* its bytes, at least plan->head of them */
    PyObject **items;       /* the items of its tuple */
    uint32_t before, texts; /* bytes of the variable part: read so far, and in total */
} fb_row;

/* Prefetches bytes to be read soon: if another process wrote them, they are in its core's cache. */
static inline void fb_send_for_bytes(const uint8_t *p) { __builtin_prefetch((const void *)((uintptr_t)p + 512)); }

static inline PyObject *fb_get_int(fb_maker maker, const fb_put_field *f, const uint8_t *slot) {
    int32_t x;
    int16_t y;
    if (f->slot == 4) {
        memcpy(&x, slot, 4);
        return fb_int64_by(maker, f->low ? (int64_t)x : (int64_t)(uint32_t)x);
    }
    if (f->slot == 2) {
        memcpy(&y, slot, 2);
        return fb_int64_by(maker, f->low ? (int64_t)y : (int64_t)(uint16_t)y);
    }
    return fb_int64_by(maker, f->low ? (int64_t)(int8_t)slot[0] : (int64_t)slot[0]);
}

/* Reads field i, of this kind, of n records; returns how many records precede the first one it cannot handle. */
static inline __attribute__((always_inline)) ptrdiff_t fb_get_field(fb_maker maker, const fb_put_plan *plan, int kind,
                                                                    ptrdiff_t i, fb_row *rows, ptrdiff_t n) {
    const fb_put_field *f = plan->fields + i;
    const ptrdiff_t offset = f->offset, head = plan->head;
    const int nulls = plan->bitmap;
    for (fb_row *row = rows, *stop = rows + n; row < stop; row++) {
        const uint8_t *slot = row->p + offset, *from = slot;
        Py_ssize_t length = 0;
        PyObject *value;
        if (kind >= FB_PUT_TEXT) {
            uint32_t end;
            memcpy(&end, slot, 4);
            if (end < row->before || end > row->texts) return row - rows;
            from = row->p + head + row->before;
            length = end - row->before;
            row->before = end;
        }
        if (nulls && row->p[i >> 3] >> (i & 7) & 1) {
            if (!f->nullable) return row - rows;
            Py_INCREF(Py_None);
            value = Py_None;
        } else if (kind == FB_PUT_INT64) {
            int64_t x;
            memcpy(&x, slot, 8);
            value = fb_int64_by(maker, x);
        } else if (kind == FB_PUT_DOUBLE) {
            double x;
            memcpy(&x, slot, 8);
            value = fb_float_by(maker, x);
        } else if (kind == FB_PUT_TEXT) {
            value = fb_str_by(maker, from, length);
        } else if (kind == FB_PUT_BYTES) {
            value = fb_bytes_by(maker, from, length);
        } else if (kind == FB_PUT_DOUBLES) {
            if (length % 8) return row - rows;
            value = fb_doubles_by(maker, from, length / 8);
        } else if (kind == FB_PUT_INT) {
            value = fb_get_int(maker, f, slot);
        } else {
            if (slot[0] > 1) return row - rows;
            value = slot[0] ? Py_True : Py_False;
            Py_INCREF(value);
        }
        if (value == NULL) {
            PyErr_Clear();
            return row - rows;
        }
        row->items[i] = value;
    }
    return n;
}

static ptrdiff_t fb_get_any_field(fb_maker maker, const fb_put_plan *plan, ptrdiff_t i, fb_row *rows, ptrdiff_t n) {
    switch (plan->fields[i].kind) {
        case FB_PUT_INT64: return fb_get_field(maker, plan, FB_PUT_INT64, i, rows, n);
        case FB_PUT_DOUBLE: return fb_get_field(maker, plan, FB_PUT_DOUBLE, i, rows, n);
        case FB_PUT_TEXT: return fb_get_field(maker, plan, FB_PUT_TEXT, i, rows, n);
        case FB_PUT_BYTES: return fb_get_field(maker, plan, FB_PUT_BYTES, i, rows, n);
        case FB_PUT_DOUBLES: return fb_get_field(maker, plan, FB_PUT_DOUBLES, i, rows, n);
        case FB_PUT_INT: return fb_get_field(maker, plan, FB_PUT_INT, i, rows, n);
        default: return fb_get_field(maker, plan, FB_PUT_BOOL, i, rows, n);
    }
}

/* Reads at most `most` records, each after its length, from *p on into to[0], to[1] and so on; returns how many, and
 * moves *p past them. Stops before a record that it cannot handle, that is longer than `longest` or incomplete.
 * `atoms`: no field can be part of a reference cycle. */
static ptrdiff_t fb_get_some(fb_maker maker, const fb_put_plan *plan, int atoms, PyObject **to, ptrdiff_t most,
                             const uint8_t **p, const uint8_t *limit, size_t longest) {
    fb_row rows[FB_TOGETHER];
    const uint8_t *at = *p;
    ptrdiff_t begun, n;
    for (begun = 0; begun < most && limit - at >= FB_ROW_PREFIX; begun++) {
        uint32_t size;
        memcpy(&size, at, 4);
        at += FB_ROW_PREFIX;
        fb_send_for_bytes(at);
        if (size > (size_t)(limit - at) || size > longest || size < (size_t)plan->head) break;
        to[begun] = PyTuple_New(plan->count);
        if (to[begun] == NULL) {
            PyErr_Clear();
            break;
        }
        rows[begun].p = at;
        rows[begun].items = ((PyTupleObject *)to[begun])->ob_item;
        rows[begun].before = 0;
        rows[begun].texts = size - (uint32_t)plan->head;
        at += size;
    }
    n = begun;
    for (int32_t i = 0; i < plan->count; i++) n = fb_get_any_field(maker, plan, i, rows, n);
    for (ptrdiff_t k = 0; k < n; k++) {
        if (rows[k].before != rows[k].texts) {
            n = k;
            break;
        }
        if (atoms) PyObject_GC_UnTrack(to[k]); /* the garbage collector would do this itself later */
    }
    for (ptrdiff_t k = n; k < begun; k++) Py_CLEAR(to[k]);
    if (n > 0) *p = rows[n - 1].p + plan->head + rows[n - 1].texts;
    return n;
}

/* Reads records from *p on into a list allocated for them, starting at index `from`. Returns the index of the first
 * record that was not read, and moves *p past those read. */
static Py_ssize_t fb_get_rows(const fb_put_plan *plan, int atoms, PyObject *records, Py_ssize_t from,
                              const uint8_t **p, Py_ssize_t *left) {
    const uint8_t *at = *p, *limit = at + *left;
    PyObject **items = ((PyListObject *)records)->ob_item;
    Py_ssize_t n = PyList_GET_SIZE(records), i = from;
    int collecting;
    const fb_maker maker = fb_maker_open(&collecting);
    while (i < n) {
        const ptrdiff_t most = n - i < FB_TOGETHER ? n - i : FB_TOGETHER;
        const ptrdiff_t made = fb_get_some(maker, plan, atoms, items + i, most, &at, limit, UINT32_MAX);
        i += made;
        if (made < most) break;
    }
    fb_maker_close(collecting);
    *left = limit - at;
    *p = at;
    return i;
}

/* Appends all whole records from *p on, none longer than `longest`, to a list; moves *p past them. -1: an error is
 * set, and some records may be lost. */
static int fb_append_rows(const fb_put_plan *plan, int atoms, PyObject *records, const uint8_t **p, Py_ssize_t *left,
                          size_t longest) {
    const uint8_t *at = *p, *limit = at + *left;
    PyObject *made[FB_TOGETHER];
    int collecting, failed = 0;
    const fb_maker maker = fb_maker_open(&collecting);
    ptrdiff_t n = FB_TOGETHER;
    while (n == FB_TOGETHER && !failed) {
        n = fb_get_some(maker, plan, atoms, made, FB_TOGETHER, &at, limit, longest);
        for (ptrdiff_t k = 0; k < n; k++) {
            if (!failed) failed = PyList_Append(records, made[k]);
            Py_DECREF(made[k]);
        }
    }
    fb_maker_close(collecting);
    *left = limit - at;
    *p = at;
    return failed;
}

#endif

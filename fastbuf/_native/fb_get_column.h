/* Reads one field of many encoded records: the values that lazy rows return for it.
 *
 * Only the most common kinds of fields, which are checked once per call. As in fb_get_rows.h, unusual records are
 * left to the general decoder. The caller, lazy.pyx, has checked that each record is within the bytes and no shorter
 * than its fixed part. */
#ifndef FB_GET_COLUMN_H
#define FB_GET_COLUMN_H

#include "fb_put_rows.h"

enum { FB_COLUMN_OTHER, FB_COLUMN_INT64, FB_COLUMN_DOUBLE, FB_COLUMN_TEXT, FB_COLUMN_BYTES };

typedef struct {
    int kind, nulls, nullable;      /* nulls: records have a bitmap */
    int32_t place, offset, head;    /* position of the field; offsets of its slot and of the variable part */
    int32_t before;                 /* offset of the slot that gives the start of this text; -1: it is the first text */
} fb_column;

static inline __attribute__((always_inline)) Py_ssize_t fb_get_column_of(fb_maker maker, int kind, fb_column c,
                                                                         PyObject **to, const uint8_t *bytes,
                                                                         const int64_t *starts, Py_ssize_t n) {
    const ptrdiff_t offset = c.offset;
    for (Py_ssize_t i = 0; i < n; i++) {
        const uint8_t *p = bytes + starts[i];
        if (c.nulls && p[c.place >> 3] >> (c.place & 7) & 1) {
            if (!c.nullable) return i;
            Py_INCREF(Py_None);
            to[i] = Py_None;
            continue;
        }
        if (kind == FB_COLUMN_INT64) {
            int64_t x;
            memcpy(&x, p + offset, 8);
            to[i] = fb_int64_by(maker, x);
        } else if (kind == FB_COLUMN_DOUBLE) {
            double x;
            memcpy(&x, p + offset, 8);
            to[i] = fb_float_by(maker, x);
        } else {
            uint32_t before = 0, end;
            if (c.before >= 0) memcpy(&before, p + c.before, 4);
            memcpy(&end, p + offset, 4);
            if (end < before || end > (size_t)(starts[i + 1] - FB_ROW_PREFIX - starts[i] - c.head)) return i;
            to[i] = kind == FB_COLUMN_TEXT ? fb_str_by(maker, p + c.head + before, end - before)
                                           : fb_bytes_by(maker, p + c.head + before, end - before);
        }
        if (to[i] == NULL) {
            PyErr_Clear();
            return i;
        }
    }
    return n;
}

/* Reads the field of n records into a list allocated for them. starts[i]: where record i begins, starts[n]: where a
 * further one would. Returns the index of the first record that was not read. */
static Py_ssize_t fb_get_column(fb_column c, PyObject *values, const uint8_t *bytes, const int64_t *starts) {
    PyObject **to = ((PyListObject *)values)->ob_item;
    Py_ssize_t n = PyList_GET_SIZE(values), made = 0;
    int collecting;
    if (c.kind == FB_COLUMN_OTHER || n == 0) return 0;
    const fb_maker maker = fb_maker_open(&collecting);
    if (c.kind == FB_COLUMN_INT64)
        made = fb_get_column_of(maker, FB_COLUMN_INT64, c, to, bytes, starts, n);
    else if (c.kind == FB_COLUMN_DOUBLE)
        made = fb_get_column_of(maker, FB_COLUMN_DOUBLE, c, to, bytes, starts, n);
    else if (c.kind == FB_COLUMN_TEXT)
        made = fb_get_column_of(maker, FB_COLUMN_TEXT, c, to, bytes, starts, n);
    else
        made = fb_get_column_of(maker, FB_COLUMN_BYTES, c, to, bytes, starts, n);
    fb_maker_close(collecting);
    return made;
}

#endif

/* Writes records of plain fields: tuples of exact ints, floats, bools, str, bytes, None and lists of floats.
 *
 * Most records contain nothing else, and a general encoder spends most of its work on being ready for other cases:
 * Python code that runs in between, memory that moves, errors. None of these can happen here: no function is called
 * that runs Python code, so borrowed references stay valid. A record with anything unusual, such as a value that
 * does not fit, is left as a whole to the general encoder, which reports errors. row_encode.pyx calls both and has
 * the layout. fb_get_rows.h reads the records. */
#ifndef FB_PUT_ROWS_H
#define FB_PUT_ROWS_H

#include "fb_objects.h"

enum { FB_PUT_INT64, FB_PUT_INT, FB_PUT_DOUBLE, FB_PUT_BOOL, FB_PUT_TEXT, FB_PUT_BYTES, FB_PUT_DOUBLES };

#define FB_ROW_PREFIX 4 /* u32 length before a record */

typedef struct {
    uint8_t kind;
    uint8_t nullable;
    uint8_t slot; /* bytes of the slot */
    int32_t offset;
    int64_t low, high; /* FB_PUT_INT */
} fb_put_field;

/* A struct of such fields. */
typedef struct {
    int32_t count, bitmap, head;
    fb_put_field fields[];
} fb_put_plan;

/* Writes one record to `to`; returns where it ends, or NULL: no room before `limit`, or a record it cannot handle. */
static inline uint8_t *fb_put_row(const fb_put_plan *plan, PyObject *record, uint8_t *to, const uint8_t *limit) {
    uint8_t *start = to + plan->head, *o = start;
    int32_t count = plan->count;
    if (limit - to < plan->head || !PyTuple_Check(record) || PyTuple_GET_SIZE(record) != count) return NULL;
    if (plan->bitmap == 1)
        to[0] = 0;
    else if (plan->bitmap)
        memset(to, 0, (size_t)plan->bitmap);
    for (int32_t i = 0; i < count; i++) {
        const fb_put_field *f = &plan->fields[i];
        PyObject *value = PyTuple_GET_ITEM(record, i);
        uint8_t *slot = to + f->offset;
        const void *from;
        Py_ssize_t n;
        uint32_t end;
        int64_t x;
        if (f->kind == FB_PUT_INT64 && PyLong_CheckExact(value)) {
            if (fb_exact_int64(value, &x)) return NULL;
            memcpy(slot, &x, 8);
            continue;
        }
        if (f->kind == FB_PUT_DOUBLE && PyFloat_CheckExact(value)) {
            memcpy(slot, &((PyFloatObject *)value)->ob_fval, 8);
            continue;
        }
        if (f->kind == FB_PUT_TEXT && PyUnicode_Check(value)) {
            from = fb_utf8(value, &n);
            if (from == NULL) {
                PyErr_Clear();
                return NULL;
            }
        } else if (f->kind == FB_PUT_BYTES && PyBytes_Check(value)) {
            from = PyBytes_AS_STRING(value);
            n = PyBytes_GET_SIZE(value);
        } else if (f->kind == FB_PUT_DOUBLES && PyList_CheckExact(value)) {
            n = PyList_GET_SIZE(value);
            if ((limit - o) / 8 < n || fb_list_doubles(value, o) != n) return NULL;
            o += 8 * n;
            end = (uint32_t)(o - start);
            memcpy(slot, &end, 4);
            continue;
        } else if (value == Py_None) {
            if (!f->nullable) return NULL;
            to[i >> 3] |= (uint8_t)(1 << (i & 7));
            from = NULL;
            n = 0;
            if (f->kind < FB_PUT_TEXT) {
                memset(slot, 0, f->slot);
                continue;
            }
        } else if (f->kind == FB_PUT_INT && PyLong_CheckExact(value)) {
            if (fb_exact_int64(value, &x) || x < f->low || x > f->high) return NULL;
            if (f->slot == 4)
                memcpy(slot, &x, 4);
            else if (f->slot == 2)
                memcpy(slot, &x, 2);
            else
                memcpy(slot, &x, 1);
            continue;
        } else if (f->kind == FB_PUT_BOOL && PyBool_Check(value)) {
            slot[0] = value == Py_True;
            continue;
        } else
            return NULL;
        if (limit - o < n) return NULL;
        fb_copy_short(o, from, n);
        o += n;
        end = (uint32_t)(o - start);
        memcpy(slot, &end, 4);
    }
    return o - to <= UINT32_MAX ? o : NULL;
}

/* Writes one record to buf[*at] and on; returns whether it was written, and if so moves *at past it. */
static inline int fb_put_record(const fb_put_plan *plan, PyObject *record, uint8_t *buf, Py_ssize_t *at,
                                Py_ssize_t room) {
    uint8_t *end = fb_put_row(plan, record, buf + *at, buf + room);
    if (end == NULL) return 0;
    *at = end - buf;
    return 1;
}

/* Writes the records of a list from index `from` on, each after its length, to buf[*at] and on. Returns the index of
 * the first one not written, and moves *at past those written. */
static Py_ssize_t fb_put_rows(const fb_put_plan *plan, PyObject *records, Py_ssize_t from, uint8_t *buf, Py_ssize_t *at,
                              Py_ssize_t room) {
    uint8_t *o = buf + *at, *limit = buf + room, *end;
    Py_ssize_t n = PyList_GET_SIZE(records), i = from;
    int scattered = 0;
    for (; i < n && limit - o >= FB_ROW_PREFIX; i++, o = end) {
        uint32_t size;
        if (i % FB_LOOK == 0 || i == from) scattered = fb_scattered(records, i);
        if (scattered) fb_send_for(records, i);
        end = fb_put_row(plan, PyList_GET_ITEM(records, i), o + FB_ROW_PREFIX, limit);
        if (end == NULL) break;
        size = (uint32_t)(end - o - FB_ROW_PREFIX);
        memcpy(o, &size, 4);
    }
    *at = o - buf;
    return i;
}

#endif

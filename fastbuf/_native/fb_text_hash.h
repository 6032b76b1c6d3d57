/* Python's own hash of a text of UTF-8, of which there is no object yet. */
#ifndef FB_TEXT_HASH_H
#define FB_TEXT_HASH_H

#include "fb_objects.h"

/* -1 with an error set if the bytes are no text. */
static inline Py_hash_t fb_text_hash(const uint8_t *p, Py_ssize_t n) {
    PyObject *o;
    Py_hash_t h;
    /* What is ASCII lies in a str as it does here. */
#if PY_VERSION_HEX >= 0x030E0000
    if (fb_ascii(p, n)) return Py_HashBuffer(p, n);
#elif PY_VERSION_HEX < 0x030D0000
    if (fb_ascii(p, n)) return _Py_HashBytes(p, n);
#endif
    o = PyUnicode_DecodeUTF8((const char *)p, n, NULL);
    if (o == NULL) return -1;
    h = PyObject_Hash(o);
    Py_DECREF(o);
    return h;
}

#endif

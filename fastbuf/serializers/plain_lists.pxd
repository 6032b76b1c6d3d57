# Encodes lists of plain values without pickle.
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy


cdef enum:
    MOST_NODES = 32
    KIND_FLAG = 1               # None, False, True
    KIND_INT32 = 2
    KIND_INT64 = 3
    KIND_FLOAT = 4
    KIND_STR = 5
    KIND_BYTES = 6
    KIND_TUPLE = 7
    LONGEST = 64                # bytes of a string: pickle writes a longer one about as fast, and a repeated one once


# One value of each item of the list, in preorder: a tuple, then what is in it.
cdef struct PlainNode:
    uint8_t kind                # KIND_
    uint8_t items               # of a tuple
    int64_t text                # total bytes of its strings
    uint8_t *at                 # where the next value, or the next string's length, is written or read
    uint8_t *text_at            # where the next string is written or read


# Both hold the GIL, and run no Python code.  pack_plain returns None unless all values are plain and of one kind.
cpdef bytes pack_plain(list values)
cpdef list unpack_plain(object packed)
# New bytes for so many values, with their head; sets where the nodes' values go.  None: strings of 4 GiB and more.
cdef bytes new_packed(PlainNode *nodes, int n, int64_t count)
# Set the nodes of packed bytes, all their places inside these, and how many values each has; gives how many nodes.
cdef int read_nodes(const uint8_t *p, int64_t left, PlainNode *nodes, Py_ssize_t *count) except -1
# A new str of UTF-8; BlockCorrupt if it is none.
cdef PyObject *text_object(const uint8_t *p, Py_ssize_t n) except NULL


# The type of a node's values as objects: ints of both lengths are ints.
cdef inline uint8_t wide_kind(const PlainNode *node) noexcept nogil:
    return KIND_INT64 if node.kind == KIND_INT32 else node.kind


# Moves the next n ints of a column, or bits of floats, to every step-th place.
cdef inline void take_numbers(PlainNode *node, int n, int64_t *to, int step) noexcept nogil:
    cdef const uint8_t *p = node.at
    cdef int64_t x
    cdef int32_t x32
    cdef int i
    if node.kind == KIND_INT32:
        node.at += 4 * n
        for i in range(n):
            memcpy(&x32, p + 4 * i, 4)
            to[i * step] = x32
        return
    node.at += 8 * n
    if step == 1:
        memcpy(to, p, 8 * n)
        return
    for i in range(n):
        memcpy(&x, p + 8 * i, 8)
        to[i * step] = x

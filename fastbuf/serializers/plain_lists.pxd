# Encodes lists of plain values without pickle.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t


cdef enum:
    MOST_NODES = 32
    KIND_FLAG = 1               # None, False, True
    KIND_INT32 = 2
    KIND_INT64 = 3
    KIND_FLOAT = 4
    KIND_STR = 5
    KIND_BYTES = 6
    KIND_TUPLE = 7


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
# Set the nodes of packed bytes, all their places inside these, and how many values each has; gives how many nodes.
cdef int read_nodes(const uint8_t *p, int64_t left, PlainNode *nodes, Py_ssize_t *count) except -1
# A new str of UTF-8; BlockCorrupt if it is none.
cdef PyObject *text_object(const uint8_t *p, Py_ssize_t n) except NULL

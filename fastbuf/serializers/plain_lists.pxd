# Encodes lists of plain values without pickle.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t


# A node describes one position in the values of the list, in preorder: a tuple, then its items.
cdef struct PlainNode:
    uint8_t kind                # KIND_ in plain_lists.pyx
    uint8_t items               # of a tuple
    int64_t text                # total bytes of its strings
    uint8_t *at                 # where the next value, or the next string's length, is written or read
    uint8_t *text_at            # where the next string is written or read


# Both hold the GIL, and run no Python code.  pack_plain returns None unless all values are plain and of one kind.
cpdef bytes pack_plain(list values)
cpdef list unpack_plain(object packed)

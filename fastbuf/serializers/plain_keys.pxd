# Map of a table of plain keys, without Python objects: each new key gets the next number, from 0 on.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastbuf.serializers.plain_lists cimport PlainNode
from fastbuf.serializers.plain_rows cimport Texts

cdef enum:
    KEY_BLOCK = 128             # keys that are looked up together, so that their cache misses overlap


# Python's hashes of the next n keys of a column; does not move on in the column.
cdef int portable_hashes(const PlainNode *node, int n, uint64_t *hashes) except -1
cdef int64_t hash_of_int(int64_t x) noexcept nogil

# A new reference to the object that belongs to a key.
ctypedef PyObject *(*second_fn)(object table, int64_t number) except NULL


# For one thread.  The keys are either all ints of 64 bits, or all strs of up to 255 bytes of UTF-8, so equal keys have
# equal bytes.  It runs no Python code.
cdef class PlainKeys:
    cdef uint8_t kind           # KIND_INT64 or KIND_STR; 0: not known yet
    cdef int64_t count
    cdef int64_t *keys          # by number: the int, or the place of the text
    cdef uint64_t *hashes       # by number: the hash of a text; hashes of ints are not stored
    cdef int64_t _room          # capacity of these two
    cdef uint64_t *_slots       # low 32 bits: number + 1, or 0: free; high 32 bits: of the hash
    cdef uint64_t _mask
    cdef Texts _texts

    cdef int64_t nbytes(self) noexcept
    # Set found to the numbers of n keys, at most KEY_BLOCK
    cdef int find_ints(self, const int64_t *x, int n, uint32_t *found) except -1
    cdef int find_texts(self, const uint8_t **at, const uint8_t *lengths, int n, uint32_t *found) except -1
    # The same for the next n keys of a column; moves on in the column
    cdef int find_column(self, PlainNode *node, int n, uint32_t *found) except -1
    cdef const uint8_t *text(self, int64_t number) noexcept nogil
    cdef bint takes(self, uint8_t kind) noexcept                # whether keys can be of this kind
    # Tuples of the keys from start to stop and what belongs to them
    cdef list pairs(self, int64_t start, int64_t stop, second_fn second, object table)
    cdef PyObject *make(self, int64_t number) except NULL                              # a new reference
    cdef int _reserve(self, int64_t more) except -1
    cdef uint64_t _hash(self, int64_t number) noexcept nogil
    cdef int _grow(self) except -1
    cdef void _ask_for(self, const uint64_t *hashes, int n) noexcept nogil

# Plain keys without objects: a number from 0 on for each key, in the order in which they come.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastbuf.serializers.plain_lists cimport PlainNode
from fastbuf.serializers.plain_rows cimport Texts

cdef enum:
    KEY_BLOCK = 128             # keys that are looked up together, so that their memory is waited for together


# Python's hash of the next n keys of a column, which stays where it is.
cdef int portable_hashes(const PlainNode *node, int n, uint64_t *hashes) except -1
cdef int64_t hash_of_int(int64_t x) noexcept nogil


# For one thread.  Its keys are ints of 64 bits, or strs of up to 255 bytes of UTF-8, and never both: equal keys have
# equal bytes.  No Python code runs in it.
cdef class PlainKeys:
    cdef uint8_t kind           # KIND_INT64 or KIND_STR; 0: not known yet
    cdef int64_t count
    cdef int64_t *keys          # by number: the int, or the place of the text
    cdef uint64_t *hashes       # of texts; those of ints are not kept
    cdef int64_t _room          # of these two
    cdef uint64_t *_slots       # number + 1, and above it 32 bits of the hash; 0: free
    cdef uint64_t _mask
    cdef Texts _texts

    cdef int64_t nbytes(self) noexcept
    # Set found to the numbers of n keys, at most KEY_BLOCK
    cdef int find_ints(self, const int64_t *x, int n, uint32_t *found) except -1
    cdef int find_texts(self, const uint8_t **at, const uint8_t *lengths, int n, uint32_t *found) except -1
    # The same of the next n keys of a column; moves on in it
    cdef int find_column(self, PlainNode *node, int n, uint32_t *found) except -1
    cdef const uint8_t *text(self, int64_t number) noexcept nogil
    cdef PyObject *make(self, int64_t number) except NULL                              # a new reference
    cdef int _reserve(self, int64_t more) except -1
    cdef uint64_t _hash(self, int64_t number) noexcept nogil
    cdef int _grow(self) except -1
    cdef void _ask_for(self, const uint64_t *hashes, int n) noexcept nogil

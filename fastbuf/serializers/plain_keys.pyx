"""A table of plain keys, without Python objects: each new key gets the next number, from 0 on.

It is a hash table with open addressing and linear probing (Knuth, The Art of Computer Programming 3, 6.4, algorithm L).
A slot has 32 bits of the hash, so that most other keys are told apart without a look at the key.  Keys are looked up in
blocks, whose memory is prefetched, since a table of a million keys does not fit into any cache.
"""

from cpython.list cimport PyList_New as new_list
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from fastbuf.serializers.objects cimport *
from fastbuf.serializers.plain_lists cimport *
from fastbuf.serializers.plain_rows cimport resized, texts_put, texts_room
from fastbuf.serializers.record_groups cimport mixed

cdef extern from "fb_text_hash.h":
    Py_hash_t fb_text_hash(const uint8_t *p, Py_ssize_t n) except? -1

cdef extern from *:
    void __builtin_prefetch(const void *p) noexcept nogil

cdef enum:
    LEAST = 1024                # slots of the smallest table
    MOST = 0x7FFFFFFF           # most keys
    AHEAD = 16                  # how many keys ahead memory is prefetched


cdef inline uint64_t _of_text(const uint8_t *p, int64_t n) noexcept nogil:
    cdef uint64_t h = <uint64_t> n * <uint64_t> 0x9E3779B97F4A7C15, w
    while n > 8:
        memcpy(&w, p, 8)
        h = mixed(h ^ w)
        p += 8
        n -= 8
    w = 0
    fb_copy_short(&w, p, n)
    return mixed(h ^ w)


cdef int64_t hash_of_int(int64_t x) noexcept nogil:
    """Python's hash of an int: the remainder modulo a prime, and -2 instead of -1, which means an error in C."""
    cdef uint64_t size = 0 - <uint64_t> x if x < 0 else <uint64_t> x
    size %= <uint64_t> 0x1FFFFFFFFFFFFFFF
    x = -<int64_t> size if x < 0 else <int64_t> size
    return -2 if x == -1 else x


cdef int portable_hashes(const PlainNode *node, int n, uint64_t *hashes) except -1:
    cdef const uint8_t *p = node.text_at
    cdef int64_t x
    cdef int32_t x32
    cdef Py_hash_t hash
    cdef int i
    for i in range(n):
        if node.kind == KIND_STR:
            hash = fb_text_hash(p, node.at[i])
            hashes[i] = <uint64_t> hash
            p += node.at[i]
        elif node.kind == KIND_INT32:
            memcpy(&x32, node.at + 4 * i, 4)
            hashes[i] = <uint64_t> hash_of_int(x32)
        else:
            memcpy(&x, node.at + 8 * i, 8)
            hashes[i] = <uint64_t> hash_of_int(x)
    return 0


cdef class PlainKeys:
    """See plain_keys.pxd."""

    def __dealloc__(self):
        PyMem_Free(self.keys)
        PyMem_Free(self.hashes)
        PyMem_Free(self._slots)
        PyMem_Free(self._texts.bytes)

    cdef int64_t nbytes(self) noexcept:
        return self.count * (16 if self.kind == KIND_STR else 8) + 8 * <int64_t> (self._mask + 1) + self._texts.used

    cdef const uint8_t *text(self, int64_t number) noexcept nogil:
        return self._texts.bytes + (self.keys[number] >> 8)

    cdef PyObject *make(self, int64_t number) except NULL:
        if self.kind != KIND_STR:
            return fb_int64(self.keys[number])
        return text_object(self.text(number), self.keys[number] & 0xFF)

    cdef bint takes(self, uint8_t kind) noexcept:
        return kind == self.kind if self.kind else kind == KIND_INT64 or kind == KIND_STR

    cdef list pairs(self, int64_t start, int64_t stop, second_fn second, object table):
        cdef list out = new_list(stop - start)
        cdef PyObject *pair
        cdef int64_t i
        cdef int collects = PyGC_Disable()             # no garbage is made here, and collections would cost time
        try:
            for i in range(start, stop):
                pair = PyTuple_New(2)
                PyObject_GC_UnTrack(pair)
                PyList_SET_ITEM(<PyObject *> out, i - start, pair)
                PyTuple_SET_ITEM(pair, 0, self.make(i))
                PyTuple_SET_ITEM(pair, 1, second(table, i))
        finally:
            if collects:
                PyGC_Enable()
        return out

    cdef int find_ints(self, const int64_t *x, int n, uint32_t *found) except -1:
        cdef uint64_t hashes[KEY_BLOCK]
        cdef uint64_t at, slot
        cdef int i
        if n < 1:
            return 0
        self._reserve(n)
        for i in range(n):
            hashes[i] = mixed(<uint64_t> x[i])
        self._ask_for(hashes, n)
        for i in range(n):
            at = hashes[i] & self._mask
            while True:
                slot = self._slots[at]
                if slot == 0:
                    self._slots[at] = hashes[i] >> 32 << 32 | <uint64_t> (self.count + 1)
                    self.keys[self.count] = x[i]
                    found[i] = <uint32_t> self.count
                    self.count += 1
                    break
                if slot >> 32 == hashes[i] >> 32 and self.keys[<uint32_t> slot - 1] == x[i]:
                    found[i] = <uint32_t> slot - 1
                    break
                at = (at + 1) & self._mask
        return 0

    cdef int find_texts(self, const uint8_t **at, const uint8_t *lengths, int n, uint32_t *found) except -1:
        cdef uint64_t hashes[KEY_BLOCK]
        cdef uint64_t h, place, slot
        cdef int64_t key, more = 0
        cdef int i
        for i in range(n):
            more += lengths[i]
            hashes[i] = _of_text(at[i], lengths[i])
        self._reserve(n)
        texts_room(&self._texts, more)
        self._ask_for(hashes, n)
        for i in range(n):                             # the slots are in the cache now, but not the bytes of the keys
            slot = self._slots[hashes[i] & self._mask]
            if slot:
                __builtin_prefetch(self.text(<uint32_t> slot - 1))
        for i in range(n):
            h = hashes[i]
            place = h & self._mask
            while True:
                slot = self._slots[place]
                if slot == 0:
                    self._slots[place] = h >> 32 << 32 | <uint64_t> (self.count + 1)
                    self.keys[self.count] = texts_put(&self._texts, at[i], lengths[i])
                    self.hashes[self.count] = h
                    found[i] = <uint32_t> self.count
                    self.count += 1
                    break
                if slot >> 32 == h >> 32:
                    key = self.keys[<uint32_t> slot - 1]
                    if key & 0xFF == lengths[i] and memcmp(self._texts.bytes + (key >> 8), at[i], lengths[i]) == 0:
                        found[i] = <uint32_t> slot - 1
                        break
                place = (place + 1) & self._mask
        return 0

    cdef int find_column(self, PlainNode *node, int n, uint32_t *found) except -1:
        cdef int64_t x[KEY_BLOCK]
        cdef const uint8_t *at[KEY_BLOCK]
        cdef int i
        if node.kind == KIND_STR:
            for i in range(n):
                at[i] = node.text_at
                node.text_at += node.at[i]
            self.find_texts(at, node.at, n, found)
            node.at += n
            return 0
        take_numbers(node, n, x, 1)
        return self.find_ints(x, n, found)

    cdef void _ask_for(self, const uint64_t *hashes, int n) noexcept nogil:
        cdef uint64_t slot
        cdef int i
        for i in range(n):
            __builtin_prefetch(&self._slots[hashes[i] & self._mask])
        for i in range(n):
            slot = self._slots[hashes[i] & self._mask]
            if slot:
                __builtin_prefetch(&self.keys[<uint32_t> slot - 1])

    cdef int _reserve(self, int64_t more) except -1:
        cdef int64_t room = self.count + more
        if room > MOST:
            raise MemoryError(f"{room:,} keys in one table: {MOST:,} is the most")
        if room > self._room:
            room = max(room, self._room + (self._room >> 1))
            self.keys = <int64_t *> resized(self.keys, 8 * room)
            if self.kind == KIND_STR:
                self.hashes = <uint64_t *> resized(self.hashes, 8 * room)
            self._room = room
        while self._slots == NULL or 2 * <uint64_t> (self.count + more) > self._mask:
            self._grow()
        return 0

    cdef uint64_t _hash(self, int64_t number) noexcept nogil:
        return self.hashes[number] if self.kind == KIND_STR else mixed(<uint64_t> self.keys[number])

    cdef int _grow(self) except -1:
        """Twice the places."""
        cdef uint64_t places = LEAST if self._slots == NULL else 2 * (self._mask + 1), at, h
        cdef uint64_t *slots = <uint64_t *> PyMem_Calloc(places, 8)
        cdef int64_t i
        if slots == NULL:
            raise MemoryError(f"no memory for {places:,} places of keys")
        for i in range(self.count):
            if i + AHEAD < self.count:
                __builtin_prefetch(&slots[self._hash(i + AHEAD) & (places - 1)])
            h = self._hash(i)
            at = h & (places - 1)
            while slots[at]:
                at = (at + 1) & (places - 1)
            slots[at] = h >> 32 << 32 | <uint64_t> (i + 1)
        PyMem_Free(self._slots)
        self._slots = slots
        self._mask = places - 1
        return 0

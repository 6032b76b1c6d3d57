# Kernels of the columnar path.  The headers explain them; classes of fastbuf.serializers own the memory.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastbuf.serializers.arrow_abi cimport ArrowArray


cdef extern from "fb_columns.h" nogil:
    enum:
        FB_NULL
        FB_BOOL
        FB_FIXED
        FB_VAR32
        FB_VAR64
        FB_LIST32
        FB_LIST64
        FB_FSL
        FB_STRUCT

    ctypedef struct fb_node:
        uint8_t kind
        uint8_t no_nulls
        uint8_t dynamic
        uint8_t hash
        int32_t width
        int32_t next
        int32_t text
        int64_t bits

    ctypedef struct fb_column:
        const uint8_t *validity
        const uint8_t *values
        int64_t bit0
        int64_t rows
        int64_t bits
        uint32_t *scratch

    void fb_copy(void *dst, const void *src, int64_t bytes)

cdef extern from "fb_murmur3.h" nogil:
    enum:
        FB_HASH_NONE
        FB_HASH_NULL
        FB_HASH_BOOL
        FB_HASH_INT8
        FB_HASH_UINT8
        FB_HASH_INT16
        FB_HASH_UINT16
        FB_HASH_INT32
        FB_HASH_UINT32
        FB_HASH_INT64
        FB_HASH_FLOAT
        FB_HASH_DOUBLE
        FB_HASH_DECIMAL_LONG
        FB_HASH_DECIMAL_BIG
        FB_HASH_BYTES
        FB_HASH_NESTED

    void fb_hash_chain(const fb_node *nodes, const fb_column *cols, int node, uint32_t *h, int64_t n)
    uint64_t fb_hash_partition(const fb_node *nodes, const fb_column *cols, const int32_t *keys, int n_keys,
                               uint32_t seed, int64_t n, int32_t parts, int32_t *pids)
    int32_t fb_hash_row(const fb_node *nodes, const fb_column *cols, const int32_t *keys, int n_keys, uint32_t seed,
                        int64_t i, int32_t parts)

cdef extern from "fb_bind.h" nogil:
    enum:
        FB_BIND_SHAPE
        FB_BIND_NULLS
        FB_BIND_LARGE
        FB_BIND_OFFSETS

    ctypedef struct fb_sorted:
        pass

    ctypedef struct fb_batch:
        const fb_node *nodes
        fb_column *cols
        const fb_sorted *sorted
        int32_t all_sorted
        int32_t n_nodes
        int64_t rows
        int64_t row_bits
        int64_t max_row_bits
        int64_t mean_row_bits
        int64_t max_element
        int32_t bad_node
        int32_t needs_scratch

    int fb_bind_batch(fb_batch *b, const ArrowArray *a)
    int64_t fb_scratch_rows(const fb_batch *b, int node)

cdef extern from "fb_cpu.h":
    int fb_best_way

cdef extern from "fb_copy.h" nogil:
    void fb_ask_for(const void *p, int64_t bytes)

cdef extern from "fb_fit.h" nogil:
    bint fb_any_fits(const fb_batch *b, int64_t room)

cdef extern from "fb_put.h" nogil:
    int64_t fb_element_bytes(const fb_batch *b, const uint32_t *idx, int64_t lo, int64_t n)
    int64_t fb_encode(const fb_batch *b, const uint32_t *idx, int64_t lo, int64_t n, uint8_t *dst, int64_t room,
                      int64_t *rows)

cdef extern from "fb_group.h" nogil:
    enum:
        FB_LANES
        FB_PASSES
        FB_ORDER_SLACK

    int64_t fb_bad_partition(const int32_t *pids, int64_t rows, uint32_t parts)
    int64_t fb_group(const int32_t *pids, int64_t rows, int32_t parts, uint32_t *counts, uint32_t *order, int64_t *at,
                     int64_t *stop)
    int64_t fb_count_rows(const int32_t *pids, int64_t rows, int32_t parts, uint32_t *counts, int64_t *at,
                          int64_t *stop)

cdef extern from "fb_sort.h" nogil:
    enum:
        FB_SORT_BYTES

    ctypedef struct fb_soon:
        pass

    int64_t fb_sort_bytes(const fb_batch *b)
    int fb_sort(const fb_batch *b, const int32_t *pids, uint32_t *next, uint32_t *places, uint8_t *room,
                fb_sorted *sorted, const fb_soon *soon, int32_t parts)
    void fb_go_on(fb_soon *soon, const uint8_t *dst, int64_t bytes, int64_t room)
    bint fb_one_band(const fb_batch *b)
    void fb_order_again(const int32_t *pids, int64_t rows, int32_t parts, const int64_t *stop, uint32_t *next,
                        uint32_t *order)
    void fb_spell_order(const uint32_t *places, int64_t rows, uint32_t *order)
    void fb_expect(const void *dst, int64_t bytes)

cdef extern from "fb_append.h" nogil:
    enum:
        FB_APPEND_SHORT
        FB_APPEND_FALL
        FB_APPEND_NULLS
        FB_APPEND_FLAGS
        FB_APPEND_EXTRA
        FB_APPEND_ROWS
        FB_APPEND_OFFSETS
        FB_APPEND_MEMORY
        FB_APPEND_PADDING
        FB_APPEND_TEXT

    ctypedef struct fb_out:
        int64_t rows
        int64_t nulls

    ctypedef struct fb_piece:
        const uint8_t *validity
        const uint8_t *body
        const uint8_t *bytes
        int64_t rows
        int64_t total

    ctypedef struct fb_assembly:
        const fb_node *nodes
        fb_out *outs
        fb_piece *pieces
        int32_t n_nodes
        int32_t believed
        int32_t own
        int32_t bad_node
        int64_t need
        int64_t left

    int fb_parse(fb_assembly *s, const uint8_t *payload, int64_t bytes)
    int fb_append(fb_assembly *s, const uint8_t *payload, int64_t bytes)
    int fb_take(fb_assembly *s, ArrowArray *a)
    void fb_free_outs(fb_out *outs, int32_t n_nodes)

cdef extern from "fb_place.h" nogil:
    ctypedef struct fb_place:
        void *owner

    int fb_take_place(const fb_assembly *s, void (*drop)(fb_place *) noexcept nogil, void *owner, ArrowArray *a)

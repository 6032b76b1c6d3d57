/* Murmur3 x86_32 as Spark computes it (org.apache.spark.unsafe.hash.Murmur3_x86_32, HashExpression).
 *
 * Where Spark differs from the published algorithm (A. Appleby, SMHasher): the up to three bytes after the last whole
 * word are each sign-extended to an int and mixed like a word (hashUnsafeBytes). The hash of one column is the seed of
 * the next; a null leaves the seed unchanged.
 *
 * The loops over fixed-width columns are plain C that the compiler vectorises; each exists for AVX-512 (which has a
 * rotate instruction), for AVX2 and for the baseline, chosen at run time.
 */
#ifndef FB_MURMUR3_H
#define FB_MURMUR3_H

#include "fb_columns.h"
#include "fb_cpu.h"

enum fb_hash {
    FB_HASH_NONE, /* Spark has no such type, or refuses to hash it */
    FB_HASH_NULL,
    FB_HASH_BOOL,
    FB_HASH_INT8,
    FB_HASH_UINT8,
    FB_HASH_INT16,
    FB_HASH_UINT16,
    FB_HASH_INT32,
    FB_HASH_UINT32, /* hashed as a long: the Spark type that holds all its values */
    FB_HASH_INT64,
    FB_HASH_FLOAT,
    FB_HASH_DOUBLE,
    FB_HASH_DECIMAL_LONG, /* decimal128, precision <= 18: the unscaled long */
    FB_HASH_DECIMAL_BIG,  /* decimal128, precision > 18: BigInteger.toByteArray of the unscaled value */
    FB_HASH_BYTES,        /* string, binary, fixed-size binary */
    FB_HASH_NESTED        /* list, fixed-size list, struct: chained over elements or fields */
};

#define FB_INLINE static inline __attribute__((always_inline))
#define FB_HASH_BLOCK 256

FB_INLINE uint32_t fb_rotl(uint32_t x, int r) { return (x << r) | (x >> (32 - r)); }

FB_INLINE uint32_t fb_mix(uint32_t h, uint32_t k) {
    k *= 0xCC9E2D51u;
    k = fb_rotl(k, 15);
    k *= 0x1B873593u;
    h ^= k;
    return fb_rotl(h, 13) * 5 + 0xE6546B64u;
}

FB_INLINE uint32_t fb_finish(uint32_t h, uint32_t length) {
    h ^= length;
    h ^= h >> 16;
    h *= 0x85EBCA6Bu;
    h ^= h >> 13;
    h *= 0xC2B2AE35u;
    return h ^ (h >> 16);
}

FB_INLINE uint32_t fb_hash_int(uint32_t v, uint32_t h) { return fb_finish(fb_mix(h, v), 4); }

FB_INLINE uint32_t fb_hash_long(uint64_t v, uint32_t h) {
    return fb_finish(fb_mix(fb_mix(h, (uint32_t)v), (uint32_t)(v >> 32)), 8);
}

/* -0.0 hashes as 0.0, and every NaN as that of Float.floatToIntBits. */
FB_INLINE uint32_t fb_float_bits(uint32_t u) {
    u = (u << 1) == 0 ? 0 : u;
    return (u & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC00000u : u;
}

FB_INLINE uint64_t fb_double_bits(uint64_t u) {
    u = (u << 1) == 0 ? 0 : u;
    return (u & 0x7FFFFFFFFFFFFFFFull) > 0x7FF0000000000000ull ? 0x7FF8000000000000ull : u;
}

FB_INLINE uint32_t fb_hash_bytes(const uint8_t *p, int64_t n, uint32_t h) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) h = fb_mix(h, fb_load32(p + i));
    for (; i < n; i++) h = fb_mix(h, (uint32_t)(int32_t)(int8_t)p[i]);
    return fb_finish(h, (uint32_t)n);
}

/* The shortest big-endian two's complement of 16 little-endian bytes. */
static uint32_t fb_hash_decimal(const uint8_t *p, uint32_t h) {
    uint8_t bytes[16];
    for (int i = 0; i < 16; i++) bytes[i] = p[15 - i];
    int skip = 0;
    uint8_t sign = bytes[0] & 0x80 ? 0xFF : 0x00;
    while (skip < 15 && bytes[skip] == sign && !((bytes[skip + 1] ^ sign) & 0x80)) skip++;
    return fb_hash_bytes(bytes + skip, 16 - skip, h);
}

/* Hashes one value of any type, for values inside lists and structs. */
static uint32_t fb_hash_one(const fb_node *nodes, const fb_column *cols, int node, int64_t i, uint32_t h) {
    const fb_node *t = &nodes[node];
    const fb_column *c = &cols[node];
    if (!fb_is_valid(c, i)) return h;
    const uint8_t *v = c->values ? c->values + i * t->width : NULL;
    switch (t->hash) {
    case FB_HASH_BOOL: return fb_hash_int((uint32_t)fb_bit(c->values, c->bit0 + i), h);
    case FB_HASH_INT8: return fb_hash_int((uint32_t)(int32_t)(int8_t)*v, h);
    case FB_HASH_UINT8: return fb_hash_int(*v, h);
    case FB_HASH_INT16: { int16_t x; memcpy(&x, v, 2); return fb_hash_int((uint32_t)(int32_t)x, h); }
    case FB_HASH_UINT16: { uint16_t x; memcpy(&x, v, 2); return fb_hash_int(x, h); }
    case FB_HASH_INT32: return fb_hash_int(fb_load32(v), h);
    case FB_HASH_UINT32: return fb_hash_long(fb_load32(v), h);
    case FB_HASH_INT64:
    case FB_HASH_DECIMAL_LONG: return fb_hash_long(fb_load64(v), h);
    case FB_HASH_FLOAT: return fb_hash_int(fb_float_bits(fb_load32(v)), h);
    case FB_HASH_DOUBLE: return fb_hash_long(fb_double_bits(fb_load64(v)), h);
    case FB_HASH_DECIMAL_BIG: return fb_hash_decimal(v, h);
    case FB_HASH_BYTES: {
        if (t->kind == FB_FIXED) return fb_hash_bytes(v, t->width, h);
        int64_t s = fb_var_start(t, c, i);
        return fb_hash_bytes(c->data + s, fb_var_start(t, c, i + 1) - s, h);
    }
    case FB_HASH_NESTED: {
        if (t->kind == FB_STRUCT) {
            for (int k = node + 1; k < t->next; k = nodes[k].next) h = fb_hash_one(nodes, cols, k, i, h);
            return h;
        }
        int64_t from = t->kind == FB_FSL ? i * t->width : fb_var_start(t, c, i);
        int64_t to = t->kind == FB_FSL ? from + t->width : fb_var_start(t, c, i + 1);
        for (int64_t j = from; j < to; j++) h = fb_hash_one(nodes, cols, node + 1, j, h);
        return h;
    }
    }
    return h;
}

#define FB_HASH_FIXED(T, CALL)                            \
    for (int i = 0; i < n; i++) {                         \
        T x;                                              \
        memcpy(&x, v + i * (int64_t)sizeof(T), sizeof(T)); \
        h[i] = CALL;                                      \
    }                                                     \
    break

/* Hashes at most FB_HASH_BLOCK rows from row `lo` on: h[i] is seed and result. */
FB_INLINE void fb_hash_block_body(const fb_node *nodes, const fb_column *cols, int node, int64_t lo, int n,
                                  uint32_t *restrict h) {
    const fb_node *t = &nodes[node];
    const fb_column *c = &cols[node];
    const uint8_t *restrict v = c->values ? c->values + lo * t->width : NULL;
    uint32_t seeds[FB_HASH_BLOCK];
    if (c->validity) memcpy(seeds, h, (size_t)n * 4);
    switch (t->hash) {
    case FB_HASH_BOOL:
        for (int i = 0; i < n; i++) h[i] = fb_hash_int((uint32_t)fb_bit(c->values, c->bit0 + lo + i), h[i]);
        break;
    case FB_HASH_INT8: FB_HASH_FIXED(int8_t, fb_hash_int((uint32_t)(int32_t)x, h[i]));
    case FB_HASH_UINT8: FB_HASH_FIXED(uint8_t, fb_hash_int(x, h[i]));
    case FB_HASH_INT16: FB_HASH_FIXED(int16_t, fb_hash_int((uint32_t)(int32_t)x, h[i]));
    case FB_HASH_UINT16: FB_HASH_FIXED(uint16_t, fb_hash_int(x, h[i]));
    case FB_HASH_INT32: FB_HASH_FIXED(uint32_t, fb_hash_int(x, h[i]));
    case FB_HASH_UINT32: FB_HASH_FIXED(uint32_t, fb_hash_long(x, h[i]));
    case FB_HASH_INT64: FB_HASH_FIXED(uint64_t, fb_hash_long(x, h[i]));
    case FB_HASH_FLOAT: FB_HASH_FIXED(uint32_t, fb_hash_int(fb_float_bits(x), h[i]));
    case FB_HASH_DOUBLE: FB_HASH_FIXED(uint64_t, fb_hash_long(fb_double_bits(x), h[i]));
    case FB_HASH_DECIMAL_LONG:
        for (int i = 0; i < n; i++) h[i] = fb_hash_long(fb_load64(v + 16 * i), h[i]);
        break;
    case FB_HASH_BYTES:
        if (t->kind == FB_VAR32) {
            const int32_t *o = (const int32_t *)c->offsets + lo;
            for (int i = 0; i < n; i++) h[i] = fb_hash_bytes(c->data + o[i], o[i + 1] - o[i], h[i]);
            break;
        } /* fall through */
    default:
        for (int i = 0; i < n; i++) h[i] = fb_hash_one(nodes, cols, node, lo + i, h[i]);
        return; /* nulls were handled above */
    }
    if (c->validity)
        for (int i = 0; i < n; i++)
            if (!fb_bit(c->validity, c->bit0 + lo + i)) h[i] = seeds[i];
}

/* pmod(h, n) with n <= 2^30. The quotient computed with doubles is off by at most one: |h| < 2^31 has an absolute
 * error below 2^-20 / n, so the remainder is in [-n, n], and one correction on either side makes it exact. */
FB_INLINE void fb_pmod_body(const uint32_t *restrict h, int n_rows, int32_t n, int32_t *restrict out) {
    if ((n & (n - 1)) == 0) {
        for (int i = 0; i < n_rows; i++) out[i] = (int32_t)(h[i] & (uint32_t)(n - 1));
        return;
    }
    double inverse = 1.0 / n;
    for (int i = 0; i < n_rows; i++) {
        int32_t q = (int32_t)((double)(int32_t)h[i] * inverse);
        int32_t r = (int32_t)(h[i] - (uint32_t)q * (uint32_t)n);
        r += n & (r >> 31);
        r -= n & ~((r - n) >> 31);
        out[i] = r;
    }
}

#define FB_HASH_WAY(WAY, TARGET)                                                                                 \
    TARGET static void fb_hash_block_##WAY(const fb_node *nodes, const fb_column *cols, int node, int64_t lo,    \
                                           int n, uint32_t *h) {                                                 \
        fb_hash_block_body(nodes, cols, node, lo, n, h);                                                         \
    }                                                                                                            \
    TARGET static void fb_pmod_##WAY(const uint32_t *h, int rows, int32_t n, int32_t *out) {                     \
        fb_pmod_body(h, rows, n, out);                                                                           \
    }
#if defined(__clang__)
#define FB_64_BYTES "avx512f,avx512bw,avx512dq,avx512vl"
#else /* the compiler uses 32 bytes at once unless told otherwise */
#define FB_64_BYTES "avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"
#endif
#if defined(__x86_64__)
FB_HASH_WAY(avx512, __attribute__((target(FB_64_BYTES))))
FB_HASH_WAY(avx2, __attribute__((target("avx2"))))
#endif
FB_HASH_WAY(base, )

static inline void fb_hash_block(const fb_node *nodes, const fb_column *cols, int node, int64_t lo, int n,
                                 uint32_t *h) {
#if defined(__x86_64__)
    if (fb_has_avx512()) {
        fb_hash_block_avx512(nodes, cols, node, lo, n, h);
        return;
    }
    if (fb_has_avx2()) {
        fb_hash_block_avx2(nodes, cols, node, lo, n, h);
        return;
    }
#endif
    fb_hash_block_base(nodes, cols, node, lo, n, h);
}

static inline void fb_pmod(const uint32_t *h, int rows, int32_t n, int32_t *out) {
#if defined(__x86_64__)
    if (fb_has_avx512()) {
        fb_pmod_avx512(h, rows, n, out);
        return;
    }
    if (fb_has_avx2()) {
        fb_pmod_avx2(h, rows, n, out);
        return;
    }
#endif
    fb_pmod_base(h, rows, n, out);
}

/* Hashes rows [0, n) of one column, with the hashes so far as seeds. */
static void fb_hash_chain(const fb_node *nodes, const fb_column *cols, int node, uint32_t *h, int64_t n) {
    for (int64_t i = 0; i < n; i += FB_HASH_BLOCK)
        fb_hash_block(nodes, cols, node, i, n - i < FB_HASH_BLOCK ? (int)(n - i) : FB_HASH_BLOCK, h + i);
}

/* The sum, modulo 2^64, of a mix of each hash: equal for the same hashes in any order.  A plain sum would miss two
 * hashes that change by the same amount in opposite directions. */
FB_INLINE uint64_t fb_mixed(const uint32_t *h, int n) {
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        uint64_t x = (h[i] + 1ULL) * 0x9E3779B97F4A7C15ULL;
        x ^= x >> 29;
        sum += x * 0xBF58476D1CE4E5B9ULL;
    }
    return sum;
}

/* pids[i] = pmod(hash of row i over the columns of `keys` in order, parts); returns fb_mixed of all hashes. */
static uint64_t fb_hash_partition(const fb_node *nodes, const fb_column *cols, const int32_t *keys, int n_keys,
                                  uint32_t seed, int64_t n, int32_t parts, int32_t *pids) {
    uint32_t block[FB_HASH_BLOCK];
    uint64_t mixed = 0;
    for (int64_t i = 0; i < n; i += FB_HASH_BLOCK) {
        int m = n - i < FB_HASH_BLOCK ? (int)(n - i) : FB_HASH_BLOCK;
        for (int k = 0; k < m; k++) block[k] = seed;
        for (int k = 0; k < n_keys; k++) fb_hash_block(nodes, cols, keys[k], i, m, block);
        fb_pmod(block, m, parts, pids + i);
        mixed += fb_mixed(block, m);
    }
    return mixed;
}

/* What fb_hash_partition gives for row i alone. */
static int32_t fb_hash_row(const fb_node *nodes, const fb_column *cols, const int32_t *keys, int n_keys, uint32_t seed,
                           int64_t i, int32_t parts) {
    int32_t pid;
    for (int k = 0; k < n_keys; k++) seed = fb_hash_one(nodes, cols, keys[k], i, seed);
    fb_pmod(&seed, 1, parts, &pid);
    return pid;
}

#endif

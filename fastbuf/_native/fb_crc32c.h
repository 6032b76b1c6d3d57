/* CRC32C (Castagnoli, reflected polynomial 0x82F63B78; RFC 3720 appendix B.4).
 *
 * x86-64 with SSE4.2 uses the crc32 instruction, detected at run time so that one wheel serves every machine; other
 * machines use a table of 16 entries.
 */
#ifndef FB_CRC32C_H
#define FB_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t fb_crc32c_table(uint32_t crc, const uint8_t *p, size_t n) {
    /* Four bits at a time: 16 entries, so no start-up cost and no shared state. */
    static const uint32_t nibble[16] = {
        0x00000000u, 0x105EC76Fu, 0x20BD8EDEu, 0x30E349B1u, 0x417B1DBCu, 0x5125DAD3u, 0x61C69362u, 0x7198540Du,
        0x82F63B78u, 0x92A8FC17u, 0xA24BB5A6u, 0xB21572C9u, 0xC38D26C4u, 0xD3D3E1ABu, 0xE330A81Au, 0xF36E6F75u};
    while (n--) {
        crc ^= *p++;
        crc = (crc >> 4) ^ nibble[crc & 15];
        crc = (crc >> 4) ^ nibble[crc & 15];
    }
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static inline uint32_t fb_crc32c_sse42(uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t c = crc;
    while (n >= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        c = __builtin_ia32_crc32di(c, w);
        p += 8;
        n -= 8;
    }
    while (n--) c = __builtin_ia32_crc32qi((uint32_t)c, *p++);
    return (uint32_t)c;
}
#endif

/* crc: the value so far (0 at the start), so that a block can be summed in pieces. */
static inline uint32_t fb_crc32c(uint32_t crc, const void *data, size_t n) {
    crc = ~crc;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2")) return ~fb_crc32c_sse42(crc, (const uint8_t *)data, n);
#endif
    return ~fb_crc32c_table(crc, (const uint8_t *)data, n);
}

#endif

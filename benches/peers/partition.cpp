// What a loop written for rows A alone takes to partition a batch: (int64 key, int64, float64, string).
//
//   long gather(batch, parts, out)     hash, count, place of each row, then each column in that order: Arrow's layout
//   long append(batch, parts, out)     hash, and each row at once to the end of its partition's segment
//
// The hash is one multiplication, where Spark's is Murmur3; a string of at most 16 bytes is copied as 16; nothing may be
// null.  Both return the rows that went to partition 0, for who checks them.
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr uint32_t SEGMENT = 32768, FIXED = 28;

uint32_t part_of(int64_t key, uint32_t parts) {
    uint64_t h = static_cast<uint64_t>(key) * 0x9E3779B97F4A7C15ull;
    return static_cast<uint32_t>((h >> 32) * parts >> 32);
}

}  // namespace

extern "C" {

struct Batch {
    const int64_t *key, *number;
    const double *value;
    const int32_t *offsets;
    const char *text;
    int64_t rows;
};

// For gather: room for what a batch has, and 16 bytes behind the text.  For append: a segment of 32 KiB and how much of
// it is full, of each partition.
struct Out {
    int64_t *key, *number;
    double *value;
    int32_t *offsets;
    char *text;
    char *segments;
    uint32_t *filled;
};

static inline void copy_text(char *to, const Batch *b, int32_t at, int32_t length) {
    if (length <= 16 && at + 16 <= b->offsets[b->rows])
        std::memcpy(to, b->text + at, 16);
    else
        std::memcpy(to, b->text + at, length);
}

long gather(const Batch *b, uint32_t parts, const Out *out) {
    static thread_local std::vector<uint32_t> next, order;
    static thread_local std::vector<uint16_t> part;
    const int64_t rows = b->rows;
    part.resize(rows);
    order.resize(rows);
    next.assign(parts + 1, 0);
    for (int64_t i = 0; i < rows; i++) part[i] = part_of(b->key[i], parts);
    for (int64_t i = 0; i < rows; i++) next[part[i] + 1]++;
    const long first = next[1];
    for (uint32_t p = 0; p < parts; p++) next[p + 1] += next[p];
    for (int64_t i = 0; i < rows; i++) order[next[part[i]]++] = i;
    for (int64_t i = 0; i < rows; i++) out->key[i] = b->key[order[i]];
    for (int64_t i = 0; i < rows; i++) out->number[i] = b->number[order[i]];
    for (int64_t i = 0; i < rows; i++) out->value[i] = b->value[order[i]];
    int32_t end = 0;
    for (int64_t i = 0; i < rows; i++) {
        const int32_t at = b->offsets[order[i]], length = b->offsets[order[i] + 1] - at;
        out->offsets[i] = end;
        copy_text(out->text + end, b, at, length);
        end += length;
    }
    out->offsets[rows] = end;
    return first;
}

// A segment that is full is used again, as in the bench of ours.
long append(const Batch *b, uint32_t parts, const Out *out) {
    long first = 0;
    for (int64_t i = 0; i < b->rows; i++) {
        const uint32_t p = part_of(b->key[i], parts);
        const int32_t at = b->offsets[i], length = b->offsets[i + 1] - at;
        if (out->filled[p] + FIXED + length + 16 > SEGMENT) out->filled[p] = 0;
        char *to = out->segments + static_cast<size_t>(p) * SEGMENT + out->filled[p];
        std::memcpy(to, b->key + i, 8);
        std::memcpy(to + 8, b->number + i, 8);
        std::memcpy(to + 16, b->value + i, 8);
        std::memcpy(to + 24, &length, 4);
        copy_text(to + FIXED, b, at, length);
        out->filled[p] += FIXED + length;
        first += p == 0;
    }
    return first;
}
}

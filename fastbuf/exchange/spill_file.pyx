"""The file of a blocking partition (layout and owners are in the ``.pxd``)."""

from libc.errno cimport EINTR, ENOMEM, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from posix.types cimport off_t

from fastbuf._native.crc32c cimport fb_crc32c
from fastbuf._native.files cimport pread, pwritev
from fastbuf._native.sockets cimport close, iovec

cdef uint64_t SPILL_EVENT = <uint64_t> 1 << 63


cdef SpillFile *spill_new(int fd, uint32_t parts, bint checksum) noexcept nogil:
    """Takes over the descriptor; NULL: no memory, and the caller keeps the descriptor."""
    cdef SpillFile *f = <SpillFile *> calloc(1, sizeof(SpillFile))
    if f == NULL:
        return NULL
    f.lists = <SpillList *> calloc(parts, sizeof(SpillList))
    if f.lists == NULL:
        free(f)
        return NULL
    f.fd = fd
    f.parts = parts
    f.checksum = checksum
    return f


cdef void spill_free(SpillFile *f) noexcept nogil:
    cdef uint32_t part
    if f == NULL:
        return
    close(f.fd)
    for part in range(f.parts):
        free(f.lists[part].runs)
        free(f.lists[part].crcs)
    free(f.lists)
    free(f)


cdef int spill_append(SpillFile *f, iovec *vectors, int n) noexcept nogil:
    """Writes all vectors to the end of the file; it changes the vectors."""
    cdef ssize_t wrote
    while n:
        wrote = pwritev(f.fd, vectors, n, <off_t> f.size)
        if wrote < 0:
            if errno == EINTR:
                continue
            return errno
        f.size += <uint64_t> wrote
        while n and <size_t> wrote >= vectors.iov_len:
            wrote -= <ssize_t> vectors.iov_len
            vectors += 1
            n -= 1
        if n:       # a short write; if the disk is full, the next call fails
            vectors.iov_base = <uint8_t *> vectors.iov_base + wrote
            vectors.iov_len -= <size_t> wrote
    return 0


cdef int spill_note(SpillFile *f, uint32_t part, uint64_t offset, uint32_t length, bint event,
                    uint32_t crc) noexcept nogil:
    cdef SpillList *mine = &f.lists[part]
    cdef SpillRun *last
    cdef SpillRun *grown
    cdef uint32_t *crcs
    cdef uint64_t capacity
    if mine.count and not event and not f.checksum:
        last = &mine.runs[mine.count - 1]
        if not last.length & SPILL_EVENT and last.offset + last.length == offset:
            last.length += length
            return 0
    if mine.count == mine.capacity:
        capacity = mine.capacity * 2 if mine.capacity else 4
        grown = <SpillRun *> realloc(mine.runs, capacity * sizeof(SpillRun))
        if grown == NULL:
            return ENOMEM
        mine.runs = grown
        if f.checksum:
            crcs = <uint32_t *> realloc(mine.crcs, capacity * sizeof(uint32_t))
            if crcs == NULL:
                return ENOMEM
            mine.crcs = crcs
        mine.capacity = capacity
    mine.runs[mine.count].offset = offset
    mine.runs[mine.count].length = length | (SPILL_EVENT if event else 0)
    if f.checksum:
        mine.crcs[mine.count] = crc
    mine.count += 1
    return 0


cdef SpillKind spill_next(SpillFile *f, uint32_t part, uint32_t most, uint32_t *length) noexcept nogil:
    cdef SpillList *mine = &f.lists[part]
    cdef uint64_t left
    if mine.next == mine.count:
        return SPILL_END
    if mine.runs[mine.next].length & SPILL_EVENT:
        length[0] = <uint32_t> (mine.runs[mine.next].length & ~SPILL_EVENT)
        return SPILL_IS_EVENT
    left = mine.runs[mine.next].length - mine.at
    length[0] = <uint32_t> left if left < most else most
    return SPILL_BYTES


cdef int spill_read(SpillFile *f, uint32_t part, uint8_t *data, uint32_t length) noexcept nogil:
    cdef SpillList *mine = &f.lists[part]
    cdef SpillRun *run = &mine.runs[mine.next]
    cdef uint32_t have = 0
    cdef ssize_t got
    while have < length:
        got = pread(f.fd, data + have, length - have, <off_t> (run.offset + mine.at + have))
        if got < 0:
            if errno == EINTR:
                continue
            return errno
        if got == 0:
            return SPILL_CUT
        have += <uint32_t> got
    if f.checksum and fb_crc32c(0, data, length) != mine.crcs[mine.next]:
        return SPILL_ALTERED
    mine.at += length
    if mine.at == run.length & ~SPILL_EVENT:
        mine.next += 1
        mine.at = 0
    return 0

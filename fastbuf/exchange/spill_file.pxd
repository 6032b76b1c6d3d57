# Map of a spill file: what a blocking partition has written, and where each subpartition's bytes are.
#
# One file for all subpartitions and an index in memory, as Flink's sort-merge shuffle has it, not a file each as its
# BoundedBlockingSubpartition: a partition of 10,000 subpartitions is one descriptor, and what is written goes to the
# disk in one sequence whatever the number of consumers.  What is written at a time stands sorted by subpartition, so
# that its runs are long; bytes of one subpartition that stand together are one run, however many buffers they were.
#
# The file has no name (O_TMPFILE, or unlinked as soon as it is made): it ends with its last descriptor, whatever kills
# the process.
#
# Owner: `fd`, `size` and the runs are the writer's until the partition is finished, and nobody's to change afterwards;
# `next` and `at` of a list are the one's who reads that subpartition.  The index takes sizeof(SpillRun) bytes a run:
# 1 in 2,000 of what is written when every buffer of 32 KiB is a run of its own.
#
# With checksums every buffer is one, and has its CRC32C beside it in the index: it is read as a whole, and compared
# before anybody sees it.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastbuf._native.sockets cimport iovec


cdef enum:
    SPILL_VECTORS = 256         # buffers written by one system call


cdef struct SpillRun:
    uint64_t offset             # in the file
    uint64_t length             # bytes, and SPILL_EVENT: they are one event


cdef struct SpillList:          # of one subpartition, in the order of its stream
    SpillRun *runs
    uint32_t *crcs              # of each run; NULL without checksums
    uint64_t count
    uint64_t capacity
    uint64_t next               # reader: the run it is at
    uint64_t at                 # reader: bytes of it that are read


cdef struct SpillFile:
    int fd
    uint32_t parts
    bint checksum
    uint64_t size               # bytes written
    SpillList *lists


cdef enum SpillKind:
    SPILL_END = 0               # all of it is read
    SPILL_BYTES = 1
    SPILL_IS_EVENT = 2


cdef enum:
    SPILL_CUT = -1              # what spill_read may say but an errno: the file ends before its index does
    SPILL_ALTERED = -2          # these are not the bytes that were written


cdef SpillFile *spill_new(int fd, uint32_t parts, bint checksum) noexcept nogil
cdef void spill_free(SpillFile *f) noexcept nogil
# Both return an errno, 0: done.  What is appended belongs to nobody until spill_note says whose it is.
cdef int spill_append(SpillFile *f, iovec *vectors, int n) noexcept nogil
cdef int spill_note(SpillFile *f, uint32_t part, uint64_t offset, uint32_t length, bint event,
                    uint32_t crc) noexcept nogil
# What is next, and its length: of an event all of it, of bytes at most `most`.
cdef SpillKind spill_next(SpillFile *f, uint32_t part, uint32_t most, uint32_t *length) noexcept nogil
# Reads what spill_next has told into data; -> errno, 0: read and passed, SPILL_CUT, SPILL_ALTERED.
cdef int spill_read(SpillFile *f, uint32_t part, uint8_t *data, uint32_t length) noexcept nogil

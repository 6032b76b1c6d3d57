# Map of a spill file: the file of a blocking partition, and the index of each subpartition's bytes in it.
#
# There is one file for all subpartitions and an index in memory, as in Flink's sort-merge shuffle (its
# BoundedBlockingSubpartition has a file for each).  So a partition of 10,000 subpartitions needs one descriptor, and
# writes to the disk are sequential whatever the number of consumers.  Each write is sorted by subpartition.  A run is a
# contiguous piece of one subpartition, of one or more buffers.
#
# The file has no name (O_TMPFILE, or unlinked as soon as it is made): the kernel deletes it with its last descriptor,
# however the process ends.
#
# Owner: `fd`, `size` and the runs belong to the writer until the partition is finished, and do not change afterwards;
# `next` and `at` of a list belong to the reader of that subpartition.  The index takes sizeof(SpillRun) bytes per run:
# 1/2000 of the data if every buffer of 32 KiB is a run.
#
# With checksums every buffer is a run, with its CRC32C in the index: it is read whole, and compared before it is used.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastbuf._native.sockets cimport iovec


cdef enum:
    SPILL_VECTORS = 256         # buffers written by one system call


cdef struct SpillRun:
    uint64_t offset             # in the file
    uint64_t length             # in bytes; bit SPILL_EVENT: it is an event


cdef struct SpillList:          # the runs of one subpartition, in order
    SpillRun *runs
    uint32_t *crcs              # of each run; NULL without checksums
    uint64_t count
    uint64_t capacity
    uint64_t next               # reader: index of the current run
    uint64_t at                 # reader: bytes of it that were read


cdef struct SpillFile:
    int fd
    uint32_t parts
    bint checksum
    uint64_t size               # bytes written
    SpillList *lists


cdef enum SpillKind:
    SPILL_END = 0               # everything was read
    SPILL_BYTES = 1
    SPILL_IS_EVENT = 2


cdef enum:
    # results of spill_read besides an errno
    SPILL_CUT = -1              # the file ends before its index does
    SPILL_ALTERED = -2          # the checksum differs


cdef SpillFile *spill_new(int fd, uint32_t parts, bint checksum) noexcept nogil
cdef void spill_free(SpillFile *f) noexcept nogil
# Both return an errno, 0: done.  spill_append writes bytes, spill_note adds them to the index of a subpartition.
cdef int spill_append(SpillFile *f, iovec *vectors, int n) noexcept nogil
cdef int spill_note(SpillFile *f, uint32_t part, uint64_t offset, uint32_t length, bint event,
                    uint32_t crc) noexcept nogil
# The kind of what is next, and its length: the whole event, or at most `most` bytes.
cdef SpillKind spill_next(SpillFile *f, uint32_t part, uint32_t most, uint32_t *length) noexcept nogil
# Reads what spill_next returned into `data`, and moves on; -> 0: done, an errno, SPILL_CUT, SPILL_ALTERED.
cdef int spill_read(SpillFile *f, uint32_t part, uint8_t *data, uint32_t length) noexcept nogil

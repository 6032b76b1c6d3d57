# Map of a blocking partition: records are written to a file, and can be read once all of them are there.
#
#     while writing      open buffer -> stage (a private queue per subpartition) -> file; the segment is recycled
#     when finished      the index is final, and the writer holds no segments
#     while reading      file -> segment of this partition's pool -> subs (the queues that consumers drain)
#
# The thread that loads from the file then acts as the writer of `subs[part]`: for a local gate its reader, for remote
# consumers the thread that is in close or try_close.  A segment is always left for each subpartition: the pool
# guarantees one more than there are subpartitions, a local reader takes one at a time, and close leaves one for each
# subpartition that has none.
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport fb_au32
from fastbuf._native.sockets cimport iovec
from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.exchange.result_subpartition cimport Subpartition
from fastbuf.exchange.spill_file cimport SPILL_VECTORS, SpillFile


cdef enum Consumer:
    CONSUMER_NONE = 0
    CONSUMER_LOCAL = 1
    CONSUMER_REMOTE = 2


cdef struct SpillBatch:         # what one system call writes; for the writer's thread only
    iovec vectors[SPILL_VECTORS]
    int n
    uint64_t bytes
    uint32_t *taken             # slots of each subpartition's stage that end with this batch
    # The slots of the first queue, in order.  A broadcast buffer is in every queue, and is written only once.
    int32_t *segments
    uint64_t *offsets
    uint32_t *crcs              # CRC32C of each, if checksums are wanted
    uint32_t known


cdef class BlockingPartition(ResultPartition):
    cdef SpillFile *file        # NULL once everything was consumed
    cdef SpillBatch *batch
    cdef uint8_t *consumers     # Consumer, by subpartition; set once, under the GIL, after notify and notify_context
    cdef readonly str directory
    cdef char where[400]        # the directory, for messages from nogil code
    cdef fb_au32 finished       # 1: the file is complete; stored with release after its last change
    cdef bint writer_gone       # the writer was closed while local readers still read
    cdef object __weakref__

    cdef bint is_attached(self, int part) noexcept nogil
    cdef bint store(self) noexcept nogil
    cdef int collect(self, int part, bint first) noexcept nogil
    cdef int write_batch(self) noexcept nogil
    cdef void failed(self, int error, const char *doing) noexcept nogil
    cdef int load(self, int part) noexcept nogil
    cdef int loaded(self, Subpartition *s) noexcept nogil
    cdef void pump(self) noexcept nogil
    cdef bint read_in_place(self) noexcept

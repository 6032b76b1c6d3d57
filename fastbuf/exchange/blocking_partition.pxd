# Map of a blocking partition: what is written goes to a file, and may be read when all of it is there.
#
#     writer's thread    open buffer -> stage (a queue per subpartition, nobody else sees it) -> file, and home
#     finished           the index is final, every segment of the writer is home
#     who reads          file -> segment of this partition's pool -> subs (the queue that consumers drain)
#
# Who reads is from then on the writer of `subs[part]`: a local gate's reader for what it reads in place, and whoever is
# within close or try_close for the others.  There is a segment for each: the pool guarantees one more than there are
# subpartitions, a local reader takes one at a time, and the other side leaves one for each that has none.
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


cdef struct SpillBatch:         # writer only: what one system call writes
    iovec vectors[SPILL_VECTORS]
    int n
    uint64_t bytes
    uint32_t *taken             # slots of each subpartition's stage that end with this batch
    # The first queue's slots, in order: a broadcast's buffers stand in every queue, and are written once.
    int32_t *segments
    uint64_t *offsets
    uint32_t *crcs              # of these, if checksums are wanted
    uint32_t known


cdef class BlockingPartition(ResultPartition):
    cdef SpillFile *file        # NULL once all is consumed
    cdef SpillBatch *batch
    cdef uint8_t *consumers     # Consumer, by subpartition; set once, under the GIL, after notify and notify_context
    cdef readonly str directory
    cdef char where[400]        # the same, for messages from nogil code
    cdef fb_au32 finished       # all is in the file; stored with release after its last change
    cdef bint writer_gone       # the writer has let go, and local readers have not

    cdef bint is_attached(self, int part) noexcept nogil
    cdef bint store(self) noexcept nogil
    cdef int collect(self, int part, bint first) noexcept nogil
    cdef int write_batch(self) noexcept nogil
    cdef void failed(self, int error, const char *doing) noexcept nogil
    cdef int load(self, int part) noexcept nogil
    cdef int loaded(self, Subpartition *s) noexcept nogil
    cdef void pump(self) noexcept nogil
    cdef bint read_in_place(self) noexcept

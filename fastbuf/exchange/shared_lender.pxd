# The writer's end of a memfd channel (layout, pairing and forbidden outcomes: shared_block.pxd).
from libc.stdint cimport uint32_t

from fastbuf.exchange.doorbell cimport Doorbell
from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.exchange.shared_block cimport SharedLender


cdef void lender_collect(void *lender) noexcept nogil
cdef void lender_notify(void *lender) noexcept nogil


cdef class SharedWriter:
    cdef SharedLender x
    cdef size_t length          # bytes mapped
    cdef readonly int fd        # memfd of the block
    cdef ResultPartition partition              # kept alive until all segments are back; None: the channel is over
    cdef Doorbell reader_bell
    cdef readonly int index     # subpartition
    cdef readonly bint let_go   # the partition has dropped this channel (see `release`)
    cdef readonly object peer   # for messages

# Map of the reader's end of input channels: one class for each way that what was sent comes to the reader.
#
#   LocalChannel   in place: what a writer of this process queued (result_subpartition.pxd)
#   SharedChannel  in place: what a writer of another process lends (shared_reader.pxd)
#   WireChannels   in segments of the gate's, where a transport's thread puts it: all such channels of a gate, which
#                  schedules those that have something (gate_core.pxd)
#
# A turn: `begin`; `next`, and `advance` over what that gave, while there is something; `leave`, whatever happened.
#
# Owner of every field: the gate's reader, or who closes the gate, with the gate's lock (the Python one) held.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastbuf.exchange.gate_core cimport GateCore
from fastbuf.exchange.input_channel cimport InputChannel, ReadyBuffer
from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.exchange.result_subpartition cimport Subpartition
from fastbuf.exchange.shared_block cimport SharedEnd
from fastbuf.exchange.shared_reader cimport News, SharedLook, SharedReader

cdef enum:
    # Buffers taken from the queues, and given back, at a time.  Well below the window that a channel has by default,
    # 10: a sender that had 8 of them back at once waited for most of the time that they were decoded in.
    READY_BATCH = 4


cdef class ChannelReader:
    cdef InputChannel *channel      # of which the last news was; but of WireChannels always the same
    cdef bint holds                 # it has taken more, which is to be read before the turn ends
    cdef bint partial               # a buffer that the writer still fills may be read as well
    cdef uint32_t length            # of what `next` gave
    cdef bint last                  # that was the last of its buffer

    cdef void begin(self, bint partial) noexcept nogil
    # most: buffers that are wanted, READY_BATCH at most
    cdef News next(self, uint32_t most, const uint8_t **data, uint32_t *length) noexcept nogil
    cdef void advance(self) noexcept nogil
    cdef void leave(self) noexcept nogil
    cdef int refill(self) except -1                 # 1: nothing was next, and something is now
    cdef bytes gave_up(self)                        # why the producer did; None: it has not
    # The reader wants no more: it has all (NEWS_END) or enough, or failed for that reason.  False: others go on.
    cdef bint end(self, SharedEnd how, const char *reason) except -1
    cdef bint hint(self, SharedLook *look) noexcept nogil   # where to look for what comes, if that can be looked at
    cdef uint32_t queued(self) noexcept nogil
    cdef uint64_t stored(self) noexcept nogil       # bytes that come when the producer has finished


cdef class LocalChannel(ChannelReader):
    cdef ResultPartition partition  # kept alive while it is read
    cdef Subpartition *sub
    cdef int part
    cdef bint asked                 # the writer has asked to flush, and not all of that has been read


cdef class SharedChannel(ChannelReader):
    cdef SharedReader ring


cdef class WireChannels(ChannelReader):
    cdef GateCore *core
    cdef ReadyBuffer taken[READY_BATCH]
    cdef uint32_t count             # of those; read so far, at
    cdef uint32_t at


cdef LocalChannel local_channel(InputChannel *c, ResultPartition partition, int part)
cdef SharedChannel shared_channel(InputChannel *c, SharedReader ring)
cdef WireChannels wire_channels(GateCore *core)

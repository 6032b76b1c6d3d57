# Map of the reading end of input channels: one class for each way in which data reaches the reader.
#
#   LocalChannel   reads in place what a writer of this process queued (result_subpartition.pxd)
#   SharedChannel  reads in place what a writer of another process lends (shared_reader.pxd)
#   WireChannels   reads the gate's own segments, which a transport's thread fills; one object for all such channels of
#                  a gate, which schedules those that have data (gate_core.pxd)
#
# A turn: `begin`; then `next` and `advance` as long as there is data; then `leave`, also after an error.
#
# Owner of every field: the gate's reader, or the thread that closes the gate, with the gate's (Python) lock held.
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from fastbuf.exchange.gate_core cimport GateCore
from fastbuf.exchange.input_channel cimport InputChannel, ReadyBuffer
from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.exchange.result_subpartition cimport Subpartition
from fastbuf.exchange.shared_block cimport SharedEnd
from fastbuf.exchange.shared_reader cimport News, SharedLook, SharedReader

cdef enum:
    # Buffers taken from the queues, and given back, at a time.  Well below a channel's default window of 10: when 8
    # were given back at once, the sender waited for most of the time that it took to decode them.
    READY_BATCH = 4


cdef class ChannelReader:
    cdef InputChannel *channel      # the channel; of WireChannels: the channel of the last `next`
    cdef bint holds                 # it has taken buffers that must be read before the turn ends
    cdef bint partial               # a buffer that the writer still fills may be read too
    cdef uint32_t length            # bytes that `next` gave
    cdef bint last                  # they were the last of their buffer
    cdef uint64_t gap               # what NEWS_GAP points to: records that the writer dropped

    cdef void begin(self, bint partial) noexcept nogil
    # most: number of buffers wanted, READY_BATCH at most
    cdef News next(self, uint32_t most, const uint8_t **data, uint32_t *length) noexcept nogil
    cdef void advance(self) noexcept nogil
    cdef void leave(self) noexcept nogil
    cdef int refill(self) except -1                 # loads more data into an empty queue; 1: there is some now
    cdef bytes gave_up(self)                        # the producer's reason if it has aborted, else None
    # The reader stops: it has everything (NEWS_END), has enough, or failed with `reason`.  False: other channels go on.
    cdef bint end(self, SharedEnd how, const char *reason) except -1
    cdef bint hint(self, SharedLook *look) noexcept nogil   # memory to poll for new data, if there is such a place
    cdef bint has_more(self) noexcept nogil         # a turn that reads unfilled buffers too would give something
    cdef uint32_t queued(self) noexcept nogil
    cdef uint64_t stored(self) noexcept nogil       # bytes stored by a blocking producer that has not finished


cdef class LocalChannel(ChannelReader):
    cdef ResultPartition partition  # kept alive while it is read
    cdef Subpartition *sub
    cdef int part
    cdef bint asked                 # the writer has flushed, and not all of that was read


cdef class SharedChannel(ChannelReader):
    cdef SharedReader ring


cdef class WireChannels(ChannelReader):
    cdef GateCore *core
    cdef ReadyBuffer taken[READY_BATCH]
    cdef uint32_t count             # entries of `taken`
    cdef uint32_t at                # of these, read


cdef LocalChannel local_channel(InputChannel *c, ResultPartition partition, int part)
cdef SharedChannel shared_channel(InputChannel *c, SharedReader ring)
cdef WireChannels wire_channels(GateCore *core)

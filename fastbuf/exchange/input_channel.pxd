# Map of one input channel: where one producer's subpartition arrives at a gate.
#
# Owner: the gate's lock, but for what is marked.  A channel is made when its producer connects (or
# when a local writer is made) and freed with its gate; its connection may end before.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from fastbuf.exchange.result_subpartition cimport EventBlob
from fastbuf.flow.buffer_manager cimport ChannelBuffers

cdef enum ChannelState:
    CHANNEL_OPEN = 0
    CHANNEL_ENDED = 1           # end of partition has arrived; buffers may still be queued at the gate
    CHANNEL_FINISHED = 2        # the reader has had everything
    CHANNEL_CANCELLED = 3


# What a transport does for a channel.  Both are called with the gate's lock held: they note the wish
# and wake their thread, and never wait or call back into the gate.
ctypedef void (*channel_fn)(void *connection) noexcept nogil


cdef enum ChannelKind:
    CHANNEL_WIRE = 0            # a transport's thread delivers what comes, in segments of the gate's
    CHANNEL_LOCAL = 1           # read where the producer wrote it, in segments of the producer's: in this process,
    CHANNEL_SHARED = 2          # and in another's memory (memfd)


cdef enum:
    READY_END = -1              # end of partition
    READY_EVENT = -2


cdef struct InputChannel


cdef struct ReadyBuffer:
    InputChannel *channel
    EventBlob *event            # READY_EVENT: whoever takes it frees it
    int32_t segment             # or READY_END, READY_EVENT
    uint32_t length


cdef struct InputChannel:
    ChannelBuffers buffers
    void *gate                  # GateCore; set once
    ChannelKind kind            # set once
    uint32_t number             # the producer's number; set once
    uint32_t index              # place in the gate's list; set once
    # The producer's buffer timeout, which is the one that counts; 0: it asks after every record, negative: never.
    # Set once
    int64_t flush_ns
    int64_t flush_turn          # reader, of what is read in place: the last turn of the timeout that it saw
    uint32_t next_sequence      # transport's thread only
    int state
    # Buffers that came, and their bytes; read in place: as the reader has read them
    uint64_t received
    uint64_t bytes
    uint64_t announced_total    # buffers the sender sent, as both ends agree (set with CHANNEL_ENDED)
    ReadyBuffer *queue          # ring that grows: what came and the reader has not taken, [head, head + count)
    uint32_t capacity           # of it, a power of two; 0: nothing has come yet
    uint32_t head
    uint32_t count
    bint scheduled              # in the gate's list of channels that have something
    InputChannel *next_scheduled
    bint blocked                # waits, whatever it has.  Set with the lock and the GIL: either will do to read it
    uint32_t events_queued      # events that came and the reader has not taken
    uint32_t flow_told          # flow control without credit: the gate's announcement that the sender has heard
    uint32_t events_untold      # places of events that are free again and the sender has not heard of
    void *connection            # the transport's; NULL once it ended
    channel_fn announce         # credits in buffers.unannounced are to be told to the sender
    channel_fn cancel           # the sender is to be told that no more is wanted

# Map of one input channel: the end of one producer's subpartition at a gate.
#
# Owner: the gate's lock, except where marked.  A channel is made when its producer connects (or when a local writer is
# made) and freed with its gate; its connection may end before.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from fastbuf.exchange.result_subpartition cimport EventBlob
from fastbuf.flow.buffer_manager cimport ChannelBuffers

cdef enum ChannelState:
    CHANNEL_OPEN = 0
    CHANNEL_ENDED = 1           # end of partition has arrived; buffers may still be queued at the gate
    CHANNEL_FINISHED = 2        # the reader has read everything
    CHANNEL_CANCELLED = 3
    CHANNEL_LOST = 4            # its producer was lost, and what it left was read; another may take its place


# Functions of a transport.  They are called with the gate's lock held: they set a flag and wake the transport's
# thread, and never wait or call back into the gate.
ctypedef void (*channel_fn)(void *connection) noexcept nogil


cdef enum ChannelKind:
    CHANNEL_WIRE = 0            # a transport's thread delivers data in segments of the gate
    CHANNEL_LOCAL = 1           # read in place, in segments of a producer in this process
    CHANNEL_SHARED = 2          # read in place, in segments of a producer in another process (memfd)


cdef enum:
    READY_END = -1              # end of partition
    READY_EVENT = -2
    READY_LOST = -3             # its producer was lost; the reason is in `event`


cdef struct InputChannel


cdef struct ReadyBuffer:
    InputChannel *channel
    EventBlob *event            # for READY_EVENT and READY_LOST, else NULL: the thread that takes it frees it
    int32_t segment             # or READY_END, READY_EVENT, READY_LOST
    uint32_t length
    uint64_t gap                # records that the writer dropped just before


# What is counted of a channel: each field is summed over a gate's channels, and told by its name in `InputGate.stats`.
# All are uint64_t.  Of a channel read in place, the reader counts, what it has read; else the transport's thread, with
# the gate's lock, what has arrived.
cdef struct ChannelCounters:
    uint64_t buffers
    uint64_t bytes
    uint64_t skipped            # records that could not be decoded, and were left out (on_error).  The reader counts
    uint64_t records_missed     # records that the writer dropped, as this reader was slow.  The reader counts


cdef struct InputChannel:
    ChannelBuffers buffers
    ChannelCounters counted
    void *gate                  # GateCore; set once
    uint32_t number             # the producer's number; set once
    uint32_t index              # place in the gate's list; set once
    # -- set when a producer connects: the first one, or one in the place of another
    ChannelKind kind
    int64_t flush_ns            # its buffer timeout; 0: it flushes after every record, negative: never
    uint64_t before             # `counted.buffers` of the producers before it
    # -- as above
    int64_t flush_turn          # for channels read in place: last period in which flush_is_due was True.  The reader's
    uint32_t next_sequence      # transport's thread only
    int state
    uint64_t announced_total    # buffers sent in all, as both ends agree (set with CHANNEL_ENDED)
    ReadyBuffer *queue          # growing ring of buffers that the reader has not taken: [head, head + count)
    uint32_t capacity           # of the ring, a power of two; 0: nothing has come yet
    uint32_t head
    uint32_t count
    bint scheduled              # in the gate's queue of channels that have data
    InputChannel *next_scheduled
    uint64_t gap                # records that the writer dropped before what comes next
    uint32_t events_queued      # events that arrived and the reader has not taken
    uint32_t flow_told          # flow control without credit: version of the gate's last announcement that was sent
    uint32_t events_untold      # event credits to be announced to the sender
    void *connection            # the transport's; NULL once it ended
    channel_fn announce         # asks the transport to announce credit to the sender
    channel_fn cancel           # asks the transport to cancel the sender

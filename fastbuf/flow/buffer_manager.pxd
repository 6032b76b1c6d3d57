# Map of the receiver's segments: exclusive ones per channel, floating ones per gate.
#
# Source: Flink's BufferManager (exclusive and floating buffers, backlog, listeners of the pool).
# Owner of every field: the gate's lock; each function is called with it held and never waits.
# A segment is always in one of three places: the gate's `ready` list, with the reader (between bm_take and bm_release),
# or the gate's LocalBufferPool.
#
# A channel owns a number of the ready segments (`ready_count`, announced as credit), not particular ones.  Data that
# arrives goes into the segment released last, whichever channel released it, because that one is still in the cache.
# With particular segments, 64 channels of two segments each that take turns would go through all 128.
#
# No channel is without a segment while another has two: every channel needs at least one exclusive segment, but the
# pool guarantees the gate only one per channel.  So segments beyond a channel's first leave one free for every channel
# that has none (`lacking`) or is not connected yet (`unopened`).  If the limit falls, an exclusive segment that is
# released goes to a channel without one.
#
# An open gate may have more channels than segments, and those that have one may be idle for ever.  So when a channel
# has none, the others are asked to give back what they do not need (`recall`), and from then on to report when they
# have data and no credit (Flink's AddBacklog).  So segments move to channels that have data to send.
#
# A blocked channel gets no segments.  Data for announced credit may still come; floating segments that were not
# announced go to the other channels at once.  It does not wait for segments, so that others get them.
from libc.stdint cimport int32_t, int64_t, uint32_t

from fastbuf.flow.credits cimport CreditRow
from fastbuf.memory.pool_core cimport LocalCore, PoolCore


cdef struct ChannelBuffers:
    CreditRow *credit           # the row of `rows`, or `own` if there are more channels
    int32_t ready_count         # ready segments that the gate keeps for this channel's data
    int32_t with_reader         # segments delivered and not yet released
    uint32_t unannounced        # credits granted that the transport has not yet told the sender
    int32_t missing             # exclusive segments that the pool could not provide yet
    bint waiting                # in the queue of channels that wait for segments
    bint lacks_segment          # has no segment, and is new or has reported data to send
    bint recall                 # ask the sender to give back credit it does not need
    bint recalled               # the sender was asked since its last credit
    bint reports_backlog        # the sender was asked before, so it reports when it has data and no credit
    bint announcing             # in the list of channels with something to announce
    bint closed                 # wants no more segments
    # It is given none, and is not read.  Written with the gate's lock and the GIL, so either is enough to read it
    bint blocked
    ChannelBuffers *next_waiter
    ChannelBuffers *next_announce
    void *owner                 # the exchange's InputChannel
    CreditRow own


cdef struct GateBuffers:
    PoolCore *pool
    LocalCore *local
    int32_t exclusive           # segments each channel gets for itself
    int32_t floating_limit
    int32_t floating_out        # floating segments held by channels, ready or with the reader
    int32_t open                # channels that are open
    int32_t with_reader         # segments delivered and not yet released, of all channels
    int32_t withheld            # of those the blocked channels'
    int32_t unopened            # channels that are expected and not there yet
    int32_t lacking             # channels whose `lacks_segment` is set
    int32_t missing             # sum over the channels
    CreditRow *rows             # of its first channels (InputGate.credits)
    int32_t n_rows
    int32_t rows_used
    int32_t ready               # head of the list of segments that wait for data; -1: empty
    int32_t *link               # next segment in that list, by segment number
    int32_t segments            # length of link
    ChannelBuffers *first_waiter
    ChannelBuffers *last_waiter
    ChannelBuffers *announce    # channels whose `unannounced` grew; the gate empties the list after each call


cdef int bm_init(GateBuffers *g, PoolCore *pool, LocalCore *local, int32_t segments, int32_t exclusive,
                 int32_t floating, CreditRow *rows, int32_t n_rows) noexcept nogil
cdef void bm_free(GateBuffers *g) noexcept nogil
cdef void bm_open(GateBuffers *g, ChannelBuffers *c, void *owner) noexcept nogil
cdef ChannelBuffers *bm_next_announce(GateBuffers *g) noexcept nogil
cdef int32_t bm_take(GateBuffers *g, ChannelBuffers *c, uint32_t backlog) noexcept nogil
cdef void bm_release(GateBuffers *g, ChannelBuffers *c, int32_t segment) noexcept nogil
cdef void bm_take_back(GateBuffers *g, ChannelBuffers *c, uint32_t n, uint32_t backlog) noexcept nogil
cdef void bm_close(GateBuffers *g, ChannelBuffers *c) noexcept nogil
cdef void bm_block(GateBuffers *g, ChannelBuffers *c) noexcept nogil
cdef void bm_unblock(GateBuffers *g, ChannelBuffers *c) noexcept nogil
cdef void bm_serve(GateBuffers *g) noexcept nogil
cdef int32_t bm_count_ready(GateBuffers *g) noexcept nogil

# Map of the native half of an input gate, which transport threads and the reader share.
#
# Lock order: GateCore.lock is a leaf: no thread takes another lock or waits while holding it.
# The event is notified after the lock was released.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport fb_au32, fb_event
from fastbuf._native.threads cimport pthread_mutex_t
from fastbuf.exchange.doorbell cimport Bell
from fastbuf.exchange.driver cimport Driver
from fastbuf.exchange.failure cimport Failure, FailureCode
from fastbuf.exchange.input_channel cimport ChannelKind, InputChannel, ReadyBuffer, channel_fn
from fastbuf.exchange.result_subpartition cimport EventBlob
from fastbuf.flow.buffer_manager cimport GateBuffers
from fastbuf.flow.credits cimport CreditRow
from fastbuf.flow.flow_control cimport FlowReceiver
from fastbuf.memory.pool_core cimport LocalCore, PoolCore


cdef enum:
    EVENT_CREDIT = 16           # most events of one channel that are in flight or wait for the reader


cdef enum OnLoss:               # what the loss of a producer means, in the order of environment.ON_PEER_LOSS
    LOSS_ERROR = 0              # the gate fails
    LOSS_FORGET = 1             # its channel has ended; another producer may take its place
    LOSS_WAIT = 2               # another producer is awaited in its place


cdef struct GateCore:
    pthread_mutex_t lock
    GateBuffers buffers
    # Channels that have data for the reader and are not blocked, in round-robin order.
    InputChannel *first_scheduled
    InputChannel *last_scheduled
    InputChannel **channels     # in the order in which they were opened
    uint32_t n_channels
    uint32_t channels_capacity
    uint32_t *places            # hash table: a channel's index + 1 by its number, 0: free; at most half full
    uint32_t places_mask        # size of the hash table - 1; the size is a power of two
    uint64_t looks              # entries of the hash table examined so far
    OnLoss on_loss              # set once
    uint32_t lost               # channels in state CHANNEL_LOST
    bint closed
    bint serving                # the reader is in gate_release and will serve the transport: wake no other thread
    bint served                 # set meanwhile: there is something to serve
    # -- the GIL
    Driver *driver              # of the transport that its channels use, or NULL
    # -- lock-free
    Bell *bell                  # rung when something came or failed; belongs to the gate, set once
    fb_event *event             # the bell's event
    Failure failure
    fb_au32 wake_fd             # eventfd (int) of a reader in an event loop, -1: none.  Set before the bell is armed
    # -- lock
    FlowReceiver flow           # except the fields that belong to the reader
    uint64_t bytes              # delivered by transport threads


cdef GateCore *gate_new(PoolCore *pool, LocalCore *local, int32_t segments, int32_t exclusive, int32_t floating,
                        CreditRow *rows, int32_t n_rows, Bell *bell) noexcept nogil
cdef void gate_notify(GateCore *g) noexcept nogil
cdef bint gate_arm(GateCore *g) noexcept nogil
cdef void gate_free(GateCore *g) noexcept nogil
# flush_ns: the producer's buffer timeout, as received from it; again: also in the place of a producer that has finished
cdef InputChannel *gate_open_channel(GateCore *g, uint32_t number, ChannelKind kind, int64_t flush_ns,
                                     bint again) noexcept nogil
# transport's thread
cdef void gate_connect(GateCore *g, InputChannel *c, void *connection, channel_fn announce,
                       channel_fn cancel) noexcept nogil
cdef int32_t gate_segment(GateCore *g, InputChannel *c, uint32_t backlog) noexcept nogil
cdef int gate_deliver(GateCore *g, InputChannel *c, int32_t segment, uint32_t length) noexcept nogil
cdef void gate_miss(GateCore *g, InputChannel *c, uint32_t records) noexcept nogil
cdef int gate_deliver_event(GateCore *g, InputChannel *c, EventBlob *event) noexcept nogil
cdef void gate_return(GateCore *g, InputChannel *c, int32_t segment) noexcept nogil
cdef int gate_end_channel(GateCore *g, InputChannel *c, uint64_t total) noexcept nogil
cdef bint gate_channel_is_open(GateCore *g, InputChannel *c) noexcept nogil
cdef void gate_disconnect(GateCore *g, InputChannel *c) noexcept nogil
cdef uint32_t gate_take_credit(GateCore *g, InputChannel *c, uint32_t *events) noexcept nogil
cdef bint gate_take_announcement(GateCore *g, InputChannel *c, uint32_t *events, uint32_t *said) noexcept nogil
cdef void gate_wants(GateCore *g, InputChannel *c, uint32_t backlog) noexcept nogil
cdef bint gate_take_recall(GateCore *g, InputChannel *c) noexcept nogil
cdef int gate_take_back(GateCore *g, InputChannel *c, uint32_t n, uint32_t backlog) noexcept nogil
cdef void gate_lose(GateCore *g, InputChannel *c, FailureCode code, const char *text, size_t length) noexcept nogil
cdef void gate_abort(GateCore *g) noexcept nogil
cdef void gate_fail(GateCore *g, FailureCode code, const char *text, size_t length) noexcept nogil
# reader
cdef uint32_t gate_take_ready(GateCore *g, ReadyBuffer *out, uint32_t most) noexcept nogil
cdef void gate_release(GateCore *g, ReadyBuffer *done, uint32_t n) noexcept nogil
cdef void gate_serve(GateCore *g) noexcept nogil
cdef void gate_set_lost(GateCore *g, InputChannel *c) noexcept nogil
cdef bint gate_unfinished(GateCore *g, uint32_t *channels) noexcept nogil
cdef bint gate_block(GateCore *g, uint32_t number, bint blocked) noexcept nogil
cdef bint gate_all_wait(GateCore *g) noexcept nogil
cdef uint32_t gate_channels(GateCore *g) noexcept nogil
cdef InputChannel *gate_channel(GateCore *g, uint32_t index) noexcept nogil
cdef void gate_cancel(GateCore *g) noexcept nogil

# Map of the flow controls: which sender may send, and when, as functions of positions, times and announcements.
#
# No function here uses a socket, a thread or a clock: the caller passes the time.  (Aeron's FlowControl is built the
# same way.)  One sender, one receiver and one wire call them, once per buffer, never per record.
#
#   credit     a buffer is sent only if the receiver has reserved a segment for its channel.  The receiver never stops
#              reading.  (Flink since 1.5; credits.pxd and buffer_manager.pxd count the segments)
#   watermark  sending stops when `high` bytes wait for the socket, and starts again when at most `low` do.  A receiver
#              without a segment for arriving data stops reading its connection, and all channels of the connection
#              wait.  This is also true of the flow controls below.  (Netty's WriteBufferWaterMark, as in Flink < 1.5)
#   on_off     a gate that is nearly full says stop, and all channels of each producer's environment stop; when it is
#              nearly empty it says go on.  (Storm since 1.0: the spouts of the topology are throttled as one)
#   stepwise   a gate that is nearly full says slower, one that is nearly empty says faster; the channel's rate changes
#              by a step.  (JStorm)
#   pid_rate   a gate measures its throughput and announces a rate.  (Spark Streaming's PIDRateEstimator)
#
# An announcement is one number, sent in a FLOW frame; credits have a frame of their own.  Rates are in units of
# RATE_UNIT bytes per second.
#
# Owner: the thread with the loop's turn owns FlowSender, FlowConnection and the FlowSource that all senders of the loop
# share; the gate's lock guards a FlowReceiver, except for the fields marked as the reader's.
from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef enum Flow:             # in the order of config.FLOW_CONTROLS; HELLO contains the number
    FLOW_CREDIT = 0
    FLOW_WATERMARK = 1
    FLOW_ON_OFF = 2
    FLOW_STEPWISE = 3
    FLOW_PID_RATE = 4

cdef enum Announcement:
    SAY_GO_ON = 1           # on_off
    SAY_STOP = 2
    SAY_FASTER = 1          # stepwise
    SAY_SLOWER = 2
    RATE_UNIT = 64


# ---- the sending end


cdef struct FlowSource:     # shared by all channels of an environment
    uint32_t stopped        # on_off: channels whose gate has said stop


cdef struct FlowConnection:
    Flow kind               # the same for all its channels
    int64_t high            # watermark: bytes; not writable from this many queued bytes on ...
    int64_t low             # ... until no more than this many are queued
    int64_t queued          # bytes that wait for the socket
    bint writable


cdef struct FlowSender:     # one per channel
    Flow kind
    uint32_t credit         # buffers that may be sent
    bint stopped            # on_off
    int64_t rate            # stepwise, pid_rate: bytes a second; 0: no limit
    int64_t due_ns          # time when the next buffer may be sent
    int64_t sent            # stepwise: bytes since ...
    int64_t since_ns        # ... the last announcement; 0: nothing was sent yet


cdef inline void flow_connection_init(FlowConnection *f, Flow kind, int64_t segment_size) noexcept nogil:
    f.kind = kind
    f.high = 2 * segment_size
    f.low = segment_size + 1
    f.queued = 0
    f.writable = True


cdef inline void flow_queued(FlowConnection *f, int64_t n) noexcept nogil:
    """`n` more bytes wait for the socket."""
    if f.kind == FLOW_WATERMARK:
        f.queued += n
        if f.queued >= f.high:
            f.writable = False


cdef inline void flow_written(FlowConnection *f, int64_t n) noexcept nogil:
    if f.kind == FLOW_WATERMARK:
        f.queued -= n
        if f.queued <= f.low:
            f.writable = True


cdef inline bint flow_may_send(FlowSender *f, FlowSource *all, int64_t now) noexcept nogil:
    """Whether the channel's next buffer may be sent; credit ignores the time."""
    if f.kind == FLOW_CREDIT:
        return f.credit != 0
    if f.kind == FLOW_ON_OFF:
        return all.stopped == 0
    return f.rate == 0 or now >= f.due_ns


cdef void flow_sent(FlowSender *f, int64_t n, int64_t now) noexcept nogil
cdef bint flow_heard(FlowSender *f, FlowSource *all, uint32_t said, int64_t now) noexcept nogil
cdef bint flow_over(FlowSender *f, FlowSource *all) noexcept nogil


# ---- the receiving end


cdef struct PidRate:        # units: elements, seconds
    double proportional
    double integral
    double derivative
    double least            # rate
    double interval_s
    double latest_s         # negative: there was no update yet
    double latest_rate
    double latest_error


cdef struct FlowReceiver:   # one per gate
    Flow kind
    uint32_t said           # the announcement for every sender; 0: none yet
    uint32_t version        # number of announcements so far
    int64_t due_ns          # stepwise, pid_rate: no announcement before this time
    # pid_rate
    PidRate pid
    uint64_t bytes          # bytes that the reader has released so far
    # pid_rate, used by the reader only
    uint64_t records        # records that it has returned so far
    uint64_t records_seen   # `records` at the last update
    int64_t busy_since      # since when the reader has had data; 0: it has none
    int64_t busy_ns         # time with data since the last update


cdef void flow_receiver_init(FlowReceiver *r, Flow kind) noexcept nogil
cdef bint flow_took(FlowReceiver *r, uint32_t used, uint32_t room, int64_t now) noexcept nogil
cdef bint flow_released(FlowReceiver *r, uint32_t used, uint32_t room, uint32_t channels, uint64_t n, uint64_t waiting,
                        int64_t now) noexcept nogil
cdef void flow_reads(FlowReceiver *r, bint found, uint64_t records, int64_t now) noexcept nogil
cdef bint pid_update(PidRate *p, double now_s, double elements, double processing_s, double scheduling_s,
                     double *rate) noexcept nogil

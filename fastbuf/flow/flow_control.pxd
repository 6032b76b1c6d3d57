# Map of the flow controls: who may send, and when, as functions of positions, times and announcements.
#
# No function here knows of a socket, a thread or a clock: the caller says what time it is.  (Aeron's FlowControl is cut
# the same way.)  One sender, one receiver and one wire call them; per buffer, never per record.
#
#   credit     a buffer leaves against a segment that the receiver has set aside for its channel.  The receiver always
#              reads on.  (Flink since 1.5; the segments are counted in credit_ledger.pxd and buffer_manager.pxd)
#   watermark  a buffer leaves while less than `high` bytes wait for the socket, or since no more than `low` do.  A
#              receiver that has no segment for what has come stops reading its connection, and every channel of that
#              waits.  So does it under all that follow.  (Netty's WriteBufferWaterMark, as Flink set it before 1.5)
#   on_off     a gate that is nearly full says stop, and every channel of a producer's environment stops; once it is
#              nearly empty it says go on.  (Storm since 1.0: the spouts of the topology are throttled as one)
#   stepwise   a gate that is nearly full says slower, one that is nearly empty says faster, and the channel's rate goes
#              down or up by a step.  (JStorm)
#   pid_rate   a gate measures what it gets done and says how much a second may come.  (Spark Streaming's
#              PIDRateEstimator)
#
# An announcement is one number, of the frame FLOW; credits have a frame of their own.  A rate is said in units of
# RATE_UNIT bytes a second.
#
# Owner: a FlowSender and a FlowConnection belong to whoever has the turn of their loop, as the FlowSource that all
# senders of a loop share; a FlowReceiver to its gate's lock, but for what is marked as the reader's.
from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef enum Flow:             # in the order of config.FLOW_CONTROLS; the number is said in HELLO
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


cdef struct FlowSource:     # what all channels of an environment share
    uint32_t stopped        # on_off: channels whose gate has said stop


cdef struct FlowConnection:
    Flow kind               # of all its channels
    int64_t high            # watermark: bytes; from here on not writable ...
    int64_t low             # ... until no more than so many wait
    int64_t queued          # bytes that wait for the socket
    bint writable


cdef struct FlowSender:     # of one channel
    Flow kind
    uint32_t credit         # buffers that may leave
    bint stopped            # on_off
    int64_t rate            # stepwise, pid_rate: bytes a second; 0: no limit
    int64_t due_ns          # the next buffer may leave then
    int64_t sent            # stepwise: bytes since ...
    int64_t since_ns        # ... the last announcement; 0: nothing has left yet


cdef inline void flow_connection_init(FlowConnection *f, Flow kind, int64_t segment_size) noexcept nogil:
    f.kind = kind
    f.high = 2 * segment_size
    f.low = segment_size + 1
    f.queued = 0
    f.writable = True


cdef inline void flow_queued(FlowConnection *f, int64_t n) noexcept nogil:
    """So many bytes more wait for the socket."""
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
    """Whether the channel's next buffer may leave; credit does not ask for the time."""
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


cdef struct FlowReceiver:   # of one gate
    Flow kind
    uint32_t said           # to be told to every sender; 0: nothing yet
    uint32_t version        # how often that was said
    int64_t due_ns          # stepwise, pid_rate: nothing is said before then
    # pid_rate
    PidRate pid
    uint64_t bytes          # that the reader is done with, in all
    # pid_rate: the reader's alone
    uint64_t records        # that it has given out, in all
    uint64_t records_seen   # at the last update
    int64_t busy_since      # since when it has had something to do; 0: it has nothing
    int64_t busy_ns         # how long it had, since the last update


cdef void flow_receiver_init(FlowReceiver *r, Flow kind) noexcept nogil
cdef bint flow_took(FlowReceiver *r, uint32_t used, uint32_t room, int64_t now) noexcept nogil
cdef bint flow_released(FlowReceiver *r, uint32_t used, uint32_t room, uint32_t channels, uint64_t n, uint64_t waiting,
                        int64_t now) noexcept nogil
cdef void flow_reads(FlowReceiver *r, bint found, uint64_t records, int64_t now) noexcept nogil
cdef bint pid_update(PidRate *p, double now_s, double elements, double processing_s, double scheduling_s,
                     double *rate) noexcept nogil

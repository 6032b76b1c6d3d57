"""The arithmetic of the flow controls, and their Python classes (the ``.pxd`` has the map)."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset

from fastbuf.checks import MOST_SEGMENT_BYTES, one_of, whole
from fastbuf.config import FLOW_CONTROLS, SEGMENT_BYTES
from fastbuf.errors import ConfigError

cdef enum:
    # A gate's marks, in tenths of its segments: Storm's topology.backpressure.disruptor.high.watermark and
    # low.watermark.
    HIGH_TENTHS = 9
    LOW_TENTHS = 4
    STEP_NS = 200000000         # stepwise: time between steps
    BATCH_NS = 100000000        # pid_rate: time between updates; in Spark Streaming this is the batch interval
    # Burst that a channel may send after being idle: the timer that wakes it is only this precise.
    BURST_NS = 10000000

cdef const int64_t LEAST_RATE = 4096                # bytes a second; lower rates would stop a channel
cdef const int64_t MOST_RATE = 1 << 40              # rates from here on mean no limit


# ---- the sending end


cdef void flow_sent(FlowSender *f, int64_t n, int64_t now) noexcept nogil:
    """A buffer of `n` bytes is sent."""
    if f.kind == FLOW_CREDIT:
        f.credit -= 1
        return
    if f.kind == FLOW_STEPWISE:
        if f.since_ns == 0:
            f.since_ns = now
        f.sent += n
    if f.rate:
        f.due_ns = max(f.due_ns, now - BURST_NS) + <int64_t> (n * 1e9 / f.rate)


cdef bint flow_heard(FlowSender *f, FlowSource *all, uint32_t said, int64_t now) noexcept nogil:
    """Handles the receiver's announcement; False: this flow control has no such announcement."""
    cdef int64_t measured
    if f.kind == FLOW_ON_OFF:
        if said != SAY_STOP and said != SAY_GO_ON:
            return False
        all.stopped += <uint32_t> (said == SAY_STOP) - <uint32_t> f.stopped
        f.stopped = said == SAY_STOP
        return True
    if f.kind == FLOW_STEPWISE:
        if said == SAY_SLOWER:
            # Down by a quarter, the first time a quarter of the measured rate; up by an eighth.
            measured = f.rate if f.rate else <int64_t> (f.sent * 1e9 / max(now - f.since_ns, <int64_t> 1))
            f.rate = max(measured * 3 // 4, LEAST_RATE)
        elif said != SAY_FASTER:
            return False
        elif f.rate:
            f.rate += max(f.rate // 8, <int64_t> 1)
            if f.rate >= MOST_RATE:
                f.rate = 0
        f.sent = 0
        f.since_ns = now
        return True
    if f.kind == FLOW_PID_RATE:
        if said == 0:
            return False
        f.rate = <int64_t> said * RATE_UNIT
        # The new rate applies now: do not wait for the time that the old rate has set.
        f.due_ns = min(f.due_ns, now + BURST_NS)
        return True
    return False


cdef bint flow_over(FlowSender *f, FlowSource *all) noexcept nogil:
    """The channel has ended; True: it was the last one that kept the others stopped."""
    if not f.stopped:
        return False
    f.stopped = False
    all.stopped -= 1
    return all.stopped == 0


# ---- the receiving end


cdef void flow_receiver_init(FlowReceiver *r, Flow kind) noexcept nogil:
    memset(r, 0, sizeof(FlowReceiver))
    r.kind = kind
    r.pid.proportional = 1.0
    r.pid.integral = 0.2
    r.pid.derivative = 0.0
    r.pid.least = 100.0
    r.pid.interval_s = BATCH_NS / 1e9
    r.pid.latest_s = -1.0


cdef inline bint _say(FlowReceiver *r, uint32_t what) noexcept nogil:
    r.said = what
    r.version += 1
    return True


cdef bint _by_marks(FlowReceiver *r, uint32_t used, uint32_t room, int64_t now) noexcept nogil:
    cdef bint high = 10 * <uint64_t> used >= HIGH_TENTHS * <uint64_t> room
    cdef bint low = 10 * <uint64_t> used <= LOW_TENTHS * <uint64_t> room
    if r.kind == FLOW_ON_OFF:
        if high and r.said != SAY_STOP:
            return _say(r, SAY_STOP)
        return low and r.said == SAY_STOP and _say(r, SAY_GO_ON)
    if now < r.due_ns or not (high or (low and r.said)):        # no "faster" before a "slower"
        return False
    r.due_ns = now + STEP_NS
    return _say(r, SAY_SLOWER if high else SAY_FASTER)


cdef bint flow_took(FlowReceiver *r, uint32_t used, uint32_t room, int64_t now) noexcept nogil:
    """A buffer has arrived: `used` of the gate's `room` segments are in use.  True: there is an announcement."""
    return (r.kind == FLOW_ON_OFF or r.kind == FLOW_STEPWISE) and _by_marks(r, used, room, now)


cdef void flow_reads(FlowReceiver *r, bint found, uint64_t records, int64_t now) noexcept nogil:
    """The reader has looked for data, after `records` records so far; found = False: it has nothing to do."""
    r.records = records
    if found and r.busy_since == 0:
        r.busy_since = now
    elif not found and r.busy_since:
        r.busy_ns += now - r.busy_since
        r.busy_since = 0


cdef bint flow_released(FlowReceiver *r, uint32_t used, uint32_t room, uint32_t channels, uint64_t n, uint64_t waiting,
                        int64_t now) noexcept nogil:
    """The reader has released `n` bytes; `waiting` more have arrived.  True: there is an announcement."""
    cdef double element, elements, rate
    cdef double speed
    if r.kind != FLOW_PID_RATE:
        return flow_took(r, used, room, now)
    r.bytes += n
    if r.busy_since:
        r.busy_ns += now - r.busy_since
        r.busy_since = now
    elements = <double> (r.records - r.records_seen)
    if now < r.due_ns or elements <= 0 or r.busy_ns <= 0:
        return False
    r.due_ns = now + BATCH_NS
    element = max(<double> r.bytes / <double> r.records, 1.0)
    speed = elements * 1e9 / r.busy_ns
    r.records_seen = r.records
    channels = max(channels, <uint32_t> 1)
    if not pid_update(&r.pid, now / 1e9, elements, r.busy_ns / 1e9, waiting / element / speed, &rate):
        r.busy_ns = 0
        return False
    r.busy_ns = 0
    return _say(r, <uint32_t> min(max(rate * element / channels / RATE_UNIT, 1.0), 4e9))


cdef bint pid_update(PidRate *p, double now_s, double elements, double processing_s, double scheduling_s,
                     double *rate) noexcept nogil:
    """Spark's PIDRateEstimator.compute; False: there is no new rate."""
    cdef double since, done, error, historical, change
    if now_s <= p.latest_s or elements <= 0 or processing_s <= 0:
        return False
    done = elements / processing_s
    if p.latest_s < 0:
        p.latest_s = now_s
        p.latest_rate = done
        p.latest_error = 0
        return False
    since = now_s - p.latest_s
    error = p.latest_rate - done
    # Spread the waiting elements over one interval: they are to be processed besides the new ones.
    historical = scheduling_s * done / p.interval_s
    change = (error - p.latest_error) / since
    rate[0] = max(
        p.latest_rate - p.proportional * error - p.integral * historical - p.derivative * change, p.least)
    p.latest_s = now_s
    p.latest_rate = rate[0]
    p.latest_error = error
    return True


# ---- Python classes


cdef Flow _kind(flow_control) except *:
    return <Flow> <int> FLOW_CONTROLS.index(one_of("flow_control", flow_control, FLOW_CONTROLS))


cdef class SendingEnd:
    """SendingEnd(flow_control, segment_size=SEGMENT_BYTES)\n--\n
    What a flow control lets a producer's environment send: the arithmetic of the exchange without a socket.

    Parameters
    ----------
    flow_control : str
        One of ``config.FLOW_CONTROLS``.
    segment_size : int
        Bytes; under ``"watermark"`` the marks are ``2 * segment_size`` and ``segment_size + 1``.

    Attributes
    ----------
    writable : bool
        Becomes False when the bytes that wait for the socket reach the high mark, and True when they fall to the low
        mark.
    queued : int
        Bytes that wait for the socket.

    Notes
    -----
    Times are in seconds of any monotonic clock.
    """

    cdef FlowConnection connection
    cdef FlowSource source
    cdef list channels

    def __init__(self, flow_control, segment_size=SEGMENT_BYTES):
        flow_connection_init(&self.connection, _kind(flow_control),
                             whole("segment_size", segment_size, 1, MOST_SEGMENT_BYTES))
        self.channels = []

    @property
    def writable(self):
        return self.connection.writable

    @property
    def queued(self):
        return self.connection.queued

    def queue(self, int64_t n):
        """Add `n` bytes that wait for the socket; returns whether it is still writable."""
        if n < 0:
            raise ConfigError(f"queue({n}): not a number of bytes")
        flow_queued(&self.connection, n)
        return self.connection.writable

    def written(self, int64_t n):
        """The socket has taken `n` bytes; returns whether it is writable."""
        if self.connection.kind == FLOW_WATERMARK and not 0 <= n <= self.connection.queued:
            raise ConfigError(f"written({n}): {self.connection.queued} bytes are queued")
        flow_written(&self.connection, n)
        return self.connection.writable

    def channel(self):
        """Add a channel."""
        sender = SendingChannel(self)
        self.channels.append(sender)
        return sender


cdef class SendingChannel:
    """A channel of a :class:`SendingEnd`.

    Attributes
    ----------
    credit : int
        Buffers that may be sent, under ``"credit"``.
    rate : int
        Bytes a second; 0: no limit.
    """

    cdef SendingEnd end
    cdef FlowSender sender

    def __init__(self, SendingEnd end not None):
        self.end = end
        self.sender.kind = end.connection.kind

    @property
    def credit(self):
        return self.sender.credit

    @credit.setter
    def credit(self, value):
        self.sender.credit = whole("credit", value, 0, 0x7fffffff)

    @property
    def rate(self):
        return self.sender.rate

    def may_send(self, double now=0.0):
        """Whether its next buffer may be sent."""
        return self.end.connection.writable and flow_may_send(&self.sender, &self.end.source, <int64_t> (now * 1e9))

    def sent(self, int64_t n, double now=0.0):
        """A buffer of `n` bytes is sent."""
        flow_sent(&self.sender, n, <int64_t> (now * 1e9))

    def heard(self, uint32_t said, double now=0.0):
        """Handle its receiver's announcement; ``False``: this flow control has no such announcement."""
        return flow_heard(&self.sender, &self.end.source, said, <int64_t> (now * 1e9))

    def over(self):
        """The channel has ended; ``True``: it was the last one that kept the others stopped."""
        return flow_over(&self.sender, &self.end.source)


cdef class ReceivingEnd:
    """ReceivingEnd(flow_control)\n--\n
    What a gate announces to its producers under a flow control, given what has arrived and what its reader released.

    Parameters
    ----------
    flow_control : str
        One of ``config.FLOW_CONTROLS``.
    """

    cdef FlowReceiver receiver

    def __init__(self, flow_control):
        flow_receiver_init(&self.receiver, _kind(flow_control))

    def took(self, uint32_t used, uint32_t room, double now=0.0):
        """A buffer has arrived, and `used` of `room` segments are in use; returns the announcement, or ``None``."""
        said = flow_took(&self.receiver, used, room, <int64_t> (now * 1e9))
        return self.receiver.said if said else None

    def reads(self, bint found, uint64_t records, double now=0.0):
        """The reader has looked for data, after `records` records so far."""
        flow_reads(&self.receiver, found, records, <int64_t> (now * 1e9))

    def released(self, uint32_t used, uint32_t room, double now=0.0, uint64_t n=0, uint64_t waiting=0,
                 uint32_t channels=1):
        """The reader has released `n` bytes, and `waiting` more have arrived; returns the announcement, or ``None``."""
        said = flow_released(&self.receiver, used, room, channels, n, waiting, <int64_t> (now * 1e9))
        return self.receiver.said if said else None


cdef class PidRateEstimator:
    """PidRateEstimator(interval_s=1.0, proportional=1.0, integral=0.2, derivative=0.0, least=100.0)\n--\n
    Spark Streaming's ``PIDRateEstimator``: the elements per second for a batch, computed from the last batches.

    Parameters
    ----------
    interval_s : float
        Time between batches.
    proportional, integral, derivative : float
        Weights of the error, of the waiting elements, and of the change of the error.
    least : float
        Smallest rate.
    """

    cdef PidRate pid

    def __init__(self, double interval_s=1.0, double proportional=1.0, double integral=0.2, double derivative=0.0,
                 double least=100.0):
        for name, value in (("interval_s", interval_s), ("least", least)):
            if not value > 0:
                raise ConfigError(f"{name} is {value}: it must be above 0")
        for name, value in (("proportional", proportional), ("integral", integral), ("derivative", derivative)):
            if not value >= 0:
                raise ConfigError(f"{name} is {value}: it must be at least 0")
        self.pid.interval_s = interval_s
        self.pid.proportional = proportional
        self.pid.integral = integral
        self.pid.derivative = derivative
        self.pid.least = least
        self.pid.latest_s = -1.0

    def compute(self, double now_s, double elements, double processing_s, double scheduling_s):
        """The new rate after a batch of `elements` with these processing and waiting times, or ``None``."""
        cdef double rate = 0
        return rate if pid_update(&self.pid, now_s, elements, processing_s, scheduling_s, &rate) else None

# Map of a shared wire: one stream of frames for many channels within a process, as a connection between two would be.
#
#     subpartition --a frame in turn--> wire (bytes copied, first in first out, bounded) --segment of its gate--> gate
#
# Under credit a frame is put on the wire only if its gate has a segment for it: what comes is always taken off.  Under
# watermarks it is put there while the wire is writable, and the receiving end stops at a frame that has no segment: so
# do all frames behind it, whoever they are for.
#
# Owner: `lock`, but for what is marked.  The wire's thread holds it for a pass over all channels; whoever lets go of a
# gate or a partition takes it, and so waits for the pass.  Lock order: Wire.lock, then GateCore.lock.  A gate's
# callbacks come with its lock held, so they only raise a flag and notify.
#
# Pairing: `announced` and `cancel_asked` are stored with release before the event's notice; the thread takes the
# event's epoch, then looks at them, then sleeps (fb_event.h).  `announced` is lowered by an exchange before the gate is
# asked.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport fb_au32, fb_event
from fastbuf._native.threads cimport pthread_mutex_t
from fastbuf.exchange.failure cimport Failure
from fastbuf.exchange.gate_core cimport GateCore
from fastbuf.exchange.input_channel cimport InputChannel
from fastbuf.exchange.result_subpartition cimport EventBlob, Subpartition
from fastbuf.flow.watermark cimport Watermark


cdef enum WireKind:
    WIRE_DATA = 1
    WIRE_EVENT = 2
    WIRE_END = 3

cdef enum:
    WIRE_FRAMES = 256           # on the wire at most


cdef struct WireChannel:
    Wire *wire
    WireChannel *next
    Subpartition *sub           # NULL: nothing more is sent
    Failure *writer_failure
    fb_au32 *abort_asked
    GateCore *gate              # NULL: nothing more is taken
    InputChannel *channel
    int64_t flush_interval_ns   # 0: the writer asks after every record; negative: never
    bint flush_pending
    bint said_end
    uint32_t credit
    uint32_t event_credit
    bint poor                   # has been asked for what it does not need: says when it has something and no credit
    bint asked
    fb_au32 announced           # any thread: the gate has credit to tell
    fb_au32 cancel_asked        # any thread


cdef struct WireFrame:
    WireChannel *channel
    EventBlob *event
    int kind
    uint32_t length
    uint32_t backlog


cdef struct Wire:
    pthread_mutex_t lock
    fb_event event              # any thread
    bint by_credit
    bint stopping
    WireChannel *channels
    WireFrame frames[WIRE_FRAMES]
    uint32_t head
    uint32_t count
    uint8_t *bytes              # ring: the frames' bytes one behind the other
    uint64_t capacity
    uint64_t first              # byte of the ring where the first frame's begin
    Watermark mark
    # figures
    uint64_t sent
    int64_t peak
    int64_t stopped_since       # 0: the receiving end is not stopped
    int64_t stopped_ns


cdef class SharedWire:
    cdef Wire *wire
    cdef readonly str flow_control
    cdef object thread
    cdef object __weakref__

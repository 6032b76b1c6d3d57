# Map of a wire under watermarks between two environments: what connected them before credit.
#
#     subpartitions --a frame in turn--> queue (bytes, bounded by the marks) --socket--> frame --segment--> gate
#
# One TCP connection for all channels from one environment to another, with the handshake of handshake.py and the frames
# of messages.pxd: JOIN (a HELLO), DATA, EVENT, DONE, ABORT there; DONE, CANCEL, ABORT back.  No CREDIT, no PING.  A
# channel that joins says its HELLO and is believed: its gate must have the secret that the connection was proved with.
#
# The sending end takes a frame while its queue is writable (flow/watermark.pxd), so the queue never has more than the
# high mark and one frame.  The receiving end takes a segment before it reads a buffer's bytes, and when there is none
# it stops reading the socket: so does TCP in its turn, and every channel behind that buffer waits, whoever it is for.
#
# Owner: `lock`, but for what is marked.  The wire's thread holds it for a pass (no call in it waits); whoever lets go
# of a gate or a partition takes it, and so waits for the pass.  Lock order: WireEnd.lock, then GateCore.lock.  A gate's
# callbacks come with its lock held, so they only raise a flag and poke.
#
# Pairing: poked is raised by an exchange after what there is to see, and lowered by one before the thread looks: either
# it sees that, or finds it raised again, and with it the eventfd.  tests/models/test_poke_model.py looks at every
# interleaving.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport fb_au32
from fastbuf._native.threads cimport pthread_mutex_t
from fastbuf.exchange.failure cimport Failure
from fastbuf.exchange.gate_core cimport GateCore
from fastbuf.exchange.input_channel cimport InputChannel
from fastbuf.exchange.result_subpartition cimport EventBlob, Subpartition
from fastbuf.flow.watermark cimport Watermark
from fastbuf.transports.messages cimport FrameHeader


cdef enum PassResult:
    PASS_IDLE = 0
    PASS_MOVED = 1
    PASS_JOIN = 2               # a JOIN is in `text`: it is Python's
    PASS_OVER = 3               # the connection has ended


# A channel, at either end.  Made with the lock held, freed with its end.
cdef struct WireStream:
    WireEnd *end
    WireStream *next
    uint32_t id
    uint8_t *word               # frame to be said as soon as there is room: a JOIN, then the last word; malloc'ed
    uint32_t word_length
    bint over                   # its end was heard, or said
    # sending end
    Subpartition *sub           # NULL: nothing more is sent
    Failure *failure
    fb_au32 *abort_asked
    int64_t flush_interval_ns   # 0: the writer asks after every record; negative: never
    uint32_t sequence
    bint flush_pending
    bint said_end
    bint loss_is_cancel
    bint checksum
    # receiving end
    GateCore *gate              # NULL: nothing more is taken
    InputChannel *channel
    fb_au32 announced           # any thread: the gate has segments for it
    fb_au32 cancel_asked        # any thread
    bint has_said               # the gate knows what waits for it, since it was last given a segment


cdef struct WireEnd:
    pthread_mutex_t lock
    int fd
    int wake                    # eventfd
    fb_au32 poked               # any thread
    bint receives               # receiving end
    int64_t stop_by             # 0: it is to go on; else what is still to be said is said till then
    bint broken                 # the connection has ended, or is to be ended
    int why                     # FailureCode of who loses by it
    uint32_t segment_size
    char peer[128]
    WireStream *streams
    # out
    uint8_t *bytes              # ring of `capacity`; mark.queued bytes from `first` wait to be sent
    uint64_t capacity
    uint64_t first
    Watermark mark
    int64_t flushed_ns
    int64_t interval_ns         # the shortest buffer timeout, negative: there is none
    # in
    FrameHeader frame
    uint32_t have               # bytes of the header
    uint32_t left               # bytes of the payload that are still to come
    bint placed                 # the payload has its place, or is dropped (`into` is NULL)
    uint8_t *into
    WireStream *stream          # whose the frame is
    int32_t segment
    EventBlob *event
    uint8_t text[8192]
    # figures
    uint64_t moved
    int64_t peak
    int64_t stopped_since       # 0: it reads
    int64_t stopped_ns


cdef enum:
    LAST_WORDS_NS = 500000000   # how long a peer that does not read may keep an end from ending


cdef WireEnd *wire_new(uint32_t segment_size, bint receives) noexcept nogil
cdef void wire_close(WireEnd *e) noexcept nogil
cdef void wire_free(WireEnd *e) noexcept nogil
# any thread
cdef void wire_poke(WireEnd *e) noexcept nogil
cdef void wire_notify(void *stream) noexcept nogil
cdef void wire_announce(void *stream) noexcept nogil
cdef void wire_cancel(void *stream) noexcept nogil
# lock held
cdef void wire_word(WireStream *s, uint8_t kind, const void *text, size_t length) noexcept nogil
cdef void wire_release_writer(WireStream *s, bint cancelled) noexcept nogil
cdef void wire_let_go_gate(WireEnd *e, WireStream *s) noexcept nogil
cdef void wire_tend(WireEnd *e, WireStream *s) noexcept nogil
# the wire's thread
cdef PassResult wire_work(WireEnd *e) noexcept nogil
cdef void wire_hang_up(WireEnd *e) noexcept nogil

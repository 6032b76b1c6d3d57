# The reader's end of a memfd channel (layout, pairing and forbidden outcomes: shared_block.pxd).
#
# Owner of every field, except where marked: the gate's reader, or the thread that closes the gate, with the gate's
# (Python) lock held.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport fb_event
from fastbuf.exchange.doorbell cimport Doorbell
from fastbuf.exchange.shared_block cimport SharedBlock, SharedEnd
from fastbuf.memory.arena cimport Arena

cdef enum News:                 # what a channel of any kind has next
    NEWS_BROKEN = -1            # the writer's process has written invalid values
    NEWS_NONE = 0
    NEWS_BYTES = 1
    NEWS_EVENT = 2
    NEWS_LOST = 4               # its producer was lost; the bytes are the reason (WireChannels alone)
    NEWS_GAP = 5                # records were dropped; the bytes are their number (uint64_t).  It is not advanced over
    NEWS_END = 3                # end of partition; a SharedReader reports it by `exhausted` instead

cdef enum:
    TELL_EVERY = 4              # slots given back between two rings of the writer's doorbell while there is more
    MOST_LOOKS = 8              # most channels that a waiting reader polls; with more it polls only its bell


# A place that a waiting reader polls for new data.  The caller owns it; it is valid as long as the SharedReader.
cdef struct SharedLook:
    SharedBlock *block
    uint32_t mask               # slots - 1
    uint32_t head
    uint32_t tail               # the writer's, when it was last loaded
    uint32_t drained


# These poll n channels: `came` once; `glance` for about a microsecond; `spin` for `limit_ns`, and the event's epoch
# too.  They load the bell's cache line rarely, since writers write to it all the time; the line of the next slot is
# written only when there is new data.  The result is only a hint: the caller checks again.
cdef bint shared_came(SharedLook *looks, int n) noexcept nogil
cdef bint shared_glance(SharedLook *looks, int n) noexcept nogil
cdef bint shared_spin(SharedLook *looks, int n, fb_event *e, uint32_t epoch, int64_t limit_ns) noexcept nogil


cdef class SharedReader:
    cdef SharedBlock *block     # set once
    cdef size_t length          # bytes mapped
    cdef const uint8_t *events
    cdef Arena arena            # the writer's
    cdef Doorbell bell          # the writer's
    cdef uint32_t slots         # checked when it was mapped
    cdef uint32_t head
    cdef uint32_t tail_seen     # the writer's tail, when it was last loaded
    cdef uint32_t drained       # bytes read of the slot at head
    cdef bint drops             # the writer drops the oldest: each slot is claimed.  Set once
    cdef uint64_t gap           # records dropped before the slot at head, that were not told
    cdef uint64_t gap_told
    cdef bint inside            # between `enter` and `leave`
    cdef uint32_t told_head     # head when the writer's doorbell was last rung
    cdef SharedEnd over         # the end that was reported to the writer
    cdef uint64_t received      # buffers that were read completely
    cdef readonly object peer   # for messages
    cdef public bytes lost      # why its writer was lost, to be read behind what it left; None.  Guarded by the GIL

    cdef void look(self, SharedLook *at) noexcept nogil
    cdef bint has_more(self) noexcept nogil
    cdef News next(self, bint partial, const uint8_t **data, uint32_t *length, bint *last) noexcept nogil
    cdef News claim(self) noexcept nogil
    cdef void advance(self, uint32_t length, bint last) noexcept nogil
    cdef bint enter(self) noexcept nogil
    cdef void leave(self) noexcept nogil
    cdef void tell(self) noexcept nogil
    cdef SharedEnd writer_ended(self) noexcept nogil
    cdef bint exhausted(self) noexcept nogil
    cdef void end(self, SharedEnd how, const char *reason, size_t length) noexcept nogil
    cdef bytes writer_reason(self)

# The reader's end of a memfd channel (layout, pairing and forbidden outcomes: shared_block.pxd).
#
# Owner of every field: the gate's reader, or who closes the gate, with the gate's lock (the Python one) held; but for
# what is marked.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport fb_event
from fastbuf.exchange.doorbell cimport Doorbell
from fastbuf.exchange.shared_block cimport SharedBlock, SharedEnd
from fastbuf.memory.arena cimport Arena

cdef enum News:                 # of a channel, whatever its kind
    NEWS_BROKEN = -1            # the writer's process has written what cannot be
    NEWS_NONE = 0
    NEWS_BYTES = 1
    NEWS_EVENT = 2
    NEWS_END = 3                # end of partition: what a SharedReader says by `exhausted`

cdef enum:
    TELL_EVERY = 4              # slots given back between two rings of the writer's doorbell while there is more
    MOST_LOOKS = 8              # channels that a reader which waits looks at for itself; with more it looks at its bell


# What a reader that waits looks at: it is the caller's, and good as long as the SharedReader is.
cdef struct SharedLook:
    SharedBlock *block
    uint32_t mask               # slots - 1
    uint32_t head
    uint32_t tail               # of the writer's, as it was last looked at
    uint32_t drained


# Looks whether something came on one of n channels: once, for about a microsecond, or for so long and at the event's
# epoch as well.  The bell's line is left to the writers but for a look between two glances, while that of the slot that
# is next is theirs until they have something to say.  What is seen is believed by nobody: who waits looks again.
cdef bint shared_came(SharedLook *looks, int n) noexcept nogil
cdef bint shared_glance(SharedLook *looks, int n) noexcept nogil
cdef bint shared_spin(SharedLook *looks, int n, fb_event *e, uint32_t epoch, int64_t limit_ns) noexcept nogil


cdef class SharedReader:
    cdef SharedBlock *block     # set once
    cdef size_t length          # bytes mapped
    cdef const uint8_t *events
    cdef Arena arena            # the writer's
    cdef Doorbell bell          # the writer's
    cdef uint32_t slots         # as checked when it was mapped
    cdef uint32_t head
    cdef uint32_t tail_seen     # the writer's tail, when it was last looked at
    cdef uint32_t drained       # bytes of the slot at head
    cdef bint inside            # between `enter` and `leave`
    cdef uint32_t told          # head at which the writer's doorbell was last rung
    cdef SharedEnd over         # what has been said to the writer
    cdef uint64_t received      # buffers that were read to their end
    cdef readonly object peer   # for messages

    cdef void look(self, SharedLook *at) noexcept nogil
    cdef News next(self, bint partial, const uint8_t **data, uint32_t *length, bint *last) noexcept nogil
    cdef void advance(self, uint32_t length, bint last) noexcept nogil
    cdef bint enter(self) noexcept nogil
    cdef void leave(self) noexcept nogil
    cdef void tell(self) noexcept nogil
    cdef SharedEnd writer_ended(self) noexcept nogil
    cdef bint exhausted(self) noexcept nogil
    cdef void end(self, SharedEnd how, const char *reason, size_t length) noexcept nogil
    cdef bytes writer_reason(self)

# The wire, once, for both ends.  All numbers little-endian (checked when the module is made).
#
# After the handshake (transports/handshake.py) a connection carries frames:
#
#      0        4      5      6        8         12         16        20         24
#      +--------+------+------+--------+---------+----------+---------+----------+----------...
#      | length | type | flags| zero   | channel | sequence | value   | crc32c   | payload (length bytes)
#      +--------+------+------+--------+---------+----------+---------+----------+----------...
#
#   type    from      payload        sequence                 value
#   DATA    sender    1..segment     number of this buffer    backlog: buffers queued behind it
#   EVENT   sender    1..4096        number of the next buffer -
#   DONE    sender    -              buffers sent, in all     -
#   DONE    receiver  -              the same, acknowledged   -
#   CREDIT  receiver  -              places of events freed   credits granted
#   CANCEL  receiver  -              -                        -
#   ABORT   both      reason, UTF-8  -                        -
#   PING    both      -              -                        -
#
# flags: bit 0: crc32c of the payload is set (DATA).  A length is checked against the type's bound
# before anything is read into anything.
from libc.stdint cimport uint8_t, uint16_t, uint32_t

cdef enum FrameType:
    FRAME_DATA = 1
    FRAME_CREDIT = 2
    FRAME_EVENT = 3
    FRAME_DONE = 4
    FRAME_CANCEL = 5
    FRAME_ABORT = 6
    FRAME_PING = 7

cdef enum:
    FRAME_HEADER = 24
    FRAME_CRC = 1               # flag
    ABORT_BYTES = 8000          # longest reason
    EVENT_BYTES = 4096          # longest event; exchange/events.py has the same bound


cdef packed struct FrameHeader:
    uint32_t length
    uint8_t type
    uint8_t flags
    uint16_t zero
    uint32_t channel
    uint32_t sequence
    uint32_t value
    uint32_t crc


cdef inline void frame_set(FrameHeader *h, uint8_t type, uint32_t channel, uint32_t length, uint32_t sequence,
                           uint32_t value) noexcept nogil:
    h.length = length
    h.type = type
    h.flags = 0
    h.zero = 0
    h.channel = channel
    h.sequence = sequence
    h.value = value
    h.crc = 0


cdef inline bint frame_is_sane(FrameHeader *h, uint32_t segment_size, bint from_sender) noexcept nogil:
    # The bound of each type, before anything is allocated or read.
    if h.zero != 0 or h.flags & ~FRAME_CRC:
        return False
    if h.type == FRAME_DATA:
        return from_sender and 0 < h.length <= segment_size
    if h.type == FRAME_EVENT:
        return from_sender and 0 < h.length <= EVENT_BYTES
    if h.type == FRAME_ABORT:
        return h.length <= ABORT_BYTES
    if h.type == FRAME_DONE or h.type == FRAME_PING:
        return h.length == 0
    if h.type == FRAME_CREDIT or h.type == FRAME_CANCEL:
        return h.length == 0 and not from_sender
    return False

# Definition of the wire for both ends.  All numbers are little-endian (checked at import).
#
# All channels of one flow control between two environments share a connection.  Each channel is a *stream* with a
# number, chosen by its producer's side and never used twice: 0, 2, 4... for the side that connected, 1, 3, 5... for the
# other.  After the first channel's handshake (transports/handshake.py) the connection carries frames:
#
#      0        4      5      6        8         12         16        20         24
#      +--------+------+------+--------+---------+----------+---------+----------+----------...
#      | length | type | flags| zero   | stream  | sequence | value   | crc32c   | payload (length bytes)
#      +--------+------+------+--------+---------+----------+---------+----------+----------...
#
#   type    from      payload        sequence                 value
#   DATA    sender    1..segment     number of this buffer    backlog: buffers queued behind it
#   EVENT   sender    1..4096        number of the next buffer -
#   DONE    sender    -              buffers sent, in all     -
#   DONE    receiver  -              the same, acknowledged   -
#   CREDIT  receiver  -              places of events freed   credits granted
#   RECALL  receiver  -              -                        -: give back the credit you do not need, and from now on
#                                                             say RETURN when you have something and no credit
#   RETURN  sender    -              backlog without credit   credits given back
#   FLOW    receiver  -              places of events freed   announcement.  Of flow controls without credit, which have
#                                                             no RECALL and RETURN, and CREDIT for events alone
#   GAP     sender    -              -                        records dropped just before what comes next: the receiver
#                                                             was slow, and half of the first may have come
#   CANCEL  receiver  -              -                        -
#   ABORT   both      reason, UTF-8  -                        -
#   JOIN    both      one message of -                        receiver: 1: refused, the last word
#                     the handshake
#   PING    both      -              -                        0: are you there?  1: I am.  (Stream 0, of no meaning)
#
# flags: bit 0: crc32c of the payload is set (DATA).  A length is checked against the bound of its type before anything
# is allocated or read.
#
# Further channels join by JOIN frames, which carry the messages of their own handshake: their secret may differ, and is
# proved before any other frame of that stream.
#
# Each side ends a stream with exactly one frame: the sender with DONE or ABORT; the receiver with DONE, CANCEL, ABORT
# or a JOIN that refuses.  A side that receives the other's end before it has sent its own answers with DONE.  A stream
# is over when both ends were sent.  A frame for a stream that is over, or never existed, breaks the protocol, and the
# connection is closed.  The side that connected closes the connection after the last stream.
#
# Whoever changes this, or the bytes of events (exchange/events.py), raises the version: MAGIC of handshake.py.
from libc.stdint cimport uint8_t, uint16_t, uint32_t

cdef enum FrameType:
    FRAME_DATA = 1
    FRAME_CREDIT = 2
    FRAME_EVENT = 3
    FRAME_DONE = 4
    FRAME_CANCEL = 5
    FRAME_ABORT = 6
    FRAME_PING = 7
    FRAME_JOIN = 8
    FRAME_RECALL = 9
    FRAME_RETURN = 10
    FRAME_FLOW = 11
    FRAME_GAP = 12

cdef enum:
    FRAME_HEADER = 24
    FRAME_CRC = 1               # flag
    ABORT_BYTES = 8000          # longest reason of an ABORT
    EVENT_BYTES = 4096          # longest event; exchange/events.py has the same bound
    JOIN_BYTES = 1027           # longest handshake message: a VERDICT with its reason
    PING_ASKS = 0
    PING_ANSWERS = 1
    JOIN_REFUSED = 1


cdef packed struct FrameHeader:
    uint32_t length
    uint8_t type
    uint8_t flags
    uint16_t zero
    uint32_t stream
    uint32_t sequence
    uint32_t value
    uint32_t crc


cdef inline void frame_set(FrameHeader *h, uint8_t type, uint32_t stream, uint32_t length, uint32_t sequence,
                           uint32_t value) noexcept nogil:
    h.length = length
    h.type = type
    h.flags = 0
    h.zero = 0
    h.stream = stream
    h.sequence = sequence
    h.value = value
    h.crc = 0


cdef inline bint frame_is_sane(FrameHeader *h, uint32_t segment_size, bint from_sender) noexcept nogil:
    # Check the bound of each type before anything is allocated or read.
    if h.zero != 0 or h.flags & ~FRAME_CRC or (h.crc != 0 and h.flags == 0):
        return False
    if h.type == FRAME_DATA:
        return from_sender and 0 < h.length <= segment_size
    if h.type == FRAME_EVENT:
        return from_sender and 0 < h.length <= EVENT_BYTES
    if h.type == FRAME_ABORT:
        return h.length <= ABORT_BYTES
    if h.type == FRAME_JOIN:
        return 0 < h.length <= JOIN_BYTES and h.value <= (0 if from_sender else JOIN_REFUSED)
    if h.type == FRAME_PING:
        return h.length == 0 and h.stream == 0 and h.value <= PING_ANSWERS
    if h.type == FRAME_DONE:
        return h.length == 0
    if h.type == FRAME_CREDIT:      # CREDIT that grants nothing is never sent
        return h.length == 0 and not from_sender and (h.value != 0 or h.sequence != 0)
    if h.type == FRAME_CANCEL or h.type == FRAME_RECALL or h.type == FRAME_FLOW:
        return h.length == 0 and not from_sender
    if h.type == FRAME_RETURN:
        return h.length == 0 and from_sender
    if h.type == FRAME_GAP:
        return h.length == 0 and from_sender and h.value != 0
    return False

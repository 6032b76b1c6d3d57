"""Input and output of one TCP connection; runs on the I/O thread alone, never takes the GIL, never waits."""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset, strerror

from fastbuf._native.sockets cimport MSG_DONTWAIT, MSG_NOSIGNAL, iovec, msghdr, readv, sendmsg
from fastbuf.transports.messages cimport FRAME_ABORT, FRAME_HEADER, frame_is_sane
from fastbuf.transports.tcp_receiver cimport (
    receiver_hears,
    receiver_let_go,
    receiver_next,
    receiver_said,
    receiver_starts,
)
from fastbuf.transports.tcp_sender cimport sender_hears, sender_let_go, sender_next, sender_said
from fastbuf.transports.tcp_state cimport (
    PHASE_CLOSING,
    PHASE_DEAD,
    PHASE_OPEN,
    ROLE_RECEIVER,
    ROLE_SENDER,
    Connection,
    connection_lost,
    connection_violated,
)

cdef enum:
    READS_A_TURN = 32           # then the other connections have their turn

cdef uint8_t _dropped[65536]    # bytes nobody wants; written, never read


# ---- what comes in


cdef void _on_frame(Connection *c) noexcept nogil:
    """A whole frame has come."""
    if c.role == ROLE_SENDER:
        sender_hears(c)
    else:
        receiver_hears(c)


cdef void _on_header(Connection *c) noexcept nogil:
    c.in_frame = c.in_header
    c.in_header_fill = 0
    if c.in_frame.channel != c.number or not frame_is_sane(&c.in_frame, c.segment_size, c.role == ROLE_RECEIVER):
        connection_violated(c, b"a frame of unknown kind, impossible length or another channel")
        return
    c.in_left = c.in_frame.length
    if c.in_frame.type == FRAME_ABORT:
        c.in_data = <uint8_t *> c.in_text
    elif c.role == ROLE_RECEIVER:
        receiver_starts(c)
    if c.phase != PHASE_DEAD and c.in_left == 0:
        _on_frame(c)


cdef void _read(Connection *c) noexcept nogil:
    """Payload and the next header in one call, payload straight into its segment."""
    cdef iovec iov[2]
    cdef int n_iov
    cdef ssize_t n
    cdef size_t wanted, part
    for _ in range(READS_A_TURN):
        n_iov = 0
        wanted = 0
        if c.in_left:
            if c.in_data != NULL:
                iov[0].iov_base = c.in_data
                iov[0].iov_len = c.in_left
            else:
                iov[0].iov_base = _dropped
                iov[0].iov_len = min(<size_t> c.in_left, sizeof(_dropped))
            wanted = iov[0].iov_len
            n_iov = 1
        if wanted == c.in_left:
            iov[n_iov].iov_base = <uint8_t *> &c.in_header + c.in_header_fill
            iov[n_iov].iov_len = FRAME_HEADER - c.in_header_fill
            wanted += iov[n_iov].iov_len
            n_iov += 1
        n = readv(c.fd, iov, n_iov)
        if n == 0:
            connection_lost(c, b"the connection was closed")
            return
        if n < 0:
            if errno == EINTR:
                continue
            if errno != EAGAIN:
                connection_lost(c, strerror(errno))
            return
        wanted -= n
        if c.in_left:
            part = min(<size_t> n, <size_t> c.in_left)
            c.in_left -= <uint32_t> part
            if c.in_data != NULL:
                c.in_data += part
            n -= part
            if c.in_left == 0:
                _on_frame(c)
                if c.phase == PHASE_DEAD:
                    return
        if n:
            c.in_header_fill += <uint32_t> n
            if c.in_header_fill == FRAME_HEADER:
                _on_header(c)
                if c.phase == PHASE_DEAD:
                    return
        if wanted:              # the socket had less than we asked for: it is empty
            return


# ---- what goes out


cdef int _push_out(Connection *c) noexcept nogil:
    """1: the frame is out; 0: the socket is full; -1: the connection is lost."""
    cdef iovec iov[2]
    cdef msghdr m
    cdef ssize_t n
    cdef size_t part
    while True:
        m.msg_iovlen = 0
        if c.out_header_sent < FRAME_HEADER:
            iov[0].iov_base = <uint8_t *> &c.out_header + c.out_header_sent
            iov[0].iov_len = FRAME_HEADER - c.out_header_sent
            m.msg_iovlen = 1
        if c.out_left:
            iov[m.msg_iovlen].iov_base = <void *> c.out_data
            iov[m.msg_iovlen].iov_len = c.out_left
            m.msg_iovlen += 1
        if m.msg_iovlen == 0:
            return 1
        n = _sendmsg(c.fd, iov, m.msg_iovlen)
        if n < 0:
            if errno == EINTR:
                continue
            return 0 if errno == EAGAIN else -1
        part = min(<size_t> n, <size_t> (FRAME_HEADER - c.out_header_sent))
        c.out_header_sent += <uint32_t> part
        n -= part
        c.out_data += n
        c.out_left -= <uint32_t> n


cdef inline ssize_t _sendmsg(int fd, iovec *iov, size_t n) noexcept nogil:
    cdef msghdr m
    memset(&m, 0, sizeof(msghdr))
    m.msg_iov = iov
    m.msg_iovlen = n
    return sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT)


cdef void _write(Connection *c) noexcept nogil:
    cdef int rc, error
    c.blocked = False
    while c.phase == PHASE_OPEN:
        if c.out_active:
            rc = _push_out(c)
            if rc == 0:
                c.blocked = True
                return
            if rc < 0:
                # The peer may have said why before it went: hear that first.
                error = errno
                _read(c)
                if c.phase == PHASE_OPEN:
                    connection_lost(c, strerror(error))
                return
            c.out_active = False
            if c.role == ROLE_SENDER:
                sender_said(c)
            else:
                receiver_said(c)
            if c.phase != PHASE_OPEN:
                return
        if not (sender_next(c) if c.role == ROLE_SENDER else receiver_next(c)):
            return


cdef void connection_run(Connection *c, bint readable) noexcept nogil:
    if readable and c.phase != PHASE_DEAD:
        _read(c)
    if c.phase == PHASE_OPEN:
        _write(c)
    elif c.phase == PHASE_CLOSING:
        c.blocked = False


cdef void connection_let_go_of_gate(Connection *c) noexcept nogil:
    if receiver_let_go(c):
        _write(c)


cdef void connection_let_go_of_writer(Connection *c) noexcept nogil:
    if sender_let_go(c):
        _write(c)

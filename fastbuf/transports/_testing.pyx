"""For tests and benches of TCP: the speed limit by plain loops, a socket and a loop, and figures of the I/O thread."""

from libc.errno cimport EAGAIN, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from fastbuf._native.atomics cimport fb_cpu_relax, fb_now_ns
from fastbuf._native.sockets cimport MSG_DONTWAIT, MSG_NOSIGNAL, recv, send
from fastbuf.transports.tcp_loop cimport loop_parks_until

import os


def parks_for_ns(int timeout_ms):
    """How long an I/O thread whose next timer is due in `timeout_ms` (negative: never) parks before it looks."""
    return loop_parks_until(0, timeout_ms)


def limit_send(int fd, uint64_t buffers, size_t size, uint64_t ring):
    """Send `buffers` buffers on a connected blocking socket, each copied into the next of `ring` places first.

    Raises
    ------
    OSError
        From the socket.
    """
    cdef uint64_t done = 0
    cdef size_t sent
    cdef ssize_t n = 0
    cdef uint8_t *place
    cdef uint8_t *source = <uint8_t *> malloc((ring + 1) * size)
    if source == NULL:
        raise MemoryError
    memset(source, 1, (ring + 1) * size)
    with nogil:
        while done < buffers and n >= 0:
            place = source + (1 + done % ring) * size
            memcpy(place, source, size)
            sent = 0
            while sent < size:
                n = send(fd, place + sent, size - sent, MSG_NOSIGNAL)
                if n < 0:
                    break
                sent += n
            done += 1
    free(source)
    if n < 0:
        raise OSError(errno, os.strerror(errno))


def limit_receive(int fd, uint64_t buffers, size_t size, uint64_t ring):
    """Receive the buffers of `limit_send` into `ring` places in turn, and read one word of each.

    Returns
    -------
    int
        Sum of these words.

    Raises
    ------
    OSError
        From the socket; EOFError: the peer closed it before the end.
    """
    cdef uint64_t done = 0
    cdef uint64_t sum = 0
    cdef size_t got
    cdef ssize_t n = 1
    cdef uint8_t *place
    cdef uint8_t *places = <uint8_t *> malloc(ring * size)
    if places == NULL:
        raise MemoryError
    memset(places, 0, ring * size)
    with nogil:
        while done < buffers and n > 0:
            place = places + done % ring * size
            got = 0
            while got < size:
                n = recv(fd, place + got, size - got, 0)
                if n <= 0:
                    break
                got += n
            sum += (<uint64_t *> place)[0]
            done += 1
    free(places)
    if n < 0:
        raise OSError(errno, os.strerror(errno))
    if n == 0:
        raise EOFError
    return sum


cdef ssize_t _whole(int fd, uint8_t *place, size_t size) noexcept nogil:
    # Spins: no thread is woken, so this measures only the wire and the system calls.
    cdef size_t got = 0
    cdef ssize_t n
    while got < size:
        n = recv(fd, place + got, size - got, MSG_DONTWAIT)
        if n == 0 or (n < 0 and errno != EAGAIN):
            return n
        if n < 0:
            fb_cpu_relax()
        else:
            got += n
    return got


def limit_bounce(int fd, uint64_t times, size_t size, bint serve):
    """Send messages back and forth by plain loops on a connected socket; both ends spin.  serve: return what arrives.

    Returns
    -------
    list of float
        Seconds of each round trip; empty for the serving end.
    """
    cdef uint64_t done = 0
    cdef ssize_t n = 1
    cdef int64_t *taken = <int64_t *> malloc(times * sizeof(int64_t) + size)
    cdef uint8_t *place
    cdef int64_t began
    if taken == NULL:
        raise MemoryError
    place = <uint8_t *> &taken[times]
    memset(place, 1, size)
    with nogil:
        while done < times and n > 0:
            began = fb_now_ns()
            if not serve:
                n = send(fd, place, size, MSG_NOSIGNAL)
            if n > 0:
                n = _whole(fd, place, size)
            if serve and n > 0:
                n = send(fd, place, size, MSG_NOSIGNAL)
            taken[done] = fb_now_ns() - began
            done += 1
    seconds = [] if serve else [taken[done] / 1e9 for done in range(times)]
    free(taken)
    if n <= 0:
        raise OSError(errno, "the other end of the bounce has gone")
    return seconds

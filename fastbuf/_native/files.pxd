# Files as a blocking partition uses them: vectors out, bytes back in at a place.
from posix.types cimport off_t

from fastbuf._native.sockets cimport iovec


cdef extern from "<sys/uio.h>" nogil:
    ssize_t pwritev(int fd, const iovec *iov, int n, off_t offset)


cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void *data, size_t n, off_t offset)

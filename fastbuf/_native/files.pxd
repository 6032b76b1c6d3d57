# File operations of a blocking partition: gather writes, and reads at an offset.
from posix.types cimport off_t

from fastbuf._native.sockets cimport iovec


cdef extern from "<sys/uio.h>" nogil:
    ssize_t pwritev(int fd, const iovec *iov, int n, off_t offset)


cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void *data, size_t n, off_t offset)

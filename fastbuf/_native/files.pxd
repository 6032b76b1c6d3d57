# Files: gather writes, reads at an offset, and mappings.
from posix.types cimport off_t

from fastbuf._native.sockets cimport iovec


cdef extern from "<sys/uio.h>" nogil:
    ssize_t pwritev(int fd, const iovec *iov, int n, off_t offset)


cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void *data, size_t n, off_t offset)


cdef extern from "fb_map.h" nogil:
    int fb_memfd(const char *name, size_t length)
    void *fb_map(size_t length, int fd)
    void *fb_map_shared(size_t length, int fd, int writable)
    int fb_unmap(void *p, size_t length)
    int fb_advise_huge(void *p, size_t length)
    int fb_populate(void *p, size_t length)
    int fb_wipe_on_fork(void *p, size_t length, int wipe)

# Sockets, epoll and eventfd for the I/O thread.
from libc.stdint cimport uint32_t, uint64_t


cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t readv(int fd, const iovec *iov, int n)


cdef extern from "<sys/socket.h>" nogil:
    ctypedef unsigned int socklen_t
    cdef struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    int MSG_NOSIGNAL
    int MSG_DONTWAIT
    int SHUT_WR
    ssize_t sendmsg(int fd, const msghdr *m, int flags)
    ssize_t send(int fd, const void *data, size_t n, int flags)
    ssize_t recv(int fd, void *data, size_t n, int flags)
    int shutdown(int fd, int how)
    int getsockopt(int fd, int level, int name, void *value, socklen_t *length)


cdef extern from "<netinet/in.h>" nogil:
    int IPPROTO_TCP


cdef extern from "<netinet/tcp.h>" nogil:
    int TCP_INFO


cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        void *ptr
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int EPOLL_CLOEXEC
    int EPOLL_CTL_ADD
    int EPOLL_CTL_MOD
    int EPOLL_CTL_DEL
    int EPOLLIN
    int EPOLLOUT
    int EPOLLERR
    int EPOLLHUP
    int epoll_create1(int flags)
    int epoll_ctl(int efd, int op, int fd, epoll_event *e)
    int epoll_wait(int efd, epoll_event *e, int most, int timeout_ms)


cdef extern from "<sys/eventfd.h>" nogil:
    int EFD_CLOEXEC
    int EFD_NONBLOCK
    int eventfd(unsigned int value, int flags)
    int eventfd_read(int fd, uint64_t *value)
    int eventfd_write(int fd, uint64_t value)


cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int fd, unsigned long request, ...)


cdef extern from "<linux/sockios.h>" nogil:
    unsigned long SIOCOUTQ
    unsigned long SIOCOUTQNSD


cdef extern from "<unistd.h>" nogil:
    int close(int fd)

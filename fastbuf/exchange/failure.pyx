"""Failure cells, shared by native threads and the Python side (pairing in the ``.pxd``)."""

from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from fastbuf._native.atomics cimport fb_u32_cas_strong, fb_u32_init, fb_u32_load_acquire, fb_u32_store_release

from fastbuf.errors import (
    BlockCorrupt, ExchangeAborted, ExchangeError, PeerLost, ProtocolError, ResourceError, SequenceError,
)

cdef extern from "<sched.h>" nogil:
    int sched_yield()


_ERRORS = {
    FAIL_ABORTED: ExchangeAborted,
    FAIL_PEER_LOST: PeerLost,
    FAIL_SEQUENCE: SequenceError,
    FAIL_PROTOCOL: ProtocolError,
    FAIL_CORRUPT: BlockCorrupt,
    FAIL_RESOURCE: ResourceError,
}


cdef bytes failure_text(object reason):
    """A reason as :func:`failure_set` takes it: the texts of failures end at a NUL."""
    return str(reason).replace("\0", "\\x00").encode("utf-8", "replace")


cdef void failure_init(Failure *f) noexcept nogil:
    fb_u32_init(&f.code, FAIL_NONE)
    f.text[0] = 0


cdef bint failure_set(Failure *f, FailureCode code, const char *text, size_t length) noexcept nogil:
    """Keeps the first failure only, as later ones follow from it.  True: this one was first.

    On return the failure, whoever set it, has its full text.
    """
    cdef uint32_t expected = FAIL_NONE
    if not fb_u32_cas_strong(&f.code, &expected, FAIL_CLAIMED):
        while fb_u32_load_acquire(&f.code) == FAIL_CLAIMED:
            sched_yield()       # the other thread only copies a text, so this is short
        return False
    if length >= sizeof(f.text):
        length = sizeof(f.text) - 1
    memcpy(f.text, text, length)
    f.text[length] = 0
    fb_u32_store_release(&f.code, code)
    return True


cdef int failure_code(Failure *f) noexcept nogil:
    cdef uint32_t code = fb_u32_load_acquire(&f.code)
    return FAIL_NONE if code == FAIL_CLAIMED else code


cdef int failure_raise(Failure *f) except -1:
    """Raises the error if one was set."""
    cdef int code = failure_code(f)
    if code == FAIL_NONE:
        return 0
    text = (<bytes> f.text).decode("utf-8", "replace")
    raise _ERRORS.get(code, ExchangeError)(text)

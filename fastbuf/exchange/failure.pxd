# The error that ends an exchange: set once, by the thread that finds it first; read by the Python side.
#
# Pairing: the setter claims `code` by compare-and-swap (0 -> CLAIMED), writes the text, then stores the code with
# release.  Readers load the code with acquire, and read the text only when the code is final.
# A second setter waits until the code is final.  So a thread that learns of the failure by another flag (`abort_asked`,
# stored with release after failure_set, loaded with acquire) may read the text too.
# Forbidden: reading the text while it is written, or a text that does not belong to the code.
# tests/models/checker/failure.c runs this code under every schedule.
from fastbuf._native.atomics cimport fb_au32

cdef enum FailureCode:
    FAIL_NONE = 0
    FAIL_ABORTED = 1
    FAIL_PEER_LOST = 2
    FAIL_SEQUENCE = 3
    FAIL_PROTOCOL = 4
    FAIL_CORRUPT = 6
    FAIL_RESOURCE = 7
    FAIL_CLAIMED = 255


cdef struct Failure:
    fb_au32 code
    char text[8192]


cdef bytes failure_text(object reason)
cdef void failure_init(Failure *f) noexcept nogil
cdef bint failure_set(Failure *f, FailureCode code, const char *text, size_t length) noexcept nogil
cdef int failure_code(Failure *f) noexcept nogil
cdef int failure_raise(Failure *f) except -1

from libc.stdint cimport uint32_t


cdef extern from "fb_crc32c.h" nogil:
    uint32_t fb_crc32c(uint32_t crc, const void *data, size_t n)

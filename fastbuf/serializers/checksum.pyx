"""CRC32C (Castagnoli), with the processor's instruction if it has one."""

from libc.stdint cimport uint8_t, uint32_t

from fastbuf._native.crc32c cimport fb_crc32c


def crc32c(data, unsigned int value=0):
    """CRC32C of a contiguous buffer.

    Parameters
    ----------
    data : bytes-like
    value : int, optional
        CRC of the preceding bytes, to continue from.

    Returns
    -------
    int
        32 bits.  The GIL is released over buffers of 4 KiB and more.

    References
    ----------
    RFC 3720, appendix B.4 (polynomial and test vectors).
    """
    cdef const uint8_t[::1] view = memoryview(data).cast("B")
    cdef Py_ssize_t size = view.shape[0]
    cdef uint32_t crc = value
    if size == 0:
        return crc
    if size < 4096:
        return fb_crc32c(crc, &view[0], size)
    with nogil:
        crc = fb_crc32c(crc, &view[0], size)
    return crc

"""What Cython cannot say: atomics, the futex event count, CRC32C.  Headers and their ``.pxd`` maps."""

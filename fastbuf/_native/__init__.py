"""Code that Cython cannot express: atomics, the futex event count, CRC32C.  Headers and their ``.pxd`` maps."""

"""Transports: what moves buffers between a subpartition and a gate of another process."""

from fastbuf.transports import tcp as _tcp  # registers itself

__all__: list[str] = []
del _tcp

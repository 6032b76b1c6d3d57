"""Transports move buffers between a subpartition and a gate of another process."""

import fastbuf.transports.memfd
import fastbuf.transports.tcp  # noqa: F401  (they register themselves)

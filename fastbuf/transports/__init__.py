"""Transports: what moves buffers between a subpartition and a gate of another process."""

import fastbuf.transports.memfd
import fastbuf.transports.tcp
import fastbuf.transports.watermark  # noqa: F401  (they register themselves)

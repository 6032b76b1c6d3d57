"""Memory: one arena, its segments, and the pools that hand them out."""

from fastbuf.memory.arena import Arena
from fastbuf.memory.lending import Borrower, Lender
from fastbuf.memory.local_buffer_pool import LocalBufferPool
from fastbuf.memory.memory_segment import MemorySegment
from fastbuf.memory.network_buffer_pool import NetworkBufferPool

__all__ = ["Arena", "Borrower", "Lender", "LocalBufferPool", "MemorySegment", "NetworkBufferPool"]

from fastbuf.exchange.doorbell import Doorbell
from fastbuf.memory.arena import Arena

class SharedReader:
    index: int
    peer: str

    def __init__(self, fd: int, arena: Arena, bell: Doorbell, peer: str) -> None: ...
    def received_so_far(self) -> int: ...
    def has_ended(self) -> bool: ...

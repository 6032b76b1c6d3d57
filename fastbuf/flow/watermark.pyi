class WatermarkPolicy:
    """Whether a connection is writable, by the bytes that wait to be sent."""

    high: int
    low: int
    queued: int
    writable: bool
    def __init__(self, segment_size: int = ...) -> None: ...
    def add(self, n: int) -> bool: ...
    def remove(self, n: int) -> bool: ...

from fastbuf.exchange.record_writer import RecordWriter

class Sampler:
    """Looks at what writers do so many times, so far apart, without the GIL."""

    def stop(self) -> None:
        """End a burst that is under way, and allow no other."""

    def blocked(self, writers: list[RecordWriter], samples: int, every_s: float) -> tuple[int, list[int]]:
        """Looks that were taken, and for each writer those that found it blocked."""

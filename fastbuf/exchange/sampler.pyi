from fastbuf.exchange.record_writer import RecordWriter

class Sampler:
    """Samples the states of writers at a fixed interval, without the GIL."""

    def stop(self) -> None:
        """Stop sampling now, and for good."""

    def blocked(self, writers: list[RecordWriter], samples: int, every_s: float) -> tuple[int, list[int]]:
        """Number of samples taken, and for each writer those that found it blocked."""

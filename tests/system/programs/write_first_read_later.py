"""A blocking partition: all is written, into a file, before the first consumer reads."""

import fastbuf as fb

BLOBS = fb.RowSerializer(fb.Schema.of(n="int64", blob="binary"))

if __name__ == "__main__":
    with fb.ShuffleEnvironment(segments=64, segment_size=32_768) as env:
        writer, gates = env.exchange(serializer=BLOBS, consumers=2, selector=fb.hash_by("n"), partition_type="blocking")
        for n in range(1_000):
            writer.emit((n, bytes(10_000)))  # five times what the segments hold
        writer.finish()
        found = sorted(n for gate in gates for n, _ in gate)
        writer.close()
    assert found == list(range(1_000))

"""One thread that writes and reads: it never waits in a send."""

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(n="int64", text="string"))

if __name__ == "__main__":
    with fb.ShuffleEnvironment(segments=16, segment_size=4_096) as env:
        writer, [gate] = env.exchange(serializer=ROWS)
        found = []
        for n in range(20_000):
            done = writer.try_emit((n, "x" * 50))
            while not done:
                found += gate.poll(0.0) or []
                done = writer.resume()
        writer.finish()
        while not gate.finished:
            found += gate.poll(0.1) or []
        writer.close()
    assert [n for n, _ in found] == list(range(20_000))

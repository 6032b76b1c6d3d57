"""A consumer that is slow holds its producer back: memory stays what the environment was given."""

import threading
import time

import fastbuf as fb

BLOBS = fb.RowSerializer(fb.Schema.of(n="int64", blob="binary"))

if __name__ == "__main__":
    with fb.ShuffleEnvironment(segments=16, segment_size=32_768) as env:
        writer, [gate] = env.exchange(serializer=BLOBS)

        def produce():
            with writer:
                for n in range(400):
                    writer.emit((n, bytes(16_000)))

        producer = threading.Thread(target=produce)
        producer.start()
        most = 0
        for n, _ in gate:
            if n % 20 == 0:
                time.sleep(0.01)
            most = max(most, env.stats()["segments_in_use"])
        producer.join()
        assert n == 399
        assert most <= 16
        assert writer.stats()["wait_s"] > 0

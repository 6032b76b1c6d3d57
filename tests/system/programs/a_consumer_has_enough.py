"""A consumer that has found what it looked for says so; its producer sees ``cancelled``, and no error."""

import threading

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))

if __name__ == "__main__":
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, [gate] = env.exchange(serializer=ROWS)
        state = {}

        def produce():
            with writer:
                n = 0
                while not writer.cancelled:
                    writer.emit((n,))
                    n += 1
                state["cancelled"] = writer.cancelled

        producer = threading.Thread(target=produce)
        producer.start()
        with gate:
            for (n,) in gate:
                if n == 100_000:
                    break
        producer.join()
    assert state == {"cancelled": True}

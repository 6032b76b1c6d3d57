"""Barriers travel with the records: what came before one is whole when it has come from every producer."""

import threading

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(producer="int32", n="int64"))

if __name__ == "__main__":
    with fb.ShuffleEnvironment(segments=64) as env:
        writers, [gate] = env.exchange(serializer=ROWS, producers=2)

        def produce(number, writer):
            with writer:
                for n in range(300):
                    if n % 100 == 0:
                        writer.emit_event(fb.Barrier(n // 100))
                    writer.emit((number, n))

        threads = [threading.Thread(target=produce, args=pair) for pair in enumerate(writers)]
        for thread in threads:
            thread.start()
        seen = [0, 0]
        for item in gate:
            if isinstance(item, fb.Barrier):
                assert seen[item.channel] == item.checkpoint * 100
            else:
                seen[item[0]] += 1
        for thread in threads:
            thread.join()
        assert seen == [300, 300]

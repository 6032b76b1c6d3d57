"""Workers of different speed: each gets what it is free for, and the slow one does not hold up the rest."""

import threading
import time

import fastbuf as fb

OBJECTS = fb.PickledSerializer()
CONFIG = fb.ExchangeConfig(buffer_timeout_s=0, max_buffers_per_channel=2)

if __name__ == "__main__":
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, gates = env.exchange(serializer=OBJECTS, consumers=3, selector=fb.first_free(), config=CONFIG)
        done = [[] for _ in gates]

        def work(number, seconds):
            with gates[number] as gate:
                for task in gate:
                    time.sleep(seconds)
                    done[number].append(task)

        workers = [threading.Thread(target=work, args=pair) for pair in enumerate([0.0, 0.0, 0.05])]
        for worker in workers:
            worker.start()
        with writer:
            for task in range(300):
                writer.emit(task)
        for worker in workers:
            worker.join()
    assert sorted(task for tasks in done for task in tasks) == list(range(300))
    assert len(done[2]) < min(len(done[0]), len(done[1]))

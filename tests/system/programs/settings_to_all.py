"""A broadcast: every consumer reads the same buffers, which are written once."""

import threading

import fastbuf as fb

OBJECTS = fb.PickledSerializer()

if __name__ == "__main__":
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, gates = env.exchange(serializer=OBJECTS, consumers=5, selector=fb.broadcast())
        got = [[] for _ in gates]
        readers = [threading.Thread(target=lambda i=i: got[i].extend(gates[i])) for i in range(5)]
        for reader in readers:
            reader.start()
        with writer:
            writer.emit({"model": 1, "weights": [0.5] * 100})
            writer.emit({"model": 2, "weights": [0.25] * 100})
        for reader in readers:
            reader.join()
    assert all([item["model"] for item in items] == [1, 2] for items in got)

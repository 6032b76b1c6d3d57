"""Objects of any class, with arrays inside, through an exchange and back from bytes."""

import dataclasses
import threading

import numpy as np

import fastbuf as fb


@dataclasses.dataclass
class Picture:
    name: str
    pixels: np.ndarray


OBJECTS = fb.PickledSerializer()

if __name__ == "__main__":
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, [gate] = env.exchange(serializer=OBJECTS)

        def produce():
            with writer:
                for n in range(50):
                    writer.emit(Picture(f"picture {n}", np.full((64, 64), n)))

        producer = threading.Thread(target=produce)
        producer.start()
        with gate:
            for n, picture in enumerate(gate):
                assert picture.name == f"picture {n}"
                assert (picture.pixels == n).all()
        producer.join()
        assert n == 49

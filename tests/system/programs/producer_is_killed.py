"""A producer that is killed is an error at its consumer, soon, and no hang."""

import multiprocessing as mp

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))


def produce(target):
    with fb.ShuffleEnvironment(segments=64) as env, env.create_result_partition(ROWS, [target]) as writer:
        writer.emit_many((n,) for n in iter(int, 1))  # without end


if __name__ == "__main__":
    with fb.ShuffleEnvironment(segments=64) as env:
        gate = env.create_input_gate(ROWS, channels=1)
        env.listen()
        child = mp.get_context("spawn").Process(target=produce, args=(gate.address,))
        child.start()
        try:
            for seen, _ in enumerate(gate):
                if seen == 1_000:
                    child.kill()
        except fb.PeerLost as error:
            print("as expected:", error)
        else:
            raise SystemExit("nobody said that the producer is gone")
        child.join()

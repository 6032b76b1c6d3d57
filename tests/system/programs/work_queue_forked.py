"""Four forked producers, one consumer: each makes an environment of its own."""

import multiprocessing as mp

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(producer="int32", n="int64"))


def produce(number, target):
    with (
        fb.ShuffleEnvironment(segments=64) as env,
        env.create_result_partition(ROWS, [target], channel=number) as writer,
    ):
        writer.emit_many([(number, n) for n in range(10_000)])


if __name__ == "__main__":
    context = mp.get_context("fork")
    with fb.ShuffleEnvironment(segments=64) as env:
        gate = env.create_input_gate(ROWS, channels=4)
        env.listen()
        children = [context.Process(target=produce, args=(i, gate.address)) for i in range(4)]
        for child in children:
            child.start()
        seen = [0] * 4
        for number, n in gate:
            assert n == seen[number]  # each producer's records come in order
            seen[number] += 1
        for child in children:
            child.join()
        assert seen == [10_000] * 4

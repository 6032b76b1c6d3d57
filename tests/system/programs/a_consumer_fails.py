"""An exception of a consumer is an error of its producer, in another process, with its words."""

import multiprocessing as mp

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))


def produce(target, told):
    with fb.ShuffleEnvironment(segments=64) as env:
        try:
            with env.create_result_partition(ROWS, [target]) as writer:
                writer.emit_many((n,) for n in range(10_000_000))
        except fb.FastbufError as error:
            told.put(str(error))
        else:
            told.put("no error")


if __name__ == "__main__":
    context = mp.get_context("spawn")
    told = context.SimpleQueue()
    try:
        with fb.ShuffleEnvironment(segments=64) as env:
            gate = env.create_input_gate(ROWS, channels=1)
            env.listen()
            child = context.Process(target=produce, args=(gate.address, told))
            child.start()
            for (n,) in gate:
                if n == 1_000:
                    raise ValueError("the disk is full")
    except ValueError:
        pass
    assert "ValueError: the disk is full" in told.get()
    child.join()
    assert child.exitcode == 0

"""Low latency between two processes: every record leaves at once."""

import multiprocessing as mp
import statistics
import time

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(n="int64"))
AT_ONCE = fb.ExchangeConfig(buffer_timeout_s=0)


def echo(places, target):
    with fb.ShuffleEnvironment(segments=64, shared=True) as env, env.create_input_gate(ROWS, channels=1) as gate:
        env.listen()
        places.put(gate.address)
        with env.create_result_partition(ROWS, [target], config=AT_ONCE) as writer:
            for record in gate:
                writer.emit(record)


if __name__ == "__main__":
    context = mp.get_context("spawn")
    places = context.SimpleQueue()
    with fb.ShuffleEnvironment(segments=64, shared=True) as env, env.create_input_gate(ROWS, channels=1) as answers:
        env.listen()
        child = context.Process(target=echo, args=(places, answers.address))
        child.start()
        times = []
        with env.create_result_partition(ROWS, [places.get()], config=AT_ONCE) as writer:
            for n in range(200):
                begin = time.perf_counter()
                writer.emit((n,))
                assert next(answers) == (n,)
                times.append(time.perf_counter() - begin)
        assert list(answers) == []
        child.join()
    assert statistics.median(times) < 0.05  # half of the default buffer timeout: nothing waited for it

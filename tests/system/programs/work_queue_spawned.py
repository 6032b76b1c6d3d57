"""A work queue: tasks to four spawned workers, answers back, whoever is free gets the next."""

import multiprocessing as mp

import fastbuf as fb

OBJECTS = fb.PickledSerializer()
AT_ONCE = fb.ExchangeConfig(buffer_timeout_s=0)


def work(number, tasks, answers):
    with fb.ShuffleEnvironment(segments=64) as env:
        gate = env.create_input_gate(OBJECTS, channels=1)
        env.listen()
        tasks.put((number, gate.address))
        with env.create_result_partition(OBJECTS, [answers], channel=number, config=AT_ONCE) as writer, gate:
            for n in gate:
                writer.emit((n, n * n))


if __name__ == "__main__":
    context = mp.get_context("spawn")
    with fb.ShuffleEnvironment(segments=256) as env:
        answers = env.create_input_gate(OBJECTS, channels=4)
        env.listen()
        places = context.SimpleQueue()
        workers = [context.Process(target=work, args=(i, places, answers.address)) for i in range(4)]
        for worker in workers:
            worker.start()
        targets = [address for _, address in sorted(places.get() for _ in workers)]
        with env.create_result_partition(OBJECTS, targets, selector=fb.first_free(), config=AT_ONCE) as tasks:
            for n in range(1000):
                tasks.emit(n)
        assert dict(answers) == {n: n * n for n in range(1000)}
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0

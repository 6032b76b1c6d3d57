"""Source, middle and sink in three processes: while the sink stands still, the source does, too."""

import multiprocessing as mp
import time

import fastbuf as fb

BLOBS = fb.RowSerializer(fb.Schema.of(n="int64", blob="binary"))
RECORDS, BYTES = 3_000, 10_000


def source(target, sent):
    with fb.ShuffleEnvironment(segments=32) as env, env.create_result_partition(BLOBS, [target]) as writer:
        for n in range(RECORDS):
            writer.emit((n, bytes(BYTES)))
            sent.value = n + 1


def middle(places, target):
    with fb.ShuffleEnvironment(segments=64) as env, env.create_input_gate(BLOBS, channels=1) as gate:
        env.listen()
        places.put(gate.address)
        with env.create_result_partition(BLOBS, [target]) as writer:
            writer.emit_many((n, blob) for n, blob in gate)


if __name__ == "__main__":
    context = mp.get_context("spawn")
    places, sent = context.SimpleQueue(), context.Value("q", 0)
    with fb.ShuffleEnvironment(segments=32) as env, env.create_input_gate(BLOBS, channels=1) as sink:
        env.listen()
        stages = [context.Process(target=middle, args=(places, sink.address))]
        stages[0].start()
        stages.append(context.Process(target=source, args=(places.get(), sent)))
        stages[1].start()
        before = -1
        while not 0 < before == sent.value:  # until the source stands still
            before = sent.value
            time.sleep(0.5)
        assert before * BYTES < 3 * 64 * 32_768  # what three environments have segments for
        assert [n for n, _ in sink] == list(range(RECORDS))
        for stage in stages:
            stage.join()
            assert stage.exitcode == 0

"""Arrow batches to four processes by key; each adds up its own keys."""

import multiprocessing as mp

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import fastbuf as fb

COLUMNS = fb.ColumnarSerializer(fb.Schema.of(key="int64", value="float64"))


def add_up(places, results):
    with fb.ShuffleEnvironment(segments=64) as env, env.create_input_gate(COLUMNS, channels=1) as gate:
        env.listen()
        places.put(gate.address)
        totals = pa.Table.from_batches(list(gate)).group_by("key").aggregate([("value", "sum")])
        results.put(dict(zip(totals["key"].to_pylist(), totals["value_sum"].to_pylist(), strict=True)))


if __name__ == "__main__":
    context = mp.get_context("spawn")
    places, results = context.SimpleQueue(), context.SimpleQueue()
    children = [context.Process(target=add_up, args=(places, results)) for _ in range(4)]
    for child in children:
        child.start()
    targets = [places.get() for _ in children]
    table = pa.table({"key": np.arange(40_000) % 100, "value": np.ones(40_000)})
    with (
        fb.ShuffleEnvironment(segments=256) as env,
        env.create_result_partition(COLUMNS, targets, selector=fb.hash_by("key")) as writer,
    ):
        for batch in table.to_batches(max_chunksize=1_000):
            writer.emit_batch(batch)
    parts = [results.get() for _ in children]
    for child in children:
        child.join()
    assert sum(map(len, parts)) == 100  # no key in two processes
    assert set().union(*(part.values() for part in parts)) == {400.0}
    assert pc.sum(table["value"]).as_py() == sum(sum(part.values()) for part in parts)

"""A sort of more than one consumer holds: ranges by a sample, each sorted by itself."""

import threading

import numpy as np
import pyarrow as pa

import fastbuf as fb

COLUMNS = fb.ColumnarSerializer(fb.Schema.of(key="int64"))

if __name__ == "__main__":
    keys = np.random.default_rng(5).integers(0, 10**9, 50_000)
    batches = pa.table({"key": keys}).to_batches(max_chunksize=5_000)
    with fb.ShuffleEnvironment(segments=256) as env:
        ranges = fb.range_by("key", sample=batches[0])
        writer, gates = env.exchange(serializer=COLUMNS, consumers=4, selector=ranges)
        parts = [None] * 4

        def read(i):
            found = [batch.column("key").to_numpy() for batch in gates[i]]
            parts[i] = np.sort(np.concatenate(found))

        readers = [threading.Thread(target=read, args=(i,)) for i in range(4)]
        for reader in readers:
            reader.start()
        with writer:
            for batch in batches:
                writer.emit_batch(batch)
        for reader in readers:
            reader.join()
    assert np.array_equal(np.concatenate(parts), np.sort(keys))

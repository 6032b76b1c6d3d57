"""NumPy columns through an exchange: what comes out lies in Arrow memory, and NumPy sees it without a copy."""

import threading

import numpy as np

import fastbuf as fb

COLUMNS = fb.ColumnarSerializer(fb.Schema.of(t="int64", x="float64"))

if __name__ == "__main__":
    rows = np.zeros(100_000, dtype=[("t", "i8"), ("x", "f8")])
    rows["t"] = np.arange(len(rows))
    rows["x"] = rows["t"] / 4
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, [gate] = env.exchange(serializer=COLUMNS)

        def produce():
            with writer:
                writer.emit_batch(rows)

        producer = threading.Thread(target=produce)
        producer.start()
        total, seen = 0.0, 0
        for batch in gate:
            x = batch.column("x").to_numpy(zero_copy_only=True)
            total += x.sum()
            seen += len(x)
        producer.join()
    assert seen == len(rows)
    assert total == rows["x"].sum()
    block = COLUMNS.dumps(rows)
    again = COLUMNS.loads(block, copy=False)
    assert again.num_rows == len(rows)
    assert np.array_equal(again.column("t").to_numpy(zero_copy_only=True), rows["t"])

"""pandas frames go in as they are; what comes out is Arrow, and pandas again in one call."""

import threading

import pandas as pd
import pyarrow as pa

import fastbuf as fb

COLUMNS = fb.ColumnarSerializer(fb.Schema.of(user="string", amount="float64"))

if __name__ == "__main__":
    frame = pd.DataFrame({"user": [f"u{i % 7}" for i in range(1_000)], "amount": [float(i) for i in range(1_000)]})
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, gates = env.exchange(serializer=COLUMNS, consumers=2, selector=fb.hash_by("user"))

        def produce():
            with writer:
                writer.emit_batch(frame)

        producer = threading.Thread(target=produce)
        producer.start()
        parts = [pa.Table.from_batches(list(gate)).to_pandas() for gate in gates]
        producer.join()
    assert set(parts[0]["user"]).isdisjoint(parts[1]["user"])
    assert sum(part["amount"].sum() for part in parts) == frame["amount"].sum()
    assert COLUMNS.loads(COLUMNS.dumps(frame)).num_rows == 1_000

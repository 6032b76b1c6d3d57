"""Many records, few of their fields: a lazy gate decodes what is read."""

import threading

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(id="int64", name="string", note="string"))

if __name__ == "__main__":
    with fb.ShuffleEnvironment(segments=64) as env:
        gate = env.create_input_gate(ROWS, channels=1, lazy=True)
        writer = env.create_result_partition(ROWS, [gate])

        def produce():
            with writer:
                writer.emit_many([(i, f"user-{i}", "long " * 20) for i in range(20_000)])

        producer = threading.Thread(target=produce)
        producer.start()
        total = sum(int(view.array("id").sum()) for view in gate)
        producer.join()
    assert total == sum(range(20_000))

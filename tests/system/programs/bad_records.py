"""A record that does not fit is refused with its number and field; the writer goes on."""

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(id="int64", name="string?"))
INPUT = [(1, "one"), ("two", "two"), (3, None), (4, "four"), (2**70, "five"), (6,)]

if __name__ == "__main__":
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, [gate] = env.exchange(serializer=ROWS)
        refused = []
        with writer:
            for record in INPUT:
                try:
                    writer.emit(record)
                except fb.RecordError as error:
                    refused.append((record, str(error)))
        kept = list(gate)
    assert len(kept) + len(refused) == len(INPUT)
    assert [record for record, _ in refused] == [("two", "two"), (2**70, "five"), (6,)], refused
    assert "id" in refused[0][1]

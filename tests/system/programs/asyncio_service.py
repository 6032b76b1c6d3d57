"""An asyncio service reads two gates while it does other things."""

import asyncio
import threading

import fastbuf as fb

ROWS = fb.RowSerializer(fb.Schema.of(id="int64", text="string"))


async def serve(gate, found):
    async with gate:
        async for number, text in gate:
            found[number] = text


async def tick(beats, done):
    while not done.is_set():
        beats.append(None)
        await asyncio.sleep(0)


async def main(gates):
    found, beats, done = {}, [], asyncio.Event()
    ticking = asyncio.create_task(tick(beats, done))
    await asyncio.gather(*(serve(gate, found) for gate in gates))
    done.set()
    await ticking
    return found, len(beats)


if __name__ == "__main__":
    with fb.ShuffleEnvironment(segments=64) as env:
        writer, gates = env.exchange(serializer=ROWS, consumers=2, selector=fb.hash_by("id"))

        def produce():
            with writer:
                writer.emit_many((i, f"text {i}") for i in range(5_000))

        producer = threading.Thread(target=produce)
        producer.start()
        found, beats = asyncio.run(main(gates))
        producer.join()
    assert found == {i: f"text {i}" for i in range(5_000)}
    assert beats > 0

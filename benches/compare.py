"""The five flow controls on one transport, against the same stories: ``make compare`` writes a page with plots.

Shape: sources in this process and consumers in another, a thread each, all channels over one TCP connection of the
loopback. A source offers so many bytes a second and a consumer takes so many; both are functions of the time, and the
story. A record carries the time at which the source had it. Every 20 ms both processes note what has gone and come.

``python benches/compare.py [--quick] [--to DIRECTORY]``; ``--quick`` is a twentieth as long: does it run, not what
comes out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing as mp
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

import compare_page

import fastbuf as fb
from fastbuf.config import FLOW_CONTROLS

ROWS = fb.RowSerializer(fb.Schema.of(sent_ns="int64", text="string"))
RECORD_BYTES = 2000
SEGMENT_BYTES = 8192
TICK_S = 0.005  # what a source offers in one go
SAMPLE_S = 0.02
MB = 1e6
Speed = Callable[[float], float]  # seconds since the story began -> bytes a second


def steps(*at: tuple[float, float]) -> Speed:
    """``(from second, MB/s)``, one behind the other."""
    times = [second for second, _ in at]
    return lambda t: at[max(0, bisect_right(times, t) - 1)][1] * MB


@dataclasses.dataclass(frozen=True)
class Story:
    name: str
    title: str
    offered: list[Speed]  # of each channel's source
    taken: list[Speed]  # of each channel's consumer
    change_s: float = 1.0  # when what the story is about begins
    barriers: bool = False  # a barrier goes to all channels now and then
    #: A source that was held up makes up for it, as one that reads a log; else it slows down, as one that computes.
    keeps: bool = False


SECONDS = 6.0
QUICK = 0.05  # --quick: a second of the story takes so many
STORIES = [
    Story("slow", "A slow consumer", [steps((0, 8))], [steps((0, 20), (1, 1))]),
    Story("eight", "One slow channel of eight", [steps((0, 2))] * 8, [steps((0, 5), (1, 0.25)), *[steps((0, 5))] * 7]),
    Story("burst", "A burst", [steps((0, 0.5), (1, 20), (1.3, 0.5))], [steps((0, 3))], keeps=True),
    Story(
        "stops",
        "A consumer that stops and goes",
        [steps((0, 3))],
        [steps((0, 9), (1, 0), (2, 9), (3, 0), (4, 9))],
        keeps=True,
    ),
    Story("speed", "A change of speed", [steps((0, 8))], [steps((0, 4), (1, 1), (3, 6), (4.5, 2))]),
    Story("barrier", "A barrier that must get through", [steps((0, 4))] * 2, [steps((0, 1)), steps((0, 8))], 0, True),
]


class Clock:
    """Seconds of the story: `scale` of them last one; all processes of a host have the same."""

    def __init__(self, began_ns: int, scale: float) -> None:
        self.began_ns = began_ns
        self.scale = scale

    def now(self) -> float:
        return (time.monotonic_ns() - self.began_ns) / 1e9 / self.scale

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds * self.scale)

    def sleep_till(self, when: float) -> None:
        if (left := when - self.now()) > 0:
            self.sleep(left)


class Notes:
    """What each channel has moved so far, every 20 ms, until it is told to end."""

    def __init__(self, clock: Clock, moved: list[int]) -> None:
        self.rows: list[tuple[float, list[int]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._note, args=(clock, moved))
        self._thread.start()

    def _note(self, clock: Clock, moved: list[int]) -> None:
        while not self._over.wait(SAMPLE_S * clock.scale):
            self.rows.append((clock.now(), list(moved)))

    def end(self) -> list[tuple[float, list[int]]]:
        self._over.set()
        self._thread.join()
        return self.rows


def started(work: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    return thread


# ---- the consumers' process


def consume(control: Any) -> None:
    """Does one story after the other, until it is told None."""
    with fb.ShuffleEnvironment(segments=1024, segment_size=SEGMENT_BYTES) as env:
        env.listen()
        while (task := control.recv()) is not None:
            number, flow_control, scale = task
            story, config = STORIES[number], settings(flow_control)
            gates = [env.create_input_gate(ROWS, channels=1, config=config) for _ in story.taken]
            control.send([gate.address for gate in gates])
            clock = Clock(control.recv(), scale)
            moved = [0] * len(gates)
            seen: list[list[Any]] = [[] for _ in gates]  # (when, latency, None), or (when, None, barrier)
            notes = Notes(clock, moved)
            threads = [
                started(take, clock, gate, speed, moved, seen[i], i)
                for i, (gate, speed) in enumerate(zip(gates, story.taken, strict=True))
            ]
            clock.sleep_till(SECONDS)
            for gate in gates:  # what is still under way is not waited for
                gate.close()
            for thread in threads:
                thread.join()
            control.send((notes.end(), seen, [gate.stats()["peak_segments"] for gate in gates]))


def take(clock: Clock, gate: fb.InputGate, speed: Speed, moved: list[int], seen: list[Any], i: int) -> None:
    """Reads as fast as the story lets this consumer."""
    free = 0.0
    try:
        for item in gate:
            if isinstance(item, fb.Event):
                seen.append((clock.now(), None, item.checkpoint))
                continue
            while (rate := speed(clock.now())) == 0:
                clock.sleep(TICK_S)
            free = max(free, clock.now() - TICK_S) + RECORD_BYTES / rate
            if free > clock.now() + 0.001:
                clock.sleep_till(free)
            moved[i] += RECORD_BYTES
            now = clock.now()
            seen.append((now, now - (item[0] - clock.began_ns) / 1e9 / clock.scale, None))
    except fb.errors.ExchangeClosed:
        pass


# ---- the sources' process


def settings(flow_control: str) -> fb.ExchangeConfig:
    return fb.ExchangeConfig(flow_control=flow_control, transport="tcp", floating=30, buffer_timeout_s=0.01)


def offer(clock: Clock, writer: fb.RecordWriter, story: Story, moved: list[int], i: int, barriers: list[float]) -> None:
    """Writes what the story has this source offer."""
    text = "x" * (RECORD_BYTES - 20)
    due, owed, checkpoint = 0.0, 0.0, 0
    while due < SECONDS and clock.now() < SECONDS and not writer.cancelled:
        if checkpoint < len(barriers) and clock.now() >= barriers[checkpoint]:
            writer.emit_event(fb.Barrier(checkpoint, timestamp_ms=0))
            checkpoint += 1
        owed += story.offered[i](due) * TICK_S / RECORD_BYTES
        while owed >= 1 and clock.now() < SECONDS:
            writer.emit((clock.began_ns + int(due * clock.scale * 1e9) if story.keeps else time.monotonic_ns(), text))
            moved[i] += RECORD_BYTES
            owed -= 1
        due += TICK_S
        if not story.keeps:
            due = max(due, clock.now())
        clock.sleep_till(due)
    writer.close()


def run(control: Any, number: int, flow_control: str, scale: float) -> dict[str, Any]:
    """One story under one flow control; what both processes noted."""
    story = STORIES[number]
    with fb.ShuffleEnvironment(segments=1024, segment_size=SEGMENT_BYTES) as env:
        control.send((number, flow_control, scale))
        targets = control.recv()
        config = settings(flow_control)
        writers = [env.create_result_partition(ROWS, [target], config=config) for target in targets]
        clock = Clock(time.monotonic_ns() + 50_000_000, scale)
        control.send(clock.began_ns)
        clock.sleep_till(0)
        moved = [0] * len(writers)
        notes = Notes(clock, moved)
        barriers = (
            [k * compare_page.BARRIER_S for k in range(1, int((SECONDS - 1) / compare_page.BARRIER_S))]
            if story.barriers
            else []
        )
        threads = [started(offer, clock, writer, story, moved, i, barriers) for i, writer in enumerate(writers)]
        came, seen, peaks = control.recv()
        for thread in threads:
            thread.join()
        return {"sent": notes.end(), "came": came, "seen": seen, "peaks": peaks, "barriers": barriers}


def figures_of(scale: float) -> dict[str, Any]:
    """Every story under every flow control."""
    control, theirs = mp.get_context("spawn").Pipe()
    process = mp.get_context("spawn").Process(target=consume, args=(theirs,), daemon=True)
    process.start()
    out: dict[str, Any] = {}
    for number, story in enumerate(STORIES):
        out[story.name] = {"title": story.title, "ways": {}}
        for flow_control in FLOW_CONTROLS:
            noted = run(control, number, flow_control, scale)
            out[story.name]["ways"][flow_control] = compare_page.summary(
                story.change_s, SECONDS, not story.keeps, noted
            )
            print(f"{story.title}, {flow_control}", flush=True)
    control.send(None)
    process.join(10)
    return {"machine": compare_page.machine(), "stories": out}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a twentieth as long, and no figures that mean anything")
    parser.add_argument("--to", type=Path, default=Path("docs/explanation"), help="where the page goes")
    options = parser.parse_args()
    figures = figures_of(QUICK if options.quick else 1.0)
    folder = options.to / "flow-controls"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "figures.json").write_text(json.dumps(figures, separators=(",", ":")) + "\n")
    wrong = [] if options.quick else compare_page.untrue(figures)
    if wrong:
        sys.exit(
            f"the figures do not bear out what the page says (story: parts): {'; '.join(wrong)}; run it again alone"
        )
    compare_page.write(figures, options.to)


if __name__ == "__main__":
    main()

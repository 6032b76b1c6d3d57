"""Plant faults and report what was said of them: ``python tests/faults --seeds 10-29``; ``make faults``.

Thresholds are tuned on seeds 0 to 9; what is reported is of 10 to 29.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import records
from judges import flinks_rule, pool_table
from scenarios import SCENARIOS, Truth, plant
from scores import Outcome, report
from worlds import Running

RUN_S = 11.0
SPARK_RUN_S = 15.0  #: sockets between Spark and its workers hold the rows of ten seconds, before a slow sink is felt


def run(name: str, seed: int, seconds: float = RUN_S, record: Path | None = None) -> Outcome:
    """One run; a verdict is taken once a second."""
    planted = plant(name, seed)
    outcome = Outcome(name, seed, list(planted.truths))
    ticks: list[float] = []
    with Running(planted.world) as running:
        begin = time.monotonic()
        tick = 1.0
        while tick <= seconds:
            time.sleep(max(0.0, begin + tick - time.monotonic()))
            ticks.append(time.monotonic())
            exchanges = running.monitor.snapshot()
            note(outcome, exchanges, tick)
            tick += 1.0
        kept = list(running.monitor.kept)
    judged_by_others(outcome, exchanges)
    if record is not None:
        record.mkdir(parents=True, exist_ok=True)
        records.write(record / f"{name}-{seed}.json.gz", kept, ticks, {"name": name, "seed": seed, "began": begin})
    return outcome


def judge_again(path: Path) -> Outcome:
    """The same of a record, by the rules of now."""
    header, said = records.again(path)
    if "runs" in header:
        truths = [Truth(t["stage"], t["subtask"], tuple(t["causes"])) for t in header["truths"]]
        outcome = Outcome("spark " + header["name"], header["seed"], truths)
    else:
        outcome = Outcome(header["name"], header["seed"], list(plant(header["name"], header["seed"]).truths))
    for tick, exchanges in zip(header["ticks"], said, strict=True):
        note(outcome, exchanges, float(round(tick - header["began"])))
    judged_by_others(outcome, said[-1] if said else [])
    return outcome


def judged_by_others(outcome: Outcome, exchanges: list[dict[str, Any]]) -> None:
    """What they would have named at the end."""
    outcome.others = {"Flink's rule": sorted(flinks_rule(exchanges)), "pool table": sorted(pool_table(exchanges))}


def run_in_spark(name: str, seed: int, seconds: float = SPARK_RUN_S, record: Path | None = None) -> Outcome:
    """The same in Spark, from the first rows that came on."""
    import spark_worlds

    world, truths = spark_worlds.plant(name, seed)
    outcome = Outcome("spark " + name, seed, list(truths))
    kept: records.Kept = []
    ticks: list[float] = []
    numbers: list[list[int]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        records.recorded_in_spark(kept),
        spark_worlds.Job(spark_worlds.session(), world, Path(folder)) as job,
    ):
        wait = time.monotonic() + spark_worlds.START_S
        while not job.runs() and time.monotonic() < wait:
            time.sleep(0.1)
        begin = time.monotonic()
        exchanges = []
        for tick in range(1, int(seconds) + 1):
            time.sleep(max(0.0, begin + tick - time.monotonic()))
            ticks.append(time.monotonic())
            found = job.runs()
            numbers.append([run.number for run in found])
            exchanges = records.in_spark(found)
            note(outcome, exchanges, float(tick))
        if world.hot and any(t.subtask == -1 for t in truths):
            rows = {k: f.get("records", 0) for e in exchanges for k, f in e["consumers"].items()}
            outcome.truths = [replace(t, subtask=max(rows, key=rows.__getitem__)) for t in truths]
        judged_by_others(outcome, exchanges)
    if record is not None:
        record.mkdir(parents=True, exist_ok=True)
        header = {"name": name, "seed": seed, "began": begin, "runs": numbers}
        header["truths"] = [asdict(t) for t in outcome.truths]
        records.write(record / f"spark-{name}-{seed}.json.gz", kept, ticks, header)
    return outcome


def note(outcome: Outcome, exchanges: list[dict[str, Any]], seconds: float) -> None:
    """What was said just now."""
    roots = {(r.stage, r.subtask, r.cause): r for e in exchanges for r in e["diagnosis"].roots}
    outcome.windows += 1
    outcome.alarms += bool(roots)
    for stage, subtask, cause in roots:
        outcome.add(stage, subtask, cause, seconds)
    sentences = list(dict.fromkeys(e["diagnosis"].sentence for e in exchanges if e["diagnosis"].roots))
    outcome.sentences = sentences or outcome.sentences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="10-29", help="first-last")
    parser.add_argument("--only", default="", help="scenarios, by comma")
    parser.add_argument("--without", default="", help="scenarios to leave out, by comma")
    parser.add_argument("--spark", action="store_true", help="in Spark, one after the other")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--seconds", type=float, help=f"of a run (default: {RUN_S:g}, in Spark {SPARK_RUN_S:g})")
    parser.add_argument("--out", type=Path, default=None, help="where outcomes are added to, one JSON a line")
    parser.add_argument("--verbose", action="store_true", help="what was said last, in words")
    parser.add_argument("--merge", action="store_true", help="run nothing: report what --out has")
    parser.add_argument("--record", type=Path, default=None, help="a folder for what tasks told, one file for each run")
    parser.add_argument("--again", type=Path, default=None, help="run nothing: judge such a folder by the rules of now")
    given = parser.parse_args()
    outcomes = []
    if given.again:
        first, _, last = given.seeds.partition("-")
        for path in sorted(given.again.glob("*.json.gz")):
            name, _, seed = path.name.removesuffix(".json.gz").rpartition("-")
            if int(first) <= int(seed) <= int(last or first) and name in (given.only or name).split(","):
                outcomes.append(judge_again(path))
                if given.verbose:
                    print(name, seed, *outcomes[-1].sentences, sep="\n  ")
        print(report(outcomes))
        return 0
    if given.merge:
        for line in given.out.read_text().splitlines():
            found = json.loads(line)
            found["truths"] = [Truth(t["stage"], t["subtask"], tuple(t["causes"])) for t in found["truths"]]
            outcomes.append(Outcome(**found))
        print(report(outcomes))
        return 0
    first, _, last = given.seeds.partition("-")
    every: Iterable[str] = SCENARIOS
    sys.path.append(str(Path(__file__).resolve().parents[1]))  # what all tests share
    if given.spark:
        import spark_worlds

        every = spark_worlds.SCENARIOS
    names = [name for name in (given.only.split(",") if given.only else every) if name not in given.without.split(",")]
    wanted = [(name, seed) for seed in range(int(first), int(last or first) + 1) for name in names]
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:

        def one(place: tuple[str, int]) -> Outcome:
            if given.spark:
                return run_in_spark(*place, given.seconds or SPARK_RUN_S, given.record)
            return run(*place, given.seconds or RUN_S, given.record)

        for outcome in pool.map(one, wanted):
            outcomes.append(outcome)
            print(
                outcome.name,
                outcome.seed,
                [(t.stage, t.subtask, t.causes[0]) for t in outcome.truths],
                "->",
                outcome.said(),
                flush=True,
            )
            if given.verbose:
                print(*outcome.sentences, sep="\n")
            if given.out is not None:
                with given.out.open("a") as file:
                    file.write(json.dumps(outcome.plain()) + "\n")
    print(report(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())

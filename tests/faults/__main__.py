"""Plant faults and report what was said of them: ``python tests/faults --seeds 10-29``; ``make faults``.

Thresholds are tuned on seeds 0 to 9; what is reported is of 10 to 29.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import sys
import time
from pathlib import Path
from typing import Any

from judges import flinks_rule, pool_table
from scenarios import SCENARIOS, Truth, plant
from scores import Outcome, report
from worlds import Running

RUN_S = 11.0


def run(name: str, seed: int, seconds: float = RUN_S) -> Outcome:
    """One run; a verdict is taken once a second."""
    planted = plant(name, seed)
    outcome = Outcome(name, seed, list(planted.truths))
    with Running(planted.world) as running:
        begin = time.monotonic()
        tick = 1.0
        while tick <= seconds:
            time.sleep(max(0.0, begin + tick - time.monotonic()))
            exchanges = running.monitor.snapshot()
            note(outcome, exchanges, tick)
            tick += 1.0
        outcome.others = {
            "Flink's rule": sorted(flinks_rule(exchanges)),
            "pool table": sorted(pool_table(exchanges)),
        }
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
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--seconds", type=float, default=RUN_S)
    parser.add_argument("--out", type=Path, default=None, help="where outcomes are added to, one JSON a line")
    parser.add_argument("--verbose", action="store_true", help="what was said last, in words")
    parser.add_argument("--merge", action="store_true", help="run nothing: report what --out has")
    given = parser.parse_args()
    outcomes = []
    if given.merge:
        for line in given.out.read_text().splitlines():
            found = json.loads(line)
            found["truths"] = [Truth(t["stage"], t["subtask"], tuple(t["causes"])) for t in found["truths"]]
            outcomes.append(Outcome(**found))
        print(report(outcomes))
        return 0
    first, _, last = given.seeds.partition("-")
    names = given.only.split(",") if given.only else list(SCENARIOS)
    wanted = [(name, seed) for seed in range(int(first), int(last or first) + 1) for name in names]
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        for outcome in pool.map(lambda one: run(*one, given.seconds), wanted):
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

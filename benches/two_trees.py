"""Two versions of fastbuf against the same benches, in turn: what a change gains or loses.

::

    python benches/two_trees.py ../before . benches/bench_exchange.py --ways "fastbuf tcp" --starts 2

Both trees are built in place.  The benches are this tree's; each tree has a process of its own that runs them.  Each
way is run once with one tree and then with the other, every other time backwards.  ``--starts`` is how often both
processes are made anew, as where their memory lies falls out differently each time.

Prints the medians of all rounds, how much longer the second tree takes, and the noise: the same tree's even rounds
against its odd ones.  A difference no larger than that says nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import defaultdict
from multiprocessing import Pipe
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent


class Tree:
    """A process that runs the benches with one tree's fastbuf, one way once whenever it is told to."""

    def __init__(self, tree: Path, benches: list[str], ways: str) -> None:
        self.tree = tree
        self.control, theirs = Pipe()
        path = os.pathsep.join([str(tree), str(tree / "bindings"), str(HERE)])
        told = {"FASTBUF_BENCH_TOLD": str(theirs.fileno()), "FASTBUF_BENCH_WAYS": ways, "PYTHONPATH": path}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--benchmark-only", *benches],
            cwd=tree,
            env={**os.environ, **told},
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        theirs.close()
        used = self.hear()
        assert used == str(tree / "fastbuf"), f"the benches would measure {used}"

    def hear(self) -> Any:
        """What the process has to say; None: it has ended."""
        try:
            return self.control.recv()
        except EOFError:
            said, _ = self.process.communicate(timeout=60)
            if self.process.returncode:
                sys.exit(f"the benches failed in {self.tree}:\n{said}")
            return None

    def run(self, way: str) -> float:
        self.control.send(way)
        return self.hear()  # type: ignore[no-any-return]


def measure(trees: list[Tree], rounds: int, found: dict[str, list[list[float]]]) -> None:
    while None not in (names := [tree.hear() for tree in trees]):
        assert names[0] == names[1]
        bench, ways = names[0]
        for turn in range(-1, rounds):  # the first is the warm-up
            for way in ways:
                for which in (0, 1) if turn % 2 else (1, 0):
                    seconds = trees[which].run(way)
                    if turn >= 0:
                        found[f"{bench}: {way}"][which].append(seconds)
        for tree in trees:
            tree.control.send(None)


def absolute(bench: str) -> str:
    """A bench as pytest names it, from any folder; other arguments as they are."""
    file, *test = bench.split("::")
    return "::".join([str(Path(file).resolve()), *test]) if Path(file).exists() else bench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs=2, type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count, of each start")
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--ways", default="fastbuf", help="ways of the benches that are measured: parts of names, by |")
    given, benches = parser.parse_known_args()
    found: dict[str, list[list[float]]] = defaultdict(lambda: [[], []])
    trees = [tree.resolve() for tree in given.trees]
    for start in range(given.starts):
        order = trees if start % 2 == 0 else trees[::-1]
        made = [Tree(tree, [absolute(bench) for bench in benches], given.ways) for tree in order]
        measure(made if start % 2 == 0 else made[::-1], given.rounds, found)
    width = max(map(len, found), default=0)
    print(f"{'':{width}}  first, ms  second, ms  second takes  of the same tree, half to half")
    for name, (first, second) in sorted(found.items()):
        a, b = median(first), median(second)
        spread = (
            max(abs(median(all_[::2]) / median(all_[1::2]) - 1) for all_ in (first, second)) if len(first) > 1 else 0
        )
        print(f"{name:{width}} {a * 1e3:10.2f} {b * 1e3:11.2f} {b / a - 1:+12.1%}  ±{spread:.1%}")


if __name__ == "__main__":
    main()

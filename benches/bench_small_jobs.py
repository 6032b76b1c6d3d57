"""Small jobs, where what counts is what a shuffle costs before and after its rows: fastbuf's modes beside Spark's own.

Shape: Python stage -> shuffle by key -> Python stage, ``local[4]``, R = 1 (2 of the 400 inputs, where fastbuf then
takes its blocking mode by itself), Spark's defaults.  No rows at all; 100 rows; 400 input partitions (40 in a smoke
run) of 100 rows; 200 of 5,000 rows into 200, and 100 of 2,000 rows into 1,000, where mode pipelined has too few slots;
and of FASTBUF_BENCH_ROWS rows (10 M; 100 k in a smoke run) a few: ``take(5)``, ``show()``, ``first()``.  A limit that
has enough costs Spark the workers of its own stages, which the next way has to start anew: so what runs beside Spark's
way is a second slower there.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from sessions import session

SMOKE = os.environ.get("FASTBUF_BENCH_SMOKE") == "1"
ROWS = int(os.environ.get("FASTBUF_BENCH_ROWS", "100_000" if SMOKE else "10_000_000"))
ROUNDS = int(os.environ.get("FASTBUF_BENCH_ROUNDS", "5"))
MODES = ("auto", "pipelined", "blocking")
INPUTS = 40 if SMOKE else 400
RECORD = "k long, id long, x double, name string"


def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Both stages: hand on what they get."""
    yield from batches


def shown(df: Any) -> bool:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        df.show()
    return "only showing top 20 rows" in said.getvalue()


#: Rows, input partitions, partitions out, the action, and whether it gave what it should
JOBS: dict[str, tuple[int, int, int, Callable[[Any], Any]]] = {
    "no rows": (0, 2, 1, lambda df: df.collect() == []),
    "100 rows": (100, 2, 1, lambda df: len(df.collect()) == 100),
    "400 inputs of 100 rows": (100 * INPUTS, INPUTS, 1, lambda df: df.count() == 100 * INPUTS),
    "400 inputs into 2": (100 * INPUTS, INPUTS, 2, lambda df: df.count() == 100 * INPUTS),
    "200 inputs into 200": (5_000 * INPUTS // 2, INPUTS // 2, INPUTS // 2, lambda df: df.count() == 2_500 * INPUTS),
    "100 inputs into 1,000": (
        500 * INPUTS,
        INPUTS // 4,
        5 * INPUTS // 2,
        lambda df: df.count() == 500 * INPUTS,
    ),
    "take(5)": (ROWS, 4, 1, lambda df: len(df.take(5)) == 5),
    "show()": (ROWS, 4, 1, shown),
    "first()": (ROWS, 4, 1, lambda df: df.first() is not None),
}


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with session("small jobs", memory="4g") as made:
        yield made


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("job", JOBS)
def test_small_jobs(job: str, spark: Any, in_turn: Any, benchmark: Any) -> None:
    import fastbuf_spark as fbs

    rows, inputs, partitions, right = JOBS[job]
    data = spark.range(0, rows, 1, inputs).selectExpr(
        "pmod(id * 7919, 1000003) AS k", "id", "id * 0.5D AS x", "concat('user-', pmod(id, 1000)) AS name"
    )

    def own() -> None:
        assert right(data.mapInArrow(passing, RECORD).repartition(partitions, "k").mapInArrow(passing, RECORD))

    def ours(mode: str) -> Callable[[], None]:
        def run() -> None:
            how: Any = {"before": passing, "before_schema": RECORD, "mode": mode}
            assert right(fbs.map_in_arrow(data, passing, RECORD, keys=["k"], num_partitions=partitions, **how))

        return run

    benchmark.group = f"small jobs, {job}"
    in_turn(
        {"spark": own, **{mode: ours(mode) for mode in MODES if mode == "blocking" or partitions <= 2}},
        rounds=ROUNDS,
        baselines=("spark",),
        speed_up_over="spark",
        partitions_in=inputs,
        partitions_out=partitions,
    )

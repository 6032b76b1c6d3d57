"""Jobs drawn by chance: verbs, types, nulls, empty partitions and modes, each beside Spark's own way of the same.

A seed names a job, so what one finds can be run again: ``FASTBUF_SEEDS=17 pytest tests/spark/test_random_jobs.py``; a
range is ``100-199``.
"""

from __future__ import annotations

import datetime as dt
import os
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import fastbuf_spark as fbs

pytestmark = pytest.mark.spark
GIVEN = os.environ.get("FASTBUF_SEEDS", "0-399" if os.environ.get("FASTBUF_LONG") == "1" else "0-1")
FIRST, _, LAST = GIVEN.partition("-")
SEEDS = range(int(FIRST), int(LAST or FIRST) + 1)
NOON = dt.datetime(2026, 3, 29, 12)
WORDS = ["", "a", "b" * 40, "é", "日本", "\x00", " a", "A", "1", "x" * 3000]

#: type in DDL -> a value of it
TYPES: dict[str, Callable[[random.Random], Any]] = {
    "long": lambda r: r.choice([0, 1, -1, 2**63 - 1, -(2**63), r.randrange(50)]),
    "int": lambda r: r.choice([0, -(2**31), r.randrange(20)]),
    "short": lambda r: r.randrange(-3, 3),
    "byte": lambda r: r.randrange(-128, 128),
    "boolean": lambda r: r.random() < 0.5,
    "double": lambda r: r.choice([0.0, 1.5, -1e300, float("inf"), r.randrange(9) / 2]),
    "float": lambda r: r.choice([0.0, -2.5, float("-inf"), float(r.randrange(9))]),
    "string": lambda r: r.choice([*WORDS, str(r.randrange(30))]),
    "binary": lambda r: r.choice([b"", b"\x00\xff", bytes([r.randrange(5)])]),
    "date": lambda r: dt.date(1990, 1, 1) + dt.timedelta(days=r.randrange(20000)),
    "timestamp": lambda r: NOON + dt.timedelta(microseconds=r.randrange(10**15)),
    "timestamp_ntz": lambda r: NOON - dt.timedelta(minutes=r.randrange(60)),
    "decimal(9,2)": lambda r: Decimal(r.randrange(-500, 500)) / 100,
    "decimal(38,6)": lambda r: Decimal(r.randrange(10**12)) / 10**6,
    "array<int>": lambda r: [r.choice([None, 1, 2]) for _ in range(r.randrange(3))],
    "array<string>": lambda r: [r.choice([None, *WORDS]) for _ in range(r.randrange(3))],
    "struct<a:int,b:string>": lambda r: {"a": r.choice([None, 1]), "b": r.choice([None, "z"])},
    "map<string,int>": lambda r: {str(k): r.choice([None, k]) for k in range(r.randrange(3))},
}
KEYS = [name for name in TYPES if not name.startswith("map")]  # Spark has no keys that are maps


def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def halved(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pc.equal(pc.bit_wise_and(batch["id"], 1), 0))


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        yield batch.slice(0, 0)
        yield batch


def none(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, 0)


def crumbs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for at in range(0, batch.num_rows, 7):
            yield batch.slice(at, 7)


def frames(pdfs: Iterator[Any]) -> Iterator[Any]:
    for pdf in pdfs:
        yield pdf[["id", "n"]]


MAPS = [passing, passing, halved, doubled, crumbs, none]


def whole(key: Any, table: pa.Table) -> pa.Table:
    return pa.table({
        "id": pa.array([pc.min(table["id"]).as_py()], pa.int64()),
        "n": pa.array([table.num_rows], pa.int64()),
        "key": pa.array([repr([part.as_py() for part in key])]),
    })  # fmt: skip


def streamed(key: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows, least = 0, None
    for batch in batches:
        rows += batch.num_rows
        found = pc.min(batch["id"]).as_py()
        least = found if least is None else min(least, found)
    columns = [pa.array([least], pa.int64()), pa.array([rows], pa.int64()), pa.array([repr([p.as_py() for p in key])])]
    yield pa.RecordBatch.from_arrays(columns, names=["id", "n", "key"])


def in_order(key: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The ids as they come, which shows their order."""
    ids = [i for batch in batches for i in batch["id"].to_pylist()]
    yield pa.RecordBatch.from_arrays(
        [pa.array(ids[:1], pa.int64()), pa.array([len(ids)], pa.int64()), pa.array([",".join(map(str, ids))])],
        names=["id", "n", "key"],
    )


def in_frames(key: Any, pdf: Any) -> Any:
    import pandas as pd

    return pd.DataFrame({"id": [pdf["id"].min()], "n": [len(pdf)], "key": ["pandas"]})


LITTLE = fbs.ShuffleConf(memory_bytes=512 << 10, segment_size=4096)
GROUPED = "id long, n long, key string"


class Job:
    """A job of a seed, built both ways side by side."""

    def __init__(self, spark: Any, seed: int, folder: Path) -> None:
        self.spark, self.random = spark, random.Random(seed)
        self.told: list[str] = []
        r = self.random
        kinds = [r.choice(list(TYPES)) for _ in range(r.randrange(1, 5))]
        self.columns = [("id", "long"), ("n", "long"), *((f"c{i}", kind) for i, kind in enumerate(kinds))]
        nulls, rows = r.choice([0.0, 0.2, 0.9]), r.choice([0, 1, 5, 300, 3000])
        data = [
            (i, i % 11, *(None if r.random() < nulls else TYPES[kind](r) for kind in kinds)) for i in range(rows)
        ]  # fmt: skip
        parts = r.choice([1, 2, 5])
        frame = spark.createDataFrame(data, self.ddl).repartition(parts)
        self.note(f"{rows} rows of {self.ddl} in {parts}")
        self.theirs: Any = frame.cache()
        if r.random() < 0.4:
            path = str(folder / f"{seed}.parquet")
            frame.write.parquet(path)
            self.note("files")
            self.ours = fbs.read_parquet(spark, path)
        else:
            self.ours = fbs.pipeline(self.theirs)
        if r.random() < 0.3:
            self.note("little memory")
            self.ours = fbs.pipeline(self.ours, conf=LITTLE)
        self.placed = False

    @property
    def ddl(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in self.columns)

    def note(self, words: str) -> None:
        self.told.append(words)

    def some_keys(self) -> list[str]:
        names = [name for name, kind in self.columns if kind in KEYS and name != "id"]
        return self.random.sample(names, min(len(names), self.random.choice([1, 1, 2])))

    def map(self) -> None:
        func = self.random.choice(MAPS)
        self.note(func.__name__)
        self.ours, self.theirs = self.ours.map_in_arrow(func, self.ddl), self.theirs.mapInArrow(func, self.ddl)
        self.placed = False  # Spark's mapInArrow keeps partitions; so do ours, but the row count decides nothing

    def pandas(self) -> None:
        self.note("pandas")
        self.columns = [("id", "long"), ("n", "long")]
        self.ours, self.theirs = self.ours.map_in_pandas(frames, self.ddl), self.theirs.mapInPandas(frames, self.ddl)
        self.placed = False

    def filter(self) -> None:
        most = self.random.choice([3, 8, 100])
        self.note(f"n < {most}")
        self.ours, self.theirs = self.ours.filter(pc.field("n") < most), self.theirs.where(f"n < {most}")

    def chain(self) -> None:
        self.note("new chain")
        self.ours = self.ours.start_new_chain()

    def shuffle(self) -> None:
        keys, parts, mode = self.some_keys(), self.random.choice([1, 2, 3]), self.mode()
        self.note(f"shuffle {keys} to {parts} {mode}")
        self.ours = self.ours.shuffle(*keys, partitions=parts, mode=mode)
        self.theirs = self.theirs.repartition(parts, *keys)
        self.placed = True

    def spread(self) -> None:
        parts, mode = self.random.choice([1, 2, 3]), self.mode()
        if self.random.random() < 0.5:
            self.note(f"rebalance to {parts} {mode}")
            self.ours = self.ours.rebalance(parts, mode=mode)
        else:
            self.note(f"random shuffle to {parts} {mode}")
            self.ours = self.ours.random_shuffle(7, parts, mode=mode)
        self.placed = False

    def group(self) -> None:
        keys, parts, mode = self.some_keys(), self.random.choice([1, 2, 3]), self.mode()
        func = self.random.choice([whole, streamed, in_frames])
        self.note(f"{func.__name__} of groups by {keys} to {parts} {mode}")
        groups, spark_groups = self.ours.group_by(*keys, partitions=parts, mode=mode), self.theirs.groupBy(*keys)
        if func is in_frames:
            self.ours = groups.apply_in_pandas(func, GROUPED)
            self.theirs = spark_groups.applyInPandas(func, GROUPED)
        else:
            self.ours = groups.apply_in_arrow(func, GROUPED)
            self.theirs = spark_groups.applyInArrow(whole, GROUPED)
        self.columns = [("id", "long"), ("n", "long"), ("key", "string")]
        self.placed = False

    def sorted_groups(self) -> None:
        """Spark sorts by Window or by hand: rows of a group in the order of columns, the id last so that it is one."""
        from pyspark.sql import functions as F

        keys, parts, mode = self.some_keys(), self.random.choice([1, 2, 3]), self.mode()
        if self.told[-1] in ("doubled",) or "doubled" in self.told:
            return  # equal ids have no order
        by, down = [*self.some_keys(), "id"], self.random.random() < 0.4
        self.note(f"ids of groups by {keys}, sorted by {by}, {'down, ' if down else ''}to {parts} {mode}")
        groups = self.ours.group_by(*keys, partitions=parts, sort_by=list(map(F.desc, by)) if down else by, mode=mode)
        self.ours = groups.apply_in_arrow(in_order, GROUPED)
        entries = F.sort_array(F.collect_list(F.struct(*by)), asc=not down)
        rows = F.transform(entries, lambda each: each["id"])
        made = (F.element_at(rows, 1).alias("least"), F.count("*").alias("many"), F.array_join(rows, ",").alias("ids"))
        self.theirs = self.theirs.groupBy(*keys).agg(*made).select("least", "many", "ids").toDF("id", "n", "key")
        self.columns = [("id", "long"), ("n", "long"), ("key", "string")]
        self.placed = False

    def mode(self) -> str:
        return self.random.choice(["auto", "auto", "blocking", "pipelined"])

    def build(self) -> None:
        pipelined = 0
        for _ in range(self.random.randrange(1, 6)):
            step = self.random.choice([self.map, self.map, self.pandas, self.filter, self.shuffle, self.spread,
                                       self.group, self.sorted_groups, self.chain])  # fmt: skip
            step()
            pipelined += self.told[-1].endswith("pipelined")
            if pipelined > 1:
                break  # more of them have no slots

    def check(self) -> None:
        ours = self.ours.to_df()
        assert [(f.name, f.dataType) for f in ours.schema] == [(f.name, f.dataType) for f in self.theirs.schema]
        theirs = self.theirs
        if self.placed:
            ours, theirs = (df.selectExpr("*", "spark_partition_id() as at") for df in (ours, theirs))
        want = sorted(map(repr, theirs.collect()))
        assert sorted(map(repr, ours.collect())) == want
        assert self.ours.count() == len(want)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_gives_what_spark_gives(sessions: Any, tmp_path: Path, seed: int) -> None:
    spark = sessions.get("local[9]")
    job = Job(spark, seed, tmp_path)
    frame = job.theirs
    try:
        job.build()
        job.check()
    except BaseException:
        print("; ".join(job.told))
        raise
    finally:
        frame.unpersist(blocking=True)


def counted(key: Any, left: pa.Table, right: pa.Table) -> pa.Table:
    found = [sorted(table["id"].to_pylist()) for table in (left, right)]
    return pa.table({
        "key": pa.array([repr([part.as_py() for part in key])]),
        "ids": pa.array([repr(found)]),
    })  # fmt: skip


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_two_inputs_give_what_spark_gives(sessions: Any, seed: int) -> None:
    """Groups of both, a join of two results, a union of them: with keys of any type."""
    r, spark = random.Random(-1 - seed), sessions.get("local[9]")
    kinds = r.sample(KEYS, r.choice([1, 2]))
    names = [f"k{i}" for i in range(len(kinds))]
    ddl = ", ".join(["id long", *(f"{name} {kind}" for name, kind in zip(names, kinds, strict=True))])
    nulls = r.choice([0.0, 0.3])
    frames_of = []
    for _ in range(2):
        rows = [
            (i, *(None if r.random() < nulls else TYPES[kind](r) for kind in kinds))
            for i in range(r.choice([0, 3, 400]))
        ]
        frames_of.append(spark.createDataFrame(rows, ddl).repartition(r.choice([1, 3])).cache())
    left, right = frames_of
    mode, parts = r.choice(["auto", "blocking", "pipelined"]), r.choice([1, 2, 3])
    conf = LITTLE if r.random() < 0.3 else None
    print(f"{left.count()} and {right.count()} rows of {ddl}, {mode}, to {parts}, {conf}")
    try:
        groups = [fbs.group_by(df, *names, num_partitions=parts, mode=mode, conf=conf) for df in frames_of]
        made = groups[0].cogroup(groups[1]).apply_in_arrow(counted, "key string, ids string")
        spark_groups = [df.groupBy(*names) for df in frames_of]
        want = spark_groups[0].cogroup(spark_groups[1]).applyInArrow(counted, "key string, ids string")
        assert sorted(map(repr, made.collect())) == sorted(map(repr, want.collect()))
        moved = [fbs.repartition(df, parts, *names, mode="auto", conf=conf) for df in frames_of]
        for how in ("inner", "full_outer", "left_anti"):
            ours, theirs = (a.join(b, names, how) for a, b in (moved, frames_of))
            assert sorted(map(repr, ours.collect())) == sorted(map(repr, theirs.collect()))
        ours, theirs = (a.union(b).exceptAll(b.limit(0)) for a, b in (moved, frames_of))
        assert sorted(map(repr, ours.collect())) == sorted(map(repr, theirs.collect()))
    finally:
        for df in frames_of:
            df.unpersist(blocking=True)


PAIR_KEYS: dict[str, Callable[[random.Random], Any]] = {
    "int": lambda r: r.choice([0, -1, 2**70, r.randrange(40)]),
    "text": lambda r: r.choice(WORDS),
    "mixed": lambda r: r.choice([None, True, 1, 1.0, "1", b"1", (1, "a"), (None,), -1, -2, 2**61 - 1, 0.0, -0.0]),
    "float": lambda r: r.choice([0.0, -0.0, 1.5, float("inf"), -1e300]),
    "tuple": lambda r: (r.randrange(3), r.choice([None, "x", ("y",)])),
}


def add(a: Any, b: Any) -> Any:
    return a + b


def one_list(value: Any) -> list[Any]:
    return [value]


def appended(had: list[Any], value: Any) -> list[Any]:
    had.append(value)
    return had


def joined(a: list[Any], b: list[Any]) -> list[Any]:
    a.extend(b)
    return a


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_pairs_give_what_spark_gives(sessions: Any, seed: int) -> None:
    """Partition for partition, though within one in any order."""
    r, spark = random.Random(seed + 10**6), sessions.get("local[9]")
    sc = spark.sparkContext
    kind = r.choice(list(PAIR_KEYS))
    made = [[(PAIR_KEYS[kind](r), i) for i in range(r.choice([0, 1, 50, 2000]))] for _ in range(2)]
    one, two = (sc.parallelize(pairs, r.choice([1, 2, 7])) for pairs in made)
    parts, mode = r.choice([1, 2, 3]), r.choice(["auto", "blocking", "pipelined"])
    conf = LITTLE if r.random() < 0.3 else None
    print(f"{len(made[0])} and {len(made[1])} pairs, keys {kind}, {mode}, to {parts}, {conf}")
    told: dict[str, Any] = {"mode": mode, "conf": conf}

    def same(ours: Any, theirs: Any, of: Callable[[Any], Any] = repr) -> None:
        assert [sorted(map(of, part)) for part in ours.glom().collect()] == [
            sorted(map(of, part)) for part in theirs.glom().collect()
        ]

    def in_lists(pair: Any) -> str:
        values = pair[1] if isinstance(pair[1], tuple) else (pair[1],)
        return repr((_plain(pair[0]), [sorted(each) for each in values]))

    def key_and_value(pair: Any) -> str:
        return repr((_plain(pair[0]), pair[1]))

    same(fbs.reduce_by_key(one, add, parts, **told), one.reduceByKey(add, parts), key_and_value)
    same(
        fbs.combine_by_key(one, one_list, appended, joined, parts, **told),
        one.combineByKey(one_list, appended, joined, parts),
        in_lists,
    )
    same(fbs.group_by_key(one, parts, **told), one.groupByKey(parts), in_lists)
    same(fbs.co_group(one, two, parts, **told), one.cogroup(two, parts), in_lists)
    few = two.filter(lambda pair: pair[1] % 50 == 0)
    if kind != "mixed" and kind != "float":  # which of equal keys is kept is by chance
        same(fbs.join(one, few, parts, **told), one.join(few, parts))


def _plain(key: Any) -> Any:
    """Keys that are equal are one, and which of them is kept is by chance: 1, 1.0 and True, 0.0 and -0.0."""
    return float(key) + 0.0 if isinstance(key, (bool, int, float)) and abs(key) < 2**53 else key

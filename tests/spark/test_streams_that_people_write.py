"""Ten streams that people write, each under a kill, beside what pandas says of the same rows."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import streams_people_write as people
from killings import workers
from nights import nightly
from numbered import nothing_waits
from test_streams_ends import until

import fastbuf_spark as fbs
from fastbuf_spark.streams import fail_points

BEGIN = pd.Timestamp("2024-02-28 23:59:50", tz="UTC")
DELAY_MS = 4000  #: rows come so far out of their order at most
MOMENT = pa.timestamp("us", "UTC")


class Feed:
    """Rows in splits, as they came: a few at a time, until a file says that all may come."""

    bounded = True

    def __init__(self, hurry: Path, pause_s: float, *splits: pd.DataFrame) -> None:
        self.tables = [pa.Table.from_pandas(each, preserve_index=False) for each in splits]
        self.hurry, self.pause_s = hurry, pause_s

    def splits(self) -> list[str]:
        return [str(number) for number in range(len(self.tables))]

    def read(self, split: str, offset: int | None) -> Iterator[tuple[pa.RecordBatch, int]]:
        table, at = self.tables[int(split)].combine_chunks(), offset or 0
        while at < table.num_rows:
            hurry = self.hurry.exists()
            size = 100 if hurry else max(1, (table.num_rows - at) // 100)
            part = table.slice(at, size).to_batches()[0]
            at += part.num_rows
            yield part, at
            if not hurry:
                time.sleep(self.pause_s)


@dataclass
class Case:
    """A stream, where it goes to, and what is there in the end."""

    stream: Callable[[int], fbs.Stream]  #: of a number of partitions
    sink: Any
    result: Callable[[], pa.Table]
    expected: pd.DataFrame
    output_mode: str = "append"
    feed: Callable[[threading.Event], None] | None = None  #: what goes on beside a stream that does not end


@dataclass
class Given:
    """What a case is made of."""

    spark: Any
    folder: Path
    hurry: Path
    random: np.random.Generator
    postgres: Any = None
    pause_s: float = 0.02

    def feed(self, schema: str, *splits: pd.DataFrame) -> fbs.Stream:
        return fbs.stream(self.spark, Feed(self.hurry, self.pause_s, *splits), schema, tasks=1)

    def times(self, rows: int, apart_ms: int) -> pd.Series:
        """Times of rows that come up to the delay too late."""
        ms = np.sort(self.random.integers(0, rows * apart_ms, rows))
        order = np.argsort(ms + self.random.integers(0, DELAY_MS, rows), kind="stable")
        return pd.Series(BEGIN + pd.to_timedelta(ms[order], unit="ms")).astype("datetime64[us, UTC]")

    def some(self, values: Any, rows: int, nulls: float = 0.05) -> pd.Series:
        """Any of the values, some of them null."""
        found = pd.Series(np.asarray(list(values), object)[self.random.integers(0, len(values), rows)])
        return found.where(self.random.random(rows) >= nulls, None)

    def twice(self, rows: pd.DataFrame) -> pd.DataFrame:
        """A tenth of the rows come again, later."""
        again = rows.sample(frac=0.1, random_state=int(self.random.integers(1 << 30)))
        places = again.index + self.random.integers(1, 50, len(again)) + 0.5
        return pd.concat([rows, again.set_index(places)]).sort_index().reset_index(drop=True)


def in_memory(stream: Callable[[int], fbs.Stream], expected: pd.DataFrame) -> Case:
    sink = fbs.to_memory()
    return Case(stream, sink, sink.table, expected)


def dedup(given: Given) -> Case:
    n = 600
    events = pd.DataFrame({"id": given.some(range(150), n), "at": given.times(n, 100), "what": given.some("abc", n)})
    stream = given.feed("id long, at timestamp, what string", events)
    return in_memory(partial(people.dedup, stream), events.drop_duplicates("id"))


def sessions(given: Given) -> Case:
    n = 300
    halves = [
        pd.DataFrame({"user": given.some(["ada", "bob", "cid", "dan"], n), "at": given.times(n, 1500)}).assign(
            amount=given.some(range(100), n)
        )
        for _ in range(2)
    ]
    stream = given.feed("user string, at timestamp, amount long", *halves).with_watermark("at", "4 seconds", idle=None)
    rows = pd.concat(halves).sort_values("at").assign(user=lambda f: f["user"].fillna("-"))
    rows["amount"] = rows["amount"].fillna(0).astype(int)
    apart = rows.groupby("user")["at"].diff() > pd.Timedelta(people.GAP_MS, unit="ms")
    rows["session"] = apart.groupby(rows["user"]).cumsum()
    grouped = rows.groupby(["user", "session"])
    expected = grouped.agg(began=("at", "min"), last=("at", "max"), n=("at", "size"), amount=("amount", "sum"))
    expected = expected.reset_index().assign(user=lambda f: f["user"].replace("-", None))
    return in_memory(partial(people.sessions, stream), expected)


def top_three(given: Given) -> Case:
    n = 600
    scores = pd.DataFrame({"id": range(n), "category": given.some("xyz", n), "score": given.some(range(500), n)})
    scores = given.twice(scores)
    stream = given.feed("id long, category string, score long", scores)
    best = scores.drop_duplicates("id").dropna(subset=["score"]).sort_values(["score", "id"], ascending=[False, True])
    best["place"] = best.groupby("category", dropna=False).cumcount() + 1
    case = in_memory(partial(people.top_three, stream), best[best["place"] <= people.TOP])

    def newest() -> pa.Table:
        rows = case.sink.table().to_pandas().drop_duplicates(["category", "place"], keep="last")
        return pa.Table.from_pandas(rows, case.sink.table().schema, preserve_index=False)

    case.result = newest
    return case


def enriched(given: Given) -> Case:
    n = 600
    path = given.folder / "products.parquet"
    products = pd.DataFrame(
        {"product": list("abcdef"), "title": given.some(["Pen", "Ink"], 6), "price": np.arange(6) / 4}
    )
    products.to_parquet(path)
    orders = pd.DataFrame({"id": range(n), "product": given.some("abcdefgh", n), "amount": given.some(range(9), n)})
    orders = given.twice(orders)
    stream = given.feed("id long, product string, amount long", orders)
    return in_memory(partial(people.enriched, stream, path), orders.merge(products, on="product", how="left"))


def anomalies(given: Given) -> Case:
    n = 800
    readings = pd.DataFrame(
        {"id": range(n), "sensor": given.some(["s1", "s2", "s3"], n), "x": given.random.normal(5, 2, n)}
    )
    readings.loc[readings.sample(frac=0.05, random_state=1).index, "x"] += 12
    readings.loc[readings.sample(frac=0.05, random_state=2).index, "x"] = None
    known = readings.dropna(subset=["x"])
    before = known.groupby("sensor", dropna=False)["x"].apply(
        lambda x: (x - x.expanding().mean().shift()) / x.expanding().std().shift()
    )
    before = before.droplevel(0)[known.index]
    place = known.groupby("sensor", dropna=False).cumcount()
    expected = known[(place >= people.LEAST) & (before.abs() > people.SIGMAS)]
    assert len(expected) > 5
    return in_memory(partial(people.anomalies, given.feed("id long, sensor string, x double", readings)), expected)


def changes(given: Given) -> Case:
    n = 600
    log = pd.DataFrame(
        {"seq": range(n), "op": given.some(["insert", "update", "delete"], n, 0), "id": given.some(range(60), n, 0)}
    )
    log = log.assign(name=given.some("uvw", n), amount=given.some(range(1000), n))
    newest = log.groupby("id").tail(1)
    expected = newest[newest["op"] != "delete"][["id", "name", "amount"]]
    log = given.twice(log)
    log = log.iloc[np.argsort(log.index + given.random.integers(0, 40, len(log)), kind="stable")]
    stream = given.feed("seq long, op string, id long, name string, amount long", log.iloc[::2], log.iloc[1::2])
    path = given.folder / "items.db"

    def items() -> pa.Table:
        with sqlite3.connect(path) as db:
            frame = pd.read_sql("SELECT id, name, amount FROM items", db)
        schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.int64())])
        return pa.Table.from_pandas(frame, schema, preserve_index=False)

    return Case(partial(people.changes, stream), fbs.to_function(people.ToSqlite(path)), items, expected)


def paid(given: Given) -> Case:
    n = 400
    orders = pd.DataFrame({"order_id": range(n), "at": given.times(n, 500), "amount": given.some(range(1, 99), n, 0)})
    payments = orders.sample(frac=0.7, random_state=3)[["order_id", "at"]]
    payments["at"] += pd.to_timedelta(given.random.integers(-2000, 40_000, len(payments)), unit="ms")
    payments = payments.sort_values("at").assign(method=given.some(["card", "cash"], len(payments), 0).to_numpy())
    expected = orders.merge(payments[["order_id", "method"]], on="order_id", how="left")[
        ["order_id", "amount", "method"]
    ]
    both = [
        given.feed("order_id long, at timestamp, amount long", given.twice(orders)),
        given.feed("order_id long, at timestamp, method string", given.twice(payments.reset_index(drop=True))),
    ]
    timed = [each.with_watermark("at", "30 seconds", idle=None) for each in both]
    return in_memory(partial(people.paid, *timed), expected)


def alarms(given: Given) -> Case:
    n = 300
    halves = [pd.DataFrame({"device": given.some(["d1", "d2", "d3"], n), "at": given.times(n, 2000)}) for _ in range(2)]
    stream = given.feed("device string, at timestamp", *halves).with_watermark("at", "4 seconds", idle=None)
    rows = pd.concat(halves).drop_duplicates().sort_values("at")
    after = rows.groupby("device", dropna=False)["at"].shift(-1)
    is_silent = after.isna() | (after - rows["at"] > pd.Timedelta(people.SILENCE_MS, unit="ms"))
    expected = rows[is_silent].rename(columns={"at": "silent_since"})
    return in_memory(partial(people.alarms, stream), expected)


def counts(given: Given) -> Case:
    postgres = given.postgres
    n = 600
    events = pd.DataFrame({"user": given.some(["ada", "bob", "cid"], n), "amount": given.some(range(100), n)})
    table = postgres.table('"user" text PRIMARY KEY, amount_sum bigint, count_all bigint')

    def rows() -> pa.Table:
        told = postgres.query(f'SELECT "user", amount_sum, count_all FROM {table}')
        schema = pa.schema([("user", pa.string()), ("amount_sum", pa.int64()), ("count_all", pa.int64())])
        return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in told], schema)

    grouped = events.dropna(subset=["user"]).astype({"amount": "Int64"}).groupby("user")["amount"]
    expected = grouped.agg(amount_sum="sum", count_all="size").reset_index()
    stream = given.feed("user string, amount long", events)
    return Case(
        partial(people.counts, stream), fbs.to_postgres(postgres.dsn(), table, keys=["user"]), rows, expected, "update"
    )


def files(given: Given) -> Case:
    n = 600
    folder, out = given.folder / "in", given.folder / "out"
    folder.mkdir()
    rows = pd.DataFrame({"id": range(n), "user": given.some(["ada", "bob"], n), "at": given.times(n, 100)})
    rows = given.twice(rows.assign(amount=given.some(np.arange(50) / 4, n)))
    known = rows.dropna(subset=["user"])
    expected = known.assign(day=known["at"].dt.strftime("%Y-%m-%d"), amount=known["amount"].fillna(0.0))
    schema = pa.schema(
        [("id", pa.int64()), ("user", pa.string()), ("at", MOMENT), ("amount", pa.float64()), ("day", pa.string())]
    )

    def put(over: threading.Event) -> None:
        """Files appear whole."""
        at = 0
        while at < len(rows) and not over.is_set():
            size = 100 if given.hurry.exists() else max(1, (len(rows) - at) // 100)
            hidden = folder / f".{at}"
            rows.iloc[at : at + size].to_json(hidden, orient="records", lines=True, date_format="iso", date_unit="us")
            hidden.rename(folder / f"{at}.json")
            at += size
            over.wait(0 if given.hurry.exists() else given.pause_s)

    def written() -> pa.Table:
        return pq.read_table(out, schema=schema, partitioning="hive") if out.exists() else schema.empty_table()

    sink = fbs.to_parquet(str(out), partition_by=["day"])
    return Case(partial(people.files, given.spark, folder), sink, written, expected, feed=put)


def rows_of(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, table.to_pylist()))


def difference(case: Case) -> tuple[Counter[str], Counter[str]]:
    """The rows that are too many, and those that are too few."""
    there = case.result()
    wanted = pa.Table.from_pandas(case.expected[there.column_names], there.schema, preserve_index=False)
    assert wanted.num_rows
    one, other = rows_of(there), rows_of(wanted)
    return one - other, other - one


CASES = [dedup, sessions, top_three, enriched, anomalies, changes, paid, alarms, counts, files]
# Each by day at another point; all commits but those to memory have one in their middle
POINTS = {
    "dedup": "before prepare",
    "sessions": "acknowledged",
    "top_three": "barrier out",
    "enriched": "after prepare",
    "anomalies": "after fsync",
    "changes": "in commit",
    "paid": "file written",
    "alarms": "notified",
    "counts": "before commit",
    "files": "after commit",
}


@contextmanager
def fed(case: Case) -> Iterator[threading.Thread | None]:
    """What a stream that does not end reads is put there meanwhile."""
    over = threading.Event()
    thread = None if case.feed is None else threading.Thread(target=case.feed, args=(over,))
    if thread is not None:
        thread.start()
    try:
        yield thread
    finally:
        over.set()
        if thread is not None:
            thread.join()


def start(case: Case, given: Given, partitions: int = 1) -> Any:
    return case.stream(partitions).write_stream(
        case.sink, given.folder / "chk", every=0.2, output_mode=case.output_mode, discover_every=0.05
    )


def end(query: Any, case: Case, feeding: threading.Thread | None) -> None:
    """All rows may come: the last one, and the checkpoint behind it."""
    if feeding is not None:
        feeding.join(60)
        until(lambda: not any(difference(case)) or not query.is_active)
        query.stop(drain=True)
    assert query.await_termination(120)
    assert query.status["state"] in ("finished", "stopped")
    assert difference(case) == (Counter(), Counter()), "too many, too few"


@pytest.fixture
def given(spark: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Given:
    postgres = request.getfixturevalue("postgres") if "counts" in request.node.name else None
    folder = tmp_path / "killed"
    folder.mkdir()
    return Given(spark, tmp_path, folder / "hurry", np.random.default_rng(7), postgres)


@pytest.mark.parametrize("make", CASES)
def test_a_stream_of_which_a_task_is_killed(given: Given, make: Callable[[Given], Case]) -> None:
    point = POINTS[make.__name__]
    given.hurry = given.hurry.with_name(point.replace(" ", "-"))  # all may come when it has been killed
    case = make(given)
    fail_points.ask(f"{point};{given.hurry.parent}")
    try:
        with fed(case) as feeding:
            query = start(case, given)
            end(query, case, feeding)
    finally:
        fail_points.ask("")
    assert given.hurry.exists(), "nothing was killed"
    assert query.status["restarts"] >= 1
    nothing_waits(given.folder / "chk")


@nightly
@pytest.mark.parametrize("make", CASES)
def test_a_stream_that_nobody_kills(given: Given, make: Callable[[Given], Case]) -> None:
    given.hurry.touch()
    case = make(given)
    with fed(case) as feeding:
        query = start(case, given)
        end(query, case, feeding)
    assert query.status["restarts"] == 0


def kill_a_worker(spark: Any, query: Any, dice: random.Random) -> None:
    """Some process of a task, at some moment, until the stream has noticed."""
    before = query.status["restarts"]
    while query.status["restarts"] == before and query.is_active:
        query.await_termination(dice.uniform(0, 1))
        if alive := workers(spark):  # else it is about to start
            with suppress(psutil.Error):
                dice.choice(alive).kill()
            until(lambda: query.status["restarts"] > before or query.status["state"] == "running")


@nightly
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", CASES)
def test_a_stream_under_kills_and_with_other_partitions(given: Given, make: Callable[[Given], Case], seed: int) -> None:
    """Any process of its tasks at any moment; stopped, and started with more partitions, and with fewer."""
    dice = random.Random(seed)
    given.random, given.pause_s = np.random.default_rng(100 + seed), 0.06
    case, kills = make(given), 0
    with fed(case) as feeding:
        for partitions in (1, 2, 1):
            query = start(case, given, partitions)
            kill_a_worker(given.spark, query, dice)
            query.await_termination(dice.uniform(0, 1))
            query.stop()
            assert query.exception() is None
            kills += query.status["restarts"]
        given.hurry.touch()
        end(start(case, given, 2), case, feeding)
    assert kills, "nothing was killed"


def test_an_id_comes_again_when_it_is_forgotten(spark: Any, tmp_path: Path) -> None:
    """Its time to live passes while the stream is not there."""
    folder, rows, passed = tmp_path / "in", fbs.to_memory(), []
    folder.mkdir()
    for ids in ([1, 1, 2], [1, 3]):
        pq.write_table(pa.table({"id": ids}), folder / f"{len(ids)}.parquet")
        stream = people.dedup(
            fbs.stream_files(spark, str(folder), schema="id long", bounded=True, tasks=1), 1, "1 second"
        )
        assert stream.write_stream(rows, tmp_path / "chk", every=5).await_termination(60)
        passed += rows.table()["id"].to_pylist()[len(passed) :]
        time.sleep(1.0)
    assert passed == [1, 2, 1, 3]

"""Ten streams as people write them: public names alone, a few lines each.  What pandas says of them is in the tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming import StatefulProcessor

import fastbuf_spark as fbs

# ---- 1. Dedup: an id once, for as long as it keeps coming


def first_of_id(batch: pa.RecordBatch, number: np.ndarray, state: pa.RecordBatch) -> tuple[Any, Any]:
    seen = state["seen"].fill_null(False).to_numpy(zero_copy_only=False)
    _, first = np.unique(number, return_index=True)
    is_first = np.isin(np.arange(len(number)), first)
    return pa.record_batch({"seen": [True] * len(seen)}), batch.filter(pa.array(is_first & ~seen[number]))


def dedup(events: fbs.Stream, partitions: int, ttl: str = "1 hour") -> fbs.Stream:
    grouped = events.group_by("id", partitions=partitions)
    return grouped.transform_batches_with_state(first_of_id, events.schema, "seen boolean", ttl=ttl, name="dedup")


# ---- 2. Sessions by own state: rows of a user that are at most so long apart, whatever their order

GAP_MS = 10_000


class Sessions(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle
        self.sessions = handle.getListState("sessions", "began long, last long, n long, amount long")

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[pd.DataFrame]:
        kept = list(self.sessions.get())
        for frame in rows:
            for at, amount in zip(frame["at"], frame["amount"].fillna(0), strict=True):
                ms = at.value // 1_000_000
                touched = [s for s in kept if s[0] - GAP_MS <= ms <= s[1] + GAP_MS]
                kept = [s for s in kept if s not in touched]
                began, last, n, amounts = zip(*touched, (ms, ms, 1, int(amount)), strict=True)
                kept.append((min(began), max(last), sum(n), sum(amounts)))
                self.handle.registerTimer(max(last) + GAP_MS + 1)
        self.sessions.put(kept)
        return iter(())

    def handleExpiredTimer(self, key: Any, timers: Any, expired: Any) -> Iterator[pd.DataFrame]:
        kept = list(self.sessions.get())
        over = [s for s in kept if s[1] + GAP_MS < expired.getExpiryTimeInMs()]
        self.sessions.put([s for s in kept if s not in over])
        if over:
            frame = pd.DataFrame(over, columns=["began", "last", "n", "amount"])
            frame["began"], frame["last"] = (
                pd.to_datetime(frame["began"], unit="ms"),
                pd.to_datetime(frame["last"], unit="ms"),
            )
            yield frame.assign(user=key[0])[["user", "began", "last", "n", "amount"]]

    def close(self) -> None:
        pass


def sessions(events: fbs.Stream, partitions: int) -> fbs.Stream:
    return events.group_by("user", partitions=partitions).transform_with_state(
        Sessions(),
        "user string, began timestamp, last timestamp, n long, amount long",
        "append",
        "event_time",
        name="sessions",
    )


# ---- 3. Running top three of each category, as a table that is kept up to date

TOP = 3


class Best(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.best = handle.getListState("best", "id long, score long")

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[pa.RecordBatch]:
        before = [tuple(each) for each in self.best.get()]
        scores = dict(before)
        for batch in rows:
            scores.update(
                (i, s) for i, s in zip(*(batch[n].to_pylist() for n in ("id", "score")), strict=True) if s is not None
            )
        best = sorted(scores.items(), key=lambda each: (-each[1], each[0]))[:TOP]
        if best == before:
            return
        self.best.put(best)
        ids, points = zip(*best, strict=True)
        places = range(1, len(best) + 1)
        yield pa.record_batch({"category": [key[0]] * len(best), "place": places, "id": ids, "score": points})

    def close(self) -> None:
        pass


def top_three(scores: fbs.Stream, partitions: int) -> fbs.Stream:
    schema = "category string, place long, id long, score long"
    grouped = scores.group_by("category", partitions=partitions)
    return grouped.transform_with_state(Best(), schema, arrow=True, name="top three")


# ---- 4. Enrichment by a small table that every task has


class WithProduct:
    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> None:
        self.products = pd.read_parquet(self.path)

    def __call__(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame.merge(self.products, on="product", how="left")


def enriched(orders: fbs.Stream, products: Path, partitions: int) -> fbs.Stream:
    spread = orders.rebalance(partitions)
    return spread.map_in_pandas(
        WithProduct(products), "id long, product string, amount long, title string, price double"
    )


# ---- 5. Anomalies: values that are far from what their sensor gave before

LEAST, SIGMAS = 10, 3.0


class ZScore(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.moments = handle.getValueState("moments", "n long, mean double, m2 double")

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[pa.RecordBatch]:
        n, mean, m2 = self.moments.get() or (0, 0.0, 0.0)
        for batch in rows:
            odd = []
            for x in batch["x"].to_pylist():
                if x is None:
                    odd.append(False)
                    continue
                odd.append(n >= LEAST and abs(x - mean) > SIGMAS * (m2 / (n - 1)) ** 0.5)
                n += 1  # Welford's update
                delta = x - mean
                mean += delta / n
                m2 += delta * (x - mean)
            yield batch.filter(pa.array(odd))
        self.moments.update((n, mean, m2))

    def close(self) -> None:
        pass


def anomalies(readings: fbs.Stream, partitions: int) -> fbs.Stream:
    grouped = readings.group_by("sensor", partitions=partitions)
    return grouped.transform_with_state(ZScore(), readings.schema, arrow=True, name="z-score")


# ---- 6. Changes of rows to a table: by number, as they come twice and in any order


def newer(batch: pa.RecordBatch, number: np.ndarray, state: pa.RecordBatch) -> tuple[Any, Any]:
    rows = pd.DataFrame({"key": number, "seq": batch["seq"].to_numpy()})
    last = state["seq"].fill_null(-1).to_numpy()
    newest = rows.sort_values("seq", kind="stable").groupby("key").tail(1)
    newest = newest[newest["seq"].to_numpy() > last[newest["key"]]]
    last = last.copy()
    last[newest["key"]] = newest["seq"]
    return pa.record_batch({"seq": last}), batch.take(pa.array(newest.index))


class ToSqlite:
    """Applies changes; a batch that was applied before a failure is known by its number."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE IF NOT EXISTS items (id INTEGER PRIMARY KEY, name TEXT, amount INTEGER)")
            db.execute("CREATE TABLE IF NOT EXISTS batches (batch INTEGER PRIMARY KEY)")

    def __call__(self, changes: pa.Table, batch: int) -> None:
        with sqlite3.connect(self.path, timeout=60) as db:  # one transaction
            if not db.execute("INSERT OR IGNORE INTO batches VALUES (?)", (batch,)).rowcount:
                return
            for row in changes.to_pylist():
                if row["op"] == "delete":
                    db.execute("DELETE FROM items WHERE id = :id", row)
                else:
                    db.execute("INSERT OR REPLACE INTO items VALUES (:id, :name, :amount)", row)


def changes(log: fbs.Stream, partitions: int) -> fbs.Stream:
    grouped = log.group_by("id", partitions=partitions)
    return grouped.transform_batches_with_state(newer, log.schema, "seq long", name="newest")


# ---- 7. Orders and their payments, joined by state; an order that is not paid for a minute is told

PATIENCE_MS = 60_000
BOTH = "order_id long, at timestamp, amount long, method string"


class Paid(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle
        self.order = handle.getValueState("order", "amount long")
        self.payment = handle.getValueState("payment", "method string")
        self.is_told = handle.getValueState("told", "told boolean")

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            for at, amount, method in zip(frame["at"], frame["amount"], frame["method"], strict=True):
                if not pd.isna(method):
                    if not self.payment.exists():  # the first one counts
                        self.payment.update((method,))
                elif not self.order.exists():
                    self.order.update((int(amount),))
                    self.handle.registerTimer(at.value // 1_000_000 + PATIENCE_MS)
        if self.order.exists() and self.payment.exists() and not self.is_told.exists():
            self.is_told.update((True,))
            yield self._row(key)

    def handleExpiredTimer(self, key: Any, timers: Any, expired: Any) -> Iterator[pd.DataFrame]:
        if not self.is_told.exists():
            self.is_told.update((True,))
            yield self._row(key)

    def _row(self, key: Any) -> pd.DataFrame:
        (amount,), (method,) = self.order.get(), self.payment.get() or (None,)
        return pd.DataFrame({"order_id": [key[0]], "amount": [amount], "method": [method]})

    def close(self) -> None:
        pass


def of_orders(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.assign(method=None)


def of_payments(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame.assign(amount=None)[["order_id", "at", "amount", "method"]]


def paid(orders: fbs.Stream, payments: fbs.Stream, partitions: int) -> fbs.Stream:
    both = orders.map_in_pandas(of_orders, BOTH).union(payments.map_in_pandas(of_payments, BOTH))
    grouped = both.group_by("order_id", partitions=partitions)
    return grouped.transform_with_state(
        Paid(), "order_id long, amount long, method string", "append", "event_time", name="paid"
    )


# ---- 8. An alarm when a device has been silent

SILENCE_MS = 10_000


class Alarm(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle
        self.times = handle.getListState("times", "ms long")  # rows ahead of the watermark are here too

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            for at in frame["at"]:
                self.times.appendValue((at.value // 1_000_000,))
                self.handle.registerTimer(at.value // 1_000_000 + SILENCE_MS)
        return iter(())

    def handleExpiredTimer(self, key: Any, timers: Any, expired: Any) -> Iterator[pd.DataFrame]:
        now = expired.getExpiryTimeInMs()
        later = [(ms,) for (ms,) in self.times.get() if ms > now - SILENCE_MS]
        self.times.put(later)
        if not later or min(later)[0] > now:
            since = pd.to_datetime([now - SILENCE_MS], unit="ms")
            yield pd.DataFrame({"device": [key[0]], "silent_since": since})

    def close(self) -> None:
        pass


def alarms(beats: fbs.Stream, partitions: int) -> fbs.Stream:
    grouped = beats.group_by("device", partitions=partitions)
    return grouped.transform_with_state(
        Alarm(), "device string, silent_since timestamp", "append", "event_time", name="alarm"
    )


# ---- 9. Counts to a table of PostgreSQL


def counts(events: fbs.Stream, partitions: int) -> fbs.Stream:
    import pyarrow.compute as pc

    known = events.filter(pc.field("user").is_valid())
    running = known.group_by("user", partitions=partitions).global_window()
    return running.agg_arrow([("amount", "sum"), ([], "count_all")], name="counts")


# ---- 10. Files to files


def by_day(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        known = frame.dropna(subset=["user"])
        yield known.assign(day=known["at"].dt.strftime("%Y-%m-%d"), amount=known["amount"].fillna(0))


def files(spark: Any, folder: Path, partitions: int) -> fbs.Stream:
    stream = fbs.stream_files(
        spark, folder, "json", "id long, user string, at timestamp, amount double", tasks=partitions
    )
    return stream.map_in_pandas(by_day, "id long, user string, at timestamp, amount double, day string")

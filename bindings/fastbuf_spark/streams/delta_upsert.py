"""Upserts to a Delta table: rows wait in files until their checkpoint is complete, and are then merged by keys."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastbuf_spark.driver.delta import delta_errors, opened, package
from fastbuf_spark.driver.delta_commit import RETRIES, not_made, properties_of
from fastbuf_spark.streams.fail_points import reach
from fastbuf_spark.streams.sink import Committable, SinkContext
from fastbuf_spark.streams.staged import StagingWriter, staged_batches

if TYPE_CHECKING:
    import pyarrow as pa

WAIT_S = 0.05  #: at most so long, at random, after another task's merge has changed the same files


def application_of(context: SinkContext) -> str:
    """A name for the transactions of one writer, which no other writer has.

    Numbers of runs and checkpoints come again where an older copy of the checkpoints is put back.
    """
    output = Path(context.folder).name
    return f"fastbuf-{context.job}-{context.generation}-{context.task}-{output}-{secrets.token_hex(4)}"


class MergingWriter(StagingWriter):
    """Names the transaction by which its rows are merged."""

    def __init__(self, context: SinkContext, commits: Merges) -> None:
        super().__init__(context, commits)
        self._application = application_of(context)

    def prepare(self, checkpoint: int) -> list[Committable]:
        return [{**each, "application": self._application} for each in super().prepare(checkpoint)]


class Merges:
    """Merges staged rows, each file of them once."""

    def __init__(self, uri: str, options: Mapping[str, str] | None, keys: Sequence[str], context: SinkContext) -> None:
        self._uri, self._options, self._keys, self._context = uri, options, list(keys), context

    def commit(self, committables: Sequence[Committable]) -> None:
        import pyarrow as pa

        for each in committables:
            rows = pa.Table.from_batches(staged_batches(self._context, each))
            # A version before named it by these
            named = each.get("application") or f"fastbuf-{self._context.job}-{each['generation']}-{each['task']}"
            self._merge(newest_of_keys(rows, self._keys), (named, each["checkpoint"]))
            reach("in commit", each["checkpoint"])

    def _merge(self, rows: pa.Table, application: tuple[str, int]) -> None:
        """One transaction; other tasks, whose keys are others, may write to the same files meanwhile."""
        # Null keys are equal, as they are in groups
        same = " AND ".join(f"(target.`{key}` IS NOT DISTINCT FROM source.`{key}`)" for key in self._keys)
        with delta_errors(self._uri):
            for left in reversed(range(RETRIES)):
                table = opened(self._uri, self._options)
                named = not_made(table, *application)
                if named is None:
                    return
                merge = table.merge(
                    rows,
                    same,
                    source_alias="source",
                    target_alias="target",
                    commit_properties=properties_of(named, application, ()),
                )
                try:
                    merge.when_matched_update_all().when_not_matched_insert_all().execute()
                    return
                except package().exceptions.CommitFailedError:
                    if not left:
                        raise
                    time.sleep(random.uniform(0, WAIT_S))

    def close(self) -> None:
        pass


def newest_of_keys(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Of each key the last row."""
    import numpy as np
    import pyarrow as pa

    names = [f"key-{number}" for number in range(len(keys))]
    places = pa.table([*map(rows.column, keys), pa.array(np.arange(rows.num_rows))], [*names, "place"])
    last = places.group_by(names).aggregate([("place", "max")]).column("place_max")
    return rows.take(last.combine_chunks().sort())

"""Operators on a keyed table: running aggregates, and a user's function of a batch and the state of its keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastbuf.errors import ConfigError
from fastbuf.event_time.aggregates import Aggregates
from fastbuf.event_time.arrow_rows import words_of
from fastbuf_spark.results import about
from fastbuf_spark.schema import conform
from fastbuf_spark.streams.keyed_table import KeyedTable

if TYPE_CHECKING:
    import pyarrow as pa

    from fastbuf_spark.streams.windows import WindowSpec

TOUCHED = "__touched_ms"  #: column of the state: when a key last had rows, where state has a time to live
SWEEP_S = 1.0


class _TableOperator:
    """What both share: see :class:`~fastbuf_spark.streams.operators.KeyedOperator`."""

    table: KeyedTable

    def watermark(self, time_ms: int) -> Iterable[pa.RecordBatch]:
        return ()

    def processing_time(self, now_ms: int) -> Iterable[pa.RecordBatch]:
        return ()

    def end(self) -> Iterable[pa.RecordBatch]:
        return ()

    def freeze(self, more: frozenset[int]) -> Mapping[int, Callable[[], bytes]]:
        return self.table.freeze(more)

    def thaw(self) -> None:
        pass  # it was copied

    def restore(self, group: int, data: bytes) -> None:
        self.table.restore(data)

    def figures(self) -> dict[str, Any]:
        return {"state_keys": len(self.table), "state_bytes": self.table.nbytes}

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class RunningSpec:
    """Aggregates of all rows of a key so far: ``agg_arrow`` of a global window that fires behind each batch."""

    keys: tuple[str, ...]
    input_schema: pa.Schema
    pairs: tuple[tuple[str, str], ...]
    windows: WindowSpec  #: the same in other output modes than "update"

    def __call__(self) -> Running:
        return Running(self)

    def description(self) -> dict[str, Any]:
        """What its state is of: see :mod:`fastbuf_spark.streams.compatible`."""
        keys = words_of(self.input_schema.field(key) for key in self.keys)
        state = words_of(Running(self).state)
        pairs = [" ".join(pair) for pair in self.pairs]
        return {"verb": "running agg_arrow", "keys": keys, "aggregates": pairs, "state": state}

    def results(self) -> pa.Schema:
        """The schema of what it gives."""
        import pyarrow as pa

        schema = Aggregates(self.pairs).bind(self.input_schema, list(self.keys), "", False)
        return pa.schema([*(self.input_schema.field(key) for key in self.keys), *schema])


class Running(_TableOperator):
    """Gives, for each batch, the new results of its keys."""

    def __init__(self, spec: RunningSpec) -> None:
        self._spec = spec
        self._work = Aggregates(spec.pairs)
        self._work.bind(spec.input_schema, list(spec.keys), "", False)
        self._schema = spec.results()

    @property
    def state(self) -> pa.Schema:
        """Columns of a key's state."""
        return self._work.state

    def open(self, key_groups: int) -> None:
        import pyarrow as pa

        keys = pa.schema([self._spec.input_schema.field(key) for key in self._spec.keys])
        self.table = KeyedTable(keys, self.state, key_groups)

    def rows(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        import pyarrow as pa

        lookup = self.table.find(batch)
        columns = [pa.array(lookup.numbers), *(batch.column(name) for name in self._work.columns)]
        rows = pa.table(columns, names=["g", *(f"r{name}" for name in self._work.columns)])
        state = self._work.first(rows, ["g"])  # a row for each key, in the order of their numbers
        if not lookup.is_new.all():
            old = np.flatnonzero(~lookup.is_new)
            before = self.table.read(lookup.places[old])
            both = pa.concat_tables(
                [
                    pa.table([pa.array(old), *before.columns], names=state.schema.names),
                    state.cast(pa.schema([state.schema.field(0), *self._work.state])),
                ]
            )
            state = self._work.again(both, ["g"])
            state = state.take(np.argsort(state.column(0).to_numpy()))
        self.table.write(lookup.places, state.select(range(1, state.num_columns)))
        keys = [batch.column(name).take(pa.array(lookup.first)) for name in self._spec.keys]
        results = [column.combine_chunks() for column in self._work.results(state)]
        fields = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip([*keys, *results], self._schema, strict=True)
        ]
        return (pa.RecordBatch.from_arrays(fields, schema=self._schema),)


@dataclass(frozen=True)
class BatchStateSpec:
    """``transform_batches_with_state``.

    Attributes
    ----------
    func
        Takes a batch, the number of each row's key, and the state of the keys; returns their new state, and a batch.
    """

    keys: tuple[str, ...]
    input_schema: pa.Schema
    func: Any
    schema: pa.Schema
    state: pa.Schema
    ttl_ms: int | None

    def __call__(self) -> BatchState:
        return BatchState(self)

    def description(self) -> dict[str, Any]:
        """What its state is of."""
        keys = words_of(self.input_schema.field(key) for key in self.keys)
        return {"verb": "transform_batches_with_state", "keys": keys, "state": words_of(self.columns())}

    def columns(self) -> list[pa.Field]:
        """The columns of the state."""
        import pyarrow as pa

        return [*self.state, *([] if self.ttl_ms is None else [pa.field(TOUCHED, pa.int64())])]


class BatchState(_TableOperator):
    """Calls the function for each batch."""

    def __init__(self, spec: BatchStateSpec) -> None:
        self._spec = spec
        self._swept = time.monotonic()

    def open(self, key_groups: int) -> None:
        import pyarrow as pa

        spec = self._spec
        keys = pa.schema([spec.input_schema.field(key) for key in spec.keys])
        self.table = KeyedTable(keys, pa.schema(spec.columns()), key_groups)

    def rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        spec, whose = self._spec, about(self._spec.func)
        lookup = self.table.find(batch)
        state = self.table.read(lookup.places)
        now = time.time_ns() // 1_000_000
        if spec.ttl_ms is not None:
            old = state.column(TOUCHED).fill_null(0).to_numpy() + spec.ttl_ms <= now
            state = state.drop_columns([TOUCHED])
            if old.any():  # it has outlived its time, and was not swept yet
                columns = [_emptied(column, old) for column in state.columns]
                state = pa.RecordBatch.from_arrays(columns, schema=state.schema)
        answer = spec.func(batch, lookup.numbers, state)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError(f"{whose} must return a pair: the new state of the keys, and a batch; not {type(answer)}")
        new, out = (_batch(each, whose) for each in answer)
        new = conform(new, spec.state, f"the state of {whose}") if new is not None else state.slice(0, 0)
        if new.num_rows not in (len(lookup.places),):
            raise ConfigError(
                f"{whose} gave the state of {new.num_rows} keys, and the batch has {len(lookup.places)}: give a row "
                "for each, in their order; nulls alone remove a key"
            )
        if spec.ttl_ms is not None:
            touched = pa.array(np.full(new.num_rows, now))
            fields = [*new.schema, pa.field(TOUCHED, pa.int64())]
            self.table.write(
                lookup.places, pa.RecordBatch.from_arrays([*new.columns, touched], schema=pa.schema(fields))
            )
        else:
            self.table.write(lookup.places, new)
        gone = np.all([column.is_null().to_numpy(zero_copy_only=False) for column in new.columns], axis=0)
        if gone.any():
            self.table.remove(lookup.places[gone])
        if out is not None and out.num_rows:
            yield conform(out, spec.schema, whose)

    def processing_time(self, now_ms: int) -> Iterable[pa.RecordBatch]:
        ttl = self._spec.ttl_ms
        if ttl is not None and time.monotonic() - self._swept >= SWEEP_S:
            self._swept = time.monotonic()
            old = self.table.where(lambda columns: columns[-1].view(np.int64) + ttl <= now_ms)
            if len(old):
                self.table.remove(old)
        return ()


def _emptied(column: pa.Array, old: Any) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(pa.array(old), pa.scalar(None, column.type), column)


def _batch(value: Any, whose: str) -> Any:
    import pyarrow as pa

    from fastbuf_spark.streams.keyed_table import concat

    if value is None or isinstance(value, pa.RecordBatch):
        return value
    if isinstance(value, pa.Table):
        return concat(value.to_batches(), value.schema)
    raise TypeError(f"{whose} must give batches or tables of pyarrow, not {type(value).__name__}")

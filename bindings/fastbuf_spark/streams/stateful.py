"""``transform_with_state``: Spark's own ``StatefulProcessor``, called key by key, with state in key groups.

The handle and the state variables do what those of ``pyspark.sql.streaming.stateful_processor`` do; there each call is
a message to the JVM, here it is a look into a map.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastbuf.checkpoint.state import GroupedMap, Timers
from fastbuf.errors import ConfigError
from fastbuf.event_time.arrow_rows import words_of
from fastbuf.event_time.watermarks import MAX
from fastbuf_spark.pyspark_private import active_context, pickled
from fastbuf_spark.results import about
from fastbuf_spark.schema import conform
from fastbuf_spark.streams.operators import KeyGroups
from fastbuf_spark.streams.state_files import decode_state, encode_state
from fastbuf_spark.streams.state_values import Rows, key_part, keys_of
from fastbuf_spark.worker.pandas_verbs import Frames, PandasRules, Results

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("fastbuf_spark")

Key = tuple[Any, ...]
VALUE, LIST, MAP = "value", "list", "map"
TIMERS = "__timers"  #: name of the timers in state files
TIME_MODES = ("none", "processing_time", "event_time")


@dataclass(frozen=True)
class Variable:
    """A state variable, as ``init`` asked for it.

    Attributes
    ----------
    kind
        "value", "list" or "map".
    schema
        Of a value, or of a list's items, or of a map's values.
    keys
        Of a map's keys.
    ttl_ms
        Time to live; None: for ever.
    """

    name: str
    kind: str
    schema: StructType
    keys: StructType | None = None
    ttl_ms: int | None = None


class _Here:
    """Which key is being called, and when."""

    __slots__ = ("group", "key", "now_ms", "watermark_ms")

    def __init__(self) -> None:
        self.group = 0
        self.key: Key = ()
        self.now_ms = 0
        self.watermark_ms = 0


class _State:
    """What the three kinds of variables share: an entry for each key, and its time to live."""

    def __init__(self, variable: Variable, here: _Here) -> None:
        self.variable = variable
        self.entries: GroupedMap[Key, Any] = GroupedMap()  # values are (expires at in ms or 0, value)
        self._here = here
        self._ttl = variable.ttl_ms
        self._rows = Rows(variable.schema)
        self._keys = None if variable.keys is None else Rows(variable.keys)

    def _read(self) -> Any:
        here = self._here
        entry = self.entries.get(here.group, here.key)
        if entry is None or (entry[0] and entry[0] <= here.now_ms):
            return None
        return entry[1]

    def _write(self, value: Any) -> None:
        here = self._here
        expires = 0 if self._ttl is None else here.now_ms + self._ttl
        self.entries.put(here.group, here.key, (expires, value))

    def exists(self) -> bool:
        """Whether this key has state."""
        return self._read() is not None

    def clear(self) -> None:
        """Remove this key's state."""
        self.entries.remove(self._here.group, self._here.key)

    def expire(self, group: int, now_ms: int) -> None:
        """Remove what has outlived its time."""
        for key in [key for key, entry in self.entries.items(group) if entry[0] and entry[0] <= now_ms]:
            self.entries.remove(group, key)


class ValueState(_State):
    """As ``pyspark.sql.streaming.stateful_processor.ValueState``."""

    def get(self) -> tuple[Any, ...] | None:
        """The value, a tuple; None if there is none."""
        value: tuple[Any, ...] | None = self._read()
        return None if value is None else self._rows.for_user(value)

    def update(self, newValue: tuple[Any, ...]) -> None:
        """Set the value."""
        self._write(self._rows.keep(newValue))


class _Items(list[Any]):
    """The items of a list, and of which version of the state they are."""

    __slots__ = ("version",)

    def __init__(self, items: Iterable[Any], version: int) -> None:
        super().__init__(items)
        self.version = version


class _Map(dict[Key, tuple[int, Any]]):
    """The entries of a map, each with its time to live, and of which version of the state they are."""

    __slots__ = ("version",)

    def __init__(self, entries: Iterable[tuple[Key, tuple[int, Any]]], version: int) -> None:
        super().__init__(entries)
        self.version = version


class ListState(_State):
    """As ``ListState`` of Spark's."""

    def get(self) -> Iterator[tuple[Any, ...]]:
        """The items, each a tuple."""
        return map(self._rows.for_user, tuple(self._read() or ()))

    def put(self, newState: list[tuple[Any, ...]]) -> None:
        """Replace all items."""
        self._write(_Items(map(self._rows.keep, newState), self.entries.version))

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        """Add an item."""
        self.appendList([newState])

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        """Add items."""
        more, items = [self._rows.keep(item) for item in newState], self._read()
        if not isinstance(items, _Items) or items.version != self.entries.version:  # a snapshot may have it
            items = _Items(items or (), self.entries.version)
        items.extend(more)
        self._write(items)


class MapState(_State):
    """As ``MapState`` of Spark's; the time to live is each entry's own."""

    def _entries(self) -> dict[Key, tuple[int, Any]]:
        """All entries of this key's map, with those that have outlived their time."""
        entry = self.entries.get(self._here.group, self._here.key)
        items: dict[Key, tuple[int, Any]] = {} if entry is None else entry[1]
        return items

    def _lives(self, entry: tuple[int, Any]) -> bool:
        return not entry[0] or entry[0] > self._here.now_ms

    def _all(self) -> Iterator[tuple[Key, Any]]:
        """Keys and values; what is put meanwhile is not among them."""
        return iter([(key, entry[1]) for key, entry in self._entries().items() if self._lives(entry)])

    def _own(self) -> _Map:
        """The entries, to be changed in place: a copy where a snapshot may have them."""
        items = self._entries()
        if not isinstance(items, _Map) or items.version != self.entries.version:
            alive = ((key, entry) for key, entry in items.items() if self._lives(entry))
            items = _Map(alive, self.entries.version)
        self.entries.put(self._here.group, self._here.key, (0, items))
        return items

    def exists(self) -> bool:
        """Whether the map has an entry."""
        return any(map(self._lives, self._entries().values()))

    def getValue(self, key: Key) -> tuple[Any, ...] | None:
        """The value of a key of the map; None if there is none."""
        entry = self._entries().get(self._key(key))
        return None if entry is None or not self._lives(entry) else self._rows.for_user(entry[1])

    def containsKey(self, key: Key) -> bool:
        """Whether the map has this key."""
        return self.getValue(key) is not None

    def updateValue(self, key: Key, value: tuple[Any, ...]) -> None:
        """Set the value of a key of the map."""
        expires = 0 if self._ttl is None else self._here.now_ms + self._ttl
        name, entry = self._key(key), (expires, self._rows.keep(value))
        self._own()[name] = entry

    def iterator(self) -> Iterator[tuple[Key, tuple[Any, ...]]]:
        """Pairs of a key of the map and its value."""
        return ((key, self._rows.for_user(value)) for key, value in self._all())

    def keys(self) -> Iterator[Key]:
        """The keys of the map."""
        return (key for key, _ in self._all())

    def values(self) -> Iterator[tuple[Any, ...]]:
        """The values of the map."""
        return (self._rows.for_user(value) for _, value in self._all())

    def removeKey(self, key: Key) -> None:
        """Remove a key of the map."""
        name = self._key(key)
        if name in self._entries():
            left = self._own()
            left.pop(name, None)
            if not left:
                self.clear()

    def _key(self, key: Any) -> Key:
        assert self._keys is not None
        part: Key = key_part(self._keys.keep(key))
        return part

    def expire(self, group: int, now_ms: int) -> None:
        """Remove what has outlived its time."""
        for key, (_, items) in list(self.entries.items(group)):
            left = _Map(((k, v) for k, v in items.items() if not v[0] or v[0] > now_ms), self.entries.version)
            if not left:
                self.entries.remove(group, key)
            elif len(left) < len(items):
                self.entries.put(group, key, (0, left))


class Handle:
    """As ``StatefulProcessorHandle`` of Spark's."""

    def __init__(self, here: _Here, timers: Timers, has_timers: bool, shapes: Mapping[str, StructType]) -> None:
        self.states: dict[str, _State] = {}
        self.left_out: set[str] = set()
        self.shapes = dict(shapes)
        self._here = here
        self._timers = timers
        self._has_timers = has_timers

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ValueState:
        """A variable with one value for each key."""
        return self._add(ValueState, Variable(stateName, VALUE, self._struct(schema), None, ttlDurationMs))

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> ListState:
        """A variable with a list for each key."""
        return self._add(ListState, Variable(stateName, LIST, self._struct(schema), None, ttlDurationMs))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        """A variable with a map for each key."""
        variable = Variable(stateName, MAP, self._struct(valueSchema), self._struct(userKeySchema), ttlDurationMs)
        return self._add(MapState, variable)

    def _struct(self, schema: Any) -> StructType:
        """DDL text is parsed by the JVM, so on the driver: see :func:`shapes_of`."""
        from pyspark.sql.types import StructType

        from fastbuf_spark.schema import struct_type

        if isinstance(schema, StructType):
            return schema
        if schema not in self.shapes:
            if active_context() is None:
                raise ConfigError(
                    f"init asks for the state schema {schema!r} here and not on the driver, which alone can read DDL "
                    "text: give a StructType, or ask for the same states wherever init is called"
                )
            self.shapes[schema] = struct_type(schema)
        return self.shapes[schema]

    def _add(self, kind: Callable[[Variable, _Here], Any], variable: Variable) -> Any:
        if variable.name in self.states:
            raise ConfigError(f"init asks twice for a state named {variable.name!r}")
        if variable.name.startswith("__"):
            raise ConfigError(f"a state is named {variable.name!r}: names that begin with __ are fastbuf's own")
        self.states[variable.name] = kind(variable, self._here)
        return self.states[variable.name]

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Have ``handleExpiredTimer`` called for this key at that time."""
        if not self._has_timers:
            raise ConfigError("a timer is set and time_mode is 'none': give transform_with_state a time_mode")
        self._timers.add(self._here.group, self._here.key, int(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Take a timer back."""
        self._timers.remove(self._here.group, self._here.key, int(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        """The times of this key's timers."""
        return iter(self._timers.of(self._here.group, self._here.key))

    def deleteIfExists(self, stateName: str) -> None:
        """Forget a variable of an earlier version of the processor: what it held is not written again."""
        self.states.pop(stateName, None)
        self.left_out.add(stateName)


@dataclass(frozen=True)
class StatefulSpec:
    """What the operator is made of.

    Attributes
    ----------
    processor
        A ``StatefulProcessor``.
    keys
        Names of the key columns.
    input_schema
        Arrow schema of its input.
    rules
        Spark's conversions, and the form of what it gives.
    time_mode
        One of ``TIME_MODES``.
    arrow
        Whether it takes and gives tables of Arrow's, and no frames.
    shapes
        The schemas that ``init`` gives as text.
    late_by
        Column of times: rows whose time is not above the watermark are left out, as by Spark; empty: none are.
    """

    processor: Any
    keys: tuple[str, ...]
    input_schema: pa.Schema
    rules: PandasRules
    time_mode: str
    arrow: bool = False
    shapes: Mapping[str, StructType] = field(default_factory=dict)
    late_by: str = ""

    def __call__(self) -> StatefulOperator:
        return StatefulOperator(self)

    def description(self) -> dict[str, Any]:
        """What its state is of; of variables, state files say it themselves, as ``init`` may be another in a worker."""
        keys = words_of(self.input_schema.field(key) for key in self.keys)
        timers = {} if self.time_mode == "none" else {"time_mode": self.time_mode}  # they may be added
        return {"verb": "transform_with_state", "keys": keys, **timers}


class StatefulOperator:
    """Calls a processor for each key of each batch: see :class:`~fastbuf_spark.streams.operators.KeyedOperator`."""

    def __init__(self, spec: StatefulSpec) -> None:
        self._spec = spec
        self._here = _Here()
        self._timers = Timers()
        self._handle = Handle(self._here, self._timers, spec.time_mode != "none", spec.shapes)
        self._results = Results(spec.rules, spec.processor.handleInputRows)
        self._groups: KeyGroups | None = None
        self._swept = time.monotonic()
        self._sweeping: list[int] = []
        self._late_rows = 0

    def open(self, key_groups: int) -> None:
        self._groups = KeyGroups(self._spec.keys, key_groups)
        self._spec.processor.init(self._handle)

    def begin(self, restored: Sequence[Mapping[str, Any]]) -> None:
        """The least watermark of the tasks of before; none yet is 0, as in Spark."""
        mark_ms = min((int(each["mark"]) for each in restored), default=0)
        if mark_ms > 0:
            self._here.watermark_ms = self._watermark_of(mark_ms)

    def _watermark_of(self, mark_ms: int) -> int:
        """What the processor is told: Spark's watermark is a millisecond ahead of Flink's, and of ours."""
        return min(mark_ms + 1, MAX) if self._spec.late_by else mark_ms

    def rows(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        import numpy as np

        from fastbuf_spark.worker.order import codes, sorting, starts

        if self._spec.late_by and self._here.watermark_ms and not (batch := self._in_time(batch)).num_rows:
            return
        assert self._groups is not None
        here, processor = self._here, self._spec.processor
        here.now_ms = time.time_ns() // 1_000_000
        times = self._times()
        columns = [batch.column(name) for name in self._spec.keys]
        numbers, bound = codes(columns, batch.num_rows)
        order = sorting(numbers, bound)
        groups = self._groups.of(batch)
        if order is not None:
            import pyarrow as pa

            batch = batch.take(pa.array(order))
            numbers, groups = numbers[order], groups[order]
        first = np.asarray(starts(numbers))
        ends = [*first[1:].tolist(), batch.num_rows]
        keys = keys_of(batch.column(name).take(_indices(first)) for name in self._spec.keys)
        whole = batch if self._spec.arrow else self._frame(batch)
        for begin, end, key, group in zip(first.tolist(), ends, keys, groups[first].tolist(), strict=True):
            here.group, here.key = group, key
            results = processor.handleInputRows(key, iter((self._part(whole, begin, end),)), times)
            yield from self._batches(results)
        yield from self._rest()

    def _in_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows above the watermark, and those without a time."""
        import pyarrow as pa
        import pyarrow.compute as pc

        times = batch.column(self._spec.late_by)
        mark = pa.scalar(self._here.watermark_ms * 1000).cast(times.type)
        in_time = batch.filter(pc.fill_null(pc.greater(times, mark), True))
        self._late_rows += batch.num_rows - in_time.num_rows
        return in_time

    def _part(self, whole: Any, begin: int, end: int) -> Any:
        if self._spec.arrow:
            return whole.slice(begin, end - begin)
        part = whole.iloc[begin:end]
        part.index = type(whole.index)(end - begin)
        return part

    def _frame(self, batch: pa.RecordBatch) -> Any:
        import pyarrow as pa

        return Frames(self._spec.rules).converted(pa.Table.from_batches([batch]))

    def _batches(self, results: Any) -> Iterator[pa.RecordBatch]:
        if results is None:
            return
        if self._spec.arrow:
            for batch in results:
                yield from self._conformed(batch)
            return
        for frame in results:
            for table in self._results.add(frame):
                yield from table.to_batches()

    def _conformed(self, table: Any) -> Iterator[pa.RecordBatch]:
        whose = about(self._spec.processor.handleInputRows)
        for batch in table.to_batches() if hasattr(table, "to_batches") else (table,):
            yield conform(batch, self._spec.rules.schema, whose)

    def _rest(self) -> Iterator[pa.RecordBatch]:
        if not self._spec.arrow:
            for table in self._results.rest():
                yield from table.to_batches()

    def _times(self) -> Any:
        from pyspark.sql.streaming.stateful_processor import TimerValues

        return TimerValues(self._here.now_ms, self._here.watermark_ms)

    def _fire(self, now_ms: int) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo

        here, times = self._here, self._times()
        for group, key, at in self._timers.due(now_ms):
            here.group, here.key = group, key
            yield from self._batches(self._spec.processor.handleExpiredTimer(key, times, ExpiredTimerInfo(at)))
        yield from self._rest()

    def watermark(self, time_ms: int) -> Iterable[pa.RecordBatch]:
        self._here.watermark_ms = max(self._here.watermark_ms, self._watermark_of(time_ms))
        self._here.now_ms = time.time_ns() // 1_000_000
        return self._fire(time_ms) if self._spec.time_mode == "event_time" else ()

    def processing_time(self, now_ms: int) -> Iterable[pa.RecordBatch]:
        self._here.now_ms = now_ms
        self._sweep(now_ms)
        return self._fire(now_ms) if self._spec.time_mode == "processing_time" else ()

    def _sweep(self, now_ms: int) -> None:
        """Remove what has outlived its time, a key group at each call."""
        states = [state for state in self._handle.states.values() if state.variable.ttl_ms is not None]
        if not states:
            return
        if not self._sweeping:
            self._sweeping = sorted({group for state in states for group in state.entries.groups})
        if self._sweeping:
            group = self._sweeping.pop()
            for state in states:
                state.expire(group, now_ms)

    def end(self) -> Iterable[pa.RecordBatch]:
        return ()

    def freeze(self, more: frozenset[int]) -> Mapping[int, Callable[[], bytes]]:
        frozen: dict[int, list[tuple[Variable | None, Mapping[Any, Any]]]] = {}
        maps: list[tuple[Variable | None, GroupedMap[Any, Any]]] = [
            (state.variable, state.entries) for state in self._handle.states.values()
        ]
        maps.append((None, self._timers.state))
        changed = frozenset().union(more, *(entries.changed for _, entries in maps))
        for variable, entries in maps:
            for group, part in entries.freeze(changed).items():
                frozen.setdefault(group, []).append((variable, part))
        keys = [self._spec.input_schema.field(name) for name in self._spec.keys]
        return {group: _encoder(keys, parts) for group, parts in frozen.items()}

    def thaw(self) -> None:
        for state in self._handle.states.values():
            state.entries.thaw()
        self._timers.state.thaw()

    def restore(self, group: int, data: bytes) -> None:
        keys = [self._spec.input_schema.field(name) for name in self._spec.keys]
        variables = {name: state.variable for name, state in self._handle.states.items()}
        for name, entries in decode_state(data, keys, variables, self._handle.left_out):
            if name == TIMERS:
                self._timers.restore(group, entries)
            else:
                self._handle.states[name].entries.restore(group, entries)

    def figures(self) -> dict[str, Any]:
        late = {"late_rows": self._late_rows} if self._spec.late_by else {}
        return {"state_keys": max((len(s.entries) for s in self._handle.states.values()), default=0), **late}

    def close(self) -> None:
        self._spec.processor.close()


def _encoder(keys: Any, parts: list[tuple[Variable | None, Mapping[Any, Any]]]) -> Callable[[], bytes]:
    return lambda: encode_state(keys, [(v, entries) for v, entries in parts if entries])


def _indices(first: Any) -> Any:
    import pyarrow as pa

    return pa.array(first)


def shapes_of(processor: Any) -> dict[str, StructType]:
    """The schemas that a processor's ``init`` gives as text, found by calling that of a copy on the driver."""
    handle = Handle(_Here(), Timers(), True, {})
    try:
        pickle.loads(pickled(processor)).init(handle)
    except Exception as error:  # it may need what only workers have
        log.debug("init of %s fails on the driver: %r", type(processor).__name__, error)
    return handle.shapes

"""State in files: for each key group a table of each variable, so that other programs can read it too.

A group's bytes are Arrow IPC streams, one for each variable, behind one another; the schema's metadata have its name,
kind and schema.  Columns: those of the key, then ``expires_ms`` (0: never) and ``value``; of a map also ``map_key``; of
a list ``value`` is a list.  Timers: the key and ``time_ms``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbuf.checkpoint.store import CheckpointError, read_metadata, read_piece
from fastbuf.errors import ConfigError
from fastbuf.event_time.arrow_rows import in_zones_of, words_of
from fastbuf_spark.driver.file_systems import shared_folder
from fastbuf_spark.streams.state_tables import SIDES, is_join, readable
from fastbuf_spark.streams.state_values import from_arrow, key_part, keys_of, to_arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

TIMERS = "__timers"
ABOUT = b"fastbuf_state"
ZONE = "UTC"


def encode_state(keys: Sequence[pa.Field], parts: Iterable[tuple[Any, Mapping[Any, Any]]]) -> bytes:
    """The bytes of a key group; variables without entries are left out, and nothing at all is an empty text."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    for variable, entries in parts:
        table = _timers(keys, entries) if variable is None else _table(keys, variable, entries)
        if table.num_rows:
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
    return bytes(sink.getvalue())


def _key_columns(keys: Sequence[pa.Field], tuples: Iterable[tuple[Any, ...]]) -> list[pa.Array]:
    import pyarrow as pa

    columns = list(zip(*tuples, strict=True)) or [()] * len(keys)
    return [pa.array(values, field.type) for values, field in zip(columns, keys, strict=True)]


def _timers(keys: Sequence[pa.Field], timers: Mapping[Any, tuple[int, ...]]) -> pa.Table:
    import pyarrow as pa

    times = pa.array([time for each in timers.values() for time in each], pa.int64())
    schema = pa.schema([*keys, pa.field("time_ms", pa.int64())], {ABOUT: json.dumps({"name": TIMERS}).encode()})
    of_each = [key for key, each in timers.items() for _ in each]
    return pa.Table.from_arrays([*_key_columns(keys, of_each), times], schema=schema)


def _table(keys: Sequence[pa.Field], variable: Any, entries: Mapping[Any, Any]) -> pa.Table:
    import pyarrow as pa

    of_key: list[Any] = []
    expires: list[int] = []
    values: list[Any] = []
    inner: list[Any] = []
    for key, (until, value) in entries.items():
        if variable.kind == "map":
            for name, (at, item) in value.items():
                of_key.append(key)
                expires.append(at)
                inner.append(name)
                values.append(item)
        else:
            of_key.append(key)
            expires.append(until)
            values.append(value)
    columns = [*_key_columns(keys, of_key), pa.array(expires, pa.int64())]
    fields = [*keys, pa.field("expires_ms", pa.int64())]
    if variable.kind == "map":
        columns.append(_structs(inner, variable.keys, f"the keys of state {variable.name!r}"))
        fields.append(pa.field("map_key", columns[-1].type))
    what = f"state {variable.name!r}"
    if variable.kind == "list":
        lengths = [len(items) for items in values]
        offsets = [0]
        for length in lengths:
            offsets.append(offsets[-1] + length)
        items = _structs([item for items in values for item in items], variable.schema, what)
        columns.append(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items))
    else:
        columns.append(_structs(values, variable.schema, what))
    fields.append(pa.field("value", columns[-1].type))
    about = {"name": variable.name, "kind": variable.kind, "schema": variable.schema.simpleString()}
    if variable.keys is not None:
        about["keys"] = variable.keys.simpleString()
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, {ABOUT: json.dumps(about).encode()}))


def _structs(rows: Sequence[tuple[Any, ...]], schema: StructType, what: str) -> pa.Array:
    import pyarrow as pa

    from fastbuf_spark.schema import arrow_schema

    shape = arrow_schema(schema, ZONE)
    columns: list[Any] = list(zip(*rows, strict=True)) or [()] * len(shape)
    try:
        for i, field in enumerate(schema.fields):
            if (convert := to_arrow(field.dataType)) is not None:
                columns[i] = [convert(value) for value in columns[i]]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, shape, strict=True)]
    except (pa.ArrowException, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"a value of {what} does not fit its schema {schema.simpleString()}: {error}") from error
    return pa.StructArray.from_arrays(arrays, fields=[field.with_nullable(True) for field in shape])


def tables_of(data: bytes) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """The tables of a key group, each with what its metadata say of it."""
    for about, table in _streams(data):
        if about is None:
            raise CheckpointError("a state file has a table that is none of fastbuf's")
        yield about, table


def _streams(data: bytes) -> Iterator[tuple[dict[str, Any] | None, pa.Table]]:
    import pyarrow as pa

    source = pa.BufferReader(data)
    while source.tell() < len(data):
        with pa.ipc.open_stream(source) as reader:
            table = reader.read_all()
        about = (table.schema.metadata or {}).get(ABOUT)
        yield None if about is None else json.loads(about), table


def decode_state(
    data: bytes, keys: Sequence[pa.Field], variables: Mapping[str, Any], left_out: Collection[str] = ()
) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """The entries of each variable of a key group.

    Raises
    ------
    CheckpointError
        A variable has another schema or kind than the state, or is not there any more.
    """
    for about, table in tables_of(data):
        name = about["name"]
        fields = [table.schema.field(i) for i in range(len(keys))]
        types = [words_of(each.with_name("") for each in some) for some in (fields, keys)]
        if types[0] != types[1]:
            raise CheckpointError(
                f"state {name!r} is of keys {words_of(fields)}, the stream's are {words_of(keys)}: "
                "take the keys of the checkpoint, or another directory"
            )
        of_key = keys_of(table.column(i) for i in range(len(keys)))
        if name == TIMERS:
            timers: dict[Any, list[int]] = {}
            for time, key in zip(table.column("time_ms").to_pylist(), of_key, strict=True):
                timers.setdefault(key, []).append(time)
            yield name, {key: tuple(sorted(times)) for key, times in timers.items()}
            continue
        variable = variables.get(name)
        if variable is None:
            if name in left_out:
                continue
            raise CheckpointError(
                f"the checkpoint has a state {name!r}, which the processor does not ask for: keep it, or call "
                f"handle.deleteIfExists({name!r}) in init"
            )
        now = {"name": name, "kind": variable.kind, "schema": variable.schema.simpleString()}
        if variable.keys is not None:
            now["keys"] = variable.keys.simpleString()
        if now != about:
            raise CheckpointError(f"state {name!r} of the checkpoint is {about}, the processor asks for {now}")
        yield name, _entries(variable, table, of_key)


def _entries(variable: Any, table: pa.Table, of_key: list[Any]) -> Mapping[Any, Any]:
    kind = variable.kind
    expires = table.column("expires_ms").to_pylist()
    if kind == "list":
        values = table.column("value").combine_chunks()
        rows = _rows(values.values if hasattr(values, "values") else values.flatten(), variable.schema)
        offsets = values.offsets.to_pylist()
        lists = [tuple(rows[begin:end]) for begin, end in pairwise(offsets)]
        return {key: (until, value) for key, until, value in zip(of_key, expires, lists, strict=True)}
    values = _rows(table.column("value").combine_chunks(), variable.schema)
    if kind == "value":
        return {key: (until, value) for key, until, value in zip(of_key, expires, values, strict=True)}
    maps: dict[Any, tuple[int, dict[Any, Any]]] = {}
    names = map(key_part, _rows(table.column("map_key").combine_chunks(), variable.keys))
    for key, until, name, value in zip(of_key, expires, names, values, strict=True):
        maps.setdefault(key, (0, {}))[1][name] = (until, value)
    return maps


def _rows(structs: pa.Array, schema: StructType) -> list[tuple[Any, ...]]:
    if hasattr(structs, "num_chunks"):
        structs = structs.combine_chunks()
    columns = [child.to_pylist() for child in structs.flatten()]
    for i, field in enumerate(schema.fields):
        if (convert := from_arrow(field.dataType)) is not None:
            columns[i] = [convert(value) for value in columns[i]]
    return list(zip(*columns, strict=True))


TRIES = 5  #: a running query may remove a checkpoint while it is read: the newest one is taken again


def read_state(checkpoint: str | os.PathLike[str], name: str, variable: str | None = None) -> pa.Table:
    """The state of an operator in the newest checkpoint, as a table; the query may run, or be over.

    Parameters
    ----------
    checkpoint
        The directory that ``write_stream`` was given, or that of a savepoint.
    name
        Of the operator: ``name=`` of the verb, or as ``explain()`` names its stage.
    variable
        Which of its state variables, or ``"__timers"``; of a join ``"left"`` or ``"right"``; None: its only one.

    Returns
    -------
    pyarrow.Table
        The columns of the key, then of a variable ``expires_ms`` (in milliseconds since 1970; 0: never; what has
        expired may still be there) and ``value``, a struct; of a map ``map_key`` too, of a list ``value`` is a list; of
        timers ``time_ms``.

        Of windows the keys, ``window_start`` and ``window_end``, and what each holds: partial results (``v_sum``; of a
        mean a sum and a count), the row that ``reduce`` has, or the rows that a function waits for.  Sliding windows
        share parts: ``pane_start`` and ``pane_end``.  ``new_rows`` came since the last early result; a session that has
        ``fired`` has given its rows.  Of a join the rows of a side that wait; of outer interval joins whether each was
        ``matched``.

        Without any entry there are no columns.

    Raises
    ------
    ConfigError
        There is no such operator or variable; the text has those that there are.
    CheckpointError
        There is no checkpoint, or it cannot be read.
    """
    folder = Path(shared_folder("checkpoint", checkpoint))
    for left in reversed(range(TRIES)):
        names = [each for each in _listed(folder / "checkpoints") if each[:-5].isdigit()]
        if not names:
            raise CheckpointError(f"{folder} has no checkpoint yet")
        try:
            return _state_of(folder, folder / "checkpoints" / max(names), name, variable)
        except CheckpointError:
            if not left or max(_listed(folder / "checkpoints"), default="") == max(names):
                raise
    raise AssertionError


def _listed(folder: Path) -> list[str]:
    return [each for each in os.listdir(folder) if each.endswith(".json")] if folder.is_dir() else []


def _state_of(folder: Path, metadata: Path, name: str, variable: str | None) -> pa.Table:
    import pyarrow as pa

    operators = read_metadata(metadata)["operators"]
    if name not in operators:
        raise ConfigError(f"no operator {name!r} has state in {metadata}: there are {sorted(operators)}")
    of = operators[name].get("of")
    tables: dict[str, list[pa.Table]] = {}
    for entry in operators[name]["pieces"].values():
        if entry is None:
            continue
        for place, (about, table) in enumerate(_streams(read_piece(folder / "state", entry))):
            of_side = about is None and (place or is_join(of, table))
            own = about["name"] if about is not None else SIDES[place] if of_side else ""
            tables.setdefault(own, []).append(table.replace_schema_metadata())
    if variable is None:
        others = [each for each in tables if each != TIMERS]
        if len(others) > 1:
            raise ConfigError(f"operator {name!r} has several variables, name one of them: {sorted(tables)}")
        variable = next(iter(others), "")
    if variable not in tables:
        if tables or (variable and not (variable in SIDES and of and of["verb"] == "join")):
            raise ConfigError(f"operator {name!r} has no entry of {variable!r}: there are {sorted(tables)}")
        return pa.table({})
    # Groups that did not change since may be of a session in another time zone, and a side of a join may have no rows
    first, *rest = sorted(tables[variable], key=lambda table: not table.num_rows)
    whole = pa.concat_tables(
        [first, *(in_zones_of(first.schema, table) for table in rest if table.num_rows)], promote_options="default"
    )
    return readable(of, variable, whole) if whole.num_columns else whole

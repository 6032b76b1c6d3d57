"""Every dtype of polars and of pandas through an exchange: it comes back equal, or is refused with what to do."""

from __future__ import annotations

import datetime as dt
import importlib
import inspect
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import fastbuf as fb
from fastbuf.errors import FastbufError, SchemaError, SchemaMismatch
from fastbuf.serializers.frames import values_of

pa = pytest.importorskip("pyarrow", reason="frames are read by pyarrow")
pd = pytest.importorskip("pandas", reason="no frames without pandas: pip install pandas")
pl = pytest.importorskip("polars", reason="no frames without polars: pip install polars")
pytest.importorskip("pyarrow", minversion="19", reason="an older one lacks types that are cases here")

DAY, AT, SPAN = dt.date(2020, 1, 1), dt.datetime(2020, 7, 1, 1, 2, 3), dt.timedelta(days=1, seconds=2)
LETTERS = ["a", None, "b", "a"]


def polars_columns() -> dict[str, Any]:
    """By the name of the dtype's class, with what else makes a case of its own."""
    whole = ["Int8", "Int16", "Int32", "Int64", "Int128", "UInt8", "UInt16", "UInt32", "UInt64", "UInt128"]
    found = {name: pl.Series([1, None, 3, 4], dtype=getattr(pl, name)) for name in whole if hasattr(pl, name)}
    real = [name for name in ("Float16", "Float32", "Float64") if hasattr(pl, name)]
    found |= {name: pl.Series([1.5, None, -0.0, float("inf")], dtype=getattr(pl, name)) for name in real}
    found |= {
        "Boolean": pl.Series([True, None, False, True]),
        "String": pl.Series(["a", None, "", "x" * 50]),
        "Binary": pl.Series([b"a", None, b"", b"x" * 50]),
        "Date": pl.Series([DAY, None, dt.date.min, dt.date.max]),
        "Time": pl.Series([dt.time(1, 2, 3, 4), None, dt.time.min, dt.time.max]),
        "Decimal": pl.Series([Decimal("1.50"), None] * 2, dtype=pl.Decimal(38, 2)),
        "Null": pl.Series([None] * 4),
        "Categorical": pl.Series(LETTERS, dtype=pl.Categorical),
        "Enum": pl.Series(LETTERS, dtype=pl.Enum(["b", "a", "c"])),
        "Enum of many": pl.Series(LETTERS, dtype=pl.Enum(["b", "a", *map(str, range(300))])),
        "List": pl.Series([[1], None, [], [2, None]], dtype=pl.List(pl.Int64)),
        "List of strings": pl.Series([["a"], None, [], ["b", None]]),
        "List of categories": pl.Series([["a"], None] * 2, dtype=pl.List(pl.Categorical)),
        "List of enums": pl.Series([["a"], None] * 2, dtype=pl.List(pl.Enum(["a"]))),
        "List of nulls": pl.Series([[], None] * 2, dtype=pl.List(pl.Null)),
        "Array": pl.Series([[1, 2], None, [3, None], [5, 6]], dtype=pl.Array(pl.Int32, 2)),
        "Array of strings": pl.Series([["a", "b"], None] * 2, dtype=pl.Array(pl.String, 2)),
        "Struct": pl.Series([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 2, "b": None}]),
        "Struct of categories": pl.Series([{"a": "x"}, None] * 2, dtype=pl.Struct({"a": pl.Categorical})),
        "Struct of nothing": pl.Series([{}] * 4, dtype=pl.Struct([])),
        "Object": pl.Series([object()] * 4, dtype=pl.Object),
    }
    if hasattr(pl, "Map"):
        found["Map"] = pl.Series([{"a": 1}, None, {}, {"b": None}], dtype=pl.Map(pl.String, pl.Int64))
    for unit in ("ms", "us", "ns"):
        found[f"Datetime {unit}"] = pl.Series([AT, None] * 2, dtype=pl.Datetime(unit))
        found[f"Datetime {unit} in a zone"] = found[f"Datetime {unit}"].dt.replace_time_zone("Europe/Paris")
        found[f"Duration {unit}"] = pl.Series([SPAN, None] * 2, dtype=pl.Duration(unit))
    return found


def pandas_columns() -> dict[str, Any]:
    """By the dtype; of objects and of Arrow's types by what they are."""
    numbers = [f"{name}{bits}" for name in ("int", "uint", "Int", "UInt") for bits in (8, 16, 32, 64)]
    numbers += ["float16", "float32", "float64", "Float32", "Float64"]
    found = {name: pd.Series([1, 2, 3, 4] if name[0] in "iu" else [1, None, 3, 4], dtype=name) for name in numbers}
    found |= {name: pd.Series([True, False] * 2, dtype=name) for name in ("bool", "boolean")}
    found |= {name: pd.Series(LETTERS, dtype=name) for name in ("str", "string", "string[python]", "object")}
    for unit in ("s", "ms", "us", "ns"):
        found[f"datetime64[{unit}]"] = pd.Series([AT, None] * 2, dtype=f"datetime64[{unit}]")
        found[f"datetime64[{unit}, Europe/Paris]"] = pd.Series(
            [AT, None] * 2, dtype=f"datetime64[{unit}, Europe/Paris]"
        )
        found[f"timedelta64[{unit}]"] = pd.Series([SPAN, None] * 2, dtype=f"timedelta64[{unit}]")
    objects = {"bytes": [b"a", None], "lists": [[1], [2, 3]], "arrays": [np.arange(2), None], "dicts": [{"a": 1}, None]}
    objects |= {
        "decimals": [Decimal("1.5"), None],
        "days": [DAY, None],
        "times": [dt.time.max, None],
        "sets": [{1}, None],
    }
    objects |= {"mixed": ["a", 1], "our own": [object(), None]}
    found |= {f"object: {name}": pd.Series(values * 2, dtype=object) for name, values in objects.items()}
    found |= {
        "category": pd.Series(LETTERS, dtype="category"),
        "category of ints": pd.Series([3, None, 1, 3], dtype="category"),
        "category of days": pd.Series(pd.Categorical(pd.to_datetime([DAY, None, DAY, AT.date()]))),
        "category, ordered": pd.Series(pd.Categorical(LETTERS, categories=["b", "a", "z"], ordered=True)),
        "category of intervals": pd.Series(pd.cut([1, 2, 3, 4], 2)),
        "period": pd.Series(pd.period_range("2020-01", periods=4, freq="M")),
        "interval": pd.Series(pd.interval_range(0, 4)),
        "Sparse": pd.Series([0, 0, 1, 0], dtype="Sparse[int64]"),
        "complex128": pd.Series([1j] * 4),
    }
    for name, value, kind in [
        ("string", "a", pa.string()),
        ("large_string", "a", pa.large_string()),
        ("string_view", "a", pa.string_view()),
        ("binary_view", b"a", pa.binary_view()),
        ("fixed_size_binary", b"a", pa.binary(1)),
        *((f"decimal{bits}", Decimal("1.5"), getattr(pa, f"decimal{bits}")(5, 2)) for bits in (32, 64, 128, 256)),
        ("date32", DAY, pa.date32()),
        ("date64", DAY, pa.date64()),
        ("time32", dt.time(1), pa.time32("ms")),
        ("time64", dt.time(1), pa.time64("ns")),
        ("timestamp", AT, pa.timestamp("us", "UTC")),
        ("duration", SPAN, pa.duration("ns")),
        ("list", [1], pa.list_(pa.int64())),
        ("large_list", [1], pa.large_list(pa.int64())),
        ("list_view", [1], pa.list_view(pa.int64())),
        ("fixed_size_list", [1], pa.list_(pa.int64(), 1)),
        ("map", [("a", 1)], pa.map_(pa.string(), pa.int64())),
        ("struct", {"a": 1}, pa.struct({"a": pa.int64()})),
        ("dictionary", "a", pa.dictionary(pa.int32(), pa.string())),
        ("interval", (1, 2, 3), pa.month_day_nano_interval()),
        ("null", None, pa.null()),
        ("uuid", b"0" * 16, pa.uuid()),
    ]:
        found[f"Arrow's {name}"] = pd.Series(pd.arrays.ArrowExtensionArray(pa.array([value, None] * 2, kind)))
    runs = pa.RunEndEncodedArray.from_arrays([2, 4], [1, 2])
    return found | {"Arrow's run_end_encoded": pd.Series(pd.arrays.ArrowExtensionArray(runs))}


#: What is said of those that do not travel.
REFUSED = {
    **dict.fromkeys(
        ["Int128", "UInt128", "Sparse", "complex128", "object: mixed", "object: our own"], "cast it to another"
    ),
    "Object": r"has the dtype Object, .*addresses of its objects\): cast it to another, or leave it out",
    **dict.fromkeys(["List of categories", "List of enums", "Struct of categories"], "a dictionary within .*, cast it"),
    "List of nulls": "is a list of nulls that take no bytes: .*; cast what is in it",
    **dict.fromkeys(
        ["period", "interval", "category of intervals", "Arrow's uuid"], "extension.*: cast it to its storage"
    ),
    "Arrow's decimal32": r"cast it to decimal128\(5, 2\)",
    "Arrow's decimal64": r"cast it to decimal128\(5, 2\)",
    "Arrow's list_view": "list_view, which is not supported: make lists of its values",
    "Arrow's run_end_encoded": "decode it",
    "Arrow's interval": "make numbers of it, or leave it out",
}
POLARS, PANDAS = polars_columns(), pandas_columns()
CASES = [("polars", name) for name in POLARS] + [("pandas", name) for name in PANDAS]


def frame_of(library: str, name: str) -> Any:
    if library == "polars":
        return pl.DataFrame([pl.Series("k", [1, 2, 3, 4]), POLARS[name].alias("v")])
    return pd.DataFrame({"k": [1, 2, 3, 4], "v": PANDAS[name]})


def through(frame: Any, schema: Any) -> Any:
    """What two consumers have of a frame."""
    with fb.ShuffleEnvironment(segments=64, segment_size=8192) as env:
        serializer = fb.ColumnarSerializer(schema)
        writer, gates = env.exchange(serializer, consumers=2, selector=fb.hash_by("k"))
        writer.emit_batch(frame)
        writer.close()
        parts = [pa.Table.from_batches(gate, serializer.arrow_schema) for gate in gates]
    env.pool.audit()
    return pa.concat_tables(parts).unify_dictionaries()


def told(table: Any) -> list[str]:
    return [str(row["v"]) for row in sorted(table.to_pylist(), key=lambda row: row["k"])]


def schemas(frame: Any) -> list[Any]:
    """Those that a frame fits: its own, the plainest one with its values, and the same in categories."""
    own = pa.RecordBatchReader.from_stream(frame).schema
    at = own.get_field_index("v")
    plain = values_of(own.field(at).type)
    others = [own.set(at, own.field(at).with_type(plain).with_metadata({}))]
    if plain in (pa.string(), pa.binary()):
        others.append(pa.schema([("k", pa.int64()), ("v", pa.dictionary(pa.int16(), plain))]))
    return [own, *(each for each in others if not each.equals(own))]


@pytest.mark.parametrize(("library", "name"), CASES)
def test_a_dtype(library: str, name: str) -> None:
    """Comes back as it was: from a frame to a frame of the same library, by each schema that it fits."""
    frame = frame_of(library, name)
    if name in REFUSED:
        with pytest.raises(FastbufError, match=f"(?s)'v.*{REFUSED[name]}"):
            fb.ColumnarSerializer().dumps(frame)
        return
    theirs = pa.table(frame)
    for number, schema in enumerate(schemas(frame)):
        made = through(frame, schema)
        assert told(made) == told(theirs)
        if number:
            continue
        if library == "polars":
            back = pl.from_arrow(made).sort("k")
            assert back.schema == frame.schema
            assert back.equals(frame)
        elif not (name.startswith("Arrow's") and made.schema.field("v").type.num_fields):
            assert str(made.schema.field("v").type).split(",")[0] == str(theirs.schema.field("v").type).split(",")[0]
    serializer = fb.ColumnarSerializer()
    assert told(pa.Table.from_batches([serializer.loads(serializer.dumps(frame))])) == told(theirs)


@pytest.mark.parametrize("name", ["List of categories", "Struct of categories"])
def test_categories_within_another_dtype_to_a_plain_schema(name: str) -> None:
    """They are refused too, by the column's name."""
    frame = frame_of("polars", name)
    schema = pa.schema([("k", pa.int64()), ("v", values_of(pa.table(frame).schema.field("v").type))])
    with pytest.raises(SchemaMismatch, match=r"column 'v' is .* in the schema and .* in the batch: cast the batch"):
        through(frame, schema)


def test_a_frame_whose_categories_are_too_many_for_the_schema() -> None:
    frame = pl.DataFrame({"v": list(map(str, range(300)))}, schema={"v": pl.Categorical})
    serializer = fb.ColumnarSerializer(pa.schema([("v", pa.dictionary(pa.int8(), pa.string()))]))
    block = serializer.dumps(frame)
    with pytest.raises(FastbufError, match=r"column 'v' cannot be .*: give its dictionary a wider index"):
        serializer.loads(block)


def test_no_dtype_is_left_out() -> None:
    """A new one of either library is to be tried, and to have its line here."""
    groups = {"DataType", "IntegerType", "FloatType", "TemporalType", "BaseExtension", "Extension", "Unknown", "Utf8"}
    classes = {
        name
        for name, each in vars(pl.datatypes).items()
        if inspect.isclass(each) and issubclass(each, pl.DataType) and name not in groups
    }
    assert classes <= {name.partition(" ")[0] for name in POLARS}
    registered = importlib.import_module("pandas.core.dtypes.base")._registry.dtypes
    assert {kind.__name__ for kind in registered} <= {type(column.dtype).__name__ for column in PANDAS.values()}


@pytest.mark.parametrize(
    ("kind", "cast"),
    [
        (pa.decimal32(5, 2), pa.decimal128(5, 2)),
        (pa.decimal64(5, 2), pa.decimal128(5, 2)),
        (pa.uuid(), pa.binary(16)),
        (pa.json_(), pa.string()),
    ],
)
def test_the_cast_that_is_advised_works(kind: Any, cast: Any) -> None:
    with pytest.raises(SchemaError, match=r": cast it to ") as caught:
        fb.ColumnarSerializer(pa.schema([("v", kind)]))
    said = str(caught.value).rpartition("cast it to ")[2].removeprefix("its storage, ")
    assert said.startswith(str(cast))
    table = pa.table({"v": pa.nulls(3, kind).cast(cast)})
    serializer = fb.ColumnarSerializer(table.schema)
    assert serializer.loads(serializer.dumps(table)).to_pydict() == {"v": [None] * 3}

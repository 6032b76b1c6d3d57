"""Schemas: their text, their fingerprint, and the ways from and to Arrow and NumPy."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime as dt
import enum
import ipaddress
import pathlib
import pickle
import re
import subprocess
import sys
import typing
import uuid
from collections import deque
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_strategies import plain_types, schemas

from fastbuf.errors import RecordError, SchemaError
from fastbuf.serializers import DataType, Field, RowSerializer, Schema
from fastbuf.serializers.schema_types import parse_type

EVERY = {
    "null": "null?", "bool": "bool", "i": "int8?", "u": "uint64", "f": "float16", "s": "large_string",
    "sv": "string_view", "b": "large_binary?", "bv": "binary_view", "fb": "fixed_size_binary(16)",
    "d": "decimal128(38,-2)",
    "d2": "decimal256(76,3)?", "date": "date32", "date2": "date64", "t": "time32[ms]", "t2": "time64[ns]",
    "ts": "timestamp[s]", "tz": "timestamp[ns,Europe/Berlin]?", "du": "duration[us]", "l": "list<float32?>",
    "ll": "large_list<string>", "fl": "fixed_size_list(3)<int32>", "st": 'struct<a: int8, "b c": list<int8>?>',
    "m": "map<string, struct<>?>", "di": "dictionary<int32, string>",
}  # fmt: skip


class TestText:
    def test_every_type(self) -> None:
        schema = Schema.of(**EVERY)
        assert [field.type_text for field in schema] == list(EVERY.values())

    @pytest.mark.parametrize(
        ("short", "full"),
        [
            ("int", "int64"), ("float", "float64"), ("str?", "string?"), ("bytes", "binary"), ("date", "date32"),
            ("time", "time64[us]"), ("time[s]", "time32[s]"), ("timestamp", "timestamp[us]"),
            ("duration", "duration[us]"),
            ("decimal(10,2)", "decimal128(10,2)"), ("decimal(39)", "decimal256(39,0)"),
            (" list < int8 ? > ? ", "list<int8?>?"), ("timestamp[ us , UTC ]", "timestamp[us,UTC]"),
        ],
    )  # fmt: skip
    def test_short_names_and_spaces(self, short: str, full: str) -> None:
        kind, nullable = parse_type(short)
        assert Field("x", kind, nullable).type_text == full

    @given(st.text(min_size=1, max_size=6), plain_types(), st.booleans(), schemas())
    @settings(max_examples=60, deadline=None)
    def test_text_reads_back(self, name: str, kind: DataType, nullable: bool, inner: Schema) -> None:
        struct = DataType("struct", children=(Field(name, kind, nullable), Field(name + "_", kind)))
        schema = Schema([Field(name, struct, nullable), *(Field(f"{name}{f.name}", f.type, f.nullable) for f in inner)])
        assert parse_type(schema.text) == (DataType("struct", children=schema.fields), False)
        assert eval(repr(schema), {"Schema": Schema}) == schema

    @pytest.mark.parametrize(
        "text",
        [
            "", "?", "int65", "int64??", "int64 x", "decimal", "decimal(0,0)", "decimal128(39,0)", "list", "list<>",
            "list<int8", "map<int8>", "map<int8?, int8>", "struct<a>", "struct<a: int8,>", "struct<a: int8, a: int8>",
            "timestamp[m]", "time32[us]", "time32", "duration[us,UTC]", "fixed_size_list<int8>", "fixed_size_binary",
            "dictionary<string, string>", 'struct<"\n": int8>', 'struct<"\\x": int8>',
            "list<" * 100 + "int8" + ">" * 100,
        ],
    )  # fmt: skip
    def test_what_is_no_type(self, text: str) -> None:
        with pytest.raises(SchemaError, match="field 'bad'"):
            Schema.of(bad=text)


class TestSchema:
    def test_of_takes_pairs_mappings_fields_and_types(self) -> None:
        pa = pytest.importorskip("pyarrow", reason="one of the ways is a type of pyarrow's")
        named = Schema.of(a="int64", b="string?")
        assert Schema.of({"a": "int64", "b": "string?"}) == named
        assert Schema.of([("a", pa.int64()), ("b", Field("x", DataType("string"), True))]) == named
        assert Schema([Field("a", DataType("int64")), Field("b", DataType("string"), True)]) == named
        assert Schema.of(a=DataType("int64"), b="string?") == named

    def test_reads_like_a_sequence_and_by_name(self) -> None:
        schema = Schema.of(a="int64", b="string?")
        assert (len(schema), schema.names, schema["b"], schema[0].name) == (2, ("a", "b"), schema[1], "a")
        assert "a" in schema
        assert "c" not in schema
        with pytest.raises(SchemaError, match="no field 'c'"):
            schema.index("c")

    def test_two_fields_of_one_name(self) -> None:
        with pytest.raises(SchemaError, match="two fields named 'a'"):
            Schema([Field("a", DataType("int8")), Field("a", DataType("int8"))])

    @pytest.mark.parametrize(
        "wrong",
        [
            {"kind": "int8", "unit": "s"}, {"kind": "int8", "width": 3}, {"kind": "int8", "precision": 3},
            {"kind": "duration", "unit": "s", "zone": "UTC"}, {"kind": "list"}, {"kind": "nothing"},
            {"kind": "list", "children": (Field("element", DataType("int8")),)},
            {"kind": "fixed_size_binary", "width": -1}, {"kind": "decimal128", "precision": 5, "scale": 40},
            {"kind": "int8", "children": (Field("item", DataType("int8")),)},
        ],
    )  # fmt: skip
    def test_types_that_do_not_exist(self, wrong: dict) -> None:
        with pytest.raises(SchemaError):
            DataType(**wrong)

    def test_hash_equality_and_pickle(self) -> None:
        schema, other = Schema.of(**EVERY), Schema.of(**{**EVERY, "i": "int8"})
        assert pickle.loads(pickle.dumps(schema)) == schema
        assert {schema: 1}[Schema.of(**EVERY)] == 1
        assert schema != other
        assert schema.fingerprint != other.fingerprint
        assert schema != "schema"


class TestFingerprint:
    def test_golden(self) -> None:
        # Ends of different releases and machines compare these: they never change.
        assert Schema.of(id="int64", name="string?", vec="list<float32>").fingerprint == 0xB944F51B3AD15788
        assert Schema().fingerprint == 0xC234A37C746ACB74

    def test_same_in_another_process(self) -> None:
        code = f"from fastbuf.serializers import Schema; print(Schema.of(**{EVERY!r}).fingerprint)"
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        assert int(out.stdout) == Schema.of(**EVERY).fingerprint

    def test_name_order_type_and_null_count(self) -> None:
        variants = [
            Schema.of(a="int64", b="int64"), Schema.of(b="int64", a="int64"), Schema.of(a="int64", b="int64?"),
            Schema.of(a="int64", b="int32"), Schema.of(a="int64", c="int64"), Schema.of(a="struct<b: int64>"),
            Schema.of(a="timestamp[us]"), Schema.of(a="timestamp[us,UTC]"), Schema.of({"a: int64, b": "int64"}),
        ]  # fmt: skip
        assert len({schema.fingerprint for schema in variants}) == len(variants)


class TestArrow:
    def test_there_and_back(self) -> None:
        pytest.importorskip("pyarrow", reason="Arrow schemas need pyarrow")
        schema = Schema.of(**EVERY)
        assert Schema.from_arrow(schema.to_arrow()) == schema

    def test_a_field_of_nulls_may_be_null(self) -> None:
        """pyarrow said that it may not be non-nullable."""
        pytest.importorskip("pyarrow", reason="Arrow schemas need pyarrow")
        schema = Schema.of(n="null", v="list<null>").to_arrow()
        assert schema.field("n").nullable
        assert schema.field("v").type.value_field.nullable

    def test_names_of_items_are_of_no_account(self) -> None:
        pa = pytest.importorskip("pyarrow", reason="Arrow schemas need pyarrow")
        spark = pa.schema([pa.field("v", pa.list_(pa.field("element", pa.float32(), nullable=False)), nullable=False)])
        assert Schema.from_arrow(spark) == Schema.of(v="list<float32>")

    def test_what_is_not_carried_is_refused_by_name(self) -> None:
        pa = pytest.importorskip("pyarrow", reason="Arrow schemas need pyarrow")
        for kind in (pa.month_day_nano_interval(), pa.run_end_encoded(pa.int32(), pa.int8()), pa.uuid()):
            with pytest.raises(SchemaError, match=r"field 'outer\.bad'"):
                Schema.from_arrow(pa.schema([("ok", pa.int8()), ("outer", pa.struct([("bad", kind)]))]))
        with pytest.raises(SchemaError, match="neither a text"):
            Schema.of(bad=5)

    def test_pyarrow_is_not_imported_before(self) -> None:
        code = (
            "import sys; from fastbuf.serializers import *; Schema.of(a='int64?');"
            "print({'pyarrow', 'pyspark', 'cloudpickle'} & set(sys.modules))"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        assert out.stdout.strip() == "set()"


class TestNumPy:
    def test_structured_dtype(self) -> None:
        dtype = np.dtype(
            [("b", "?"), ("i", "<i2"), ("u", "u8"), ("h", "f2"), ("s", "S3"), ("t", "U3"), ("v", "V4"), ("d", "M8[D]"),
             ("ts", "M8[ms]"), ("td", "m8[ns]"), ("m", "f4", (2, 3)), ("n", [("x", "i1")])]
        )  # fmt: skip
        assert Schema.from_numpy(dtype) == Schema.of(
            b="bool", i="int16", u="uint64", h="float16", s="binary", t="string", v="fixed_size_binary(4)", d="date32",
            ts="timestamp[ms]", td="duration[ns]", m="fixed_size_list(2)<fixed_size_list(3)<float32>>",
            n="struct<x: int8>",
        )  # fmt: skip

    @pytest.mark.parametrize("dtype", ["O", "c16", "g", "M8[Y]", "m8[D]", "M8[10us]"])
    def test_refused_by_name(self, dtype: str) -> None:
        with pytest.raises(SchemaError, match="field 'bad'"):
            Schema.from_numpy([("ok", "i4"), ("bad", dtype)])
        with pytest.raises(SchemaError, match="not structured"):
            Schema.from_numpy(dtype)


class Inner(typing.NamedTuple):
    x: int
    y: float | None


@dataclasses.dataclass
class Everything:
    b: bool
    i: int
    f: float
    s: str | None
    raw: bytes
    day: dt.date
    at: dt.datetime
    clock: dt.time
    long: dt.timedelta
    price: Annotated[Decimal, "decimal(10,2)"]
    small: Annotated[int | None, "int8"]
    zoned: Annotated[dt.datetime, "timestamp[us,UTC]?"]
    kind: Annotated[int, DataType("uint16")]
    vec: list[float]
    texts: tuple[str | None, ...]
    pair: tuple[int, int]
    table: dict[str, int]
    inner: Inner


class TestClasses:
    SCHEMA = Schema.of(
        b="bool", i="int64", f="float64", s="string?", raw="binary", day="date32", at="timestamp[us]",
        clock="time64[us]", long="duration[us]", price="decimal(10,2)", small="int8?", zoned="timestamp[us,UTC]?",
        kind="uint16", vec="list<float64>", texts="list<string?>", pair="fixed_size_list(2)<int64>",
        table="map<string, int64>", inner="struct<x: int64, y: float64?>",
    )  # fmt: skip

    def test_dataclass_and_its_records(self) -> None:
        assert Schema.from_class(Everything) == self.SCHEMA
        when = dt.datetime(2026, 1, 2, 3, 4, 5)
        values = (
            True, 1, 2.5, None, b"raw", when.date(), when, when.time(), dt.timedelta(1), Decimal("1.25"), None, None,
            7, [1.0], ["a", None], [3, 4], {"k": 5}, (6, None),
        )  # fmt: skip
        rows = RowSerializer(self.SCHEMA)
        record = Everything(*values[:-1], inner=Inner(6, None))
        assert rows.loads(rows.dumps([record, dataclasses.asdict(record), values])) == [values] * 3

    def test_named_tuple_and_typed_dict(self) -> None:
        class Pair(typing.TypedDict):
            x: int
            y: typing.Required[float | None]

        wanted = Schema.of(x="int64", y="float64?")
        assert Schema.from_class(Inner) == Schema.from_class(Pair) == wanted

    def test_msgspec_struct(self) -> None:
        msgspec = pytest.importorskip("msgspec", reason="Structs are msgspec's")
        record = msgspec.defstruct("Record", [("x", int), ("y", float | None), ("vec", list[int])])
        schema = Schema.from_class(record)
        assert schema == Schema.of(x="int64", y="float64?", vec="list<int64>")
        rows = RowSerializer(schema)
        assert rows.loads(rows.dumps([record(1, None, [2])])) == [(1, None, [2])]

    @pytest.mark.parametrize(
        ("hint", "says"),
        [(complex, "annotated as complex"), (int | str, "one type"), (Decimal, "Decimal"), (Any, "determine a type"),
         (list, "list"), (typing.Sequence, "Sequence"), (typing.Mapping, "Mapping"),
         (tuple[int, str], "not of one type"), (Annotated[int, "in64"], "in64"),
         (list[list[object]], r"field 'bad\[\]\[\]'")],
    )  # fmt: skip
    def test_refused_by_name(self, hint: Any, says: str) -> None:
        with pytest.raises(SchemaError, match="field 'bad") as raised:
            Schema.from_class(dataclasses.make_dataclass("Record", [("ok", int), ("bad", hint)]))
        assert re.search(says, str(raised.value))

    def test_what_is_no_class_of_records(self) -> None:
        for wrong in (int, object(), "Record"):
            with pytest.raises(SchemaError, match="is not a dataclass"):
                Schema.from_class(wrong)
        Plain = collections.namedtuple("Plain", "x")
        with pytest.raises(SchemaError, match="field 'x' of Plain has no annotation"):
            Schema.from_class(Plain)
        with pytest.raises(SchemaError, match="field 'next' is a Node within itself"):
            Schema.from_class(Node)


@dataclasses.dataclass
class Node:
    value: int
    next: Node | None


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


VALUES: list[Any] = [uuid.UUID(int=5), Decimal("1.50"), pathlib.Path("a"), Colour.RED, Level.LOW, Word.YES, 1j]
VALUES += [Fraction(1, 2), {1}, frozenset([1]), deque([1]), array.array("d", [1.0]), memoryview(b"a"), object()]
VALUES += [np.int8(1), np.uint64(1), np.float32(1.5), np.str_("a"), np.array([1.0]), [1], (1,)]
VALUES += [np.bool_(True)] if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else []  # before, a whole number too
VALUES += [{"a": 1}, ipaddress.ip_address("1.1.1.1"), np.datetime64("2020-01-01")]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_the_type_that_is_advised_holds_such_values(value: Any) -> None:
    """Or the advice is to annotate something else: then no type holds them."""
    record = dataclasses.make_dataclass("Record", [("v", type(value))])
    try:
        rows = RowSerializer(Schema.from_class(record))
    except SchemaError as error:
        said = str(error)
        assert "field 'v' is annotated as " in said
        advised = re.search(r"Annotated\[(\w+), '([^']+)'\]", said)
        assert advised is not None
        if type(value) is object:
            value = 5
        if advised[1] == type(value).__name__ or value == 5:
            record = dataclasses.make_dataclass("Record", [("v", Annotated[type(value), advised[2]])])
            rows = RowSerializer(Schema.from_class(record))
        else:
            assert "annotate it as what you put there instead" in said
            for text in ("int64", "float64", "string", "binary", "bool", "timestamp[us]", "list<int64>", "date32"):
                with pytest.raises(RecordError):
                    RowSerializer(Schema.of(v=text)).dumps([(value,)])
            return
    assert len(rows.loads(rows.dumps([(value,)]))) == 1


@pytest.mark.parametrize("hint", [set[int], frozenset[str], deque[int], int | str], ids=str)
def test_annotations_with_arguments(hint: Any) -> None:
    """Of classes that no type holds."""
    record = dataclasses.make_dataclass("Record", [("v", hint)])
    with pytest.raises(SchemaError, match=r"annotate it as what you put there instead|must have one type"):
        Schema.from_class(record)

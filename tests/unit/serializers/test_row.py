"""Rows: round trips of everything a schema can say, strict errors, the bytes as they stand, and hostile ones."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime as dt
import decimal
import gc
import pickle
import random
import re
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from row_strategies import same, schemas_and_records

from fastbuf.errors import BlockCorrupt, BlockError, BlockTruncated, RecordError, SchemaError, SchemaMismatch
from fastbuf.serializers import RowSerializer, Schema
from fastbuf.serializers.block import HEADER_BYTES

A = Schema.of(id="int64", key="int64", value="float64", name="string")
B = Schema.of(id="int64", name="string?", vec="list<float64>", raw="binary")


def records_a(n: int) -> list[tuple[Any, ...]]:
    return [(i, i * 7919 - 5, i * 0.5, f"user-{i}") for i in range(n)]


def records_b(n: int) -> list[tuple[Any, ...]]:
    return [(i, f"n{i}" if i % 3 else None, [i + j / 8 for j in range(8)], bytes([i % 256]) * 32) for i in range(n)]


class TestRoundTrip:
    @given(schemas_and_records(), st.booleans())
    @settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    def test_whatever_a_schema_says(self, given_: tuple[Schema, list[tuple[Any, ...]]], checksum: bool) -> None:
        schema, records = given_
        rows = RowSerializer(schema, checksum=checksum)
        block = rows.dumps(records)
        assert same(rows.loads(block), records)
        assert same(list(rows.iter(block)), records)
        for record in records:
            assert same(rows.decode(rows.encode(record)), record)

    @pytest.mark.parametrize(("schema", "make"), [(A, records_a), (B, records_b)])
    @pytest.mark.parametrize("n", [0, 1, 1000])
    def test_bench_records(self, schema: Schema, make: Any, n: int) -> None:
        rows = RowSerializer(schema)
        assert rows.loads(rows.dumps(make(n))) == make(n)

    def test_a_dictionary_of_nullable_values(self) -> None:
        for kind in ("dictionary<int8, string?>", "dictionary<int8, null>"):
            rows = RowSerializer(Schema.of(a="int64", d=kind))
            assert rows.loads(rows.dumps([(0, None), (-1, None)])) == [(0, None), (-1, None)]

    def test_generator_and_long_record(self) -> None:
        rows = RowSerializer(Schema.of(text="string", raw="binary"))
        long = ("ü" * 500_000, b"x" * 3_000_000)
        assert rows.loads(rows.dumps(record for record in [("a", b""), long, ("b", b"c")])) == [
            ("a", b""),
            long,
            ("b", b"c"),
        ]

    def test_every_kind_of_record_and_list(self) -> None:
        rows = RowSerializer(Schema.of(id="int32", vec="list<float32>"))
        Point = collections.namedtuple("Point", "id vec")

        @dataclasses.dataclass
        class Slots:
            vec: list[float]
            id: int

        given_ = [
            (1, [1.0, 2.0]),
            [1, (1.0, 2.0)],
            Point(1, [1, 2]),
            {"vec": np.array([1, 2], "f4"), "id": np.int64(1)},
            Slots(np.array([1, 2], "f8"), 1),
            (1, array.array("f", [1, 2])),
            (1, np.arange(1, 5, dtype="f4")[:2]),
            (1, np.array([1, 9, 2], "f4")[::2]),
            (1, np.array([1, 2], "i8")),
        ]
        assert rows.loads(rows.dumps(given_)) == [(1, [1.0, 2.0])] * len(given_)

    def test_spark_rows(self) -> None:
        pyspark = pytest.importorskip("pyspark.sql", reason="rows of PySpark need PySpark")
        rows = RowSerializer(A)
        row = pyspark.Row(id=1, key=2, value=3.0, name="x")
        assert rows.loads(rows.dumps([row])) == [(1, 2, 3.0, "x")]

    @pytest.mark.parametrize(
        ("kind", "digits"), [("decimal128(38,0)", 38), ("decimal256(76,3)", 76), ("decimal256(23,0)", 23)]
    )
    def test_most_digits_of_a_decimal(self, kind: str, digits: int) -> None:
        rows = RowSerializer(Schema.of(d=kind))
        scale = rows.schema[0].type.scale
        for sign in (0, 1):
            most = decimal.Decimal((sign, (9,) * digits, -scale))
            assert rows.loads(rows.dumps([(most,)])) == [(most,)]
            with pytest.raises(RecordError, match=f"more than {digits} digits"):
                rows.dumps([(decimal.Decimal((sign, (1,) + (0,) * digits, -scale)),)])

    def test_named_zone(self) -> None:
        from zoneinfo import ZoneInfo

        berlin = ZoneInfo("Europe/Berlin")
        rows = RowSerializer(Schema.of(at="timestamp[us,Europe/Berlin]"))
        folds = [dt.datetime(2024, 10, 27, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1)]
        found = [at for (at,) in rows.loads(rows.dumps([(at,) for at in folds]))]
        assert [at.utcoffset() for at in found] == [at.utcoffset() for at in folds]
        assert found[0].tzinfo is berlin

    def test_pickled_serializer_still_works(self) -> None:
        rows = RowSerializer(B, checksum=True)
        copy = pickle.loads(pickle.dumps(rows))
        assert copy.schema == B
        assert copy.checksum
        assert copy.loads(rows.dumps(records_b(3))) == records_b(3)

    def test_tuples_of_atoms_are_untracked_and_others_tracked(self) -> None:
        atoms = RowSerializer(Schema.of(x="int64", s="string")).loads(
            RowSerializer(Schema.of(x="int64", s="string")).dumps([(1, "a")])
        )
        lists = RowSerializer(B).loads(RowSerializer(B).dumps(records_b(1)))
        assert not gc.is_tracked(atoms[0])
        assert gc.is_tracked(lists[0])
        assert gc.is_tracked(lists[0][2])

    @pytest.mark.parametrize("on", [True, False])
    def test_the_collector_is_left_as_it_was(self, on: bool) -> None:
        rows = RowSerializer(B)
        block = rows.dumps(records_b(10))
        was = gc.isenabled()
        try:
            (gc.enable if on else gc.disable)()
            rows.loads(block)
            assert gc.isenabled() is on
            with pytest.raises(BlockError):
                rows.loads(block[:HEADER_BYTES] + bytes(len(block) - HEADER_BYTES))
            assert gc.isenabled() is on
        finally:
            (gc.enable if was else gc.disable)()


class TestRefusals:
    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            *(("int8", x) for x in (128, -129, 2**70, 1.0, "1", None, True, b"1", [1])),
            *(("int64", x) for x in (2**63, -(2**63) - 1)),
            *(("uint8", x) for x in (-1, 256)),
            *(("uint64", x) for x in (-1, 2**64, 1.5)),
            *(("float64", x) for x in ("1", None, True, 10**400, 1j)),
            ("float32", 1e39),
            ("float16", 1e6),
            *(("bool", x) for x in (0, 1, "x", None)),
            *(("string", x) for x in (b"x", 1, "\ud800")),
            *(("binary", x) for x in ("x", 1, [1])),
            *(("fixed_size_binary(2)", x) for x in (b"x", b"xyz", "xy")),
            *(("decimal(4,2)", decimal.Decimal(x)) for x in ("100", "1.234", "NaN", "Infinity", "1e9999999")),
            *(("decimal(4,2)", x) for x in (1.5, "1", True)),
            *(("date", x) for x in (dt.datetime(2020, 1, 1), "2020-01-01", 5)),
            *(("timestamp", x) for x in (dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.date(2020, 1, 1))),
            ("timestamp[us,UTC]", dt.datetime(2020, 1, 1)),
            ("timestamp[s]", dt.datetime(2020, 1, 1, 0, 0, 0, 1)),
            ("timestamp[ns]", dt.datetime(2300, 1, 1)),
            *(("duration", x) for x in (dt.timedelta.max, dt.timedelta.min, 5)),
            *(("time", x) for x in (dt.time(1, tzinfo=dt.UTC), 5)),
            ("time32[s]", dt.time(0, 0, 0, 1)),
            *(("list<int32>", x) for x in ([1, None], [2**31], "ab", {1: 2}, 5, np.zeros((2, 2), "i4"), np.int32(5))),
            ("fixed_size_list(2)<int32>", [1]),
            ("fixed_size_list(2)<int32>", np.zeros(3, "i4")),
            ("struct<a: int8, b: int8>", (1,)),
            ("map<string, int8>", [("a",)]),
            ("map<string, int8>", {"a": None}),
        ],
    )
    def test_a_value_that_does_not_fit_is_named(self, kind: str, value: Any) -> None:
        rows = RowSerializer(Schema.of(ok="int64?", bad=kind))
        lenient = RowSerializer(Schema.of(ok="int64?", bad=kind + "?"))
        assert lenient.loads(lenient.dumps([(5, None)])) == [(5, None)]
        with pytest.raises(RecordError, match=r"^record 0: .*bad"):
            rows.dumps([(None, value)])
        with pytest.raises(RecordError, match="bad"):
            rows.encode((None, value))

    @pytest.mark.parametrize(
        ("record", "says"),
        [
            ((1, 2, 3.0), "3 fields, not 4"),
            ((1, 2, 3.0, "x", 5), "5 fields, not 4"),
            ({"id": 1, "key": 2, "value": 3.0}, "no field 'name'"),
            ({"id": 1, "key": 2, "value": 3.0, "name": "x", "more": 1}, r"unknown fields: \['more'\]"),
            (None, "NoneType"),
            ("abcd", "str"),
            (object(), "no attribute 'id'"),
        ],
    )
    def test_what_is_no_record(self, record: Any, says: str) -> None:
        with pytest.raises(RecordError, match=rf"^record 2: .*{says}"):
            RowSerializer(A).dumps([*records_a(2), record])

    def test_message_has_field_type_value_and_number(self) -> None:
        with pytest.raises(RecordError, match=r"record 7: field 'value' \(float64\) cannot hold 'seven' \(str\): "):
            RowSerializer(A).dumps([*records_a(7), (1, 2, "seven", "x")])

    def test_nested_path(self) -> None:
        rows = RowSerializer(Schema.of(a="list<struct<b: map<string, int8>>>"))
        with pytest.raises(RecordError, match=r"field 'a\[\]\.b\[\]\.value' \(int8\) cannot hold 300"):
            rows.dumps([([({"k": 300},)],)])

    def test_types_rows_do_not_carry(self) -> None:
        with pytest.raises(SchemaError, match=r"field 'm' .*map<list<int32>, int32>.* plain keys"):
            RowSerializer(Schema.of(m="map<list<int32>, int32>"))
        with pytest.raises(SchemaError, match="fixed_size_binary of 1 byte or more"):
            RowSerializer(Schema.of(m="fixed_size_binary(0)"))
        with pytest.raises(SchemaError, match="Mars/Base"):
            RowSerializer(Schema.of(t="timestamp[us,Mars/Base]"))
        with pytest.raises(SchemaError, match="a Schema is needed"):
            RowSerializer("int64")

    def test_user_code_that_shrinks_what_is_encoded(self) -> None:
        class Trap:
            def __init__(self, victim: list[Any]) -> None:
                self.victim = victim

            def __index__(self) -> int:
                self.victim.clear()
                return 1

        values: list[Any] = []
        values += [Trap(values), 2, 3]
        with pytest.raises(RecordError, match="changed its length"):
            RowSerializer(Schema.of(v="list<int64>")).dumps([(values,)])
        records: list[Any] = []
        records += [(Trap(records),), (2,), (3,)]
        rows = RowSerializer(Schema.of(v="int64"))
        assert rows.loads(rows.dumps(records)) == [(1,)]

    def test_an_error_of_user_code_comes_through(self) -> None:
        class Broken:
            @property
            def id(self) -> int:
                raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            RowSerializer(A).dumps([Broken()])


class TestFormat:
    """The bytes, written out by hand: a change here is a new format version."""

    def test_golden_block(self) -> None:
        schema = Schema.of(id="int32", name="string?", vec="list<float32>", flag="bool")
        block = RowSerializer(schema, checksum=True).dumps([(7, "ab", [1.5], True), (-1, None, [], False)])
        first = b"\x00" + struct.pack("<iIIB", 7, 2, 6, 1) + b"ab" + struct.pack("<f", 1.5)
        second = b"\x02" + struct.pack("<iIIB", -1, 0, 0, 0)
        body = struct.pack("<I", len(first)) + first + struct.pack("<I", len(second)) + second
        assert block[HEADER_BYTES:] == body
        assert block[:HEADER_BYTES].hex() == "464255460100010129308b5ec0678ce12a0000000000000002000000ef9d7384"

    @pytest.mark.parametrize(
        ("kind", "value", "payload"),
        [
            ("uint64", 2**64 - 1, b"\xff" * 8),
            ("float16", 1.0, b"\x00\x3c"),
            ("decimal(5,2)", decimal.Decimal("-1.00"), b"\x9c" + b"\xff" * 15),
            ("date32", dt.date(1969, 12, 31), b"\xff\xff\xff\xff"),
            ("date64", dt.date(1970, 1, 2), struct.pack("<q", 86_400_000)),
            ("timestamp[ns,UTC]", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC), struct.pack("<q", 10**9)),
            ("time32[ms]", dt.time(0, 0, 1), struct.pack("<i", 1000)),
            ("duration[us]", dt.timedelta(microseconds=-1), b"\xff" * 8),
            ("fixed_size_binary(3)", b"abc", b"abc"),
            ("list<int16>", [1, -1], b"\x04\0\0\0\x01\0\xff\xff"),
            ("list<int16?>", [1, None], b"\x09\0\0\0\x02\0\0\0\x02\x01\0\0\0"),
            ("list<string>", ["a", "bc"], b"\x0f\0\0\0\x02\0\0\0\x01\0\0\0\x03\0\0\0abc"),
            ("struct<a: int8, b: string>", (1, "x"), b"\x06\0\0\0\x01\x01\0\0\0x"),
            ("map<int8, int8>", {1: 2}, b"\x0a\0\0\0\x01\0\0\0\x02\0\0\0\x01\x02"),
            ("dictionary<int8, string>", "hi", b"\x02\0\0\0hi"),
        ],
    )
    def test_golden_payloads(self, kind: str, value: Any, payload: bytes) -> None:
        rows = RowSerializer(Schema.of(x=kind))
        assert rows.encode((value,)) == payload
        assert rows.decode(payload) == (value,)


def _bad_blocks(block: bytes, rng: random.Random, n: int) -> Any:
    for _ in range(n):
        data = bytearray(block)
        match rng.randrange(4):
            case 0:
                del data[rng.randrange(len(data)) :]
            case 1:
                for _ in range(rng.randint(1, 4)):
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            case 2:
                at = rng.randrange(max(1, len(data) - 4))
                data[at : at + 4] = struct.pack("<I", rng.choice([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, len(data)]))
            case 3:
                at = rng.randrange(len(data))
                data[at : at + rng.randrange(8)] = rng.randbytes(rng.randrange(8))
        yield bytes(data)


class TestHostileBytes:
    EVERYTHING = Schema.of(
        a="int8?", b="bool", c="float16", d="decimal(10,2)", e="date", f="timestamp[ns,UTC]", g="time", h="duration",
        i="fixed_size_binary(3)", j="string?", k="binary", l="list<int32>", m="list<string?>",
        n="struct<x: int32, y: list<bool?>>", o="map<string, int64?>", p="fixed_size_list(2)<float32>", q="null?",
        r="list<list<null?>>",
    )  # fmt: skip
    RECORD = (
        1, True, 1.5, decimal.Decimal("1.25"), dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        dt.time(1, 2, 3), dt.timedelta(1), b"abc", "häh", b"xyz", [1, 2], ["a", None, "c"], (1, [True, None]),
        {"a": 1, "b": None}, [1.0, 2.0], None, [[None, None], []],
    )  # fmt: skip

    def test_mutated_blocks_raise_or_decode(self) -> None:
        rng = random.Random(20261121)
        rows = RowSerializer(self.EVERYTHING)
        block = rows.dumps([self.RECORD] * 2)
        assert rows.loads(block) == [self.RECORD] * 2
        refused = 0
        for data in _bad_blocks(block, rng, 20_000):
            try:
                for record in rows.loads(data):
                    assert len(record) == len(self.RECORD)
            except BlockError:
                refused += 1
        assert refused > 10_000

    def test_mutated_payloads_raise_or_decode(self) -> None:
        rng = random.Random(7)
        rows = RowSerializer(self.EVERYTHING)
        payload = rows.encode(self.RECORD)
        refused = 0
        for data in _bad_blocks(payload, rng, 20_000):
            try:
                assert len(rows.decode(data)) == len(self.RECORD)
            except BlockError:
                refused += 1
        assert refused > 5_000

    def test_every_truncation_is_refused(self) -> None:
        rows = RowSerializer(self.EVERYTHING)
        block, payload = rows.dumps([self.RECORD]), rows.encode(self.RECORD)
        for end in range(len(block)):
            with pytest.raises(BlockTruncated):
                rows.loads(block[:end])
        for end in range(len(payload)):
            with pytest.raises(BlockError):
                rows.decode(payload[:end])

    def test_with_a_checksum_every_bit_flip_is_refused(self) -> None:
        rows = RowSerializer(self.EVERYTHING, checksum=True)
        block = bytearray(rows.dumps([self.RECORD]))
        for bit in range(8 * len(block)):
            block[bit >> 3] ^= 1 << (bit & 7)
            with pytest.raises(BlockError):
                rows.loads(block)
            block[bit >> 3] ^= 1 << (bit & 7)
        assert rows.loads(block) == [self.RECORD]

    def test_another_schema(self) -> None:
        with pytest.raises(SchemaMismatch, match=f"{A.fingerprint:016x} .*{re.escape(B.text)}"):
            RowSerializer(B).loads(RowSerializer(A).dumps(records_a(1)))

    @pytest.mark.parametrize("records", [0, 1, 3, 0xFFFFFFFF])
    def test_a_count_that_is_not_the_bodys(self, records: int) -> None:
        rows = RowSerializer(A)
        block = bytearray(rows.dumps(records_a(2)))
        block[24:28] = struct.pack("<I", records)
        with pytest.raises(BlockCorrupt):
            rows.loads(block)
        with pytest.raises(BlockCorrupt):
            list(rows.iter(block))

    def test_a_forged_count_allocates_nothing(self) -> None:
        rows = RowSerializer(Schema.of(x="list<null?>"))
        with pytest.raises(BlockCorrupt, match="items need"):
            rows.decode(struct.pack("<II", 4, 0xFFFFFFFF))

    @pytest.mark.parametrize(
        ("kind", "payload"),
        [
            ("bool", b"\x02"),
            ("date", struct.pack("<i", 2**31 - 1)),
            ("timestamp[s]", struct.pack("<q", 2**63 - 1)),
            ("timestamp[ns]", struct.pack("<q", 1)),
            ("timestamp[s,+05:30]", struct.pack("<q", 253402300799)),
            ("time", struct.pack("<q", 86_400_000_000)),
            ("date64", struct.pack("<q", 1)),
            ("decimal(2,0)", (100).to_bytes(16, "little")),
            ("string", b"\x01\0\0\0\xff"),
            ("null?", b"\0\0"),
        ],
    )
    def test_values_that_no_encoder_writes(self, kind: str, payload: bytes) -> None:
        with pytest.raises(BlockCorrupt, match="field 'x'"):
            RowSerializer(Schema.of(x=kind)).decode(payload)

    def test_null_bit_of_a_field_that_is_not_nullable(self) -> None:
        rows = RowSerializer(Schema.of(x="int8", y="int8?"))
        assert rows.decode(b"\x02\x01\x00") == (1, None)
        with pytest.raises(BlockCorrupt, match=r"field 'x' .*not nullable"):
            rows.decode(b"\x01\x01\x00")

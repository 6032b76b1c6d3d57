"""Lazy rows: each field as the decoder gives it, keys without objects, and bytes that cannot go while they are read."""

from __future__ import annotations

import datetime as dt
import gc
import itertools
import math
import random
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from row_strategies import cells, plain_types, same, schemas_and_records

from fastbuf import ShuffleEnvironment, hash_by
from fastbuf.errors import (
    BlockCorrupt,
    BlockError,
    BlockTruncated,
    RecordError,
    SchemaError,
    SchemaMismatch,
    SegmentExported,
    SegmentStateError,
)
from fastbuf.memory import NetworkBufferPool
from fastbuf.serializers import Field, RowSerializer, Schema
from fastbuf.serializers.block import HEADER_BYTES
from fastbuf.serializers.lazy import LazyRow, LazyRows

S = Schema.of(id="int64", name="string?", vec="list<float64>", raw="binary", small="int16?", on="bool")
RECORDS = [
    (i - 2, None if i % 3 == 0 else f"näme {i}", [i / 2] * (i % 4), bytes([i]) * i, -i if i % 2 else None, i % 2 == 0)
    for i in range(20)
]


class TestReading:
    @given(schemas_and_records())
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    def test_each_field_is_what_loads_gives(self, given_: tuple[Schema, list[tuple[Any, ...]]]) -> None:
        schema, records = given_
        rows = RowSerializer(schema)
        view = rows.view(rows.dumps(records))
        assert len(view) == len(records)
        assert same([row.as_tuple() for row in view], records)
        for place, name in enumerate(schema.names):
            column = [record[place] for record in records]
            assert same(view.values(name), column)
            assert same([row[place] for row in view], column)
            assert same([row[name] for row in view], column)

    def test_a_row_that_is_held_stays_what_it_was(self) -> None:
        """A loop's rows are used again when it has let go of them; nobody else's are."""
        rows = RowSerializer(S)
        view = rows.view(rows.dumps(RECORDS), key="id")
        assert [row.as_tuple() for row in view] == RECORDS
        assert [row.as_tuple() for row in list(view)] == RECORDS
        for held in range(1, 5):
            last: list[LazyRow] = []
            for i, row in enumerate(view):
                last = [*last[1 - held :], row] if held > 1 else [row]
                assert [kept.id for kept in last] == [r[0] for r in RECORDS[max(0, i + 1 - held) : i + 1]]
        every_third = [row for i, row in enumerate(view) if i % 3 == 0]
        assert [row.as_tuple() for row in every_third] == RECORDS[::3]
        threes = iter(view)
        assert [c.id for _, _, c in zip(threes, threes, threes, strict=False)] == [r[0] for r in RECORDS[2::3]]
        other = iter(view)
        first, second = next(other), next(other)
        pair = {first, second}
        del first, second
        assert [row.id for row in other] == [r[0] for r in RECORDS[2:]]
        assert {row.id for row in pair} == {RECORDS[0][0], RECORDS[1][0]}

    def test_one_record(self) -> None:
        rows = RowSerializer(S)
        row = rows.lazy(rows.encode(RECORDS[4]), key="id")
        assert (row.id, row["name"], row[-1], len(row)) == (2, "näme 4", True, 6)
        assert tuple(row) == RECORDS[4]
        assert row.key == (2,)
        assert repr(row).startswith("LazyRow(id=2, name='näme 4', vec=[")
        with pytest.raises(AttributeError, match=r"'nmae'"):
            _ = row.nmae
        with pytest.raises(SchemaError, match=r"no field 'nmae'"):
            row["nmae"]
        with pytest.raises(IndexError, match="field 6 of 6"):
            row[6]

    def test_a_sequence(self) -> None:
        rows = RowSerializer(S)
        view = rows.view(rows.dumps(RECORDS), key=("id", 1))
        assert view.key == ("id", "name")
        assert view[-1].id == 17
        assert [row.id for row in view] == [record[0] for record in RECORDS]
        for bad in (20, -21):
            with pytest.raises(IndexError):
                view[bad]
        assert list(rows.view(rows.dumps([]), key=0)) == []
        with pytest.raises(TypeError, match="view"):
            LazyRow()
        with pytest.raises(TypeError, match="view"):
            LazyRows()

    @pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
    @pytest.mark.parametrize("before", ["bool", "string", "int8?"])
    def test_arrays_of_integers(self, kind: str, before: str) -> None:
        info = np.iinfo(kind)
        numbers = [info.min, 0, 1, info.max]
        rows = RowSerializer(Schema.of(first=before, x=kind))
        first = {"bool": True, "string": "ab", "int8?": None}[before]
        found = rows.view(rows.dumps([(first, x) for x in numbers]), key="x").array("x")
        assert found.dtype == kind
        assert found.tolist() == numbers

    def test_arrays_of_other_types(self) -> None:
        when = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
        schema = Schema.of(
            f="float32", h="float16", b="bool", d="date32", m="date64", t="timestamp[us,UTC]", e="duration[ms]"
        )
        rows = RowSerializer(schema)
        view = rows.view(rows.dumps([(1.5, 0.5, True, when.date(), when.date(), when, dt.timedelta(seconds=2))]))
        found = {name: view.array(name) for name in schema.names}
        assert [str(found[name].dtype) for name in schema.names] == [
            "float32", "float16", "bool", "datetime64[D]", "datetime64[ms]", "datetime64[us]", "timedelta64[ms]",
        ]  # fmt: skip
        assert [found[name][0] for name in "fhb"] == [1.5, 0.5, True]
        assert found["t"][0] == np.datetime64("2026-01-02T03:04:05")
        assert found["d"][0] == found["m"][0] == np.datetime64("2026-01-02")
        assert found["e"][0] == np.timedelta64(2, "s")

    @pytest.mark.parametrize("kind", ["date32", "date64", "timestamp[s]", "timestamp[ns]", "duration[us]"])
    @pytest.mark.parametrize("before", ["int8", "int8?"])
    def test_arrays_of_many_times(self, kind: str, before: str) -> None:
        days = [0, 1, -1, 20_000, -20_000, 365]
        values: list[Any] = [dt.timedelta(days=day) for day in days]
        if "duration" not in kind:
            values = [dt.datetime(1970, 1, 1) + value for value in values]
        if "date" in kind:
            values = [value.date() for value in values]
        rows = RowSerializer(Schema.of(first=before, x=kind))
        found = rows.view(rows.dumps([(1, value) for value in values])).array("x")
        assert found.shape == (len(days),)
        assert found.astype("m8[D]" if "duration" in kind else "M8[D]").astype(int).tolist() == days

    def test_arrays_of_bools(self) -> None:
        rows = RowSerializer(Schema.of(x="int8?", b="bool"))
        block = bytearray(rows.dumps([(1, i % 3 == 0) for i in range(50)]))
        assert rows.view(block).array("b").tolist() == [i % 3 == 0 for i in range(50)]
        block[-1] = 2
        with pytest.raises(BlockCorrupt, match="record 49: field 'b': a bool"):
            rows.view(block).array("b")

    def test_an_array_of_a_field_that_may_be_none_and_is_not(self) -> None:
        rows = RowSerializer(Schema.of(x="int16?", y="string?"))
        records = [(i, None) for i in range(300)]
        view = rows.view(rows.dumps(records))
        assert view.array("x").tolist() == list(range(300))
        with pytest.raises(RecordError, match="record 299: field 'x' is None"):
            rows.view(rows.dumps([*records[:299], (None, "x")])).array("x")

    def test_a_null_where_none_is_allowed_is_no_array(self) -> None:
        rows = RowSerializer(Schema.of(x="int16", y="string?"))
        block = bytearray(rows.dumps([(1, "a")]))
        block[HEADER_BYTES + 4] |= 1  # the bit of x
        for read in (rows.view(block, key="y").array, rows.view(block, key="y").values):
            with pytest.raises(BlockCorrupt, match=r"field 'x'.*not nullable"):
                read("x")

    def test_those_that_python_makes_are_empty(self) -> None:
        for act in (
            lambda row: row[0],
            len,
            hash,
            repr,
            list,
            lambda row: row.key,
            lambda row: row.as_tuple(),
            lambda row: row == row,
        ):
            with pytest.raises(TypeError, match="view"):
                act(LazyRow.__new__(LazyRow))
        view = LazyRows.__new__(LazyRows)
        assert (len(view), list(view)) == (0, [])
        for act in (lambda: view.values("x"), lambda: view.array("x")):
            with pytest.raises(SegmentStateError):
                act()
        view.release()
        iterator = iter(view)
        assert list(type(iterator).__new__(type(iterator))) == []

    def test_what_no_array_holds(self) -> None:
        rows = RowSerializer(S)
        view = rows.view(rows.dumps(RECORDS), key="id")
        with pytest.raises(SchemaError, match=r"field 'name' \(string\) cannot be an array"):
            view.array("name")
        with pytest.raises(RecordError, match=r"record 0: field 'small' is None"):
            view.array("small")


class TestKeys:
    VALUES: ClassVar[dict[str, list[Any]]] = {
        "int8": [-128, -1, 0, 1, 127],
        "int16": [-32768, -257, -1, 0, 255, 256],
        "int32": [-(2**31), -1, 0, 2**31 - 1],
        "int64": [-(2**63), -1, 0, 1, 2**63 - 1],
        "uint8": [0, 1, 128, 255],
        "uint64": [0, 1, 2**63, 2**64 - 1],
        "uint32": [0, 2**31, 2**32 - 1],
        "float64": [-math.inf, -1.5, 0.0, 2.0, math.inf],
        "float32": [-2.5, 0.0, 1.5],
        "float16": [-2.5, 0.0, 1.5],
        "string": ["", "a", "aa", "b", "é", "￿", "\U0001f600"],
        "binary": [b"", b"\0", b"\0\0", b"\x7f", b"\xff"],
        "fixed_size_binary(3)": [b"\0\0\0", b"\0\0\1", b"\xff\0\0"],
        "decimal128(20,2)": [Decimal("-256.01"), Decimal("-256"), Decimal("-1"), Decimal(0), Decimal("255"),
                             Decimal(10**17)],
        "date32": [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)],
        "timestamp": [dt.datetime(1, 1, 1), dt.datetime(1970, 1, 1), dt.datetime(9999, 12, 31)],
        "bool": [False, True],
    }  # fmt: skip

    @pytest.mark.parametrize("kind", VALUES)
    def test_order_and_hash_are_the_values(self, kind: str) -> None:
        rows = RowSerializer(Schema.of(other="list<string>", x=f"{kind}?"))
        values = [None, *self.VALUES[kind]]
        first = list(rows.view(rows.dumps([([], x) for x in values]), key="x"))
        second = list(rows.view(rows.dumps([(["y"], x) for x in values]), key="x"))
        for (i, a), (j, b) in itertools.product(enumerate(first), enumerate(second)):
            assert (a == b) == (i == j)
            assert (a != b) == (i != j)
            assert (a < b, a <= b, a > b, a >= b) == (i < j, i <= j, i > j, i >= j)
            if i == j:
                assert hash(a) == hash(b)
        assert len({hash(row) for row in first}) == len(first)
        shuffled = random.Random(1).sample(second, len(second))
        assert [row.x for row in sorted(shuffled)] == values

    @given(st.data())
    @settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    def test_rows_are_compared_as_their_keys_are(self, data: st.DataObject) -> None:
        kinds = data.draw(st.lists(plain_types(), min_size=1, max_size=3))
        schema = Schema([Field(f"f{i}", kind, data.draw(st.booleans())) for i, kind in enumerate(kinds)])
        few = [data.draw(st.lists(cells(field), min_size=1, max_size=3)) for field in schema]
        records = data.draw(st.lists(st.tuples(*map(st.sampled_from, few)), min_size=2, max_size=6))

        def order(record: tuple[Any, ...]) -> list[tuple[Any, ...]]:
            # None before everything, NaN after it.
            return [(0,) if x is None else (2,) if x != x else (1, x) for x in record]

        rows = RowSerializer(schema)
        view = rows.view(rows.dumps(records), key=schema.names)
        for (i, a), (j, b) in itertools.product(enumerate(view), enumerate(view)):
            left, right = order(records[i]), order(records[j])
            assert (a == b, a < b, a > b) == (left == right, left < right, left > right)
            assert a != b or hash(a) == hash(b)

    @pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
    def test_zeros_are_one_and_nan_is_itself(self, kind: str) -> None:
        rows = RowSerializer(Schema.of(x=kind))
        block = bytearray(rows.dumps([(0.0,), (-0.0,), (math.nan,), (math.nan,), (math.inf,)]))
        block[-2 * (4 + int(kind[5:]) // 8) - 1] ^= 0x80  # the sign of the second NaN
        plus, minus, nan, other, most = rows.view(block)
        assert plus == minus
        assert hash(plus) == hash(minus)
        assert nan == other
        assert hash(nan) == hash(other)
        assert nan > most
        assert len({plus, minus, nan, other, most}) == 3

    def test_a_dict_of_rows(self) -> None:
        rows = RowSerializer(Schema.of(id="int64", name="string", value="float64"))
        records = [(i % 7, f"n{i % 3}", float(i)) for i in range(500)]
        totals: dict[LazyRow, float] = {}
        for row in rows.view(rows.dumps(records), key=("id", "name")):
            totals[row] = totals.get(row, 0.0) + row.value
        expected: dict[tuple[int, str], float] = {}
        for i, name, value in records:
            expected[i, name] = expected.get((i, name), 0.0) + value
        assert {row.key: total for row, total in totals.items()} == expected

    def test_a_key_is_the_same_however_it_is_named_and_however_often(self) -> None:
        rows = RowSerializer(S)
        block = rows.dumps(RECORDS)
        for _ in range(2):
            for key in ("id", 0, -6, ["id"], ("id",), iter(["id"]), [np.int64(-6)]):
                found = rows.view(block, key=key)
                assert found.key == ("id",)
                assert found[3] == rows.lazy(rows.encode(RECORDS[3]), key="id")
        for i in range(200):  # more than are remembered
            key = [S.names[j] for j in (0, 1, 3, 4, 5) if i >> j & 1] or ["id"]
            assert rows.view(block, key=key + ["id"] * (i % 2)).key == (*key, *["id"] * (i % 2))

    def test_what_is_no_key(self) -> None:
        rows = RowSerializer(S)
        block = rows.dumps(RECORDS)
        with pytest.raises(SchemaError, match=r"field 'vec' \(list<float64>\) cannot be in a key"):
            rows.view(block, key=("id", "vec"))
        with pytest.raises(SchemaError, match="one field"):
            rows.view(block, key=())
        with pytest.raises(SchemaError, match="no field 'x'"):
            rows.view(block, key="x")
        with pytest.raises(SchemaError, match="a key of 7 fields"):
            rows.view(block, key=["id"] * 7)
        row = rows.view(block)[0]
        for act in (lambda: hash(row), lambda: row == row, lambda: row.key):
            with pytest.raises(TypeError, match="have no key"):
                act()

    def test_rows_of_other_keys_and_other_things_are_unlike(self) -> None:
        rows = RowSerializer(S)
        block = rows.dumps(RECORDS)
        a, b = rows.view(block, key="id")[0], rows.view(block, key="on")[0]
        assert a != b
        assert a != RECORDS[0]
        with pytest.raises(TypeError):
            _ = a < b
        assert a == RowSerializer(S).view(block, key="id")[0]


class TestLifetime:
    def test_rows_keep_their_bytes(self) -> None:
        rows = RowSerializer(S)
        row = rows.view(bytearray(rows.dumps(RECORDS)), key="id")[3]
        gc.collect()
        assert row.as_tuple() == RECORDS[3]

    def test_a_bytearray_cannot_be_resized_meanwhile(self) -> None:
        rows = RowSerializer(S)
        block = bytearray(rows.dumps(RECORDS))
        row = rows.view(block, key="id")[0]
        with pytest.raises(BufferError):
            block.extend(b"more")
        del row
        block.extend(b"more")

    def test_a_segment_cannot_be_recycled_meanwhile(self) -> None:
        rows = RowSerializer(S)
        block = rows.dumps(RECORDS)
        pool = NetworkBufferPool(segments=4, segment_size=4096)
        local = pool.create_local_pool(required=1, maximum=2)
        segment = local.request(timeout=1.0)
        segment.view()[: len(block)] = block
        with rows.view(segment.view()[: len(block)], key="id") as view:
            row, iterator = view[2], iter(view)
            with pytest.raises(SegmentExported):
                segment.recycle()
            assert row.id == 0
        segment.recycle()
        for act in (
            lambda: row.id,
            lambda: row[0],
            row.as_tuple,
            lambda: hash(row),
            lambda: row == row,
            lambda: row.key,
            lambda: view[0],
            lambda: view.values("id"),
            lambda: view.array("id"),
            lambda: next(iterator),
        ):
            with pytest.raises(SegmentStateError, match="released"):
                act()
        assert repr(row) == "LazyRow(released)"
        view.release()
        local.destroy()


class TestHostileBytes:
    def test_every_truncation_is_refused(self) -> None:
        rows = RowSerializer(S)
        block = rows.dumps(RECORDS)
        for end in range(len(block)):
            with pytest.raises(BlockTruncated):
                rows.view(block[:end], key="id")
        payload = rows.encode(RECORDS[1])
        with pytest.raises(BlockTruncated, match=r"needs 24 bytes and has 20"):
            rows.lazy(payload[:20])

    def test_another_schema_or_count(self) -> None:
        rows = RowSerializer(S)
        block = bytearray(rows.dumps(RECORDS))
        with pytest.raises(SchemaMismatch):
            RowSerializer(Schema.of(id="int64")).view(block)
        for count in (0, 19, 21, 0xFFFFFFFF):
            block[24:28] = count.to_bytes(4, "little")
            with pytest.raises(BlockCorrupt, match=r"\d"):
                rows.view(block)

    def test_mutated_blocks_raise_or_decode(self) -> None:
        rng = random.Random(11)
        rows = RowSerializer(S)
        block = rows.dumps(RECORDS)
        refused = 0
        for _ in range(3000):
            data = bytearray(block)
            for _ in range(rng.randint(1, 3)):
                data[rng.randrange(HEADER_BYTES, len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            try:
                view = rows.view(data, key=("id", "name", "raw"))
                for name in S.names:
                    view.values(name)
                sorted(view)
                {row: row.as_tuple() for row in view}
            except BlockError:
                refused += 1
        assert refused > 500

    def test_values_are_refused_as_row_by_row(self) -> None:
        """The same values, or the same words about the same record."""

        def told(read: Callable[[], list[Any]]) -> list[Any] | str:
            try:
                return read()
            except BlockError as error:
                return str(error)

        def one_by_one(view: LazyRows, name: str) -> list[Any]:
            found = []
            for i, row in enumerate(view):
                try:
                    found.append(row[name])
                except BlockError as error:
                    raise type(error)(f"record {i}: {error}") from None
            return found

        rng = random.Random(12)
        rows = RowSerializer(S)
        block = rows.dumps(RECORDS)
        refused = set()
        for _ in range(1500):
            data = bytearray(block)
            data[rng.randrange(HEADER_BYTES, len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            try:
                view = rows.view(data, key="id")
            except BlockError:
                continue
            for name in S.names:
                found = told(partial(view.values, name))
                assert same(found, told(partial(one_by_one, view, name)))
                if isinstance(found, str):
                    refused.add((name, found.partition(":")[0]))
        assert {name for name, _ in refused} >= {"id", "name", "raw", "vec", "on"}
        assert len(refused) > 60

    def test_bytes_that_change_under_a_view(self) -> None:
        rows = RowSerializer(S)
        block = bytearray(rows.dumps(RECORDS))
        view = rows.view(block, key="name")
        for at in range(HEADER_BYTES, len(block)):
            block[at] = 0xFF
        for act in (lambda: view.values("raw"), lambda: view[3]["raw"], view[3].as_tuple):
            with pytest.raises(BlockCorrupt):
                act()


class TestWriting:
    def test_fields_that_are_called_like_a_rows_own_attributes(self) -> None:
        """They are fields to whoever writes the row."""
        schema = Schema.of(key="string", as_tuple="int64", n="int64")
        rows, swapped = RowSerializer(schema), RowSerializer(Schema.of(n="int64", as_tuple="int64", key="string"))
        records = [(f"k{i}", i, -i) for i in range(40)]
        view = rows.view(rows.dumps(records), key="n")
        assert rows.loads(rows.dumps(list(view))) == records
        assert swapped.loads(swapped.dumps(list(view))) == [record[::-1] for record in records]
        with ShuffleEnvironment(segments=64, segment_size=4096) as env:
            parts = []
            for source in (list(view), records):
                writer, gates = env.exchange(rows, consumers=3, selector=hash_by("key", "as_tuple"))
                writer.emit_many(source)
                writer.close()
                parts.append([list(gate) for gate in gates])
        assert parts[0] == parts[1]

    def test_a_row_without_a_field_is_refused(self) -> None:
        rows = RowSerializer(Schema.of(a="int64"))
        row = rows.view(rows.dumps([(1,)]))[0]
        with pytest.raises(RecordError, match="'b'"):
            RowSerializer(Schema.of(b="int64")).dumps([row])

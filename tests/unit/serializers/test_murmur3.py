"""Murmur3 as Spark computes it: golden values taken once from ``F.hash`` of Spark 4.3.0."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal as D

import numpy as np
import pyarrow as pa
import pytest

from fastbuf.errors import SchemaError
from fastbuf.serializers.columnar import from_numpy
from fastbuf.serializers.murmur3 import murmur3_hash
from fastbuf.serializers.partition import HashPartitioner, hash_partition

NAN, INF = float("nan"), float("inf")
UTC = dt.UTC
STRINGS = ["", "a", "ab", "abc", "abcd", "abcde", "user-123456", "Grüße", "日本語", "\U0001f600x", None]
STRING_HASHES = [142593372, 1485273170, -97053317, 1322437556, -396302900, 814637928, -90287910, 1598803708]
STRING_HASHES += [-1143049834, -1814635023, 42]
BINARIES = [b"", b"\x80", b"\xff\xfe\xfd", b"\x00\x01\x02\x03\x80"]
BINARY_HASHES = [142593372, 775851899, -1550104651, 1826215765]
DOUBLES = [0.0, -0.0, 1.5, -1.5, NAN, INF, -INF, 1e300]
DOUBLE_HASHES = [-1670924195, -1670924195, 1290763749, 2099784398, -1281358385, 833680482, 461104036, -359479591]
LONGS = [0, 1, -1, 42, 2**63 - 1, -(2**63), 1 << 32, 123456789012]
LONG_HASHES = [-1670924195, -1712319331, -939490007, 1316951768, -1604625029, -853646085, -1307033787, -1439831649]

GOLDEN = [
    (pa.bool_(), [True, False, None], [-559580957, 933211791, 42]),
    (pa.int8(), [0, 1, -1, 127, -128, None], [933211791, -559580957, -1604776387, 1135925485, 1110053733, 42]),
    (pa.int16(), [0, 1, -1, 32767, -32768], [933211791, -559580957, -1604776387, 1249274084, -1871935946]),
    (
        pa.int32(),
        [0, 1, -1, 2**31 - 1, -(2**31), 42],
        [933211791, -559580957, -1604776387, 133916647, 723455942, 29417773],
    ),
    (pa.int64(), LONGS, LONG_HASHES),
    (
        pa.float32(),
        [0.0, -0.0, 1.5, -1.5, NAN, INF, -INF],
        [933211791, 933211791, -221251528, 1765572753, -349261430, 2026854605, 427440766],
    ),
    (pa.float64(), DOUBLES, DOUBLE_HASHES),
    (pa.string(), STRINGS, STRING_HASHES),
    (pa.large_string(), STRINGS, STRING_HASHES),
    (pa.binary(), BINARIES, BINARY_HASHES),
    (pa.large_binary(), BINARIES, BINARY_HASHES),
    (pa.binary(5), BINARIES[3:], BINARY_HASHES[3:]),
    (
        pa.date32(),
        [dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(1900, 1, 1)],
        [933211791, 653915859, -28786220],
    ),
    (
        pa.timestamp("us", "UTC"),
        [dt.datetime(1970, 1, 1, tzinfo=UTC), dt.datetime(2024, 2, 29, 12, 34, 56, 789012, tzinfo=UTC)],
        [-1670924195, -1367554535],
    ),
    (pa.duration("us"), [dt.timedelta(0), dt.timedelta(days=-1, microseconds=5)], [-1670924195, 2020312326]),
    (pa.time64("ns"), [dt.time(0, 0), dt.time(12, 34, 56, 789012)], [-1670924195, -1863542701]),
    (pa.decimal128(9, 2), [D("0"), D("1.23"), D("-1234567.89")], [-1670924195, -46242105, -216967921]),
    (pa.decimal128(18, 4), [D("12345678901234.5678"), D("-0.0001")], [367821349, -939490007]),
    (
        pa.decimal128(20, 2),
        [D(x) for x in ("0", "1.27", "1.28", "-1.28", "-1.29", "2.55", "2.56", "123456789012345678.99")],
        [-783713497, 1185089389, -544401882, 775851899, -771458971, 1246198977, 188218374, 370148010],
    ),
    (
        pa.decimal128(38, 0),
        [D(10) ** 37, -(D(10) ** 37), D(255), D(256), D(-1)],
        [216387744, 1461205389, 1246198977, 188218374, 1398487324],
    ),
    (pa.list_(pa.int32()), [[], [1], [1, 2, None, 3], None], [42, -559580957, -912918097, 42]),
    (pa.list_(pa.string()), [["a", "bc", None], []], [204370463, 42]),
    (pa.large_list(pa.list_(pa.int64())), [[[1, 2], None, [3]], []], [1045631400, 42]),
    (
        pa.struct([("x", pa.int32()), ("y", pa.string())]),
        [{"x": 1, "y": "a"}, {"x": None, "y": "b"}, None],
        [-936062819, 1905031361, 42],
    ),
    (pa.null(), [None, None], [42, 42]),
]


@pytest.mark.parametrize(
    ("kind", "values", "hashes"), GOLDEN, ids=lambda x: str(x) if isinstance(x, pa.DataType) else ""
)
def test_golden(kind: pa.DataType, values: list, hashes: list[int]) -> None:
    array = pa.array(values, kind)
    assert murmur3_hash([array]).tolist() == hashes
    # Behind an offset that is no multiple of 8, and long enough for the vector loop and its rest.
    many = pa.array([None, *values, None, None] * 100, kind)
    for start in (1, 3):
        assert murmur3_hash([many.slice(start)]).tolist() == ([42, *hashes, 42, 42] * 100)[start:]


def test_chained_over_columns() -> None:
    batch = pa.record_batch({"i": pa.array([1, None, 3]), "s": ["a", "b", None], "d": [2.5, None, -0.0]})
    expected = [479730330, 1905031361, 829225000]
    assert murmur3_hash(batch).tolist() == expected
    assert murmur3_hash([batch.column(i) for i in range(3)]).tolist() == expected
    first = murmur3_hash([batch.column(0)])
    assert murmur3_hash([batch.column(1).slice(0, 1)], seed=int(first[0])).tolist() == [
        murmur3_hash([batch.column(0).slice(0, 1), batch.column(1).slice(0, 1)])[0]
    ]


@pytest.mark.parametrize(
    ("array", "hashes"),
    [
        (np.array(LONGS, np.int64), LONG_HASHES),
        (np.array(LONGS, np.int64)[::-1], LONG_HASHES[::-1]),
        (np.array(DOUBLES), DOUBLE_HASHES),
        (np.array([True, False]), [-559580957, 933211791]),
        (np.array([1, 255], np.uint8), [-559580957, murmur3_hash([np.array([255], np.int32)])[0]]),
        (np.array([2**32 - 1], np.uint32), [murmur3_hash([np.array([2**32 - 1], np.int64)])[0]]),
        (np.array(["1970-01-01", "2024-02-29"], "datetime64[D]"), [933211791, 653915859]),
        (np.array(["1970-01-01"], "datetime64[us]"), [-1670924195]),
    ],
)
def test_numpy(array: np.ndarray, hashes: list[int]) -> None:
    found = murmur3_hash([array])
    assert found.dtype == np.int32
    assert found.tolist() == list(hashes)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1], pa.uint64()),
        pa.array([np.float16(1)], pa.float16()),
        pa.array([1], pa.timestamp("ns")),
        pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
        pa.array(["x"]).dictionary_encode(),
        pa.array([D(1)], pa.decimal256(50, 0)),
        np.array([1], ">i8"),
        np.array(["x"]),
        np.array([1], np.uint64),
    ],
    ids=lambda x: str(x.type) if hasattr(x, "type") else str(x.dtype),
)
def test_refused_by_name(column: object) -> None:
    with pytest.raises(SchemaError, match=r"cast|Spark cannot hash maps"):
        murmur3_hash([column])


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="at least one column"):
        murmur3_hash([])
    with pytest.raises(ValueError, match="2 rows, the one before 1"):
        murmur3_hash([np.array([1]), np.array([1, 2])])
    with pytest.raises(TypeError, match="is a list"):
        murmur3_hash([[1, 2]])
    assert murmur3_hash([np.array([], np.int64)]).shape == (0,)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 200, 1000, 65537, (1 << 30) - 1, 1 << 30])
def test_partition_is_pmod(n: int) -> None:
    values = np.concatenate([np.random.default_rng(n).integers(-(2**62), 2**62, 5000), np.arange(-500, 500)])
    batch = pa.record_batch({"k": values, "s": pa.array([str(v) for v in values])})
    hashes = murmur3_hash([values]).astype(np.int64)
    assert (hash_partition(batch, "k", n) == hashes % n).all()
    both = murmur3_hash(batch).astype(np.int64)
    assert (hash_partition(batch, ["k", 1], n) == both % n).all()


def test_partition_of_structured_arrays() -> None:
    """As of the batch that the array makes: names, positions, several keys, fields that are no keys, strides."""
    r = np.random.default_rng(1)
    array = np.zeros(1000, [("a", "<i4"), ("s", "U7"), ("x", "<f8"), ("d", "<M8[D]"), ("v", "<f4", (3,))])
    array["a"], array["x"] = r.integers(-50, 50, 1000), r.random(1000)
    array["s"] = array["a"].astype(str)
    array["d"] = r.integers(0, 9999, 1000)
    batch = from_numpy(array)
    for keys in ("a", ["s", "a"], ["x", 0], 3, ["v", "d"], ["a", "a"]):
        assert (hash_partition(array, keys, 13) == hash_partition(batch, keys, 13)).all()
        assert (hash_partition(array[::3], keys, 13) == hash_partition(batch, keys, 13)[::3]).all()
    assert (hash_partition(array, "a", 1000) == murmur3_hash([array["a"]]).astype(np.int64) % 1000).all()
    partitioner = HashPartitioner("a", 7)
    assert (partitioner.partition(array) == partitioner.partition(batch)).all()
    assert hash_partition(array[:0], "a", 3).shape == (0,)
    with pytest.raises(SchemaError, match="0 columns named 'nope'"):
        hash_partition(array, ["a", "nope"], 2)
    with pytest.raises(SchemaError, match="has no fields"):
        hash_partition(np.arange(3), 0, 2)


def test_partition_of_extreme_hashes() -> None:
    """Remainders next to 0 and n, where a quotient by doubles could be one off."""
    hashes = np.arange(-(1 << 21), 1 << 21) * 1021
    batch = pa.record_batch({"k": hashes})
    found = murmur3_hash([hashes])
    for n in (3, 641, 6700417 % (1 << 30), 715827883):
        assert (hash_partition(batch, 0, n) == found.astype(np.int64) % n).all()


def test_partitioner_follows_the_schema() -> None:
    one = pa.record_batch({"k": pa.array([1, 2, 3])})
    other = pa.record_batch({"x": ["a"], "k": ["b"]})
    keys = HashPartitioner("k", 5)
    assert keys.partition(one).tolist() == hash_partition(one, "k", 5).tolist()
    assert keys.partition(other).tolist() == hash_partition(other, "k", 5).tolist()
    assert keys.partition(one.slice(0, 0)).shape == (0,)
    with pytest.raises(SchemaError, match="0 columns named 'nope'"):
        hash_partition(one, "nope", 2)
    with pytest.raises(SchemaError, match="key column 3"):
        hash_partition(one, 3, 2)
    with pytest.raises(ValueError, match="partitions is 0"):
        hash_partition(one, "k", 0)
    with pytest.raises(ValueError, match="at least one key"):
        hash_partition(one, [], 2)

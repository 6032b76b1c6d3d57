"""NumPy structured arrays through columns and back, and the dtypes of schemas."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest

from fastbuf.errors import RecordError, SchemaError
from fastbuf.serializers import ColumnarSerializer, Schema, structured_array

pa = pytest.importorskip("pyarrow", reason="they travel as record batches")
DTYPE = np.dtype(
    [("b", "?"), ("i", "<i2"), ("u", "<u8"), ("h", "<f2"), ("f", "<f4"), ("d", "<f8"), ("s", "S3"), ("t", "U3"),
     ("v", "V4"), ("day", "<M8[D]"), ("ts", "<M8[ms]"), ("td", "<m8[ns]"), ("m", "<f4", (2, 3)),
     ("n", [("x", "i1"), ("y", "<M8[us]", (2,))])]
)  # fmt: skip


def array(rows: int) -> np.ndarray:
    made = np.zeros(rows, DTYPE)
    rng = np.random.default_rng(1)
    for name in ("b", "i", "u", "h", "f", "d", "m"):
        made[name] = rng.integers(0, 100, made[name].shape)
    made["s"], made["t"] = [b"abc", b"", b"x\0y"][: rows or 1][0], "né"
    made["v"] = np.frombuffer(rng.bytes(4 * rows), "V4")
    made["day"], made["ts"], made["td"] = rng.integers(-9999, 9999, (3, rows))
    made["n"]["x"], made["n"]["y"] = 7, rng.integers(-9999, 9999, (rows, 2))
    return made


@pytest.mark.parametrize("rows", [1, 50])
def test_there_and_back(rows: int) -> None:
    given = array(rows)
    cols = ColumnarSerializer(Schema.from_numpy(given.dtype))
    for piece in (given, given[rows // 2 :], given[::-1]):
        found = structured_array(cols.loads(cols.dumps(piece)))
        for name in DTYPE.names or ():
            assert found[name].dtype.kind == DTYPE[name].base.kind
            if name == "n":
                assert found[name].tobytes() == np.ascontiguousarray(piece[name]).tobytes()
            else:
                assert found[name].tolist() == piece[name].tolist(), name
    assert found["m"].dtype == np.float32
    assert found["n"].dtype == DTYPE["n"]
    sliced = structured_array(pa.record_batch({"v": pa.array([b"ab", b"cd", b"ef"], pa.binary(2))}).slice(1))
    assert sliced["v"].tolist() == [b"cd", b"ef"]


def test_no_rows_and_no_columns() -> None:
    empty = array(50)[:0]
    cols = ColumnarSerializer(Schema.from_numpy(empty.dtype))
    assert structured_array(cols.loads(cols.dumps(empty))).shape == (0,)
    assert structured_array(pa.record_batch([], schema=pa.schema([]))).shape == (0,)


def test_dictionaries_views_and_zones() -> None:
    at = dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)
    batch = pa.record_batch(
        {
            "d": pa.array(["a", "b", "a"]).dictionary_encode(),
            "w": pa.array(["x", "longer", ""], pa.string_view()),
            "z": pa.array([at] * 3, pa.timestamp("us", "Europe/Berlin")),
        }
    )
    found = structured_array(batch)
    assert found["d"].tolist() == ["a", "b", "a"]
    assert found["w"].tolist() == ["x", "longer", ""]
    assert found["z"].tolist() == [at.replace(tzinfo=None)] * 3


def test_dtypes_of_schemas() -> None:
    plain = [name for name in DTYPE.names or () if name not in "st"]
    dtype = np.dtype([(name, DTYPE[name]) for name in plain])
    assert Schema.from_numpy(dtype).to_numpy() == dtype
    assert Schema.of(z="timestamp[us,UTC]", c="dictionary<int8, int32>", d="date64").to_numpy() == np.dtype(
        [("z", "<M8[us]"), ("c", "<i4"), ("d", "<M8[ms]")]
    )


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("int8?", "'bad' is nullable"),
        ("string", "'bad' has the type string"),
        ("struct<x: decimal(5,2)>", r"'bad\.x' has the type decimal128"),
        ("fixed_size_list(2)<int8?>", r"'bad\[\]' is nullable"),
        ("null?", "'bad' is nullable"),
        ("time64[us]", "'bad' has the type time64"),
    ],
)
def test_what_no_dtype_holds(kind: str, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        Schema.of(ok="int8", bad=kind).to_numpy()


def test_what_no_array_holds() -> None:
    with pytest.raises(RecordError, match="'x' has 1 nulls"):
        structured_array(pa.record_batch({"x": [1, None]}))
    with pytest.raises(RecordError, match=r"'s\.x' has 1 nulls"):
        structured_array(pa.record_batch({"s": [{"x": 1}, {"x": None}]}))
    for column in (pa.array([[1]]), pa.array([dt.time()])):
        with pytest.raises(SchemaError, match="'x' has the type"):
            structured_array(pa.record_batch({"x": column}))


def test_masks_are_not_passed_over() -> None:
    """What a mask hides came out as a value."""
    pairs = np.array([(1, 0.5), (2, 1.5)], [("id", "<i8"), ("x", "<f4")])
    masked = np.ma.masked_array(pairs, mask=[(True, False), (False, False)])
    columns = ColumnarSerializer(Schema.from_numpy(pairs.dtype))
    with pytest.raises(RecordError, match="masked"):
        columns.dumps(masked)
    assert columns.loads(columns.dumps(masked.filled(7)))["id"].to_pylist() == [7, 2]

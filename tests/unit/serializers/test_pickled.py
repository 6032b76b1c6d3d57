"""Pickles: any object there and back, cloudpickle where plain pickle cannot, and blocks that were altered."""

from __future__ import annotations

import pickle
import random
import struct
import subprocess
import sys
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbuf.errors import BlockCorrupt, BlockError, BlockTruncated, RecordError
from fastbuf.serializers import PickledSerializer
from fastbuf.serializers.block import HEADER_BYTES

OBJECTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=8,
)


class Counted:
    """Counts how often it was pickled."""

    times = 0

    def __reduce__(self) -> Any:
        Counted.times += 1
        return bytes, (b"x" * 5000,)


class TestRoundTrip:
    @given(st.lists(OBJECTS, max_size=5), st.booleans())
    @settings(max_examples=60, deadline=None)
    def test_any_object(self, records: list[Any], checksum: bool) -> None:
        pickled = PickledSerializer(checksum=checksum)
        block = pickled.dumps(iter(records))
        assert pickled.loads(block) == records
        assert list(pickled.iter(bytearray(block))) == records
        for record in records:
            assert pickled.decode(pickled.encode(record)) == record

    def test_a_large_one(self) -> None:
        pickled = PickledSerializer()
        record = {"raw": bytes(3 << 20), "array": bytearray(5000)}
        assert pickled.loads(pickled.dumps([record, 1])) == [record, 1]

    def test_what_plain_pickle_cannot_do(self) -> None:
        pytest.importorskip("cloudpickle", reason="lambdas need cloudpickle")
        base = 5
        pickled = PickledSerializer()
        (found,) = pickled.loads(pickled.dumps([lambda x: x + base]))
        assert found(1) == 6

    def test_without_cloudpickle_the_error_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "cloudpickle", raising=False)
        monkeypatch.setattr(sys, "path", [])
        with pytest.raises(RecordError, match=r"record 1: cannot pickle a function: .*cloudpickle.* not installed"):
            PickledSerializer().dumps([1, lambda: 0])

    def test_what_nobody_can_pickle(self) -> None:
        with pytest.raises(RecordError, match=r"record 2: cannot pickle a lock: "):
            PickledSerializer().dumps([1, 2, threading.Lock()])

    def test_an_error_of_user_code_comes_through(self) -> None:
        class Broken:
            def __reduce__(self) -> Any:
                raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            PickledSerializer().dumps([Broken()])

    def test_pickled_serializer_still_works(self) -> None:
        copy = pickle.loads(pickle.dumps(PickledSerializer(checksum=True)))
        assert (copy.kind, copy.schema, copy.fingerprint, copy.checksum) == ("pickled", None, 0, True)

    def test_a_record_that_did_not_fit_is_not_pickled_again(self) -> None:
        # encode() begins with little room and calls again with enough, as a writer at the end of a segment does.
        pickled = PickledSerializer()
        record = Counted()
        Counted.times = 0
        assert pickled.decode(pickled.encode(record)) == b"x" * 5000
        assert Counted.times == 1
        pickled.encode(record)
        assert Counted.times == 2

    def test_cloudpickle_is_imported_when_needed_only(self) -> None:
        code = (
            "import sys; from fastbuf.serializers import PickledSerializer as P; P().loads(P().dumps([1, 'a']));"
            "print('cloudpickle' in sys.modules)"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        assert out.stdout.strip() == "False"


class TestFormat:
    def test_golden_block(self) -> None:
        block = PickledSerializer(checksum=True).dumps([None, 7])
        body = b"\x04\0\0\0\x80\x05N.\x05\0\0\0\x80\x05K\x07."
        assert block[HEADER_BYTES:] == body
        assert block[:HEADER_BYTES].hex() == "46425546010003010000000000000000110000000000000002000000c49eea07"


class TestHostileBytes:
    """The frame around the pickles only: what a pickle says is run, so bytes within it are nobody's to forge."""

    def test_every_truncation_is_refused(self) -> None:
        pickled = PickledSerializer()
        block = pickled.dumps([1, "two", [3]])
        for end in range(len(block)):
            with pytest.raises(BlockTruncated):
                pickled.loads(block[:end])
            with pytest.raises(BlockError):
                pickled.decode(block[HEADER_BYTES + 4 : HEADER_BYTES + 4 + min(end, 3)])

    def test_with_a_checksum_every_bit_flip_is_refused(self) -> None:
        pickled = PickledSerializer(checksum=True)
        block = bytearray(pickled.dumps([1, "two", [3]]))
        for bit in range(8 * len(block)):
            block[bit >> 3] ^= 1 << (bit & 7)
            with pytest.raises(BlockError):
                pickled.loads(block)
            block[bit >> 3] ^= 1 << (bit & 7)

    def test_forged_lengths_and_counts(self) -> None:
        rng = random.Random(5)
        pickled = PickledSerializer()
        block = pickled.dumps([1, 2, 3])
        for at in (24, HEADER_BYTES, HEADER_BYTES + 9):
            for value in (0, 1, 4, 6, 100, 0x7FFFFFFF, 0xFFFFFFFF, rng.getrandbits(32)):
                data = bytearray(block)
                data[at : at + 4] = struct.pack("<I", value)
                if data != block:
                    with pytest.raises(BlockError):
                        pickled.loads(data)

    def test_what_is_no_pickle(self) -> None:
        with pytest.raises(BlockCorrupt, match=r"a pickle of 3 bytes cannot be read \(UnpicklingError"):
            PickledSerializer().decode(b"abc")
        with pytest.raises(BlockTruncated):
            PickledSerializer().decode(b"")

"""Pickles: any object there and back, cloudpickle where plain pickle cannot, and blocks that were altered."""

from __future__ import annotations

import pickle
import random
import struct
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbuf.errors import BlockCorrupt, BlockError, BlockTruncated, ConfigError, RecordError
from fastbuf.serializers import PickledSerializer
from fastbuf.serializers.block import FLAG_GROUPS, HEADER_BYTES, KIND_PICKLED, encode_header

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

    def test_the_cloudpickle_that_was_asked_for_knows_the_class_again(self) -> None:
        from_spark = pytest.importorskip("pyspark.cloudpickle", reason="of pyspark")
        local = type("Local", (), {"__module__": "no_module"})
        shipped = from_spark.dumps(local)  # Spark's tracker knows it from now on
        pickled = pickle.loads(pickle.dumps(PickledSerializer(cloudpickle="pyspark.cloudpickle")))
        (found,) = pickled.loads(pickled.dumps([local()]))
        assert type(found) is local is pickle.loads(shipped)
        assert b"pyspark.cloudpickle" not in PickledSerializer().dumps([local()])  # there is no task of Spark here
        with pytest.raises(ConfigError, match="cloudpickle is 'dill'"):
            PickledSerializer(cloudpickle="dill")

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
        block = PickledSerializer(checksum=True, group=1).dumps([None, 7])
        body = b"\x04\0\0\0\x80\x05N.\x05\0\0\0\x80\x05K\x07."
        assert block[HEADER_BYTES:] == body
        assert block[:HEADER_BYTES].hex() == "46425546010003010000000000000000110000000000000002000000c49eea07"

    def test_golden_group(self) -> None:
        block = PickledSerializer().dumps([None, 7, 8])
        first = pickle.dumps([None], 5)
        rest = pickle.dumps([7, 8], 5)
        body = struct.pack("<I", len(first)) + first + struct.pack("<I", len(rest)) + rest
        assert block[HEADER_BYTES:] == body
        assert (block[7], block[24]) == (FLAG_GROUPS, 3)

    def test_golden_buffers(self) -> None:
        array = np.arange(4096, dtype=np.uint8)
        payload = PickledSerializer().encode(array)
        inner = int.from_bytes(payload[8:16], "little")
        assert payload[:24] == b"B\0\0\0" + struct.pack("<IQQ", 1, inner, 4096)
        assert payload[24 : 24 + inner] == pickle.dumps(array, 5, buffer_callback=lambda _: None)
        assert payload[24 + inner :] == array.tobytes()


class TestBuffersOutside:
    def test_arrays_are_not_in_the_pickle(self) -> None:
        pickled = PickledSerializer()
        record = {"x": np.arange(100_000.0), "f": np.asfortranarray(np.ones((100, 200))), "small": np.arange(3)}
        for found in (pickled.decode(pickled.encode(record)), *pickled.loads(pickled.dumps([record, 1]))[:1]):
            assert all(np.array_equal(found[name], record[name]) for name in record)
            assert found["f"].flags.f_contiguous
            found["x"][0] = 5.0
        payload = pickled.encode(record)
        assert int.from_bytes(payload[4:8], "little") == 2
        assert int.from_bytes(payload[8:16], "little") < 1000

    def test_read_only_stays_read_only_and_strides_are_copied(self) -> None:
        array = np.arange(10_000)
        array.flags.writeable = False
        pickled = PickledSerializer()
        same, strided = pickled.loads(pickled.dumps([array, np.arange(20_000)[::2]]))
        assert not same.flags.writeable
        assert np.array_equal(same, array)
        assert np.array_equal(strided, np.arange(20_000)[::2])

    def test_cloudpickle_leaves_them_outside_too(self) -> None:
        pytest.importorskip("cloudpickle", reason="lambdas need cloudpickle")
        array = np.arange(10_000)
        payload = PickledSerializer().encode((lambda x: x + 1, array))
        assert payload[:1] == b"B"
        function, found = PickledSerializer().decode(payload)
        assert function(1) == 2
        assert np.array_equal(found, array)

    def test_a_record_that_waits_for_room_keeps_its_buffers(self) -> None:
        class Owner:
            def __init__(self) -> None:
                self.data = bytearray(b"x" * 10_000)

            def __reduce_ex__(self, protocol: int) -> Any:
                return bytes, (pickle.PickleBuffer(self.data),)

        assert PickledSerializer().decode(PickledSerializer().encode(Owner())) == b"x" * 10_000

    def test_every_truncation_and_forged_lengths(self) -> None:
        pickled = PickledSerializer()
        payload = pickled.encode([np.arange(2000), np.ones(1000)])
        for end in [*range(200), *range(200, len(payload), 501)]:
            with pytest.raises(BlockTruncated):
                pickled.decode(payload[:end])
        with pytest.raises(BlockCorrupt, match="1 bytes are left over after 2 buffers"):
            pickled.decode(payload + b"x")
        for at in (4, 8, 16, 24):
            for value in (0, 1, 0x7FFFFFFF, 0xFFFFFFFF):
                forged = payload[:at] + struct.pack("<I", value) + payload[at + 4 :]
                with pytest.raises(BlockError):
                    pickled.decode(forged)
        with pytest.raises(BlockCorrupt, match="neither"):
            pickled.decode(b"B\1" + payload[2:])


class TestGroups:
    def test_sizes_follow_the_records(self) -> None:
        def elements(block: bytes) -> list[int]:
            at, found = HEADER_BYTES, []
            while at < len(block):
                size = int.from_bytes(block[at : at + 4], "little")
                found.append(len(pickle.loads(block[at + 4 : at + 4 + size])))
                at += 4 + size
            return found

        assert elements(PickledSerializer().dumps(list(range(1000)))) == [1, 256, 256, 256, 231]
        assert elements(PickledSerializer(group=10).dumps(tuple(range(25)))) == [1, 10, 10, 4]
        assert elements(PickledSerializer().dumps([b"x" * 40_000] * 4)) == [1, 1, 1, 1]

    def test_an_iterator_is_pickled_as_it_comes(self) -> None:
        record: list[int] = []

        def grows() -> Any:
            for i in range(4):
                record.append(i)
                yield record

        assert PickledSerializer().loads(PickledSerializer().dumps(grows())) == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]

    def test_one_that_only_cloudpickle_can(self) -> None:
        pytest.importorskip("cloudpickle", reason="lambdas need cloudpickle")
        found = PickledSerializer().loads(PickledSerializer().dumps([1, 2, lambda: 3]))
        assert [*found[:2], found[2]()] == [1, 2, 3]

    def test_a_pickler_that_failed_is_not_used_again(self) -> None:
        class Broken:
            def __reduce__(self) -> Any:
                raise ZeroDivisionError("mine")

        pickled = PickledSerializer()
        shared = ["shared"] * 3
        for record in (Broken(), [shared, Broken()]):
            with pytest.raises(ZeroDivisionError):
                pickled.encode(record)
            assert pickled.decode(pickled.encode([shared, shared])) == [shared, shared]

    def test_pickling_that_uses_the_same_serializer(self) -> None:
        pickled = PickledSerializer()

        class Inner:
            def __reduce__(self) -> Any:
                return bytes, (pickled.encode(["inner", 1]),)

        found = pickled.decode(pickled.encode([Inner(), "outer"]))
        assert found[1] == "outer"
        assert pickled.decode(found[0]) == ["inner", 1]

    def test_a_group_that_is_no_list(self) -> None:
        for records in (7, [], [1, 2, 3]):
            body = struct.pack("<I", len(pickle.dumps(records))) + pickle.dumps(records)
            block = encode_header(KIND_PICKLED, FLAG_GROUPS, 0, len(body), 2, 0) + body
            for read in (PickledSerializer().loads, lambda b: list(PickledSerializer().iter(b))):
                with pytest.raises(BlockCorrupt):
                    read(block)


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

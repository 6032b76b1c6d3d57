"""The header of a block, and CRC32C."""

from __future__ import annotations

import struct

import pytest

from fastbuf.errors import BlockCorrupt, BlockTruncated, SchemaMismatch
from fastbuf.serializers.block import (
    FLAG_CRC,
    HEADER_BYTES,
    KIND_COLUMNAR,
    KIND_PICKLED,
    KIND_ROW,
    VERSIONS,
    check_block,
    encode_header,
)
from fastbuf.serializers.checksum import crc32c

BODY = b"0123456789"
PRINT = 0x1122334455667788


def block(**other: int) -> bytes:
    values = {"kind": KIND_ROW, "flags": 0, "fingerprint": PRINT, "body_bytes": len(BODY), "records": 3, "crc": 0}
    return encode_header(**{**values, **other}) + BODY


class TestHeader:
    def test_golden(self) -> None:
        header = encode_header(KIND_PICKLED, FLAG_CRC, PRINT, 0x0102030405, 7, 0xDEADBEEF)
        assert header.hex(" ", 4) == "46425546 01000301 88776655 44332211 05040302 01000000 07000000 efbeadde"

    def test_each_kind_has_its_version(self) -> None:
        assert VERSIONS == {KIND_ROW: 1, KIND_COLUMNAR: 2, KIND_PICKLED: 1}
        header = encode_header(KIND_COLUMNAR, 0, PRINT, 0, 0, 0)
        assert header[4:6] == b"\x02\x00"
        assert check_block(header, KIND_COLUMNAR, PRINT)[0] == 0
        with pytest.raises(BlockCorrupt, match="columnar block of format version 1; this fastbuf reads version 2"):
            check_block(header[:4] + b"\x01" + header[5:], KIND_COLUMNAR, PRINT)

    @pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
    def test_a_good_block(self, make: type) -> None:
        records, body = check_block(make(block()), KIND_ROW, PRINT)
        assert (records, bytes(body)) == (3, BODY)

    def test_checksum(self) -> None:
        assert check_block(block(flags=FLAG_CRC, crc=crc32c(BODY)), KIND_ROW, PRINT)[0] == 3
        with pytest.raises(BlockCorrupt, match="CRC32C"):
            check_block(block(flags=FLAG_CRC, crc=crc32c(BODY) ^ 1), KIND_ROW, PRINT)
        with pytest.raises(BlockCorrupt, match="no flag"):
            check_block(block(crc=5), KIND_ROW, PRINT)

    @pytest.mark.parametrize("end", range(HEADER_BYTES + len(BODY)))
    def test_truncated(self, end: int) -> None:
        with pytest.raises(BlockTruncated, match=r"\d+"):
            check_block(block()[:end], KIND_ROW, PRINT)

    @pytest.mark.parametrize(
        ("data", "error", "says"),
        [
            (b"NOPE" + block()[4:], BlockCorrupt, "begins with b'NOPE'"),
            (
                block()[:4] + struct.pack("<H", 2) + block()[6:],
                BlockCorrupt,
                "row block of format version 2; .* version 1",
            ),
            (block(kind=KIND_PICKLED), BlockCorrupt, "kind pickled was given to the row serializer"),
            (block()[:6] + b"\x09" + block()[7:], BlockCorrupt, "kind 9"),
            (block(flags=2), BlockCorrupt, "flags 0x02"),
            (block(fingerprint=5), SchemaMismatch, f"schema {5:016x} .* of {PRINT:016x}"),
            (block() + b"x", BlockCorrupt, "10 bytes of body and has 11: 1 too many"),
        ],
    )
    def test_refusals(self, data: bytes, error: type[Exception], says: str) -> None:
        with pytest.raises(error, match=says):
            check_block(data, KIND_ROW, PRINT)


class TestChecksum:
    @pytest.mark.parametrize(
        ("data", "crc"),
        [
            (b"", 0),
            (b"123456789", 0xE3069283),
            (bytes(32), 0x8A9136AA),
            (b"\xff" * 32, 0x62A8AB43),
            (bytes(range(32)), 0x46DD794E),
        ],
    )
    def test_vectors_of_rfc_3720(self, data: bytes, crc: int) -> None:
        assert crc32c(data) == crc

    @pytest.mark.parametrize("cut", [0, 1, 7, 8, 4096, 9999])
    def test_in_pieces(self, cut: int) -> None:
        data = bytes(i * 7 % 256 for i in range(10_000))
        assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)

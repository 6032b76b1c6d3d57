"""Events as bytes: what the head of ``fastbuf/exchange/events.py`` draws, and nothing else."""

from __future__ import annotations

import pytest

import fastbuf as fb
from fastbuf.errors import ProtocolError
from fastbuf.exchange.events import decode_event, encode_event

MOST = (1 << 64) - 1
BYTES = {
    fb.Barrier(1, -2): b"\x01" + b"\x01".ljust(8, b"\0") + b"\xfe".ljust(8, b"\xff"),
    fb.Barrier(MOST): b"\x01" + b"\xff" * 8 + bytes(8),
    fb.Watermark(-1): b"\x02" + b"\xff" * 8,
    fb.UserEvent(b""): b"\x03",
    fb.UserEvent(b"\x01" * 4095): b"\x03" + b"\x01" * 4095,
    fb.CancelCheckpoint(258): b"\x04" + b"\x02\x01".ljust(8, b"\0"),
    fb.CancelCheckpoint(MOST): b"\x04" + b"\xff" * 8,
    fb.EndOfData(): b"\x05",
    fb.WatermarkStatus(False): b"\x06\0",
    fb.WatermarkStatus(True): b"\x06\x01",
}


@pytest.mark.parametrize("event", BYTES, ids=lambda event: repr(event)[:60])
def test_the_bytes_of_an_event_give_it_back(event: fb.Event) -> None:
    assert encode_event(event) == BYTES[event]
    back = decode_event(BYTES[event], 7)
    assert (back, type(back), back.channel) == (event, type(event), 7)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\x07",
        b"\x06",
        b"\x06\x02",
        b"\x06\0\0",
        b"\x05\0",
        *(data + b"\0" for data in BYTES.values() if data[0] in (1, 2, 4)),
        *(data[:-1] for data in BYTES.values() if data[0] in (1, 2, 4)),
    ],
)
def test_other_bytes_are_no_event(data: bytes) -> None:
    with pytest.raises(ProtocolError, match=f"channel 3 sent {len(data)} bytes that are not a valid event"):
        decode_event(data, 3)


@pytest.mark.parametrize("given", [None, b"\x05", fb.Event(), fb.EndOfData])
def test_what_is_no_event_is_not_sent(given: object) -> None:
    with pytest.raises(TypeError, match="an event is wanted"):
        encode_event(given)  # type: ignore[arg-type]

"""The messages of the control connections: what is refused, and the page that is made of them."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from fastbuf.errors import ProtocolError
from fastbuf.json_frames import pack
from fastbuf_spark import protocol
from fastbuf_spark.messages import Message, Unpacker, packed
from fastbuf_spark.protocol import FromDriver, FromWorker
from fastbuf_spark.streams import messages

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "control-connections.md"
#: One of each, with every field
SAMPLES: dict[str, list[Any]] = {
    "driver": [
        protocol.Hello(4, "n", "1.2"),
        protocol.Welcome("p"),
        protocol.Epoch(1 << 62),
        protocol.Targets((("h", 1, 2), ("h", 3, 4))),
        protocol.Seal({0: 3, 7: 1}, {7: "refused"}),
        protocol.Go(),
        protocol.Sent(),
        protocol.Empty((1, 2)),
        protocol.Ok(),
        protocol.Heard(),
        protocol.Stop(),
        protocol.Abort("why"),
        protocol.Files((("h", 1, ("/a", "/b")), ("i", 2, ("/c",))), (0, -1, 1)),
        protocol.Remove("x1/7"),
        messages.TaskStart((("h", 1, 2),), (("a", 1),), {"op": {"1": None}}, {"results": []}, {"0": {}}),
        messages.AddSplits((("a", [1, 2]),), True),
        messages.TriggerCheckpoint(1, 2, True, {"files": 3}),
        messages.AlignTime(-(1 << 63)),
        messages.CheckpointComplete(1, True),
        messages.CheckpointAbort(1, "why"),
        messages.Drain(),
    ],
    "worker": [
        protocol.Proof("x1", "n", "p"),
        protocol.Join(1, 2, 3, "4", 5, {"a": "b"}),
        protocol.Ready("h", 1, 2),
        protocol.Lease(1, 2, 3, 4),
        protocol.Seen((1, 2), 6, 2),
        protocol.Begin(),
        protocol.Watch({"records": 1, "seconds": {"user": 0.5}}, {"records": 2}),
        protocol.ProducerDone((1, 0), {"records": 1}, {1: "refused"}),
        protocol.ProducerFailed("why"),
        protocol.ConsumerDone({"records": 1}, None),
        protocol.ConsumerFailed("why"),
        protocol.RunFailed("why"),
        protocol.Report("producer", 1, 2, 3, {"bytes": 7}, (7, 4), True),
        protocol.Serves("s1", "h", 1, ("/a", "/b")),
        protocol.Where(7),
        messages.TaskJoin(0, 1, "h", 2, 3),
        messages.TaskRunning(0.5),
        messages.Acknowledge(1, {"splits": {"a": 1}}, {"bytes": 2}),
        messages.Decline(1, "why"),
        messages.Outage("OSError: No space left on device"),
        messages.DataEnd(),
        messages.Committed("rows", 1),
        messages.Collected("results", "n", "QQ=="),
        messages.TaskFigures({"rows_in": 1}),
    ],
}


def said(end: type[Message], frame: bytes) -> Any:
    unpacker = Unpacker(end)
    unpacker.feed(frame)
    return unpacker.next()


@pytest.mark.parametrize("message", [*SAMPLES["driver"], *SAMPLES["worker"]], ids=lambda m: type(m).__name__)
def test_each_message_comes_as_it_went(message: Message) -> None:
    end = FromDriver if isinstance(message, FromDriver) else FromWorker
    assert said(end, message.encode()) == message
    other = FromWorker if end is FromDriver else FromDriver
    with pytest.raises(ProtocolError, match=rf"{other.speaker} said '{message.op}'"):
        said(other, message.encode())


def test_every_message_is_tried_here() -> None:
    assert {type(message) for message in SAMPLES["driver"]} == set(FromDriver.kinds.values())
    assert {type(message) for message in SAMPLES["worker"]} == set(FromWorker.kinds.values())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epoch": None}, "'epoch': None is no int"),
        ({"epoch": "1"}, "'epoch': '1' is no int"),
        ({"epoch": True}, "'epoch': True is no int"),
        ({"epoch": 1.0}, "'epoch': 1.0 is no int"),
        ({"epoch": ...}, "'epoch': it is missing"),
        ({"op": "leese"}, "'leese': it is one of proof, join, ready"),
        ({"op": ["lease"]}, r"\['lease'\]: it is one of"),
        ({"op": ...}, "None: it is one of"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], words: str) -> None:
    lease = {"op": "lease", "epoch": 1, "partition": 2, "attempt": 3, "stage": 4} | change
    with pytest.raises(ProtocolError, match=f"a worker said .*{words}"):
        said(FromWorker, pack({name: value for name, value in lease.items() if value is not ...}))


class FromTest(Message, speaker="a test"):
    pass


@dataclasses.dataclass(frozen=True)
class AllKinds(FromTest):
    """Of every type that a field may have."""

    share: float = 0.0
    names: tuple[str, ...] = ()
    pair: tuple[str, int] = ("", 0)
    numbers: dict[int, float] = dataclasses.field(default_factory=dict)
    side: Literal["left", "right"] = "left"
    anything: Any = None
    perhaps: tuple[int, ...] | None = None
    many: tuple[int, ...] = ()
    counts: dict[int, int] = dataclasses.field(default_factory=dict)
    usual: ClassVar[int] = 0


@pytest.mark.parametrize(
    ("field", "good", "wrong"),
    [
        ("share", [1, 0.5], ["1", True, None, 10**400]),
        ("names", [["a"], []], ["a", [1], {"a": 1}]),
        ("pair", [["a", 1]], [["a"], ["a", 1, 2], [1, "a"], "ab"]),
        ("numbers", [{"1": 2}], [{"a": 2}, {"1": "2"}, [1]]),
        ("side", ["right"], ["up", 1, ["left"]]),
        ("anything", [None, [1], {"a": {}}], []),
        ("perhaps", [None, [1]], [1, ["a"]]),
        ("many", [packed((-1, 127)), packed((1 << 64) - 1 - i for i in range(3))], [[1], "", "x=", "hAA==", "b*"]),
        ("counts", [f"{packed((0, 9_999))} {packed((1 << 40, 3))}"], [{"1": 2}, packed((1,)), "bAQ== bAQI=", 1]),
    ],
)
def test_a_field_is_of_its_type(field: str, good: list[Any], wrong: list[Any]) -> None:
    for value in good:
        made = said(FromTest, pack({"op": "all_kinds", field: value}))
        assert said(FromTest, made.encode()) == made
        assert json.loads(made.encode()[4:]).get(field, value) == value
    for value in wrong:
        with pytest.raises(ProtocolError, match=f"a test said 'all_kinds' with a wrong '{field}'"):
            said(FromTest, pack({"op": "all_kinds", field: value}))


@pytest.mark.parametrize("values", [(), (0, -1), (255,), (1 << 15, -1), (1 << 31, -1), ((1 << 64) - 1, 0)])
def test_numbers_are_packed_into_as_few_bytes_as_the_largest_needs(values: tuple[int, ...]) -> None:
    made = AllKinds(many=values, counts=dict(enumerate(values)))
    assert said(FromTest, made.encode()) == made
    width = {0: 1, -1: 1, 255: 2, 1 << 15: 4, 1 << 31: 8, (1 << 64) - 1: 8}[max(values, default=0)]
    assert len(packed(values)) == 1 + -(-width * len(values) // 3) * 4


def test_no_packed_number_has_more_than_64_bits() -> None:
    with pytest.raises(OverflowError):
        AllKinds(many=(1 << 64,)).encode()


def test_a_field_of_a_newer_version_is_passed_over() -> None:
    """So that the versions can be compared."""
    assert said(FromDriver, pack({"op": "hello", "version": 9, "nonce": "n", "new": 1})) == protocol.Hello(9, "n")


def told(kind: type[Message]) -> list[str]:
    """A message's row of the page."""
    names = [f"`{each.name}`: {str(each.type).replace('Figures', 'dict')}" for each in dataclasses.fields(kind)]  # type: ignore[arg-type]
    answers = " or ".join(f"`{each.op}`" for each in kind.answers())
    doc = " ".join((kind.__doc__ or "").split()).replace("``", "`").replace("|", r"\|")
    fields = ", ".join(names).replace("|", r"\|")
    return [f"`{kind.op}`", fields, *([answers] if issubclass(kind, FromWorker) else []), doc]


def tables() -> str:
    """The page from its first table on."""
    lines = []
    for title, end, answered in (("From the driver", FromDriver, []), ("From a worker", FromWorker, ["answered by"])):
        head = ["op", "fields", *answered, "what it says"]
        lines += ["", f"## {title}", ""]
        rows = [head, ["---"] * len(head), *(told(kind) for kind in end.kinds.values())]
        lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines[1:], ""])


def test_the_page_is_made_of_the_messages() -> None:
    text = PAGE.read_text()
    again = f"\n\n$ python {Path(__file__).relative_to(PAGE.parents[2])}"
    assert text[text.index("## From the driver") :] == tables(), f"make it anew:{again}"


if __name__ == "__main__":
    page = PAGE.read_text()
    PAGE.write_text(page[: page.index("## From the driver")] + tables())
    sys.exit(0)

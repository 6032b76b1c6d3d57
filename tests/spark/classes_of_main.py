"""A program whose classes live in ``__main__``: each verb of pairs gives what Spark's own gives, in its own classes.

``classes_of_main.py spark|fastbuf``: whose serializer the context has.
"""

# %%
from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag, StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

import javas
from pyspark import SparkConf, SparkContext
from pyspark.join import python_cogroup

import fastbuf
import fastbuf_spark as fbs

T = TypeVar("T")


# %%
@dataclass(frozen=True)
class Point:
    x: int
    name: str


@dataclass(frozen=True, slots=True)
class Slim:
    x: int


@dataclass(frozen=True)
class Box(Generic[T]):
    item: T


class Kind(Enum):
    CLICK = "click"
    VIEW = "view"
    BOTH = "both"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Word(StrEnum):
    ONE = "one"
    TWO = "two"


class Flags(IntFlag):
    A = 1
    B = 2


class Named(NamedTuple):
    a: int
    b: str


Old = namedtuple("Old", "a b")


class Outer:
    """Has classes inside."""

    @dataclass(frozen=True)
    class Inner:
        x: int

    class Side(Enum):
        LEFT = 1
        RIGHT = 2


class Own:
    """Has a hash of its own, and no dataclass around it."""

    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and self.x == other.x

    def __hash__(self) -> int:
        return hash(self.x)

    def __repr__(self) -> str:
        return f"Own({self.x})"


class Child(Point):
    """A class whose base lives here too."""


def local() -> type:
    @dataclass(frozen=True)
    class Local:
        x: int

    return Local


Local = local()
SIDES = (Outer.Side.LEFT, Outer.Side.RIGHT)


# %%
@dataclass
class Value:
    """A value with a member of an enumeration, and functions that only cloudpickle can pickle."""

    count: int
    kind: Kind
    add: Callable[[int], int]


def merge(a: Value, b: Value) -> Value:
    assert type(a) is type(b) is Value
    assert isinstance(a.kind, Kind)
    return Value(a.count + b.count, a.kind if a.kind is b.kind else Kind.BOTH, lambda v: a.add(v) + b.add(v))


def keys(n: int) -> Iterator[Any]:
    """A key of each kind; two of each over all ``n``."""
    x = n % 2
    yield from (Point(x, "p"), Slim(x), Box(x), Box[int](x), Box(Box(Kind.CLICK if x else Kind.VIEW)))
    yield from (Kind.CLICK if x else Kind.VIEW, Level(x + 1), tuple(Word)[x], Flags(x + 1), Flags.A | Flags.B)
    yield from (Named(x, "n"), Old(x, "o"), Outer.Inner(x), SIDES[x], Own(x), Child(x, "c"), Local(x))
    yield from ((Point(x, "p"), Kind.CLICK), frozenset({Level.HIGH, x}))


def value(n: int) -> Value:
    return Value(1, Kind.CLICK if n % 3 else Kind.VIEW, lambda v: v + n)


def pairs(n: int) -> list[tuple[Any, Value]]:
    return [(key, value(n + i)) for i, key in enumerate(keys(n))]


def shown(x: Any) -> Any:
    """What tells results apart; an object of a class that only looks like ours is ``foreign``."""
    if type(x) is Value:
        return f"Value({x.count}, {x.kind is Kind.CLICK}, {x.kind is Kind.VIEW}, {x.add(10)})"
    if type(x) is tuple:
        return tuple(shown(item) for item in x)
    if isinstance(x, list) or (hasattr(type(x), "__len__") and type(x).__name__ in ("Values", "ResultIterable")):
        return sorted((shown(item) for item in x), key=repr)
    mine = (isinstance(x, Enum | IntEnum) and x in type(x)) or isinstance(x, Named | Old | int | frozenset | None)
    mine = mine or isinstance(x, Point | Slim | Box | Outer.Inner | Own | Local)
    return repr(x) if mine and vars(MAIN).get(type(x).__name__, type(x)) is type(x) else f"foreign {x!r}"


# %%
def placed(rdd: Any) -> list[Any]:
    """The records of each partition; the error if there is one."""
    try:
        return [shown(part) for part in rdd.glom().collect()]
    except Exception as error:
        return [[line] for line in str(error).splitlines() if "Error" in line][-1:] or [[str(error)]]


MAIN = sys.modules["__main__"]
N = 2
OF_CLICKS = dict(partition_func=lambda key: 1 if key is Kind.CLICK or isinstance(key, Point) else 0)
Result = tuple[str, Any, Any]


def results(rdd: Any, other: Any, **how: Any) -> Iterator[Result]:
    """Name, fastbuf's result and Spark's, of each verb."""
    create, both = (lambda v: [v]), (lambda a, b: a + b)
    yield "partition_by", fbs.partition_by(rdd, N, **how), rdd.partitionBy(N)
    yield (
        "partition_func",
        fbs.partition_by(rdd, N, **OF_CLICKS, **how),
        rdd.partitionBy(N, OF_CLICKS["partition_func"]),
    )
    yield "reduce_by_key", fbs.reduce_by_key(rdd, merge, N, **how), rdd.reduceByKey(merge, N)
    combine = create, lambda a, v: [*a, v], both
    yield "combine_by_key", fbs.combine_by_key(rdd, *combine, N, **how), rdd.combineByKey(*combine, N)
    yield "group_by_key", fbs.group_by_key(rdd, N, **how), rdd.groupByKey(N)
    yield "co_group", fbs.co_group(rdd, other, N, **how), rdd.cogroup(other, N)
    three = fbs.group_with(rdd, other, rdd, num_partitions=N, **how)
    yield "group_with", three, python_cogroup((rdd, other, rdd), N)  # which groupWith calls without a number
    yield "join", fbs.join(rdd, other, N, **how), rdd.join(other, N)
    yield "outer join", fbs.join(rdd, other, N, how="outer", **how), rdd.fullOuterJoin(other, N)
    # Two in a row: the second has what the first one gave, not what Spark has pickled
    again = fbs.reduce_by_key(rdd, merge, N, **how).map(lambda pair: (pair[1].kind, pair[0]))
    twice = rdd.reduceByKey(merge, N).map(lambda pair: (pair[1].kind, pair[0]))
    yield "in a row", fbs.group_by_key(again, N, **{**how, "mode": "blocking"}), twice.groupByKey(N)


def main(serializer: str) -> None:
    conf = SparkConf().setMaster("local[4]").set("spark.ui.enabled", "false").set("spark.log.level", "OFF")
    conf = conf.set("spark.driver.extraJavaOptions", javas.OPTIONS).set("spark.driver.host", "127.0.0.1")
    conf = conf.set("spark.python.daemon.module", "warm_daemon").set("spark.ui.showConsoleProgress", "false")
    with SparkContext(conf=conf, **({"serializer": fbs.ObjectSerializer()} if serializer == "fastbuf" else {})) as sc:
        stored = sc.parallelize([pair for n in range(6) for pair in pairs(n)], 3)
        made = sc.parallelize(range(6), 3).flatMap(pairs)  # by functions of ours, in the workers
        other = sc.parallelize(range(1, 3), 2).flatMap(pairs).filter(lambda pair: pair[0] is not Kind.VIEW)
        cases = list(results(stored, other, mode="pipelined"))
        if serializer == "spark":
            cases += results(made, other, mode="blocking")
            tight, long = fbs.ShuffleConf(memory_bytes=1 << 20, segment_size=32 << 10), many(made)
            for mode in ("pipelined", "blocking"):
                cases.append(("spilled", fbs.group_by_key(long, N, mode=mode, conf=tight), long.groupByKey(N)))
        cases.append(("core", made.mapPartitions(there_and_back), made))
        expected: dict[str, Any] = {}
        for name, ours, theirs in cases:
            if name not in expected:
                expected[name] = placed(theirs)
            found, wanted = placed(ours), expected[name]
            if found != wanted:
                rows = sum(map(len, found)), sum(map(len, wanted))
                print(f"{name} gave {rows[0]} rows, Spark {rows[1]}:", odd(found, wanted))
        print(f"{len(cases)} cases")


def there_and_back(records: Iterable[Any]) -> list[Any]:
    """Through fastbuf's serializer, as an exchange of the user's own within a task."""
    serializer = fastbuf.PickledSerializer()
    return serializer.loads(serializer.dumps(list(records)))


def many(rdd: Any) -> Any:
    """The same with so long values that they are written to a file."""
    return rdd.mapValues(lambda value: (value.kind, "x" * 5_000 * value.count)).flatMap(lambda pair: [pair] * 8)


def odd(found: Iterable[Any], wanted: Iterable[Any]) -> str:
    lacking = [row for part in wanted for row in part if all(row not in some for some in found)]
    foreign = [row for part in found for row in part if all(row not in some for some in wanted)]
    return f"without {lacking[:1]!r:.300}, with {foreign[:1]!r:.300}"


# %%
if __name__ == "__main__":
    main(sys.argv[1])

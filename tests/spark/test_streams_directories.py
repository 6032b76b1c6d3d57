"""Files below directories that are named after values, beside what Spark's own streams read of them."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nights import nightly
from test_streams_ends import until

import fastbuf_spark as fbs
from fastbuf.errors import SchemaError
from fastbuf_spark.streams.query import StreamFailed

pytestmark = pytest.mark.spark

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def stored(sink: Any) -> list[dict[str, Any]]:
    return sorted(sink.table().to_pylist(), key=repr)


def ours(spark: Any, path: Any, schema: str, tmp_path: Path, format: str = "parquet", **options: Any) -> Any:
    """All rows that are there now."""
    sink = fbs.to_memory()
    stream = fbs.stream_files(spark, str(path), format, schema, bounded=True, tasks=1, **options)
    chk = tmp_path / f"chk-{len(list(tmp_path.iterdir()))}"
    assert stream.write_stream(sink, chk, every=0.1).await_termination(60)
    return stored(sink)


def sparks(spark: Any, path: Any, schema: str, tmp_path: Path, format: str = "parquet", **options: Any) -> Any:
    """The same of Spark's own stream."""
    name = f"seen_{len(list(tmp_path.iterdir()))}"
    stream = spark.readStream.format(format).options(**options).schema(schema).load(str(path))
    query = stream.writeStream.format("memory").queryName(name).option("checkpointLocation", str(tmp_path / name))
    query.trigger(availableNow=True).start().awaitTermination()
    return sorted((row.asDict() for row in spark.table(name).toLocalIterator()), key=repr)


def plain(rows: Any) -> Any:
    """Instants as seconds, which have no zone: Arrow's have one, and Spark's are of this process's."""
    return [{k: v.timestamp() if hasattr(v, "timestamp") else v for k, v in row.items()} for row in rows]


@pytest.fixture
def put(tmp_path: Path) -> Any:
    def one(below: str, value: int, format: str = "parquet") -> None:
        folder = tmp_path / "in" / below
        folder.mkdir(parents=True, exist_ok=True)
        if format == "csv":
            (folder / f"{value}.csv").write_text(f"{value}\n")
        elif format == "json":
            (folder / f"{value}.json").write_text(f'{{"v": {value}}}\n')
        elif format == "orc":
            import pyarrow.orc

            pyarrow.orc.write_table(pa.table({"v": [value]}), folder / f"{value}.orc")
        else:
            pq.write_table(pa.table({"v": [value]}), folder / f"{value}.parquet")

    return one


@nightly(format=["json", "orc"])
@pytest.mark.parametrize("format", ["parquet", "csv", "json", "orc"])
def test_values_of_directories_are_columns(spark: Any, tmp_path: Path, put: Any, format: str) -> None:
    """Of every type, null, and escaped; as Spark's stream gives them."""
    for value, folder in enumerate(
        [
            "day=2020-01-01/n=1/x=1.50/at=2020-01-01 10%3A00%3A00/s=a%2Fb %E9",
            f"day={NO_VALUE}/n={NO_VALUE}/x={NO_VALUE}/at={NO_VALUE}/s={NO_VALUE}",
            "day=2021-12-31/n=-7/x=3.25/at=2020-07-01 00%3A00%3A00.5/s=007",
        ]
    ):
        put(folder, value, format)
    schema = "v long, day date, n int, x decimal(8,2), at timestamp, s string"
    found = ours(spark, tmp_path / "in", schema, tmp_path, format)
    assert [row["v"] for row in found if row["s"] == "a/b \xe9"] == [0]
    assert sum(row["day"] is None for row in found) == 1
    assert sorted(map(repr, plain(found))) == sorted(
        map(repr, plain(sparks(spark, tmp_path / "in", schema, tmp_path, format)))
    )


def test_what_spark_and_a_stream_wrote_by_partitions(spark: Any, tmp_path: Path) -> None:
    rows = spark.sql("select id v, if(id = 3, null, date'2020-01-01' + cast(id as int)) day from range(4)")
    rows.write.partitionBy("day").parquet(str(tmp_path / "spark"))
    wanted = sorted((row.asDict() for row in rows.collect()), key=repr)
    schema = "v long, day date"
    assert ours(spark, tmp_path / "spark", schema, tmp_path) == wanted
    again = fbs.stream_files(spark, str(tmp_path / "spark"), schema=schema, bounded=True, tasks=1)
    query = again.write_stream(fbs.to_parquet(tmp_path / "ours", partition_by="day"), tmp_path / "chk", every=0.1)
    assert query.await_termination(60)
    assert ours(spark, tmp_path / "ours", schema, tmp_path) == wanted
    assert fbs.read_parquet(spark, str(tmp_path / "ours")).to_arrow().num_rows == 4


def test_options_that_say_where_columns_begin(spark: Any, tmp_path: Path, put: Any) -> None:
    """``basePath``, ``recursiveFileLookup``, and a pattern, below which names are columns where it matches one path."""
    put("a=1/b=2", 0)
    schema, path = "v long, a int, b int", tmp_path / "in"
    assert ours(spark, path, schema, tmp_path) == [{"v": 0, "a": 1, "b": 2}]
    assert ours(spark, path / "a=1", schema, tmp_path) == [{"v": 0, "a": None, "b": 2}]
    assert ours(spark, path / "a=1", schema, tmp_path, basePath=str(path)) == [{"v": 0, "a": 1, "b": 2}]
    found = ours(spark, path, schema, tmp_path, recursiveFileLookup=True)
    assert found == [{"v": 0, "a": None, "b": None}]
    assert found == sparks(spark, path, schema, tmp_path, recursiveFileLookup="true")
    assert ours(spark, path / "a=*", schema, tmp_path) == [{"v": 0, "a": None, "b": 2}]
    put("a=2/b=3", 1)
    found = ours(spark, path / "a=*" / "b=*", schema, tmp_path, basePath=str(path))
    assert found == [{"v": 0, "a": 1, "b": 2}, {"v": 1, "a": 2, "b": 3}]


def test_the_values_of_directories_count(spark: Any, tmp_path: Path) -> None:
    """Also where the files have such a column."""
    folder = tmp_path / "in" / "k=7"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"k": pa.array([1], pa.int32()), "v": [5]}), folder / "a.parquet")
    assert ours(spark, tmp_path / "in", "v long, k int", tmp_path) == [{"v": 5, "k": 7}]


def test_directories_that_come_later(spark: Any, tmp_path: Path, put: Any) -> None:
    (tmp_path / "in").mkdir()
    sink = fbs.to_memory()
    stream = fbs.stream_files(spark, str(tmp_path / "in"), schema="v long, day date", tasks=1)
    query = stream.write_stream(sink, tmp_path / "chk", every=0.1, discover_every=0.05)
    put("day=2020-01-01", 1)
    until(lambda: sink.table().num_rows == 1)
    put("day=2020-01-02", 2)
    until(lambda: sink.table().num_rows == 2)
    query.stop()
    assert [str(row["day"]) for row in stored(sink)] == ["2020-01-01", "2020-01-02"]


def test_a_time_of_directories_as_the_time_of_rows(spark: Any, tmp_path: Path, put: Any) -> None:
    """A file that waits holds nothing back that is before its directory's time."""
    for hour in range(4):
        put(f"at=2020-01-01 0{hour}%3A00%3A00", hour)
    stream = fbs.stream_files(spark, str(tmp_path / "in"), schema="v long, at timestamp", bounded=True, tasks=1)
    counts = stream.with_watermark("at").group_by().window("1 hour").agg_arrow([([], "count_all")])
    sink = fbs.to_memory()
    assert counts.write_stream(sink, tmp_path / "chk", every=0.1).await_termination(60)
    assert sink.table()["count_all"].to_pylist() == [1] * 4


@pytest.mark.parametrize(
    ("folders", "schema", "message"),
    [
        (["day=x"], "v long, day date", "a directory of day has the value 'x'"),
        (["a=1", "b=1"], "v long, a int", r"is in directories of \['b'\], and"),
        (["DAY=1"], "v long, day int", "column 'day' of the files is 'DAY' in the directories' names"),
    ],
)
def test_directories_that_are_refused(
    spark: Any, tmp_path: Path, put: Any, folders: list[str], schema: str, message: str
) -> None:
    for value, folder in enumerate(folders):
        put(folder, value)
    with pytest.raises(StreamFailed, match=message):
        ours(spark, tmp_path / "in", schema, tmp_path)
    with pytest.raises(SchemaError, match=message):
        fbs.read_parquet(spark, str(tmp_path / "in"), schema=schema).to_arrow()


def test_the_files_of_sparks_sink_are_refused(spark: Any, tmp_path: Path, put: Any) -> None:
    """As by the readers of pipelines: its log says which files count."""
    put("", 1)
    (tmp_path / "in" / "_spark_metadata").mkdir()
    (tmp_path / "in" / "_spark_metadata" / "0").write_text("v1\n")
    with pytest.raises(StreamFailed, match=r"_spark_metadata.*ignoreMetadata=true"):
        ours(spark, tmp_path / "in", "v long", tmp_path)


def test_a_base_path_that_is_none_is_refused(spark: Any, tmp_path: Path, put: Any) -> None:
    put("", 1)
    with pytest.raises(StreamFailed, match="is not below basePath"):
        ours(spark, tmp_path / "in", "v long", tmp_path, basePath=str(tmp_path / "other"))


def test_old_files_are_read_at_first(spark: Any, tmp_path: Path, put: Any) -> None:
    """As by Spark: the age counts from the second look on."""
    for value, age_s in enumerate([0, 3600, 30 * 24 * 3600]):
        put("", value)
        path = tmp_path / "in" / f"{value}.parquet"
        at = path.stat().st_mtime - age_s
        os.utime(path, (at, at))
    found = ours(spark, tmp_path / "in", "v long", tmp_path)
    assert [row["v"] for row in found] == [0, 1, 2]
    assert found == sparks(spark, tmp_path / "in", "v long", tmp_path)


def source(spark: Any, path: Path, schema: str = "v long", **options: Any) -> Any:
    """What lists and reads the files, on its own."""
    return fbs.stream_files(spark, str(path), "parquet", schema, **options)._drafts[0].source


def file(folder: Path, name: str, changed: float, value: int = 0) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"v": [value]}), folder / name)
    os.utime(folder / name, (changed, changed))
    return str(folder / name)


def test_another_directory_has_times_of_its_own(spark: Any, tmp_path: Path) -> None:
    """Its files were never read, if the first one's were newer; and back in that one, none is read again."""
    old, new = 1_600_000_000.0, 1_700_000_000.0
    first = [file(tmp_path / "first", "old", old), file(tmp_path / "first", "new", new)]
    second = [file(tmp_path / "second", "older", old - 1e8), file(tmp_path / "second", "old", old)]
    state = None
    for folder, wanted in (("first", first), ("second", second), ("first", []), ("second", [])):
        splits, state = source(spark, tmp_path / folder).splits(state)
        assert sorted(split.name for split in splits) == sorted(wanted), folder
    late = file(tmp_path / "first", "new and late", old)
    assert source(spark, tmp_path / "first").splits(state)[0] == []  # older than the newest by more than a week
    os.utime(late, (new, new))
    assert [split.name for split in source(spark, tmp_path / "first").splits(state)[0]] == [late]
    of_before = {"newest": int(new * 1e9), "seen": {}}
    assert source(spark, tmp_path / "second").splits(of_before)[0] == []


@pytest.mark.parametrize(
    ("before", "after", "age"),
    [
        pytest.param("in", "in/*.parquet", 7, id="a pattern of the same files"),
        pytest.param("in/*.parquet", "in", 7, id="their directory"),
        pytest.param("in", "in", 60, id="a larger max_file_age"),
        pytest.param("i{n,m}", "in", 7, id="one of two"),
    ],
)
def test_no_file_is_read_again_by_another_path(spark: Any, tmp_path: Path, before: str, after: str, age: float) -> None:
    """Its name was forgotten, since it is older than the newest by a week: it was a new one to the new program."""
    now, state = time.time(), None
    (tmp_path / "im").mkdir()
    for name, days in (("a.parquet", 20), ("b.parquet", 0)):
        path = file(tmp_path / "in", name, now - days * 86400)
        splits, state = source(spark, tmp_path / before).splits(state)
        assert [split.name for split in splits] == [path]
    other = dataclasses.replace(source(spark, tmp_path / after), max_age_s=age * 86400)
    for _ in range(2):
        splits, state = other.splits(state)
        assert splits == []
    later = file(tmp_path / "in", "c.parquet", now + 1)
    assert [split.name for split in other.splits(state)[0]] == [later]


def test_what_another_path_did_not_look_into_is_read(spark: Any, tmp_path: Path) -> None:
    """However old it is: a directory below, which is no partition; names that a filter left out."""
    now = time.time()
    first = file(tmp_path / "in", "a.parquet", now)
    deep = file(tmp_path / "in" / "archive", "x.parquet", now - 30 * 86400)
    splits, state = source(spark, tmp_path / "in").splits(None)
    assert [split.name for split in splits] == [first]
    assert [split.name for split in source(spark, tmp_path / "in" / "archive").splits(state)[0]] == [deep]
    other = file(tmp_path / "in", "a.old", now - 30 * 86400)
    some = dataclasses.replace(source(spark, tmp_path / "in"), options={"pathGlobFilter": "*.parquet"})
    state = some.splits(None)[1]
    assert [split.name for split in source(spark, tmp_path / "in" / "*.old").splits(state)[0]] == [other]
    assert source(spark, tmp_path / "in" / "*.parquet").splits(state)[0] == []


def test_a_path_that_begins_as_another(spark: Any, tmp_path: Path) -> None:
    """``in`` forgot the files of ``in2``, which were read again."""
    now, state = time.time(), None
    old = file(tmp_path / "in2", "a.parquet", now - 20 * 86400)
    new = file(tmp_path / "in", "b.parquet", now)
    for folder, wanted in (("in2", [old]), ("in", [new]), ("in2", [])):
        splits, state = source(spark, tmp_path / folder).splits(state)
        assert [split.name for split in splits] == wanted, folder
    many = source(spark, tmp_path / "in?")
    splits, state = many.splits(state)
    assert splits == []


def test_a_file_from_the_future_makes_no_other_too_old(spark: Any, tmp_path: Path) -> None:
    """The clock of who wrote it was a month ahead: all files of that month were passed over, as they are by Spark."""
    now = time.time()
    state = None
    for name, changed in (("first", now - 60), ("ahead", now + 30 * 86400), ("next", now), ("old", now - 8 * 86400)):
        path = file(tmp_path, name, changed)
        splits, state = source(spark, tmp_path).splits(state)
        assert [split.name for split in splits] == ([] if name == "old" else [path]), name
    assert source(spark, tmp_path).splits(state)[0] == [], "each is read once"


def test_a_file_half_read_when_the_source_had_another_path(spark: Any, tmp_path: Path) -> None:
    """Its directories were cut off by the length of the new path: their columns were null."""
    path = file(tmp_path / "in" / "k=3" / "n=x", "a.parquet", 1e9, 30)
    (tmp_path / "another-longer-name").mkdir()
    for folder in ("in", "another-longer-name"):
        reads = source(spark, tmp_path / folder, "v long, k int, n string")
        assert [batch.to_pylist() for batch, _ in reads.rows(path, 0)] == [[{"v": 30, "k": 3, "n": "x"}]]


def test_a_directory_that_is_away_for_a_while(spark: Any, tmp_path: Path) -> None:
    """As a mount that comes back: the query ended within a second.  One that never was there still ends it."""
    folder, sink = tmp_path / "in", fbs.to_memory()
    file(folder, "1.parquet", 1e9, 1)
    stream = fbs.stream_files(spark, str(folder), "parquet", "v long", tasks=1)
    query = stream.write_stream(sink, tmp_path / "chk", every=0.1, discover_every=0.05)
    until(lambda: sink.table().num_rows == 1)
    folder.rename(tmp_path / "away")
    until(lambda: query.status["restarts"] >= 4)
    (tmp_path / "away").rename(folder)
    file(folder, "2.parquet", 1e9, 2)
    until(lambda: sink.table().num_rows == 2)
    query.stop()
    nowhere = fbs.stream_files(spark, str(tmp_path / "nowhere"), "parquet", "v long", tasks=1)
    with pytest.raises(StreamFailed, match="cannot list its splits: NothingThere"):
        nowhere.write_stream(fbs.to_memory(), tmp_path / "other").await_termination("1 minute")

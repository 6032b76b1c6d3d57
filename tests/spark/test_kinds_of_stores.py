"""The same of each kind of store: what is read, what readers see of what is written, and what errors say."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from kinds_of_stores import KINDS, Place, served
from nights import nightly

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, ResourceError
from fastbuf_spark.driver import commit
from fastbuf_spark.driver.file_systems import file_system
from fastbuf_spark.driver.files import list_files
from fastbuf_spark.streams.files import files_source
from fastbuf_spark.worker import stores

pytestmark = [pytest.mark.spark]
ODD = "a b/100%20 ü&=+/k"


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with served(request.param) as made:
        yield made


def fails(batches: Any) -> Any:
    for batch in batches:
        yield batch
        raise ValueError("no more")


@nightly(place=["s3", "azure", "hdfs"])
def test_files_in_and_out(spark: Any, place: Place, capsys: Any) -> None:
    """Several files and directories of values; nothing but the files is left, and no secret is shown."""
    of: dict[str, Any] = {"filesystem": place.system}
    path = f"{place.path}/in-and-out"
    df = spark.range(40).selectExpr("id", "id % 2 as k", "cast(id as string) as s").repartition(3)
    assert fbs.write_parquet(df, path, "k", **of).rows == 40
    with pytest.raises(ResourceError, match="is there already"):
        fbs.write_parquet(df, path, "k", **of)
    fbs.write_parquet(df, path, "k", "append", **of)
    if stores.is_store(place.system):
        with pytest.raises(ConfigError, match="not replaced in one step"):
            fbs.write_parquet(df, path, "k", "overwrite", **of)
    else:
        fbs.write_parquet(df.union(df), path, "k", "overwrite", **of)
    rows = sorted((each, str(each), each % 2) for each in [*range(40)] * 2)
    read = fbs.read_parquet(spark, path, **of)
    assert sorted(tuple(row[name] for name in ["id", "s", "k"]) for row in read.collect()) == rows
    if place.kind == "hdfs":  # of the others' clients Spark brings none
        sparks = spark.read.parquet(f"{place.uri}/in-and-out").select("id", "s", "k")
        assert sorted(tuple(row) for row in sparks.collect()) == rows
    some = fbs.read_parquet(spark, path, columns=["s"], filter=(pc.field("k") == 1) & (pc.field("id") < 4), **of)
    assert sorted(some.collect()) == [("1",), ("1",), ("3",), ("3",)]
    table = pq.read_table(path, filesystem=place.system)
    assert sorted(zip(*(table[name].to_pylist() for name in ["id", "s", "k"]), strict=True)) == rows
    one = f"{path}/k=1/*.parquet"
    assert fbs.read_parquet(spark, one, **of).count() == 40
    assert fbs.read_parquet(spark, f"{path}/k=*/", **of).count() == 80
    assert all("/k=" in name or name.endswith("/_SUCCESS") for name in place.names(path))
    read.explain()
    read.to_df().explain(True)
    told = repr(read) + repr(read._start) + "".join(capsys.readouterr())
    assert not [secret for secret in ("s3cr3t", "czNjcjN0") if secret in told]


@nightly
def test_odd_paths(spark: Any, place: Place) -> None:
    for name in (ODD, "k=a%2Fb/c", "ä/~!$(),@'", *(["#"] if stores.is_store(place.system) else [])):
        path = f"{place.path}/{name}"
        fbs.write_parquet(
            spark.range(6).selectExpr("id", "concat(id % 2, ' /%ü') as s"), path, "s", filesystem=place.system
        )
        read = fbs.read_parquet(spark, path, filesystem=place.system)
        assert sorted(read.collect()) == [(i, f"{i % 2} /%ü") for i in range(6)]


@nightly
def test_nothing_is_seen_before_the_commit(spark: Any, place: Place, monkeypatch: Any) -> None:
    """A run that fails while tasks write, and one that fails while files are put into place, leave nothing."""
    path, of = f"{place.path}/before", {"filesystem": place.system}
    with pytest.raises(Exception, match="no more"):
        fbs.pipeline(spark.range(4)).map_in_arrow(fails, "id long").write_parquet(path, **of)
    assert place.names(path) == []
    fbs.write_parquet(spark.range(1), path, **of)
    before = place.names(path)
    seen: list[list[str]] = []

    def breaks(self: Any, paths: Any, given: Any) -> None:
        seen.append([name for name in place.names(path) if "/_" not in name])
        add(self, [*paths[:1], f"{path}/none"], given[:2])

    add = commit.Commit._add
    monkeypatch.setattr(commit.Commit, "_add", breaks)
    with pytest.raises((ResourceError, OSError)):
        fbs.write_parquet(spark.range(4).repartition(2), path, mode="append", **of)
    assert seen == [[name for name in before if "/_" not in name]]
    assert place.names(path) == before


@nightly
def test_what_a_killed_driver_leaves(place: Place, monkeypatch: Any) -> None:
    """Killed between two copies, or before: the next write takes away what is seen of it."""
    system, path = place.system, f"{place.path}/killed"
    for count in (0, 1):
        if not stores.is_store(system):
            system.create_dir(path)
        first = commit.Commit(system, path, "append")
        if not stores.is_store(system):
            system.create_dir(f"{first.folder}/x")
        for name in ("1.parquet", "2.parquet"):
            with system.open_output_stream(f"{first.folder}/x/{name}") as stream:
                stream.write(b"abc")
        first._note(commit.JOURNAL, ["1.parquet", "2.parquet"])
        if count:
            system.open_output_stream(f"{path}/1.parquet").close()
        with monkeypatch.context() as patched:
            patched.setattr(commit, "is_dead", lambda owner: True)
            second = commit.Commit(system, path, "append")
        assert [name for name in place.names(path) if second._temporary not in name] == []
        second.close()
        assert place.names(path) == []


@nightly
def test_a_directory_that_is_there(spark: Any, place: Place) -> None:
    """Also where there is no file but in directories of values, which another writer has made."""
    path = f"{place.path}/there"
    with place.system.open_output_stream(f"{path}/k=1/a.parquet") as stream:
        pq.write_table(pa.table({"id": [7]}), stream)
    with pytest.raises(ResourceError, match="is there already"):
        fbs.write_parquet(spark.range(1), path, filesystem=place.system)
    read = fbs.read_parquet(spark, f"{path}/*", filesystem=place.system)
    assert read.collect() == [(7,)]
    assert fbs.read_parquet(spark, f"{path}/k=1/a.parquet", filesystem=place.system).collect() == [(7,)]


@nightly
def test_one_of_two_writes_of_a_new_directory(place: Place) -> None:
    """Each sees the journal of the other one, though in a store no directory tells of it."""
    first, second = (commit.Commit(place.system, f"{place.path}/two", "error") for _ in range(2))
    first._note(commit.JOURNAL, ["1.parquet"])
    if stores.is_store(place.system):
        with pytest.raises(ResourceError, match="is being made by another write"):
            second.commit([])
    for each in (first, second):
        each.close()
    assert place.names(f"{place.path}/two") == []


@pytest.fixture
def by_uri(place: Place, monkeypatch: Any) -> Callable[[str], str]:
    """The URI of a path in the place, and its credentials in the environment."""
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    return lambda name: f"{place.uri}/{name}"


@nightly
def test_uris(place: Place, by_uri: Callable[[str], str]) -> None:
    """What is in one is taken as it stands; credentials in one are refused, and not shown."""
    with place.system.open_output_stream(f"{place.path}/uri/{ODD}/x.parquet") as stream:
        pq.write_table(pa.table({"id": [7]}), stream)
    system, [path] = file_system(by_uri(f"uri/{ODD}"), None)
    assert [file.path for file in list_files(system, [path]).files] == [f"{place.path}/uri/{ODD}/x.parquet"]
    assert pickle.loads(pickle.dumps(system)) == system
    scheme, _, rest = place.uri.partition("://")
    with pytest.raises(ConfigError) as error:
        file_system(f"{scheme}://someone:s3cr3t@{rest}", None)
    assert "s3cr3t" not in str(error.value)


@nightly
def test_files_of_a_stream(spark: Any, place: Place, by_uri: Callable[[str], str]) -> None:
    """Those that appear are found, and read from an offset on, as a worker does it."""
    system, folder = place.system, f"{place.path}/stream"
    if not stores.is_store(system):
        system.create_dir(folder)
    source = files_source(spark, by_uri("stream"), "parquet", "x long", False, 3600.0, {})
    assert source.splits(None)[0] == []
    pq.write_table(pa.table({"x": range(5)}), f"{folder}/a.parquet", filesystem=system)
    (one,), state = source.splits(None)
    pq.write_table(pa.table({"x": range(5, 9)}), f"{folder}/b.parquet", filesystem=system)
    (other,), _ = source.splits(state)
    reads = [list(pickle.loads(pickle.dumps(source)).rows(split.name, at)) for split, at in ((one, 3), (other, 0))]
    assert [batch.column(0).to_pylist() for read in reads for batch, _ in read] == [[3, 4], [5, 6, 7, 8]]
    assert [at for read in reads for _, at in read] == [5, 4]


@nightly
def test_what_is_not_there(spark: Any, place: Place) -> None:
    of: dict[str, Any] = {"filesystem": place.system}
    with pytest.raises(ResourceError, match="does not exist"):
        fbs.read_parquet(spark, f"{place.path}/none", **of)
    with pytest.raises(ResourceError, match="nothing matches this pattern"):
        fbs.read_parquet(spark, f"{place.path}/none/*", **of)
    if stores.is_store(place.system):
        with pytest.raises(ResourceError, match="does not exist"):
            fbs.read_parquet(spark, "no-such-bucket/none", **of)
        with pytest.raises(ConfigError, match="not of its name"):
            fbs.read_parquet(spark, "buck*/none", **of)
        with pytest.raises(ResourceError, match="cannot write to no-such-bucket/none") as error:
            fbs.write_parquet(spark.range(1), "no-such-bucket/none", **of)
        assert "\n" not in str(error.value)


@nightly
def test_delta_tables(spark: Any, capsys: Any) -> None:
    """By deltalake's options, which the workers take too.

    Azurite knows two versions of a table alone, whoever writes them, and Google's server of the tests none.
    """
    deltalake = pytest.importorskip("deltalake", reason="pip install 'fastbuf[delta]'")
    with served("azure") as place:
        of: dict[str, Any] = {"storage_options": place.options or None}
        uri = f"{place.uri}/delta"
        df = spark.range(40).selectExpr("id", "id % 2 as k")
        assert fbs.write_delta(df, uri, partition_by="k", **of).rows == 40
        fbs.write_delta(df, uri, **of)
        read = fbs.read_delta(spark, uri, filter=pc.field("k") == 0, **of)
        assert sorted(read.collect()) == sorted([(i, 0) for i in range(0, 40, 2)] * 2)
        with pytest.raises(Exception, match="no more"):
            fbs.pipeline(df).map_in_arrow(fails, df.schema).write_delta(uri, **of)
        files = deltalake.DeltaTable(uri, storage_options=place.options).file_uris()
        names = {file.rpartition("/")[2] for file in files}
        there = [name for name in place.names(f"{place.path}/delta") if name.endswith(".parquet")]
        assert len(names) == len(files)
        assert names <= {name.rpartition("/")[2] for name in there}
        read.explain()
        read.to_df().explain(True)
        assert "czNjcjN0" not in repr(read) + repr(read._start) + "".join(capsys.readouterr())

"""Files in S3, over HTTP, with faults: what is read, and what readers see of what is written.

What each kind of store must do is in test_kinds_of_stores.py.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numbered
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from nights import nightly
from pyarrow import fs

pytest.importorskip("moto.server", reason="pip install 'moto[server]'")

from conftest import in_the_end
from object_store import Proxy, delta_options, passed_on, served, served_apart, set_apart, store, store_at

import fastbuf_spark as fbs
from fastbuf.errors import ConfigError, ResourceError
from fastbuf_spark.api import tables
from fastbuf_spark.driver import commit, page, unfinished
from fastbuf_spark.driver.file_systems import file_system
from fastbuf_spark.driver.files import list_files
from fastbuf_spark.driver.uploads import _client
from fastbuf_spark.worker.stores import UPLOAD_BYTES

pytestmark = [pytest.mark.spark]


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with served() as made:
        yield made


def names(system: Any, folder: str) -> list[str]:
    """Files that a reader sees."""
    found = system.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
    return [info.path for info in found if info.type == fs.FileType.File]


def uploads(system: Any, folder: str) -> list[str]:
    """Uploads of files there that have not ended, and are paid for."""
    bucket, _, prefix = folder.partition("/")
    answer = _client(system).list_multipart_uploads(Bucket=bucket, Prefix=f"{prefix}/".lstrip("/"))
    return [each["Key"] for each in answer.get("Uploads", ())]


def fails(batches: Any) -> Any:
    for batch in batches:
        yield batch
        raise ValueError("no more")


@nightly
def test_files_in_and_out(spark: Any, proxy: Proxy, capsys: Any) -> None:
    """With requests that are slow, refused and broken off; nothing but the files is left, and no secret is shown."""
    system, path = store(proxy), "bucket/a"
    # The client tries three times: at a fault in four or five requests some would have three in a row
    proxy.busy_each, proxy.reset_each, proxy.latency_s = 13, 17, 0.005
    try:
        df = spark.range(40).selectExpr("id", "id % 2 as k")
        assert fbs.write_parquet(df, path, "k", filesystem=system).rows == 40
        with pytest.raises(ResourceError, match="is there already"):
            fbs.write_parquet(df, path, "k", filesystem=system)
        fbs.write_parquet(df, path, "k", "append", filesystem=system)
        with pytest.raises(ConfigError, match="not replaced in one step"):
            fbs.write_parquet(df, path, "k", "overwrite", filesystem=system)
        read = fbs.read_parquet(spark, path, filesystem=system)
        assert sorted(read.collect()) == sorted((each, each % 2) for each in [*range(40)] * 2)
    finally:
        proxy.busy_each, proxy.reset_each, proxy.latency_s = 0, 0, 0.0
    assert proxy.faults > 3
    assert all("/k=" in name or name.endswith("/_SUCCESS") for name in names(system, path))
    read.explain()
    read.to_df().explain(True)
    assert "s3cr3t" not in repr(read) + repr(read._start) + "".join(capsys.readouterr())


@nightly
def test_answers_that_end_amid_their_bodies(spark: Any, proxy: Proxy) -> None:
    """Files are read and written as ever: the client asks again."""
    system, path = store(proxy), "bucket/half"
    proxy.half_each, before = 3, proxy.faults
    try:
        fbs.write_parquet(spark.range(20_000).repartition(4), path, filesystem=system)
        fbs.write_parquet(spark.range(5), path, mode="append", filesystem=system)
        rows = fbs.read_parquet(spark, path, filesystem=system).to_arrow()["id"].to_pylist()
    finally:
        proxy.half_each = 0
    assert sorted(rows) == sorted([*range(20_000), *range(5)])
    assert proxy.faults - before > 5


def test_how_many_requests_it_takes(spark: Any, proxy: Proxy) -> None:
    """Each takes tens of milliseconds, and one comes after the other."""
    system = store(proxy, allow_delayed_open=True)

    def requests(run: Callable[[], Any]) -> int:
        before = next(proxy.numbers)
        run()
        return next(proxy.numbers) - before - 1

    df = spark.range(10).coalesce(1)
    # Listed (3: it may be a file), marked, checked, written, seen, listed, noted, copied, done, noted, and 6 to clean
    assert requests(lambda: fbs.write_parquet(df, "bucket/n", filesystem=system)) <= 17
    read = "bucket/n"
    # Listed; the footer twice by the driver, and with what tells that it is the same file by the worker; the rows
    assert requests(lambda: fbs.read_parquet(spark, read, filesystem=system).to_arrow()) <= 6


def test_uploads_that_a_killed_process_left_are_ended(proxy: Proxy, monkeypatch: Any, caplog: Any) -> None:
    """Of the write that was killed, by the next one; of a worker that was killed, by its own write; others' stay."""
    system = store(proxy)
    client = _client(system)

    def leave(key: str) -> None:
        upload = client.create_multipart_upload(Bucket="bucket", Key=key)["UploadId"]
        part = dict(Bucket="bucket", Key=key, UploadId=upload, PartNumber=1, Body=b"x" * 1000)
        client.upload_part(**part)

    def left() -> list[str]:
        return [each["Key"] for each in client.list_multipart_uploads(Bucket="bucket").get("Uploads", ())]

    leave("u/somebody-elses")
    first = commit.Commit(system, "bucket/u", "append")
    leave(f"{first.folder}/1/a.parquet".partition("/")[2])
    leave(f"{first.folder}/2/a.parquet".partition("/")[2])
    with monkeypatch.context() as patch, caplog.at_level("INFO", "fastbuf_spark"):
        patch.setattr(commit, "is_dead", lambda owner: True)
        second = commit.Commit(system, "bucket/u", "append")
    assert left() == ["u/somebody-elses"]
    assert "and ended 2 uploads of it" in caplog.text
    long = b"0" * (UPLOAD_BYTES + 1)
    with system.open_output_stream(f"{second.folder}/1/a.parquet") as stream:
        stream.write(long)
    leave(f"{second.folder}/0/a.parquet".partition("/")[2])
    second.commit([("1", "a.parquet", len(long))])
    assert left() == ["u/somebody-elses"]
    assert names(system, "bucket/u") == ["bucket/u/_SUCCESS", "bucket/u/a.parquet"]


def killed(proxy: Proxy, path: str, mode: str, at: Callable[[Any], bool]) -> bool:
    """Have a driver write four files, and kill it at a request of its commit; False: it came to its end."""
    program = Path(__file__).with_name("store_killed.py")
    with passed_on(proxy.target) as own:
        command = [sys.executable, str(program), own.address, path, mode]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
            assert driver.stdin is not None
            assert driver.stdout is not None
            assert driver.stdout.readline() == "commits\n"
            own.holds = at
            driver.stdin.close()
            while not own.stuck.wait(0.02) and driver.poll() is None:
                pass
            driver.kill()
    return driver.returncode == -signal.SIGKILL


def is_copy(request: Any) -> bool:
    return "x-amz-copy-source" in request.headers


@pytest.mark.parametrize("mode", ["append", pytest.param("error", marks=nightly)])
@pytest.mark.parametrize("where", [pytest.param("this host", marks=nightly), "another"])
def test_a_driver_that_is_killed_amid_its_copies(
    proxy: Proxy, mode: str, where: str, monkeypatch: Any, caplog: Any
) -> None:
    """Our readers see none of its files; the next write of this host, or in a week of any, takes all away."""
    system, path = store(proxy), f"bucket/killed-{mode}-{where[0]}"
    other = [f"{path}/old.parquet"] if mode == "append" else []
    for name in other:
        pq.write_table(pa.table({"x": [9]}), name, filesystem=system)
    copies = itertools.count()
    assert killed(proxy, path, mode, lambda request: is_copy(request) and next(copies) >= 2)
    shown = [name for name in names(system, path) if "_temporary" not in name]
    assert len(shown) == 2 + len(other), "what others' readers see"
    assert [file.path for file in list_files(system, [path]).files] == other
    assert len(uploads(system, path)) == 1
    if where == "another":
        monkeypatch.setattr(unfinished, "_host", lambda: "0123456789ab")
        commit.Commit(system, path, "append").close()
        assert all(name in caplog.text for name in set(shown) - set(other))
        assert "a write of another host is putting 4 files into place" in caplog.text
        monkeypatch.setattr(unfinished, "FORGOTTEN_DAYS", -1)
    commit.Commit(system, path, "append").close()
    assert names(system, path) == other
    assert uploads(system, path) == []


@nightly
def test_a_driver_that_is_killed_at_each_request_of_its_commit(proxy: Proxy) -> None:
    """Our readers see all files or none, and so does everybody after the next write."""
    system, outcomes = store(proxy), []
    for step in range(60):
        path, requests = f"bucket/step-{step}", itertools.count()
        was_killed = killed(proxy, path, "append", lambda _, step=step, r=requests: next(r) >= step)  # type: ignore[misc]
        now = [Path(file.path).name for file in list_files(system, [path]).files]
        commit.Commit(system, path, "append").close()
        later = [name for name in names(system, path) if not name.endswith("_SUCCESS")]
        assert [Path(name).name for name in later] == now
        assert uploads(system, path) == []
        outcomes.append(now)
        if not was_killed:
            break
    all_of_them = [f"{value}.parquet" for value in range(4)]
    first = outcomes.index(all_of_them)
    assert outcomes == [[]] * first + [all_of_them] * (len(outcomes) - first)
    assert first >= 6
    assert len(outcomes) - first >= 3


@nightly
def test_a_token_that_ends_in_the_middle(spark: Any, proxy: Proxy) -> None:
    """At each request of a write: the error says so, and the next write, with a new token, puts all in order."""
    system, path = store(proxy), "bucket/t"
    first, more = spark.range(4).coalesce(2), spark.range(10, 16).repartition(3)
    fbs.write_parquet(first, path, filesystem=system)
    before = set(names(system, path))
    told = next(proxy.numbers)
    fbs.write_parquet(more, path, mode="append", filesystem=system)
    requests = next(proxy.numbers) - told
    assert requests > 20
    errors = []
    for left in range(0, requests, 2):
        for name in set(names(system, path)) - before:
            system.delete_file(name)
        proxy.token_left = left
        try:
            fbs.write_parquet(more, path, mode="append", filesystem=system)
        except Exception as error:
            errors.append(str(error))
        finally:
            proxy.token_left = None
        fbs.write_parquet(spark.range(20, 22), path, mode="append", filesystem=system)
        rows = {row.id for row in fbs.read_parquet(spark, path, filesystem=system).collect()}
        assert rows - set(range(10, 16)) == {0, 1, 2, 3, 20, 21}, left
        assert len(rows) in (6, 12), "a part of the rows of a write that failed"
        assert not [name for name in names(system, path) if "_temporary" in name]
    assert len(errors) > 10
    assert [error for error in errors if "expired" not in error.lower() and "ACCESS_DENIED" not in error] == []


def iceberg_properties(address: str, folder: Path) -> dict[str, str]:
    """A catalog on this host, of tables in the store."""
    return {
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": "s3://bucket/iceberg",
        "s3.endpoint": f"http://{address}",
        "s3.region": "us-east-1",
        "s3.access-key-id": "someone",
        "s3.secret-access-key": "s3cr3t",
    }


def _delta_at(address: str, tmp_path: Path) -> tuple[Callable[[Any], Any], Callable[[], Any], Callable[[], set[str]]]:
    """How a table is written, how it is read, and which files it has or had."""
    deltalake = pytest.importorskip("deltalake", reason="pip install 'fastbuf[delta]'")
    options = delta_options(address)

    def files() -> set[str]:
        versions = range(deltalake.DeltaTable("s3://bucket/ends", storage_options=options).version() + 1)
        return {uri for v in versions for uri in deltalake.DeltaTable("s3://bucket/ends", v, options).file_uris()}

    return (
        lambda df: fbs.write_delta(df, "s3://bucket/ends", storage_options=options),
        lambda: deltalake.DeltaTable("s3://bucket/ends", storage_options=options).to_pyarrow_table(),
        files,
    )


def _iceberg_at(address: str, tmp_path: Path) -> tuple[Callable[[Any], Any], Callable[[], Any], Callable[[], set[str]]]:
    catalogs = pytest.importorskip("pyiceberg.catalog", reason="pip install 'fastbuf[iceberg]'")
    pytest.importorskip("sqlalchemy", reason="pip install 'pyiceberg[sql-sqlite]'")
    catalog = iceberg_properties(address, tmp_path)
    catalogs.load_catalog("default", **catalog).create_namespace("a")

    def scan() -> Any:
        return catalogs.load_catalog("default", **catalog).load_table("a.t").scan()

    return (
        lambda df: fbs.write_iceberg(df, catalog, "a.t"),
        lambda: scan().to_arrow(),
        lambda: {task.file.file_path for task in scan().plan_files()},
    )


@nightly
@pytest.mark.parametrize("kind", [_delta_at, _iceberg_at])
def test_a_token_that_ends_in_the_middle_of_a_tables_write(
    spark: Any, tmp_path: Path, kind: Any, monkeypatch: Any, caplog: Any
) -> None:
    """The table is as before, or has all rows, and the next write takes away the files that no version has.

    Where the table could not be asked whether it has them, the next process does.
    """
    with served_apart(token_left=None) as address:
        write, read, files = kind(address, tmp_path)
        write(spark.range(4))
        before = set_apart(address, "token_left", None)
        write(spark.range(2).repartition(2))
        requests = set_apart(address, "token_left", None) - before - 1
        assert requests > 12

        def written() -> set[str]:
            return {f"s3://{name}" for name in names(store_at(address), "bucket") if name.endswith(".parquet")}

        errors, rows, unknown = [], read().num_rows, 0
        for left in range(0, requests, 3):
            set_apart(address, "token_left", left)
            try:
                write(spark.range(10, 16).repartition(3))
            except Exception as error:
                errors.append(str(error))
            finally:
                set_apart(address, "token_left", None)
            now = read().num_rows
            assert now - rows in (0, 6), "a part of the rows of a write that failed"
            write(spark.range(1))
            rows = now + 1
            assert read().num_rows == rows
            extra = written() - files()
            unknown += caplog.text.count("it is not known whether the table has its files")
            caplog.clear()
            assert len({uri.rpartition("/fastbuf-")[2].partition("/")[0] for uri in extra}) <= unknown
        monkeypatch.setattr(tables, "is_dead", lambda owner: True)
        write(spark.range(1))  # of another process, behind this one
        assert len(errors) > 3
        words = ("expired", "access_denied", "forbidden", "403")
        assert [error for error in errors if not any(word in error.lower() for word in words)] == []
        system = store_at(address)
        assert written() == files()
        assert [name for name in names(system, "bucket") if "/_fastbuf/" in name] == []
        assert uploads(system, "bucket/") == []


@nightly
def test_a_token_that_ends_in_the_middle_of_a_read(spark: Any, proxy: Proxy) -> None:
    """The driver's, and the workers': an error that says so, and with a new token all rows."""
    system, path = store(proxy), "bucket/read-ends"
    fbs.write_parquet(spark.range(6).repartition(3), path, filesystem=system)
    before = next(proxy.numbers)
    assert fbs.read_parquet(spark, path, filesystem=system).to_arrow().num_rows == 6
    requests = next(proxy.numbers) - before - 1
    errors = []
    for left in range(requests):
        proxy.token_left = left
        try:
            assert fbs.read_parquet(spark, path, filesystem=system).to_arrow().num_rows == 6
        except Exception as error:
            errors.append(str(error))
        finally:
            proxy.token_left = None
    assert len(errors) > 3
    assert [error for error in errors if "expired" not in error.lower() and "ACCESS_DENIED" not in error] == []
    assert fbs.read_parquet(spark, path, filesystem=system).count() == 6


def test_uris(proxy: Proxy, monkeypatch: Any) -> None:
    """Hadoop's names of S3 too; credentials in one are refused, and not shown."""
    for name, value in [
        ("ACCESS_KEY_ID", "someone"),
        ("SECRET_ACCESS_KEY", "x"),
        ("ENDPOINT_URL", f"http://{proxy.address}"),
    ]:
        monkeypatch.setenv(f"AWS_{name}", value)
    for scheme in ("s3", "s3a"):
        system, paths = file_system(f"{scheme}://bucket/a/*.parquet", None)
        assert system.type_name == "s3"
        before = next(proxy.numbers)
        with system.open_output_stream(f"bucket/u/{scheme}") as stream:
            stream.write(b"short")
        assert next(proxy.numbers) - before == 2, "one request"
        assert paths == ["bucket/a/*.parquet"]
    with pytest.raises(ConfigError) as error:
        file_system("s3a://someone:s3cr3t@bucket/a", None)
    assert "s3cr3t" not in str(error.value)


@contextmanager
def shown_on_the_page(spark: Any) -> Iterator[Callable[[], str]]:
    """The page of the driver, which is closed at the end; gives all that it tells of jobs and streams, as JSON."""
    pytest.importorskip("uvicorn", reason="pip install 'fastbuf[monitor]'")
    server = fbs.ui(spark)

    def ask(path: str) -> str:
        request = Request(server.address + path, headers={"Authorization": f"Bearer {server.token}"})
        with urlopen(request, timeout=10) as answer:
            return answer.read().decode()

    try:
        yield lambda: "".join(
            [ask("/streams"), ask("/jobs/overview")]
            + [ask(f"/jobs/{job['id']}") for job in json.loads(ask("/jobs"))["jobs"]]
        )
    finally:
        server.close()
        page._open = None


def test_credentials_of_a_job_and_of_a_session(spark: Any, monkeypatch: Any, caplog: Any, capsys: Any) -> None:
    """Each bucket has an account of its own, and the environment none; nothing shows the secrets."""
    caplog.set_level("DEBUG", "fastbuf_spark")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with served_apart(accounts={"theirs": "other", "bucket": "someone"}) as address:
        store_at(address, access_key="other", allow_bucket_creation=True).create_dir("theirs")
        endpoint = {"AWS_ENDPOINT_URL": f"http://{address}", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
        conf = fbs.ShuffleConf(
            storage_options={"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "s3cr3t", **endpoint}
        )
        df = spark.range(6).coalesce(2)
        settings = {
            "fs.s3a.endpoint": f"http://{address}",
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.access.key": "someone",
            "fs.s3a.secret.key": "s3cr3t",
            "fs.s3a.bucket.theirs.access.key": "other",
        }
        assert fbs.pipeline(df, conf=conf).write_parquet("s3a://bucket/mine").rows == 6
        read = fbs.read_parquet(spark, "s3://bucket/mine", conf=conf)
        assert read.count() == 6
        assert fbs.pipeline(df, conf=conf).write_delta("s3://bucket/mine-delta").rows == 6
        table = fbs.read_delta(spark, "s3://bucket/mine-delta", conf=conf)
        assert table.count() == 6
        with pytest.raises(ResourceError, match="ACCESS_DENIED") as refused:
            fbs.read_parquet(spark, "s3://theirs/x", conf=conf)
        try:
            for name, value in settings.items():
                spark.conf.set(name, value)
            theirs = fbs.read_parquet(spark, "s3a://bucket/mine").map_in_arrow(lambda batches: batches, "id long")
            assert theirs.write_parquet("s3a://theirs/all").rows == 6
            assert fbs.write_delta(df, "s3a://theirs/delta").rows == 6
            assert fbs.read_delta(spark, "s3a://theirs/delta").count() == 6
            assert fbs.read_parquet(spark, "s3a://theirs/all").count() == 6
        finally:
            for name in settings:
                spark.conf.unset(name)
        with shown_on_the_page(spark) as pages:
            assert read.shuffle("id", partitions=2).write_parquet("s3://bucket/by-id").rows == 6
            shown = in_the_end(pages, lambda text: "shuffle by id" in text)  # a page may be a second old
        assert "shuffle by id" in shown
        assert "s3cr3t" not in shown
        for each in (read, table, theirs):
            each.explain()
            each.to_df().explain(True)
        told = [
            *map(repr, (read, read._start, table._start, conf)),
            caplog.text,
            *capsys.readouterr(),
            str(refused.value),
        ]
        assert "s3cr3t" not in "".join(told)


@nightly
def test_delta_tables(spark: Any, capsys: Any) -> None:
    """Written and read with faults; a run that fails leaves no file, and no upload that is paid for."""
    deltalake = pytest.importorskip("deltalake", reason="pip install 'fastbuf[delta]'")
    boto3 = pytest.importorskip("boto3", reason="pip install 'moto[server]'")
    with served_apart() as address:
        system, uri = store_at(address), "s3://bucket/delta"
        options = delta_options(address)
        of: dict[str, Any] = {"storage_options": options}
        df = spark.range(40).selectExpr("id", "id % 2 as k")
        assert fbs.write_delta(df, uri, partition_by="k", **of).rows == 40
        fbs.write_delta(df, uri, **of)
        fbs.write_delta(df.where("k = 1"), uri, "overwrite", predicate=[("k", "=", 1)], **of)
        read = fbs.read_delta(spark, uri, filter=pc.field("k") == 0, **of)
        assert sorted(read.collect()) == sorted([(i, 0) for i in range(0, 40, 2)] * 2)
        assert fbs.read_delta(spark, uri, version=0, **of).count() == 40
        assert deltalake.DeltaTable(uri, storage_options=options).to_pyarrow_table().num_rows == 60
        with pytest.raises(Exception, match="no more"):
            fbs.pipeline(df).map_in_arrow(fails, df.schema).write_delta(uri, **of)
        for _ in range(2):  # what tasks had written when the run was over is taken away, as long as there is some
            fbs.write_delta(df.limit(1), uri, **of)
        versions = deltalake.DeltaTable(uri, storage_options=options).version()
        known = {file for v in range(versions + 1) for file in deltalake.DeltaTable(uri, v, options).file_uris()}
        assert {f"s3://{name}" for name in names(system, "bucket/delta") if name.endswith(".parquet")} == known
        client = boto3.client(
            "s3",
            endpoint_url=f"http://{address}",
            region_name="us-east-1",
            aws_access_key_id="someone",
            aws_secret_access_key="s3cr3t",
        )
        assert "Uploads" not in client.list_multipart_uploads(Bucket="bucket")
        read.explain()
        read.to_df().explain(True)
        assert "s3cr3t" not in repr(read) + repr(read._start) + "".join(capsys.readouterr())


def appending(address: str, path: str, first: int, count: int) -> Any:
    """A driver that appends numbers to a Delta table, and waits for a word to begin."""
    program = Path(__file__).with_name("store_delta_writer.py")
    command = [sys.executable, str(program), address, path, str(first), str(count)]
    driver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert driver.stdout.readline() == "ready\n"
    return driver


@nightly
def test_two_writers_of_a_delta_table_at_once() -> None:
    """Of two that would make the same version, one makes the next."""
    deltalake = pytest.importorskip("deltalake", reason="pip install 'fastbuf[delta]'")
    with served_apart(latency_s=0.005) as address:
        drivers = [appending(address, "bucket/two", first, 6) for first in (0, 10)]
        for driver in drivers:
            driver.stdin.close()
        for driver in drivers:
            with driver:
                assert len(driver.stdout.readlines()) == 6
            assert driver.returncode == 0
        table = deltalake.DeltaTable("s3://bucket/two", storage_options=delta_options(address))
        assert sorted(table.to_pyarrow_table()["x"].to_pylist()) == [*range(6), *range(10, 16)]
        assert [each["version"] for each in table.history()] == [*range(11, -1, -1)]


@nightly
def test_a_driver_that_is_killed_as_it_writes_a_tables_log() -> None:
    """Nobody sees its rows, though its files are there; those who come behind it go on."""
    deltalake = pytest.importorskip("deltalake", reason="pip install 'fastbuf[delta]'")
    with served_apart(busy_each=0) as address, passed_on(int(address.rpartition(":")[2])) as own:
        driver = appending(own.address, "bucket/log", 0, 2)
        own.holds = lambda request: request.command == "PUT" and "00000000000000000001.json" in request.path
        driver.stdin.close()
        assert own.stuck.wait(60)
        driver.kill()
        assert driver.stdout.read() == "0\n"
        assert driver.wait() == -signal.SIGKILL
        options = delta_options(address)
        assert deltalake.DeltaTable("s3://bucket/log", storage_options=options).version() == 0
        assert len([name for name in names(store_at(address), "bucket/log") if name.endswith(".parquet")]) == 2
        with appending(address, "bucket/log", 7, 1) as other:
            other.stdin.close()
        table = deltalake.DeltaTable("s3://bucket/log", storage_options=options)
        assert sorted(table.to_pyarrow_table()["x"].to_pylist()) == [0, 7]
        driver.stdout.close()


@nightly
def test_a_stream_to_a_delta_table(spark: Any, tmp_path: Path) -> None:
    """Its workers have the credentials that deltalake has."""
    deltalake = pytest.importorskip("deltalake", reason="pip install 'fastbuf[delta]'")
    with served_apart() as address:
        options = delta_options(address)
        uri = "s3://bucket/stream"
        query = numbered.numbered(spark, 3000, 1500.0).write_stream(
            fbs.to_delta(uri, "k", storage_options=options), tmp_path / "chk", every=0.5
        )
        assert query.await_termination(120)
        assert query.status["state"] == "finished"
        numbered.check(deltalake.DeltaTable(uri, storage_options=options).to_pyarrow_table(), 3000)
        assert "s3cr3t" not in repr(query.status)


@nightly
def test_iceberg_tables(spark: Any, tmp_path: Path, capsys: Any) -> None:
    """The workers have the file system that the catalog's properties are for."""
    catalogs = pytest.importorskip("pyiceberg.catalog", reason="pip install 'fastbuf[iceberg]'")
    pytest.importorskip("sqlalchemy", reason="pip install 'pyiceberg[sql-sqlite]'")
    with served_apart() as address:
        catalog = iceberg_properties(address, tmp_path)
        catalogs.load_catalog("default", **catalog).create_namespace("a")
        df = spark.range(40).selectExpr("id", "id % 2 as k")
        assert fbs.write_iceberg(df, catalog, "a.t", partition_by="bucket(3, id)").rows == 40
        fbs.write_iceberg(df, catalog, "a.t")
        read = fbs.read_iceberg(spark, catalog, "a.t", filter=pc.field("id") < 3)
        assert sorted(read.collect()) == [(0, 0), (0, 0), (1, 1), (1, 1), (2, 0), (2, 0)]
        assert catalogs.load_catalog("default", **catalog).load_table("a.t").scan().to_arrow().num_rows == 80
        with pytest.raises(Exception, match="no more"):
            fbs.pipeline(df).map_in_arrow(fails, df.schema).write_iceberg(catalog, "a.t")
        for _ in range(2):
            fbs.write_iceberg(df.limit(1), catalog, "a.t")
        scan = catalogs.load_catalog("default", **catalog).load_table("a.t").scan()
        found = {f"s3://{name}" for name in names(store_at(address), "bucket/iceberg") if name.endswith(".parquet")}
        assert found == {task.file.file_path for task in scan.plan_files()}
        read.explain()
        read.to_df().explain(True)
        assert "s3cr3t" not in repr(read) + repr(read._start) + "".join(capsys.readouterr())

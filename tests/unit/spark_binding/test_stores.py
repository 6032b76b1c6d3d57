"""What is asked of a store, of which each answer takes long: as little as can be, and meanwhile files are read."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from fsspec.implementations import local
from nights import nightly
from pyarrow import fs

from fastbuf.errors import ResourceError
from fastbuf_spark.driver import files as listing
from fastbuf_spark.driver import splits
from fastbuf_spark.driver.commit import JOURNAL, Commit
from fastbuf_spark.driver.file_systems import file_system
from fastbuf_spark.driver.files import LISTINGS, list_files
from fastbuf_spark.driver.store_options import store_of
from fastbuf_spark.driver.uploads import end_uploads
from fastbuf_spark.formats.base import Format
from fastbuf_spark.formats.orc import Orc
from fastbuf_spark.formats.parquet import Parquet
from fastbuf_spark.worker import stores
from fastbuf_spark.worker.reading import Piece, Read
from fastbuf_spark.worker.stores import AHEAD, check_sizes, is_store, kinds, open_ahead


class Store(local.LocalFileSystem):  # type: ignore[misc]
    """A directory that says it is a store, and notes what it is asked."""

    protocol = "s3"
    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asked: list[str] = []

    def info(self, path: Any, **more: Any) -> Any:
        self.asked.append(f"info {Path(path).name}")
        return super().info(path, **more)

    def find(self, path: Any, **more: Any) -> Any:
        self.asked.append(f"find {Path(path).name}")
        found = super().find(path, **more)
        del self.asked[self.asked.index(f"find {Path(path).name}") + 1 :]  # which a real one is not asked
        return found


@pytest.fixture
def asked() -> Store:
    return Store()


@pytest.fixture
def store(asked: Store) -> Any:
    return fs.PyFileSystem(fs.FSSpecHandler(asked))


def files_in(folder: Path, count: int) -> None:
    for number in range(count):
        pq.write_table(pa.table({"x": [number] * 10}), folder / f"{number}.parquet", row_group_size=5)


def test_what_a_store_is(store: Any) -> None:
    assert is_store(store)
    assert is_store(fs.SubTreeFileSystem("/", store))
    assert is_store(fs.S3FileSystem(region="us-east-1", anonymous=True))
    assert not is_store(fs.LocalFileSystem())
    assert not is_store(fs.PyFileSystem(fs.FSSpecHandler(local.LocalFileSystem())))
    assert kinds(fs.LocalFileSystem()) == {"local"}


def test_what_a_killed_write_may_cost_is_told(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = end_uploads(store, "bucket/a/_temporary-x")
    assert "above 10 MiB" in text
    assert "not ended, since TypeError: it is a PyFileSystem" in text
    assert "list-multipart-uploads --prefix a/_temporary-x" in text
    assert end_uploads(fs.GcsFileSystem(anonymous=True), "bucket/a/_temporary-x") == ""
    assert end_uploads(fs.LocalFileSystem(), "/a/b") == ""
    monkeypatch.setitem(sys.modules, "boto3", None)
    system = fs.S3FileSystem(region="us-east-1", anonymous=True)
    assert "since boto3 is not installed: pip install 'fastbuf[s3]'" in end_uploads(system, "bucket/a")


class Busy(BaseHTTPRequestHandler):
    """A store that has no time for the first requests; then all its directories are empty."""

    left = 0

    def do_GET(self) -> None:
        Busy.left -= 1
        body = b"<Error><Code>SlowDown</Code></Error>" if Busy.left >= 0 else b"<ListBucketResult></ListBucketResult>"
        self.send_response(503 if Busy.left >= 0 else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@nightly(way=["by a URI", "by deltalake's options"])
@pytest.mark.parametrize("way", ["by a URI", "of a task", "by deltalake's options"])
def test_a_store_that_is_busy_is_asked_again(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of pyarrow's own clients gives up after two seconds, and what was set otherwise is lost in its pickle."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_address[1]}"
    secret = {"access_key": "a", "secret_key": "b", "region": "us-east-1"}
    try:
        if way == "of a task":
            given = fs.S3FileSystem(**secret, endpoint_override=address, scheme="http")
            system = stores.same_system(pickle.loads(pickle.dumps(given)))
            assert system == given
        elif way == "by a URI":
            for name, value in {"ENDPOINT_URL": f"http://{address}", "ACCESS_KEY_ID": "a", "REGION": "x"}.items():
                monkeypatch.setenv(f"AWS_{name}", value)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
            system = file_system("s3://bucket/a", None)[0]
        else:
            options = {"endpoint": f"http://{address}", "access_key_id": "a", "secret_access_key": "b", "region": "x"}
            system = store_of("s3://bucket/a", options)
        Busy.left = 3
        assert system.get_file_info(fs.FileSelector("bucket", allow_not_found=True)) == []
        assert Busy.left < 0
    finally:
        server.shutdown()
        server.server_close()


def test_a_store_that_takes_long_is_told(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its client may have been refused, and says nothing of it."""
    files_in(tmp_path, 1)
    caplog.set_level("INFO", "fastbuf_spark")
    monkeypatch.setattr(listing, "SLOW_S", -1.0)
    listing.listed(tmp_path, None, {})
    assert caplog.text == ""
    listing.listed(tmp_path, store, {})
    assert f"{tmp_path}: listed in 0.0 s: a request that a store refuses" in caplog.text.replace("0.1 s", "0.0 s")


def test_a_directory_of_a_store_is_listed_once(tmp_path: Path, asked: Store, store: Any) -> None:
    files_in(tmp_path, 3)
    (tmp_path / "_metadata").write_bytes(b"x")
    (tmp_path / "_common_metadata").write_bytes(b"x")
    there = list_files(store, [str(tmp_path)])
    assert asked.asked == [f"find {tmp_path.name}"]
    other = list_files(fs.LocalFileSystem(), [str(tmp_path)])
    assert [(file.path, file.size) for file in there.files] == [(file.path, file.size) for file in other.files]
    assert there.summaries == other.summaries == [f"{tmp_path}/_common_metadata", f"{tmp_path}/_metadata"]
    for slash in ("", "/"):
        assert [file.path for file in list_files(store, [f"{tmp_path}/1.parquet{slash}"]).files] == [
            f"{tmp_path}/1.parquet"
        ]
    with pytest.raises(ResourceError, match="does not exist"):
        list_files(store, [f"{tmp_path}/none"])


def test_directories_of_a_store_are_listed_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one level, and each with all below it once they are enough; not what readers pass over."""
    met = threading.Barrier(LISTINGS)
    store = Store()
    listed: list[tuple[str, Any]] = []

    def finds(path: Any, maxdepth: Any = None, **more: Any) -> Any:
        name = Path(path).name
        listed.append((name, maxdepth))
        if name.startswith("day="):
            met.wait(30)
        return local.LocalFileSystem.find(store, path, maxdepth=maxdepth, **more)

    monkeypatch.setattr(store, "find", finds)
    days = [f"day={day}" for day in range(LISTINGS)]
    for below in (*(f"{day}/h=1" for day in days), "_temporary/x"):
        (tmp_path / "t" / below).mkdir(parents=True)
        files_in(tmp_path / "t" / below, 2)
    there = list_files(fs.PyFileSystem(fs.FSSpecHandler(store)), [str(tmp_path / "t")])
    assert listed[0] == ("t", 1)
    assert sorted(listed[1:]) == [(day, None) for day in sorted(days)]
    other = list_files(fs.LocalFileSystem(), [str(tmp_path / "t")])
    assert [(file.path, file.size, file.values) for file in there.files] == [
        (file.path, file.size, file.values) for file in other.files
    ]
    assert len(there.files) == 2 * LISTINGS


def test_sizes_of_many_files_are_asked_for_once(tmp_path: Path, asked: Store, store: Any) -> None:
    (tmp_path / "a").mkdir()
    for name in "xyz":
        (tmp_path / "a" / name).write_text(name * 4)
    check_sizes(store, str(tmp_path), ["a/x", "a/y", "a/z"], [4, 4, 4])
    assert asked.asked == [f"find {tmp_path.name}"]
    for system in (store, fs.LocalFileSystem()):
        with pytest.raises(ResourceError, match=r"wrote 5 bytes to .*a/y, of which the driver sees 4"):
            check_sizes(system, str(tmp_path), ["a/x", "a/y"], [4, 5])
        with pytest.raises(ResourceError, match=r"wrote 4 bytes to .*a/none, of which the driver sees None"):
            check_sizes(system, str(tmp_path), ["a/none"], [4])


def pieces(folder: Path, system: Any) -> list[Piece]:
    there = list_files(system, [str(folder)]).files
    fragments = [(file, Parquet(), part) for file, part in splits.fragments(system, there, Parquet(), {})]
    return splits.pieces(fragments, pa.schema([("x", pa.int64())]), None)


def test_a_piece_keeps_its_row_groups_and_its_size(tmp_path: Path) -> None:
    files_in(tmp_path, 2)
    (joined,) = splits.shared_out(pieces(tmp_path, fs.LocalFileSystem()), 1)
    assert [piece.groups for piece in joined] == [(0, 1), (0, 1)]
    single = pieces(tmp_path, fs.LocalFileSystem())[3]
    assert single.groups == (1,)
    schema = pa.schema([("x", pa.int64())])
    read = Read(((single,), joined), schema, schema)
    for each in (read, pickle.loads(pickle.dumps(read)), replace(read)):
        rows = [batch.column(0).to_pylist() for batch in each([pa.record_batch({"n": [0, 1]})])]
        assert [value for some in rows for value in some] == [1] * 5 + [0] * 10 + [1] * 10


def test_a_plan_reads_each_footer_once(tmp_path: Path) -> None:
    """And not once more for each row group, nor to send it to a task."""
    files_in(tmp_path, 1)
    parts = pieces(tmp_path, fs.LocalFileSystem())
    whole = (tmp_path / "0.parquet").read_bytes()
    (tmp_path / "0.parquet").unlink()
    ((joined,),) = splits.shared_out(parts, 1)
    sent = pickle.dumps(joined)
    (tmp_path / "0.parquet").write_bytes(whole)
    for piece in (joined, pickle.loads(sent)):
        assert [group.id for group in piece.fragment.row_groups] == [0, 1]
        assert piece.fragment.path == f"{tmp_path}/0.parquet"


def test_the_next_files_are_opened_meanwhile(tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files_in(tmp_path, 6)
    parts = [piece for piece in pieces(tmp_path, store) if piece.groups == (0,)]
    begun: list[str] = []
    check = Piece.check

    def slow_check(self: Piece, missing_ok: bool = False) -> None:
        begun.append(Path(self.fragment.path).name)
        time.sleep(0.01)  # a store's latency
        check(self, missing_ok)

    monkeypatch.setattr(Piece, "check", slow_check)
    reading = open_ahead(parts)
    for number in range(4):
        assert next(reading) is parts[number]
        deadline = time.monotonic() + 10
        while len(begun) < number + 1 + AHEAD and time.monotonic() < deadline:
            time.sleep(0.001)  # between two looks
        assert sorted(begun) == [f"{at}.parquet" for at in range(number + 1 + AHEAD)]
    reading.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("fastbuf-opens")]


def test_a_file_that_was_replaced_is_told_when_its_turn_comes(tmp_path: Path, store: Any) -> None:
    files_in(tmp_path, 3)
    parts = [piece for piece in pieces(tmp_path, store) if piece.groups == (0,)]
    (tmp_path / "1.parquet").write_bytes(b"no Parquet any more")
    reading = open_ahead(parts)
    assert next(reading) is parts[0]
    with pytest.raises(ResourceError, match=r"1\.parquet has been changed since it was planned"):
        next(reading)
    (tmp_path / "0.parquet").unlink()
    with pytest.raises(ResourceError, match=r"0\.parquet is gone since files were listed"):
        next(open_ahead(parts))


def test_times_of_a_store_count_in_seconds(tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """MinIO and Ceph list milliseconds, and tell whole seconds of one object."""
    files_in(tmp_path, 1)
    os.utime(tmp_path / "0.parquet", ns=(5_700_000_000, 5_700_000_000))
    for system in (store, fs.LocalFileSystem()):
        parts = pieces(tmp_path, system)
        os.utime(tmp_path / "0.parquet", ns=(5_000_000_000, 5_000_000_000))
        if system is store:
            assert len(list(open_ahead(parts))) == 2
            os.utime(tmp_path / "0.parquet", ns=(4_000_000_000, 4_000_000_000))
        with pytest.raises(ResourceError, match="has been changed since it was planned"):
            list(open_ahead(parts))
        os.utime(tmp_path / "0.parquet", ns=(5_700_000_000, 5_700_000_000))


@pytest.mark.parametrize(
    "path", ["a b", "a%20b", "a#b", "ü/x", "k=a%2Fb/x.parquet", "k=x y/*.parquet", "a/{b c,d}", 'a|"<^', "a//b/", ""]
)
def test_the_path_of_a_uri_is_taken_as_it_stands(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark does, so that what is listed can be given: pyarrow decodes a URI, and refuses blanks and letters."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")  # so that nobody asks for the bucket's region
    for scheme, root in (("s3", "bucket"), ("s3a", "bucket"), ("mock", "")):
        system, (there,) = file_system(f"{scheme}://{root}/{path}", None)
        assert system.type_name == scheme[: 2 if root else 4]
        assert there == f"{root}/{path}".strip("/").replace("//", "/")


def test_an_older_pyarrow_opens_stores_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know that a file may be opened when it is closed."""

    class Older:
        @staticmethod
        def from_uri(uri: str) -> Any:
            if "allow_delayed_open" in uri:
                raise pa.ArrowInvalid("Unexpected query parameter in S3 URI: 'allow_delayed_open'")
            return fs.SubTreeFileSystem("/", fs.LocalFileSystem()), "bucket"

    def older(region: str, endpoint_override: str) -> str:
        return f"{endpoint_override} {region}"

    monkeypatch.setattr(fs, "FileSystem", Older)
    monkeypatch.setattr(fs, "S3FileSystem", older)
    assert file_system("s3://bucket/x", None)[1] == ["bucket/x"]
    assert store_of("s3://bucket/x", {"endpoint": "here", "region": "there"}) == "here there"


def test_row_groups_in_memory_are_not_joined(tmp_path: Path) -> None:
    """A user's dataset may have a file that is a buffer, which has no path to open it by once more."""
    files_in(tmp_path, 1)
    schema = pa.schema([("x", pa.int64())])
    fragment = ds.ParquetFileFormat().make_fragment(pa.py_buffer((tmp_path / "0.parquet").read_bytes()))
    shared_out = splits.shared_out(splits.pieces([(None, Parquet(), fragment)], schema, None), 1)
    read = pickle.loads(pickle.dumps(Read(shared_out, schema, schema)))
    assert pa.Table.from_batches(read([pa.record_batch({"n": [0]})])).num_rows == 10


def test_the_files_of_a_task_have_one_client() -> None:
    """Each one of S3's has connections of its own: 300 files took 1,800 descriptors."""

    def sent(of: Format, region: str, size: int) -> Any:
        system = fs.S3FileSystem(region=region, anonymous=True)
        piece = Piece(of, of.fragment("bucket/x", system), 0, 0, size)
        assert pickle.loads(pickle.dumps(piece)).fragment.filesystem == system
        state = piece.__getstate__()["fragment"]
        return state.filesystem if size >= 0 else state[1][1]

    for of in (Parquet(), Orc()):
        for size in (9, -1):  # -1: of a dataset of the user's
            assert sent(of, "us-east-1", size) is sent(of, "us-east-1", size)
            assert sent(of, "us-east-1", size) != sent(of, "us-west-1", size)


def test_a_path_with_its_protocol_is_that_of_the_file_system(tmp_path: Path) -> None:
    """As s3fs and gcsfs take both; what they list is without it."""

    class Stripping(Store):
        @classmethod
        def _strip_protocol(cls, path: Any) -> Any:
            return super()._strip_protocol(path.removeprefix("s3://"))

    (tmp_path / "k=1").mkdir()
    (tmp_path / "k=1" / "x").write_text("abc")
    (tmp_path / "k=1" / "y").write_text("abc")
    system, (path,) = file_system(f"s3://{tmp_path}/", Stripping())
    assert [file.values for file in list_files(system, [path]).files] == [(("k", "1"),)] * 2
    check_sizes(system, path, ["k=1/x", "k=1/y"], [3, 3])
    assert file_system("s3://bucket/[a]*", Stripping())[1][0].endswith("bucket/[a]*")


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("gs://bucket/a b", "bucket/a b"),
        ("gs://anonymous@bucket/a@b", "bucket/a@b"),
        ("abfss://c@acct.dfs.core.windows.net/a@b", "c/a@b"),
        ("s3a://bucket/%20", "bucket/%20"),
        ("bucket@x/a", "bucket@x/a"),
    ],
)
def test_a_uri_beside_a_file_system_of_ones_own(uri: str, path: str) -> None:
    """pyarrow refuses it; the path in the store is meant."""
    assert file_system(uri, fs.GcsFileSystem(anonymous=True))[1] == [path]


def test_of_two_writes_of_a_new_directory_one_is_refused(tmp_path: Path) -> None:
    """As on a disk: both began while nothing was there."""
    system = fs.PyFileSystem(fs.FSSpecHandler(Store(auto_mkdir=True)))
    path = f"{tmp_path}/new"
    first, second, third = (Commit(system, path, mode) for mode in ("error", "error", "append"))

    def commit(write: Commit, name: str) -> None:
        with system.open_output_stream(f"{write.folder}/a/{name}") as stream:
            stream.write(b"abc")
        write.commit([("a", name, 3)])

    commit(first, "1.parquet")
    with pytest.raises(ResourceError, match="another write has made it meanwhile"):
        commit(second, "2.parquet")
    second.close()
    commit(third, "3.parquet")
    assert sorted(file.name for file in Path(path).iterdir()) == ["1.parquet", "3.parquet", "_SUCCESS"]


def test_of_two_writes_in_the_same_moment_at_most_one_goes_on(tmp_path: Path) -> None:
    """One has its journal, and has copied nothing yet: the other one, whose files would be seen too, gives up."""
    system = fs.PyFileSystem(fs.FSSpecHandler(Store(auto_mkdir=True)))
    first, second = (Commit(system, f"{tmp_path}/new", "error") for _ in range(2))
    for write, name in ((first, "1.parquet"), (second, "2.parquet")):
        with system.open_output_stream(f"{write.folder}/a/{name}") as stream:
            stream.write(b"abc")
    first._note(JOURNAL, ["1.parquet"])
    with pytest.raises(ResourceError, match=r"is being made by another write, _temporary-.*run this one again"):
        second.commit([("a", "2.parquet", 3)])
    second.close()
    first.commit([("a", "1.parquet", 3)])
    assert sorted(file.name for file in Path(tmp_path, "new").iterdir()) == ["1.parquet", "_SUCCESS"]


def test_files_of_this_machine_are_checked_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files_in(tmp_path, 3)
    monkeypatch.setattr(stores, "ThreadPoolExecutor", None)
    assert len(list(open_ahead(pieces(tmp_path, fs.LocalFileSystem())))) == 6


def test_what_a_client_says_is_told_in_a_line() -> None:
    """With what to do where it finds no credentials; pyarrow's client of Azure's store raises no OSError."""
    for error, told in [
        (OSError("AWS Error ACCESS_DENIED\nRequest ID: 1"), "AWS Error ACCESS_DENIED"),
        (OSError("Status(UNAVAILABLE: no OAuth2 access token error_info={a=b})"), "no OAuth2 access token. No cred"),
        (pa.ArrowException("failed: DefaultAzureCredential.\nSee"), "failed: DefaultAzureCredential. No credentials"),
    ]:
        with pytest.raises(ResourceError) as raised, stores.errors_of_client("bucket/a"):
            raise error
        assert told in str(raised.value)
        assert str(raised.value).startswith("bucket/a cannot be reached: ")
        assert "\n" not in str(raised.value)
    with pytest.raises(ResourceError) as raised, stores.errors_of_client("bucket/a"):
        raise OSError("failed: https://acct.x/c?sig=s3cr3t%3D&sv=1 (403)")
    assert "sig=...&sv=1 (403)" in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
    with pytest.raises(FileNotFoundError), stores.errors_of_client("bucket/a"):
        raise FileNotFoundError

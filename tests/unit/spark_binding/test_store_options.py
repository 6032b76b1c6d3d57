"""Workers open a store as deltalake is told to."""

from __future__ import annotations

import pickle
import socket
import sys
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from pyarrow import fs

from fastbuf.errors import ConfigError, ResourceError
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver import file_systems
from fastbuf_spark.driver.delta import location
from fastbuf_spark.driver.file_systems import file_system
from fastbuf_spark.driver.store_options import azure_of, environment_of_azure, of_session, storage_of, store_of

OPTIONS = {"AWS_ACCESS_KEY_ID": "someone", "aws_secret_access_key": "s3cr3t", "endpoint": "http://127.0.0.1:1"}


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", *environment_of_azure()):
        monkeypatch.delenv(name, raising=False)


def test_files_of_a_table_are_where_its_log_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """deltalake decodes a URI, and files that are next to none of its logs are no table for other readers."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")  # so that nobody asks for the bucket's region
    for options in (None, {"AWS_REGION": "here"}):
        for uri, root in (("a%20b", "a b"), ("a b", "a b"), ("ü", "ü"), ("k=a%252Fb/", "k=a%2Fb"), ("a#b", "a")):
            assert location(f"s3://bucket/{uri}", None, options)[1:] == (f"bucket/{root}", f"s3://bucket/{uri}")
    assert location("file:///a%20b")[1] == "/a b"
    assert location("/a%20b")[1:] == ("/a%20b", "/a%20b")


@pytest.mark.parametrize("uri", ["s3://bucket/a/table/", "s3a://bucket/a/table"])
def test_where_a_table_is(uri: str) -> None:
    system, root, named = location(uri, None, OPTIONS)
    other = fs.S3FileSystem(
        access_key="someone",
        secret_key="s3cr3t",
        endpoint_override="http://127.0.0.1:1",
        region="us-east-1",
        allow_delayed_open=True,
    )
    assert system.equals(other)
    assert pickle.loads(pickle.dumps(system)).equals(other)
    assert (root, named) == ("bucket/a/table", uri)


def test_names_of_options(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {"access_key_id": "a", "secret_access_key": "b", "token": "c", "default_region": "eu-west-1"}
    expected = fs.S3FileSystem(
        access_key="a", secret_key="b", session_token="c", region="eu-west-1", allow_delayed_open=True
    )
    assert store_of("s3://b/t", plain).equals(expected)
    assert store_of("s3://b/t", {f"AWS_{name.upper()}": value for name, value in plain.items()}).equals(expected)
    anonymous = fs.S3FileSystem(anonymous=True, region="eu-west-1", allow_delayed_open=True)
    assert store_of("s3://b/t", {"skip_signature": "True", "region": "eu-west-1"}).equals(anonymous)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert store_of("s3://b/t", {"endpoint": "http://127.0.0.1:1"}).region == "eu-central-1"


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("s3://b/t", None),
        ("s3://b/t", {}),
        ("s3://b/t", {"timeout": "30s"}),
        ("/a/table", OPTIONS),
        ("gs://b/t", OPTIONS),
    ],
)
def test_what_the_uri_alone_decides(uri: str, options: dict[str, str] | None) -> None:
    assert store_of(uri, options) is None


def test_a_file_system_of_ones_own_comes_first() -> None:
    mine = fs.LocalFileSystem()
    assert location("s3://bucket/table", mine, OPTIONS)[0] is mine


KEY = "czNjcjN0"
IN_AZURE = "abfss://c@acct.dfs.core.windows.net"


def azure(**arguments: str) -> fs.AzureFileSystem:
    standard = {f"{of}_storage_authority": f".{of}.core.windows.net" for of in ("blob", "dfs")}
    return fs.AzureFileSystem("acct", **{**standard, **arguments})


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"AZURE_STORAGE_ACCOUNT_KEY": KEY}, {"account_key": KEY}),
        ({"azure_storage_access_key": KEY, "account_name": "acct"}, {"account_key": KEY}),
        ({"AZURE_STORAGE_KEY": KEY, "AZURE_STORAGE_SAS_TOKEN": "sv=1"}, {"account_key": KEY}),
        (
            {"azure_client_id": "a", "azure_client_secret": "b", "azure_tenant_id": "t"},
            {"client_id": "a", "client_secret": "b", "tenant_id": "t"},
        ),
        ({"connection_string": f"AccountName=acct;AccountKey={KEY}==;EndpointSuffix=x"}, {"account_key": f"{KEY}=="}),
        (
            {"account_key": KEY, "endpoint": "http://127.0.0.1:1/acct"},
            {
                "account_key": KEY,
                **{
                    f"{of}_storage_{name}": to
                    for of in ("blob", "dfs")
                    for name, to in (("scheme", "http"), ("authority", "127.0.0.1:1"))
                },
            },
        ),
    ],
)
def test_accounts_of_azure(options: dict[str, str], arguments: dict[str, str]) -> None:
    assert store_of(f"{IN_AZURE}/t", options) == azure(**arguments)


def test_an_account_of_azure_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """By each name of its store; a key of another account is not used."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acct")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    for uri in (IN_AZURE, "abfs://c", "az://c", "wasbs://c@acct.blob.core.windows.net"):
        system, paths = file_system(f"{uri}/a b/%20", None)
        assert (paths, system.account_name if hasattr(system, "account_name") else "acct") == (["c/a b/%20"], "acct")
        assert KEY in repr(system.__reduce__())
        assert KEY not in repr(system)
    system, paths = file_system("abfss://c@other.dfs.core.windows.net/a", None)
    assert KEY not in repr(system.__reduce__())
    assert paths == ["c/a"]
    assert azure_of("abfs://acct.blob.core.windows.net/c/a", {}) is None, "pyarrow's own form"


def test_no_account_of_azure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme in ("abfs", "az"):
        with pytest.raises(ConfigError, match=rf"{scheme}://c/a: .*account name.*AZURE_STORAGE_ACCOUNT_NAME"):
            file_system(f"{scheme}://c/a", None)


@pytest.mark.parametrize("scheme", ["s3a", "gs", "abfss", "hdfs", "dbfs"])
def test_one_slash_is_no_local_path(scheme: str) -> None:
    """Hadoop takes it; here a directory of this name would be made."""
    with pytest.raises(ConfigError, match=f"give {scheme}://"):
        file_system(f"{scheme}:/bucket/a", None)


@pytest.mark.parametrize("has", [False, True])
def test_an_hdfs_without_a_client(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, with what to install; fsspec's is taken where it is installed."""

    class Without:
        @staticmethod
        def from_uri(uri: str) -> None:
            raise OSError("Unable to load libhdfs: no such file\ndlopen(a) failed\ndlopen(b) failed")

    def opens(uri: str) -> tuple[LocalFileSystem, str]:
        return LocalFileSystem(), "/a/b"

    monkeypatch.setattr(fs, "FileSystem", Without)
    monkeypatch.setattr(file_systems, "find_spec", lambda name: name if has else None)
    monkeypatch.setattr("fsspec.core.url_to_fs", opens)
    if has:
        system, _ = file_system("hdfs://there/a/b", None)
        assert isinstance(system.handler.fs, LocalFileSystem)
        monkeypatch.setattr(LocalFileSystem, "_strip_protocol", staticmethod(lambda path: path.partition("#")[0]))
        with pytest.raises(ConfigError, match="takes no path with #"):
            file_system("hdfs://there/a#b", None)
        return
    with pytest.raises(ConfigError) as error:
        file_system("hdfs://there/a/b", None)
    text = str(error.value)
    assert "Unable to load libhdfs: no such file. Install one" in text
    assert "pip install hdfs-native" in text
    assert "\n" not in text


def test_a_store_of_google_is_not_asked_for_a_quarter_of_an_hour() -> None:
    for scheme in ("gs", "gcs"):
        system, paths = file_system(f"{scheme}://anonymous@bucket/a b", None)
        assert paths == ["bucket/a b"]
        assert system.__reduce__()[1][0]["retry_time_limit"] == timedelta(seconds=30)


def test_an_hdfs_that_is_not_there_is_told_at_once() -> None:
    """Its clients try for minutes."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=rf"hdfs://127\.0\.0\.1:{port}/a cannot be reached: .*refused"):
            file_system(f"hdfs://127.0.0.1:{port}/a", None)
    with pytest.raises(ResourceError, match="cannot be reached"):
        file_system("hdfs://127.0.0.1:99999/a", None)


def test_a_file_system_that_neither_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"fsspec is not there: pip install 'fastbuf\[fsspec\]'"):
        file_system("webdav://there/a", None)


def session(**settings: str) -> Any:
    """A session whose settings are those of Spark's reader of S3."""
    return SimpleNamespace(conf=SimpleNamespace(getAll={f"spark.hadoop.fs.s3a.{k}": v for k, v in settings.items()}))


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (
            {"access.key": "a", "secret.key": "b", "session.token": "c", "endpoint.region": "eu-west-1"},
            {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "SESSION_TOKEN": "c", "REGION": "eu-west-1"},
        ),
        ({"endpoint": "https://s3.eu-west-3.amazonaws.com"}, {"REGION": "eu-west-3"}),
        ({"endpoint": "s3.amazonaws.com"}, {}),
        ({"endpoint": "minio:9000"}, {"ENDPOINT_URL": "https://minio:9000"}),
        (
            {"endpoint": "minio:9000", "connection.ssl.enabled": "false", "path.style.access": "true"},
            {"ENDPOINT_URL": "http://minio:9000", "ALLOW_HTTP": "true"},
        ),
        (
            {"endpoint": "http://minio", "path.style.access": "False"},
            {"ENDPOINT_URL": "http://minio", "ALLOW_HTTP": "true", "VIRTUAL_HOSTED_STYLE_REQUEST": "true"},
        ),
        (
            {"aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"},
            {"SKIP_SIGNATURE": "true"},
        ),
        ({"access.key": "a", "bucket.b.access.key": "own", "bucket.c.access.key": "x"}, {"ACCESS_KEY_ID": "own"}),
        ({"threads.max": "5"}, {}),
    ],
)
def test_settings_of_sparks_own_reader(settings: dict[str, str], options: dict[str, str]) -> None:
    """A job's own options come first, and what is no store has none."""
    spark = session(**settings)
    assert of_session(spark, "s3a://b/t") == {f"AWS_{name}": value for name, value in options.items()}
    assert of_session(spark, "gs://b/t") == {}
    assert storage_of(spark, ShuffleConf(storage_options=OPTIONS))("s3://b/t") == OPTIONS
    assert storage_of(spark, ShuffleConf(storage_options=OPTIONS))("file:///t") == {}
    assert storage_of(spark, None)("/b/s3://t/x") == {}
    if "ACCESS_KEY_ID" in options and "SECRET_ACCESS_KEY" in options:
        system, [path] = file_system("s3a://b/t", None, storage_of(spark, None))
        assert path == "b/t"
        assert system.region == "eu-west-1"
        assert system.__reduce__()[1][0]["session_token"] == "c"


def test_a_sessions_setting_comes_before_the_ones_of_its_start() -> None:
    spark = session(**{"access.key": "old"})
    spark.conf.getAll["fs.s3a.access.key"] = "new"
    assert of_session(spark, "s3://b/t") == {"AWS_ACCESS_KEY_ID": "new"}


def test_a_jobs_options_are_not_shown() -> None:
    conf = ShuffleConf(storage_options=OPTIONS)
    assert "s3cr3t" not in repr(conf)
    assert replace(conf, exclusive=3).storage_options == pickle.loads(pickle.dumps(conf)).storage_options == OPTIONS
    assert hash(conf) == hash(ShuffleConf())
    for wrong in ("s3cr3t", {"key": 5, "s3cr3t": "s3cr3t"}, [("s3cr3t", "s3cr3t")]):
        with pytest.raises(ConfigError, match="storage_options must be a dict of texts") as error:
            ShuffleConf(storage_options=wrong)  # type: ignore[arg-type]
        assert "s3cr3t" not in str(error.value)
    with pytest.raises(ConfigError, match="storageOptions is not a setting"):
        ShuffleConf.from_settings({"spark.fastbuf.storageOptions": "s3cr3t"})

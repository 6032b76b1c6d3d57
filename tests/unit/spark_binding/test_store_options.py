"""Workers open a store as deltalake is told to."""

from __future__ import annotations

import pickle

import pytest
from pyarrow import fs

from fastbuf_spark.driver.delta import location
from fastbuf_spark.driver.store_options import store_of

OPTIONS = {"AWS_ACCESS_KEY_ID": "someone", "aws_secret_access_key": "s3cr3t", "endpoint": "http://127.0.0.1:1"}


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
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

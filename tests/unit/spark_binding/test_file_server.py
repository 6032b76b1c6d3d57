"""File servers of held rows: who is served and who is not, what a reader does without them, and how they end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from certificates import OPENSSL, authority, host
from flood import FLOOD, Flood
from left_behind import nothing_left

from fastbuf.errors import AuthenticationError, BlockCorrupt, ProtocolError, ResourceError
from fastbuf.json_frames import pack
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver.rendezvous import Rendezvous
from fastbuf_spark.protocol import Files, Remove, Where
from fastbuf_spark.spec import ExchangeSpec
from fastbuf_spark.worker import fetching, file_server
from fastbuf_spark.worker.fetching import Fetcher
from fastbuf_spark.worker.file_server import NAME, REQUEST, FileServer, Finder, Proof
from fastbuf_spark.worker.held import FOLDER, Description, HeldFile, HeldRows, HeldRowsLost, Sections, root_of

EXCHANGE, SERVICE, SECRET = "0123456789abcdef" * 2, "held-1", b"s" * 32
DIGEST = b"digested"
PARTITIONS = 3
HELD = HeldRows("", SERVICE, SECRET)
Blocks = list[tuple[int, bytes]]


class Answers:
    """The driver, which knows where files are."""

    def __init__(self, servers: list[Any], at: list[int]) -> None:
        self.servers, self.at, self.asked = servers, at, 0

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, question: Where, timeout: float) -> Files:
        self.asked += 1
        return Files(tuple(map(tuple, self.servers)), tuple(self.at))


@dataclasses.dataclass(frozen=True)
class Spec(ExchangeSpec):
    driver: Any = None

    def connect(self, reach: float | None = None) -> Any:
        return self.driver


def spec(driver: Answers | None = None, held: HeldRows = HELD, **conf: Any) -> Spec:
    codec: Any = None
    return Spec(EXCHANGE, "total", PARTITIONS, ShuffleConf(**conf), codec, held=held, driver=driver)


class Hosts:
    """Executors, each with directories and a server of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.driver = Answers([], [])
        self.servers: list[FileServer] = []
        self.rows: dict[int, Blocks] = {}
        self.described: list[Description] = []

    def add(self, **more: Any) -> FileServer:
        roots = [str(self.folder / str(len(self.servers)) / FOLDER)]
        server = FileServer("127.0.0.1", (0, 0), roots, SERVICE, SECRET, **more)
        self.servers.append(server)
        # Paths that this host does not have, as of another one
        self.driver.servers.append([*server.address, [f"/nowhere{root}" for root in roots]])
        return server

    def write(self, server: int, blocks: Blocks, run: int = 7) -> Path:
        """A map task's file at a server."""
        number = len(self.driver.at)
        root = root_of([str(self.folder / str(server) / FOLDER)], EXCHANGE, number)
        file = HeldFile(root, Sections(PARTITIONS, PARTITIONS), run, number)
        for partition, block in blocks:
            file.write(partition, np.frombuffer(block, np.uint8))
        self.described += [Description(data) for _, data in file.close(DIGEST)]
        self.driver.at.append(server)
        self.rows[number] = blocks
        return Path(root, str(run), f"{number}-{DIGEST.hex()}")

    def partition(self, number: int) -> list[bytes]:
        """What a partition has, in an order of its own."""
        return sorted(block for blocks in self.rows.values() for partition, block in blocks if partition == number)

    def of(self, number: int) -> list[Description]:
        return [each for each in self.described if each.section == number]

    def read(self, number: int, **conf: Any) -> list[bytes]:
        with Fetcher(spec(self.driver, **conf), number) as fetcher:
            return sorted(bytes(block) for block in fetcher.blocks(self.of(number)))


def some(seed: int, count: int = 40, longest: int = 40_000) -> Blocks:
    dice = random.Random(seed)
    return [(dice.randrange(PARTITIONS), dice.randbytes(8 * dice.randint(4, longest // 8))) for _ in range(count)]


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "mine"))
    monkeypatch.setattr(fetching, "_places", type(fetching._places)())
    with nothing_left():
        made = Hosts(tmp_path)
        yield made
        for server in made.servers:
            server.close()


def test_blocks_of_several_hosts(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "READ_BYTES", 50_000)
    monkeypatch.setattr(fetching, "AHEAD", 2)
    monkeypatch.setattr(file_server, "MOST_BLOCKS", 5)
    for number in range(9):
        if number < 3:
            hosts.add()
        hosts.write(number % 3, some(number))
    for number in range(PARTITIONS):
        assert hosts.read(number) == hosts.partition(number)
    assert hosts.driver.asked == 1, "once for a process and run"


def test_a_task_of_many_partitions_keeps_its_connection(hosts: Hosts) -> None:
    """Also where its function reads no further: what is left of the answer is not the next one."""
    hosts.add()
    for number in range(3):
        hosts.write(0, some(number))
    with Fetcher(spec(hosts.driver), 0) as fetcher:
        files = hosts.of(0)
        for number in (0, 1, 2, 0, 1, 2):
            read = fetcher.blocks(files, number)
            if number == 1:
                abandoned = read
                next(abandoned)  # and no more; it is still there when the next one begins
                continue
            assert sorted(map(bytes, read)) == hosts.partition(number)
        assert len(fetcher._connections) == 1


def test_this_hosts_files_are_read_without_a_server(hosts: Hosts) -> None:
    server = hosts.add()
    hosts.write(0, some(1))
    hosts.driver.servers[0][2] = [str(hosts.folder / "0" / FOLDER)]
    server.close()
    assert hosts.read(0) == hosts.partition(0)
    apart = spec(hosts.driver, dataclasses.replace(HELD, apart=True))
    with pytest.raises(HeldRowsLost, match="cannot be reached"):
        list(Fetcher(apart, 0).blocks(hosts.of(0)))


def test_readers_at_once_and_one_that_stalls(hosts: Hosts) -> None:
    hosts.add()
    large = [(0, bytes(1 << 20)) for _ in range(32)]  # more than sockets hold
    hosts.write(0, large)
    hosts.write(0, some(2))
    with Fetcher(spec(hosts.driver), 0) as stalled:
        rest = stalled.blocks(hosts.of(0))
        first = bytes(next(rest))
        found: list[Any] = []
        threads = [threading.Thread(target=lambda n=n: found.append(hosts.read(n % 3))) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(map(len, found)) == sorted(len(hosts.partition(n % 3)) for n in range(12))
        assert all(each in [hosts.partition(n) for n in range(3)] for each in found)
        assert sorted([first, *map(bytes, rest)]) == hosts.partition(0)


def test_a_reader_that_loses_its_place_goes_on_where_it_was(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_server, "MOST_READERS", 1)
    monkeypatch.setattr(file_server, "QUIET_S", 0.0)
    monkeypatch.setattr(fetching, "READ_BYTES", 1 << 20)
    server = hosts.add()
    hosts.write(0, [(0, number.to_bytes(4, "little") * (1 << 18)) for number in range(40)])
    with Fetcher(spec(hosts.driver), 0) as slow:
        rest = slow.blocks(hosts.of(0))
        found = [bytes(next(rest)) for _ in range(3)]
        for _ in range(2):
            assert hosts.read(0) == hosts.partition(0), "another reader takes its place"
            found += [bytes(next(rest)) for _ in range(5)]
        found += map(bytes, rest)
    assert sorted(found) == hosts.partition(0)
    assert len([each for each in list(server._readers) if each.admitted]) <= 1


def test_who_does_not_know_the_secret_gets_nothing(hosts: Hosts) -> None:
    server = hosts.add()
    hosts.write(0, some(1))
    wrong = dataclasses.replace(HELD, secret=b"t" * 32)
    with pytest.raises(HeldRowsLost, match="the connection has ended"):
        list(Fetcher(spec(hosts.driver, wrong), 0).blocks(hosts.of(0)))
    other = dataclasses.replace(HELD, service="held-2")  # another application's name
    with pytest.raises(HeldRowsLost, match="the connection has ended"):
        list(Fetcher(spec(hosts.driver, other), 0).blocks(hosts.of(0)))
    request = REQUEST.pack(bytes.fromhex(EXCHANGE), 7, 0, DIGEST, 0, 0)
    hello = pack({"op": "greeting", "version": 1, "nonce": "n"})
    for words in (request, hello, Proof("n", "p").encode(), pack([]), b"\xff" * 64, pack({"op": 7})):
        with socket.create_connection(server.address, timeout=30) as stranger:
            stranger.sendall(words)
            got = b""
            with contextlib.suppress(ConnectionResetError):
                while piece := stranger.recv(4096):
                    got += piece
        assert got.count(b"{") == 1, "its hello, and the end"
    assert hosts.read(0) == hosts.partition(0)


def test_a_server_that_does_not_know_the_secret_is_refused(hosts: Hosts) -> None:
    hosts.servers.append(impostor := FileServer("127.0.0.1", (0, 0), ["/"], SERVICE, SECRET))
    impostor._service = "held-3"
    wrong = spec(hosts.driver, dataclasses.replace(HELD, service="held-3"))
    connection = fetching._Connection(impostor.address, wrong)
    connection.close()
    real = file_server.proof

    def forged(secret: bytes, side: str, *about: str) -> str:
        return real(secret, "reader" if side == "server" else side, *about)  # what the reader itself has said

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(file_server, "proof", forged)
        with pytest.raises(AuthenticationError, match="does not know the application's secret"):
            fetching._Connection(impostor.address, wrong)


def test_a_flood_of_strangers_does_not_lock_readers_out(hosts: Hosts) -> None:
    server = hosts.add()
    hosts.write(0, some(1))
    assert hosts.read(0) == hosts.partition(0), "so its address is known"
    with Flood(server.address) as flood:
        while flood.renewed < FLOOD:
            time.sleep(0.01)  # polling a state that has no event
        assert hosts.read(1) == hosts.partition(1)


def test_nothing_but_held_files_is_read_or_removed(hosts: Hosts) -> None:
    server = hosts.add()
    path = hosts.write(0, some(1))
    outside = hosts.folder / "outside"
    outside.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(outside)
    with pytest.raises(HeldRowsLost, match="cannot be read: Too many levels of symbolic links"):
        hosts.read(0)
    for folder in ("..", f"{EXCHANGE}/..", f"{EXCHANGE}/../7", f"{EXCHANGE}", f"/{EXCHANGE}/7", f"{EXCHANGE}/7\n", ""):
        with pytest.raises(ProtocolError, match="no folder of held rows"):
            server.remove(folder)
    assert path.parent.exists()
    server.remove(f"{EXCHANGE}/7")
    assert not path.parent.parent.exists()
    assert outside.exists()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.unlink(), r"the file server at .* cannot be read: No such file"),
        (lambda path: os.truncate(path, 5000), "does not end as it was written"),
        (lambda path: os.truncate(path, 20), "has 20 bytes: some are missing"),
        (lambda path: path.write_bytes(path.read_bytes()[1000:]), "has another index|some are missing|behind its end"),
    ],
)
def test_a_file_that_is_gone_or_spoilt(hosts: Hosts, spoil: Callable[[Path], None], words: str) -> None:
    hosts.add()
    hosts.write(0, some(1))
    spoil(hosts.write(0, some(2)))
    with pytest.raises(HeldRowsLost, match=f"the rows of map task 1 are lost: .*({words})") as caught:
        hosts.read(0)
    assert (caught.value.run, caught.value.number) == (7, 1)
    assert hosts.driver.asked == 2, "once more, whether another attempt's file is elsewhere"


def test_a_file_that_has_moved_is_found(hosts: Hosts) -> None:
    """As of a map task that ran again, since this process has asked."""
    hosts.add()
    hosts.add()
    path = hosts.write(0, some(1))
    hosts.write(0, some(2))
    assert hosts.read(0) == hosts.partition(0)
    there = hosts.folder / "1" / path.relative_to(hosts.folder / "0")
    there.parent.mkdir(parents=True)
    path.rename(there)
    hosts.driver.at[0] = 1
    assert hosts.read(0) == hosts.partition(0)
    assert hosts.driver.asked == 2


def test_a_block_whose_bytes_have_changed_is_lost(hosts: Hosts) -> None:
    hosts.add()
    hosts.write(0, some(1))
    with Fetcher(spec(hosts.driver), 0) as fetcher:
        corrupt = BlockCorrupt("a block's bytes do not fit")
        assert fetcher.spoilt(corrupt) is corrupt, "it came through Spark"
        next(fetcher.blocks(hosts.of(0)))
        lost = fetcher.spoilt(corrupt)
    assert isinstance(lost, HeldRowsLost)
    assert "the rows of map task 0 are lost: the file server at 127.0.0.1" in str(lost)
    assert "do not fit" in str(lost)


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack("<B3xIIQ", 7, 0, 0, 0),
        struct.pack("<B3xIIQ", 0, 1 << 31, 0, 1 << 40),
        struct.pack("<B3xIIQ", 1, 0, 0, 1 << 40),
        struct.pack("<B3xIIQQ", 0, 1, 0, 8, 1 << 40),
    ],
)
def test_no_answer_makes_a_reader_allocate_what_it_says(hosts: Hosts, answer: bytes) -> None:
    hosts.add()
    hosts.write(0, some(1))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FileServer, "_answer", lambda self, reader, *about: file_server.send_all(reader.sock, answer))
        with pytest.raises(ProtocolError, match="a file server has"):
            hosts.read(0)


def test_a_firewall_is_named(hosts: Hosts) -> None:
    hosts.add().close()
    hosts.write(0, some(1))
    words = r"cannot be reached: .*spark.fastbuf.portMax \(now 41000 to 41010\), or set spark.fastbuf.fileServers=false"
    with pytest.raises(HeldRowsLost, match=words):
        hosts.read(0, port_min=41000, port_max=41010)


@pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates")
def test_tls(hosts: Hosts, tmp_path: Path) -> None:
    ours, others = authority(tmp_path, "ours"), authority(tmp_path, "others")
    near, stranger = (host(tmp_path, name, signer, "IP:127.0.0.1") for name, signer in (("a", ours), ("b", others)))
    paths = {"tls_certificate": near.certificate, "tls_key": near.key, "tls_authority": near.authority}
    hosts.add(tls=near)
    for number in range(3):
        hosts.write(0, some(number, longest=400_000))
    for number in range(PARTITIONS):
        assert hosts.read(number, **paths) == hosts.partition(number)
    other = {"tls_certificate": stranger.certificate, "tls_key": stranger.key, "tls_authority": stranger.authority}
    with pytest.raises(AuthenticationError, match="did not pass TLS's handshake"):
        hosts.read(0, **other)
    assert hosts.read(0, **paths) == hosts.partition(0)


class Executor:
    """Stands for an executor: a process whose end is the server's, with directories, and a driver."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "blockmgr-1"
        self.folder.mkdir()
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(self.folder))
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        pid = self.process.pid
        monkeypatch.setattr(file_server, "executor_process", lambda: (pid, int(file_server._stat(pid)[19])))
        self.driver = Rendezvous()
        self.driver.register_servers(SERVICE, SECRET)
        codec: Any = None
        conf = ShuffleConf()
        self.spec = ExchangeSpec(EXCHANGE, "x", PARTITIONS, conf, codec, self.driver.address, SECRET, held=HELD)

    def servers(self) -> list[psutil.Process]:
        """Its file servers."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if NAME in process.cmdline() and SERVICE in " ".join(each.path for each in process.open_files()):
                    found.append(process)
        return [each for each in found if any(str(self.folder) in file.path for file in each.open_files())]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        assert not gone(self.servers), "it ends with the executor"
        self.driver.close()


def gone(find: Callable[[], list[Any]]) -> list[Any]:
    end = time.monotonic() + 30
    while (found := find()) and time.monotonic() < end:
        time.sleep(0.05)  # it looks once a second whether its executor lives
    return found


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    with nothing_left():
        made = Executor(tmp_path, monkeypatch)
        yield made
        made.close()


def test_one_process_for_all_tasks_of_an_executor(executor: Executor) -> None:
    found: list[str] = []

    def task() -> None:
        finder = Finder(executor.spec)
        finder.start()
        found.append(finder.number())

    threads = [threading.Thread(target=task) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 6
    assert len(set(found)) == 1
    (server,) = executor.servers()
    assert server.ppid() != os.getpid(), "no child of a worker, which would have to see its end"
    assert os.getsid(server.pid) != os.getsid(0)
    files = [os.readlink(f"/proc/{server.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{server.pid}/fd")]
    others = [file for file in files if file != "/dev/null" and not file.startswith("socket:")]
    assert others == [str(executor.folder / FOLDER / f"server-{SERVICE}")], "nothing is inherited but its lock"
    assert SECRET.hex() not in " ".join(server.cmdline())
    # The driver knows it, and has it remove files
    root = executor.folder / FOLDER / EXCHANGE / "7"
    root.mkdir(parents=True)
    (about,) = executor.driver.held._servers.values()
    assert about.about.roots == (str(executor.folder / FOLDER),)
    assert about.peer is not None
    executor.driver.post(lambda: about.peer.send(Remove(f"{EXCHANGE}/7")))  # type: ignore[union-attr]
    assert not gone(lambda: list(root.parent.parent.glob(f"{EXCHANGE}")))
    executor.process.kill()
    assert not gone(lambda: [executor.folder / FOLDER] if (executor.folder / FOLDER).exists() else [])


def test_one_that_was_killed_is_followed_by_another(executor: Executor) -> None:
    finder = Finder(executor.spec)
    first = finder.number()
    (server,) = executor.servers()
    server.kill()
    psutil.wait_procs([server], 30)
    assert finder.number() != first
    (after,) = executor.servers()
    assert after.pid != server.pid


def test_it_ends_when_spark_removes_its_directories(executor: Executor) -> None:
    Finder(executor.spec).number()
    for path in sorted((executor.folder / FOLDER).iterdir()):
        path.unlink()
    (executor.folder / FOLDER).rmdir()
    assert not gone(executor.servers)


def test_one_that_cannot_start_says_why(executor: Executor) -> None:
    executor.driver.close()
    words = r"the file server of this executor could not be started: .*rendezvous at .* cannot be reached.*fileServers"
    with pytest.raises(ResourceError, match=words):
        Finder(executor.spec).number()
    assert not gone(executor.servers)

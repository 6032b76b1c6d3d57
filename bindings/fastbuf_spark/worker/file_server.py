"""The file server of an executor: a process that gives tasks on other hosts the rows which the executor's tasks hold.

::

    server -> reader   Greeting
    reader -> server   Proof
    server -> reader   Welcome
    reader -> server   REQUEST  exchange, run, map task, digest, partition, first block
    server -> reader   ANSWER   status, blocks, bytes; the length of each block (u64); the blocks

A reader may send several requests before it reads.  An answer has :data:`MOST_BLOCKS` blocks at most, and says how many
are left.  No text of a reader becomes part of a path: numbers do, and the names that they make are those of held files.

The first map task of an executor that writes a file starts the server (:class:`Finder`), in a session of its own: the
task's worker may be killed.  A file in the executor's local directory names it, which it holds a lock on while it
lives.  It ends with the executor, removes its files then, and those of a run when the driver says so.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from fastbuf.config import TlsConfig
from fastbuf.errors import FastbufError, ProtocolError, ResourceError
from fastbuf.exchange.named_thread import start_thread
from fastbuf.json_frames import same
from fastbuf.transports.addresses import host_of, listen
from fastbuf.transports.strangers import Stranger, Strangers
from fastbuf_spark.messages import Message, Unpacker
from fastbuf_spark.protocol import Remove, Serves
from fastbuf_spark.spec import ExchangeSpec
from fastbuf_spark.wire import prepare, proof
from fastbuf_spark.worker.control import Control
from fastbuf_spark.worker.held import FOLDER, Spoilt, WrittenFile, executor_directories, file_of, neighbours, root_of

VERSION = 1
REQUEST = struct.Struct("<16siI8sII")
ANSWER = struct.Struct("<B3xIIQ")  #: status, blocks, blocks left, bytes of the blocks or of a reason
OK, LOST = range(2)
LENGTH_BYTES = 8

MOST_BLOCKS = 4096  #: of an answer
SPAN_BYTES = 1 << 20  #: most bytes that one call sends
MOST_READERS = 512  #: connections at once; the one that has been quiet for the longest makes room for another
QUIET_S = 5.0  #: so long it keeps its place, whatever comes
PAUSE_S = 0.05
CLOSE_S = 0.1
PROOF_S = 10.0
PATIENCE_S = 7 * 86_400.0  #: of a connection with TLS: a reader may be slow
STACK_BYTES = 256 << 10  #: of the thread of each reader
LOOK_S = 1.0  #: interval of looking whether the executor lives
AGAIN_S = 5.0  #: interval of trying to reach the driver
START_S = 60.0
STARTS = 3  #: by one task

NAME = "fastbuf-file-server"  #: in its command line
_PROGRAM = """
import json, os, sys
job = json.load(sys.stdin.buffer)
if os.fork():
    os._exit(0)  # the worker, which may go on for hours, has no child
sys.path[:] = job["path"]
from fastbuf_spark.worker.file_server import main
main(job)
"""
_RUN = re.compile(r"[0-9a-f]{32}/-?[0-9]+")


M = TypeVar("M", bound=Message)


class FromServer(Message, speaker="a file server"):
    """What a file server says before requests."""


@dataclass(frozen=True)
class Greeting(FromServer):
    """Greets whoever connects."""

    version: int
    nonce: str


@dataclass(frozen=True)
class Welcome(FromServer):
    """The server knows the secret too."""

    proof: str


class FromReader(Message, speaker="a reader"):
    """What a reader says before requests."""


@dataclass(frozen=True)
class Proof(FromReader):
    """The reader knows the secret."""

    nonce: str
    proof: str


class Finder:
    """Finds the file server of this task's executor, and starts it if there is none.

    Parameters
    ----------
    spec
        Of an exchange whose rows are held, and served.
    """

    def __init__(self, spec: ExchangeSpec) -> None:
        assert spec.held is not None
        self._spec, self._storage = spec, spec.held
        self._path = os.path.join(executor_directories()[0], FOLDER, f"server-{spec.held.service}")

    def start(self) -> None:
        """Start the server, unless it runs or is about to."""
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(lock, 0)  # what the one before has written
                self._spawn(lock)
        finally:
            os.close(lock)  # the server has it now

    def number(self) -> str:
        """The number of the server, once it listens.

        Raises
        ------
        ResourceError
            It cannot be started.
        """
        deadline, starts, why = time.monotonic() + START_S, 0, "it did not listen in time"
        while time.monotonic() < deadline:
            lives, text = self._look()
            if lives and text.endswith("\n"):
                return str(json.loads(text)["id"])
            if not lives:
                why = text.strip() or "it ended at once"
                if starts == STARTS:
                    break
                starts += 1
                self.start()
            time.sleep(0.01)  # between two looks: it takes half a second to start
        raise ResourceError(
            f"the file server of this executor could not be started: {why}. It gives other hosts the rows of map "
            "tasks; set spark.fastbuf.fileServers=false for rows to go through Spark's shuffle"
        )

    def _look(self) -> tuple[bool, str]:
        """Whether it lives, and what it has written: where it is, or why it ended."""
        try:
            with open(self._path) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True, file.read()
                return False, file.read()
        except FileNotFoundError:
            return False, ""

    def _spawn(self, lock: int) -> None:
        tls, conf = self._spec.conf.tls(), self._spec.conf
        assert self._spec.address is not None
        job = {
            "path": [os.path.abspath(each) for each in sys.path],
            "lock": lock,
            "executor": executor_process(),
            "roots": [os.path.abspath(root) for root in self._storage.roots()],
            "folder": os.path.dirname(os.path.abspath(self._path)),
            "address": self._spec.address,
            "service": self._storage.service,
            "secret": self._storage.secret.hex(),
            "timeout": conf.connect_timeout,
            "ports": (conf.port_min, conf.port_max),
            "tls": asdict(tls) if tls else None,
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, NAME],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(lock,),
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        process.communicate(json.dumps(job).encode())


def executor_process() -> tuple[int, int]:
    """The Java process above this worker, and when it began; without one, what the worker's daemon is a child of."""
    above = [os.getppid()]
    while above[-1] > 1 and _name(above[-1]) != "java":
        above.append(int(_stat(above[-1])[1]))
    if above[-1] < 1 or _name(above[-1]) != "java":
        above = above[:2]
    return above[-1], int(_stat(above[-1])[19])


def _name(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


def _stat(pid: int) -> list[str]:
    """The process' state, its parent, ...; the twentieth is when it began."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()


def _lives(executor: tuple[int, int]) -> bool:
    try:
        state = _stat(executor[0])
    except OSError:
        return False
    return int(state[19]) == executor[1] and state[0] not in "ZX"


class _Reader(Stranger):
    """A connection."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        super().__init__(address)
        self.sock = sock
        self.admitted = False
        self.moved = time.monotonic()  #: when bytes have gone last

    def drop(self) -> None:
        """Has its thread end."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


class FileServer:
    """Serves the files below some directories, until it is closed.

    Parameters
    ----------
    host, ports
        Where it listens.
    roots
        The directories in which exchanges have folders.
    service, secret
        The name under which readers prove the secret.
    tls
        If given, every connection uses TLS.
    """

    def __init__(
        self,
        host: str,
        ports: tuple[int, int],
        roots: list[str],
        service: str,
        secret: bytes,
        tls: TlsConfig | None = None,
    ) -> None:
        from fastbuf.transports.tls import context

        self._roots, self._service, self._secret = roots, service, secret
        self._tls = None if tls is None else context(tls, server=True)
        self._listener = listen(host, ports)
        self.address: tuple[str, int] = host, int(self._listener.getsockname()[1])
        self._changed = threading.Condition()  # guards what follows; notified when a reader has gone
        self._readers: set[_Reader] = set()
        self._strangers: Strangers[_Reader] = Strangers(f"the file server at {host}:{self.address[1]}")
        self._thread = start_thread(self._accept, "fastbuf-accept")

    def close(self) -> None:
        """End all connections, and their threads."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        with self._changed:
            while self._readers:
                for each in self._readers:
                    each.drop()
                self._changed.wait(CLOSE_S)

    def remove(self, folder: str) -> None:
        """Remove the files of a run, ``exchange/run``."""
        if not _RUN.fullmatch(folder):
            raise ProtocolError(f"no folder of held rows: {folder!r:.100}")
        for root in self._roots:
            shutil.rmtree(os.path.join(root, folder), ignore_errors=True)
            with contextlib.suppress(OSError):  # there are other runs
                os.rmdir(os.path.join(root, folder.partition("/")[0]))

    def _accept(self) -> None:
        while True:
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.EBADF):  # it is closed
                    return
                time.sleep(PAUSE_S)  # no descriptor is free: those who call wait
                continue
            reader = _Reader(sock, host_of(address))
            with self._changed:
                self._readers.add(reader)
                self._strangers.next_round()
                if (loser := self._strangers.enter(reader)) is not None:
                    self._strangers.leave(loser)
                    loser.drop()
            try:
                prepare(sock)
                start_thread(self._serve, "fastbuf-reader", reader)
            except (OSError, ResourceError):  # it has gone; or there can be no thread, as of a limit on addresses
                self._leave(reader)

    def _admit(self, reader: _Reader) -> None:
        """It has proved the secret; waits for a place, at the worst for that of one that has been quiet for a while."""
        with self._changed:
            if reader not in self._strangers:
                raise ProtocolError("its place was needed")
            self._strangers.believe(reader)
            self._strangers.leave(reader)
            while len(admitted := [each for each in self._readers if each.admitted]) >= MOST_READERS:
                quiet = min(admitted, key=lambda each: each.moved)
                if time.monotonic() - quiet.moved >= QUIET_S:
                    quiet.drop()
                self._changed.wait(PAUSE_S)
            reader.admitted = True
            reader.moved = time.monotonic()

    def _leave(self, reader: _Reader) -> None:
        with self._changed:
            self._readers.discard(reader)
            self._strangers.leave(reader)
            self._changed.notify_all()
        reader.sock.close()

    def _serve(self, reader: _Reader) -> None:
        """The thread of a reader."""
        try:
            self._greet(reader)
            while data := _exactly(reader.sock, REQUEST.size, may_end=True):
                self._answer(reader, *REQUEST.unpack(data))
        except (OSError, ProtocolError):  # it has gone, or is none
            pass
        finally:
            self._leave(reader)

    def _greet(self, reader: _Reader) -> None:
        reader.sock.settimeout(PROOF_S)
        if self._tls is not None:
            from fastbuf.transports.tls import ForkSafeSocket

            reader.sock.setblocking(False)
            tls_sock = self._tls.wrap_socket(reader.sock, server_side=True, do_handshake_on_connect=False)
            assert isinstance(tls_sock, ForkSafeSocket)
            reader.sock, tls_sock.patience = tls_sock, PROOF_S
            tls_sock.do_handshake()
        nonce, unpacker = secrets.token_hex(16), Unpacker(FromReader)
        send_all(reader.sock, Greeting(VERSION, nonce).encode())
        answer = receive(reader.sock, unpacker, Proof)
        reader.heard = True
        if not same(answer.proof, proof(self._secret, "reader", nonce, answer.nonce, self._service)):
            raise ProtocolError("a reader could not prove the secret")
        self._admit(reader)
        send_all(reader.sock, Welcome(proof(self._secret, "server", nonce, answer.nonce, self._service)).encode())
        if self._tls is None:
            reader.sock.settimeout(None)
        else:
            reader.sock.patience = PATIENCE_S  # type: ignore[attr-defined]

    def _answer(
        self, reader: _Reader, exchange: bytes, run: int, number: int, digest: bytes, partition: int, first: int
    ) -> None:
        path = file_of(root_of(self._roots, exchange.hex(), number), run, number, digest)
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(WrittenFile(path))
                offsets, lengths = file.spans(partition, digest)
            except (OSError, Spoilt) as error:
                words = str(error) if isinstance(error, Spoilt) else f"cannot be read: {error.strerror}"
                reason = words.encode()
                send_all(reader.sock, ANSWER.pack(LOST, 0, 0, len(reason)) + reason)
                return
            left = max(0, len(offsets) - first - MOST_BLOCKS)
            offsets, lengths = (each[first : first + MOST_BLOCKS] for each in (offsets, lengths))
            head = ANSWER.pack(OK, len(lengths), left, sum(lengths))
            send_all(reader.sock, head + struct.pack(f"<{len(lengths)}Q", *lengths))
            for at, after in neighbours(offsets, lengths, SPAN_BYTES):
                self._send(reader, file, offsets[at], offsets[after - 1] + lengths[after - 1])

    def _send(self, reader: _Reader, file: WrittenFile, begin: int, end: int) -> None:
        """Bytes of a file, a piece at a time."""
        while begin < end:
            if self._tls is None:
                sent = os.sendfile(reader.sock.fileno(), file.fd, begin, min(SPAN_BYTES, end - begin))
            else:
                data = os.pread(file.fd, min(SPAN_BYTES, end - begin), begin)
                send_all(reader.sock, data)
                sent = len(data)
            if not sent:
                raise ProtocolError("a file has become shorter")
            begin += sent
            reader.moved = time.monotonic()


def send_all(sock: socket.socket, data: bytes) -> None:
    """All bytes; with TLS too, whose ``sendall`` knows no patience."""
    view = memoryview(data)
    while view:
        view = view[sock.send(view) :]


def receive(sock: socket.socket, unpacker: Unpacker[Any], kind: type[M]) -> M:
    """The next message, which must be of that kind; not a byte behind it is read."""
    while (message := unpacker.next()) is None:
        unpacker.feed(_exactly(sock, 1))
    if not isinstance(message, kind):
        raise ProtocolError(f"{message.op} came, not {kind.op}")
    return message


def _exactly(sock: socket.socket, length: int, may_end: bool = False) -> bytes:
    """So many bytes; none at all if the connection may end here, and does."""
    data = b""
    while len(data) < length:
        piece = sock.recv(length - len(data))
        if not piece:
            if may_end and not data:
                return b""
            raise ConnectionResetError("the connection has ended")
        data += piece
    return data


def main(job: dict[str, Any]) -> None:
    """The process."""
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.chdir("/")
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as name:
        name.write(NAME[:15])
    threading.stack_size(STACK_BYTES)
    try:
        _Process(job).run()
        for _ in range(2):  # a worker may outlive its executor for a moment
            for root in (*job["roots"], job["folder"]):
                shutil.rmtree(root, ignore_errors=True)
                with contextlib.suppress(OSError):  # others have files there
                    os.rmdir(os.path.dirname(root))
            time.sleep(LOOK_S)
    except Exception as error:
        os.pwrite(job["lock"], f"{type(error).__name__}: {error}"[:1000].encode(), 0)
    finally:
        os._exit(0)


class _Process:
    """Where the server is told to the driver and to the executor's tasks."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._id = secrets.token_hex(8)
        self._executor: tuple[int, int] = tuple(job["executor"])
        self._tried = 0.0

    def run(self) -> None:
        job = self._job
        control: Control | None = self._connected()
        assert control is not None
        tls = TlsConfig(**job["tls"]) if job["tls"] else None
        host, ports = control.local_host, tuple(job["ports"])
        server = FileServer(host, ports, job["roots"], job["service"], bytes.fromhex(job["secret"]), tls)
        self._tell(control, server)
        os.pwrite(job["lock"], (json.dumps({"id": self._id}) + "\n").encode(), 0)
        while _lives(self._executor) and os.fstat(job["lock"]).st_nlink:  # Spark has removed its directories
            try:
                if control is None:
                    time.sleep(LOOK_S)
                    control = self._again(server)
                elif isinstance(message := control.poll(LOOK_S), Remove):
                    server.remove(message.folder)
            except (FastbufError, OSError):
                if control is not None:
                    control.close()
                control = None

    def _connected(self) -> Control:
        job = self._job
        return Control(tuple(job["address"]), job["service"], bytes.fromhex(job["secret"]), job["timeout"])

    def _again(self, server: FileServer) -> Control | None:
        """Another connection to the driver, tried now and then: while the executor lives, its rows may be needed."""
        now = time.monotonic()
        if now - self._tried < AGAIN_S:
            return None
        self._tried = now
        control = self._connected()
        self._tell(control, server)
        return control

    def _tell(self, control: Control, server: FileServer) -> None:
        host, port = server.address
        control.ask(Serves(self._id, host, port, tuple(self._job["roots"])), self._job["timeout"])

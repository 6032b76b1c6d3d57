"""The reduce side's way to held rows: files of this host, and file servers of others.

Files that this host has are read first, one after the other.  Those of other hosts are fetched from one server after
the other, with some requests under way, so that a task has few connections; the servers' order is another one for each
task.  Who reads takes no more than a piece at a time: then TCP's window holds the server back.

A connection that ends is made again, and goes on where it was.  Rows that cannot be had are :class:`HeldRowsLost`.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fastbuf.errors import AuthenticationError, BlockCorrupt, ProtocolError
from fastbuf.json_frames import same
from fastbuf.transports.addresses import connect
from fastbuf_spark.messages import Unpacker
from fastbuf_spark.protocol import Files, Where
from fastbuf_spark.spec import ExchangeSpec
from fastbuf_spark.wire import prepare, proof
from fastbuf_spark.worker.file_server import (
    ANSWER,
    LENGTH_BYTES,
    LOST,
    MOST_BLOCKS,
    REQUEST,
    VERSION,
    FromServer,
    Greeting,
    Proof,
    Welcome,
    receive,
)
from fastbuf_spark.worker.held import READ_BYTES, Description, HeldRowsLost, Spoilt, WrittenFile, file_of, root_of

AHEAD = 16  #: requests under way
MOST_CONNECTIONS = 4  #: of a task that are kept for its next partition
PIECE_BYTES = 256 << 10  #: read at once with TLS
MOST_REASON = 4096  #: bytes of a reason
TRIES = 3  #: connections in a row that give nothing
KEPT_RUNS = 8  #: of which a process remembers where the files are,
KEPT_S = 30.0  #: for so long: a lost map task's file is elsewhere when it has run again

Server = tuple[str, int]


_places: OrderedDict[tuple[str, int], tuple[float, Files]] = OrderedDict()  # of this process, by exchange and run


@dataclass
class _Wanted:
    """Blocks of a file that have not come yet."""

    file: Description
    partition: int
    first: int = 0


class Fetcher:
    """Reads the blocks that descriptions tell of; closed at the end of the task.

    Parameters
    ----------
    spec
        Of the exchange.
    turn
        With which server to begin, of those in order.
    """

    def __init__(self, spec: ExchangeSpec, turn: int) -> None:
        self._spec, self._storage, self._turn = spec, spec.held, turn
        self._asked: set[int] = set()  # runs of which this task has asked once more
        self._connections: OrderedDict[Server, _Connection] = OrderedDict()  # at rest
        self._open: set[_Connection] = set()
        self._current: tuple[str, Description] | None = None  # where the last block came from

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(self, *_: object) -> None:
        for each in list(self._open):
            self._close(each)

    def blocks(self, described: Iterable[Description], partition: int | None = None) -> Iterator[Any]:
        """The blocks of a partition; without one, of sections that have one each.

        Raises
        ------
        HeldRowsLost
            A file is gone, or is another, and its server does not give it.
        """
        away: list[_Wanted] = []
        for each in described:
            if each.block is not None:
                self._current = None
                yield each.block
            elif each.with_rows:
                wanted = _Wanted(each, each.section if partition is None else partition)
                path = self._here(each)
                try:
                    file = WrittenFile(path) if path else None
                except OSError as error:
                    if not self._served:
                        raise _lost(each, path, f"cannot be opened: {error.strerror}") from error
                    file = None
                if file is None:
                    away.append(wanted)
                else:
                    yield from self._read(file, path, wanted)
        while away:
            by_server: dict[Server, list[_Wanted]] = {}
            for wanted in away:
                by_server.setdefault(self._server(wanted.file), []).append(wanted)
            servers = sorted(by_server)
            turn = self._turn % len(servers)
            away = []
            for server in servers[turn:] + servers[:turn]:
                yield from self._fetched(server, by_server[server], away)

    def _read(self, file: WrittenFile, path: str, wanted: _Wanted) -> Iterator[memoryview]:
        """Blocks of a file that this host has."""
        with file:
            try:
                for block in file.blocks(wanted.partition, wanted.file.digest):
                    self._current = path, wanted.file
                    yield block
            except (OSError, Spoilt) as error:
                why = str(error) if isinstance(error, Spoilt) else f"cannot be read: {error.strerror}"
                raise _lost(wanted.file, path, why) from error

    def spoilt(self, error: BlockCorrupt) -> Exception:
        """What to raise where the last block is corrupt: its file's loss, if it was in one."""
        return error if self._current is None else _lost(self._current[1], self._current[0], str(error))

    @property
    def _served(self) -> bool:
        return self._storage is not None and bool(self._storage.service)

    def _here(self, file: Description) -> str:
        """The path of a file if this host may have it, else nothing."""
        assert self._storage is not None
        if not self._served:
            roots = self._storage.roots()
        else:
            place = None if self._storage.apart else self._place(file)
            if place is None:
                return ""
            roots = place[1]
        return file_of(root_of(roots, self._spec.exchange, file.number), file.run, file.number, file.digest)

    def _server(self, file: Description) -> Server:
        place = self._place(file) or self._place(file, anew=True)
        if place is None:
            raise _lost(file, "no file server", "has them, as far as the driver knows")
        return place[0]

    def _place(self, file: Description, anew: bool = False) -> tuple[Server, list[str]] | None:
        """The server of a file, and its directories."""
        files = self._files(file.run, anew)
        where = files.at[file.number] if file.number < len(files.at) else -1
        if where < 0:
            return None
        host, port, roots = files.servers[where]
        return (host, port), list(roots)

    def _files(self, run: int, anew: bool = False) -> Files:
        """Where a run's files are: asked of the driver now and then by a process, and by a task that misses one."""
        key, now = (self._spec.exchange, run), time.monotonic()
        since, files = _places.get(key, (now - KEPT_S, None))
        if files is None or now - since >= KEPT_S or (anew and run not in self._asked):
            if anew:
                self._asked.add(run)
            with self._spec.connect() as control:
                files = control.ask(Where(run), self._spec.conf.stall_timeout)
            _places[key] = now, files
            while len(_places) > KEPT_RUNS:
                _places.popitem(last=False)
        return files

    def _fetched(self, server: Server, files: list[_Wanted], away: list[_Wanted]) -> Iterator[memoryview]:
        """Blocks of files that a server has; what it turns out not to have goes to ``away``, if another one has it."""
        waiting, left = deque(files), TRIES
        lost: list[tuple[_Wanted, str]] = []
        while waiting:
            asked: deque[_Wanted] = deque()  # answers come in this order
            connection = self._connections.pop(server, None)
            try:
                if connection is None:
                    self._open.add(connection := _Connection(server, self._spec))
                while waiting or asked:
                    new = [waiting.popleft() for _ in range(min(len(waiting), AHEAD - len(asked)))]
                    asked += new
                    connection.ask(bytes.fromhex(self._spec.exchange), new)
                    answer, wanted = connection.answer(), asked[0]
                    if isinstance(answer, str):
                        lost.append((asked.popleft(), answer))
                        continue
                    lengths, more = answer
                    for block in connection.blocks(lengths):
                        self._current, left = (_name(server), wanted.file), TRIES
                        wanted.first += 1
                        yield block
                    asked.popleft()
                    if more:
                        waiting.append(wanted)
                self._keep(server, connection)
                connection = None
            except (AuthenticationError, ProtocolError):
                raise
            except OSError as error:
                waiting.extendleft(reversed(asked))
                left -= 1
                if not left or isinstance(error, ConnectionRefusedError | TimeoutError):
                    lost += [(each, _words(error, self._spec)) for each in waiting]
                    waiting.clear()
            finally:  # of a function that reads no further too: the next answer would be this one's rest
                if connection is not None:
                    self._close(connection)
        for wanted, why in lost:
            self._elsewhere(server, wanted, why)
            away.append(wanted)

    def _elsewhere(self, server: Server, wanted: _Wanted, why: str) -> None:
        """Raises HeldRowsLost unless the driver knows another server of a file by now."""
        place = self._place(wanted.file, anew=True)
        if place is None or place[0] == server:
            raise _lost(wanted.file, _name(server), why)

    def _keep(self, server: Server, connection: _Connection) -> None:
        """Have a connection at rest for the task's next partition."""
        self._connections[server] = connection
        while len(self._connections) > MOST_CONNECTIONS:
            self._close(self._connections.popitem(last=False)[1])

    def _close(self, connection: _Connection) -> None:
        self._open.discard(connection)
        connection.close()


class _Connection:
    """To a file server, which has proved the secret as this end has."""

    def __init__(self, server: Server, spec: ExchangeSpec) -> None:
        conf, storage = spec.conf, spec.held
        assert storage is not None
        sock: socket.socket = connect(*server, conf.connect_timeout)
        with contextlib.ExitStack() as failing:
            failing.callback(lambda: sock.close())
            prepare(sock)
            if (tls := conf.tls()) is not None:
                from fastbuf.transports.tls import context, shake

                sock = secured = shake(context(tls, server=False), sock, server[0], _name(server))
                secured.patience = conf.stall_timeout
            else:
                sock.settimeout(conf.stall_timeout)
            unpacker = Unpacker(FromServer)
            greeting = receive(sock, unpacker, Greeting)
            if greeting.version != VERSION:
                raise ProtocolError(f"{_name(server)} is of another version of fastbuf: install one version everywhere")
            nonces = greeting.nonce, (nonce := secrets.token_hex(16)), storage.service
            sock.sendall(Proof(nonce, proof(storage.secret, "reader", *nonces)).encode())
            if not same(receive(sock, unpacker, Welcome).proof, proof(storage.secret, "server", *nonces)):
                raise AuthenticationError(f"{_name(server)} does not know the application's secret")
            failing.pop_all()
        self._sock, self._is_plain = sock, tls is None

    def ask(self, exchange: bytes, files: list[_Wanted]) -> None:
        """Ask for blocks, in this order."""
        requests = [
            REQUEST.pack(exchange, w.file.run, w.file.number, w.file.digest, w.partition, w.first) for w in files
        ]
        if requests:
            self._sock.sendall(b"".join(requests))

    def answer(self) -> tuple[list[int], int] | str:
        """Lengths of the blocks that come now, and how many are left; or why the file is lost.

        Raises
        ------
        ProtocolError
            No file server says this.
        """
        status, count, left, size = ANSWER.unpack(self._read(ANSWER.size))
        if status == LOST and size <= MOST_REASON:
            return self._read(size).decode("utf-8", "replace")
        if status or count > MOST_BLOCKS:
            raise ProtocolError(f"a file server has answered with status {status}, {count} blocks and {size} bytes")
        lengths = list(struct.unpack(f"<{count}Q", self._read(LENGTH_BYTES * count)))
        if sum(lengths) != size:
            raise ProtocolError(f"a file server has announced {size} bytes, and blocks of {sum(lengths)}")
        return lengths, left

    def blocks(self, lengths: list[int]) -> Iterator[memoryview]:
        """The blocks of these lengths, read some at a time."""
        at = 0
        while at < len(lengths):
            ends = [0]
            while at < len(lengths) and (len(ends) == 1 or ends[-1] < READ_BYTES):
                ends.append(ends[-1] + lengths[at])
                at += 1
            data = memoryview(self._read(ends[-1]))
            for begin, end in pairwise(ends):
                yield data[begin:end]

    def _read(self, length: int) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            if self._is_plain:
                read = self._sock.recv_into(view)
            else:
                read = len(piece := self._sock.recv(min(len(view), PIECE_BYTES)))
                view[:read] = piece
            if not read:
                raise ConnectionResetError("it has ended the connection")
            view = view[read:]
        return data

    def close(self) -> None:
        self._sock.close()


def _name(server: Server) -> str:
    return f"the file server at {server[0]}:{server[1]}"


def _words(error: BaseException, spec: ExchangeSpec) -> str:
    conf = spec.conf
    ports = f"{conf.port_min} to {conf.port_max}" if conf.port_max else "any"
    return (
        f"cannot be reached: {error}; executors must reach each other on the ports from spark.fastbuf.portMin to "
        f"spark.fastbuf.portMax (now {ports}), or set spark.fastbuf.fileServers=false"
    )


def _lost(file: Description, where: str, why: str) -> HeldRowsLost:
    return HeldRowsLost(where, file.run, file.number, why)

"""Idle sockets at a door of the exchange's, renewed: what an attack with the fewest means looks like."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import Any

from promises import PATIENCE_S

FLOOD = 300


class Flood:
    """Idle sockets at a door, each made anew as soon as it is closed; `says` is what each begins with."""

    def __init__(self, door: Any, says: bytes = b"", source: str | None = None) -> None:
        self.door, self.says, self.source = door, says, source
        self.renewed = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, name="flood")

    def knock(self) -> socket.socket | None:
        sock = socket.socket(socket.AF_UNIX if isinstance(self.door, str) else socket.AF_INET)
        sock.settimeout(PATIENCE_S)
        try:
            if self.source:
                sock.bind((self.source, 0))
            sock.connect(self.door)
            sock.sendall(self.says)
        except OSError:  # its place was needed before it had said so much
            sock.close()
            return None
        sock.setblocking(False)
        return sock

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            while not self.over.is_set():
                while len(selector.get_map()) < FLOOD and not self.over.is_set():
                    if (sock := self.knock()) is not None:
                        selector.register(sock, selectors.EVENT_READ)
                for key, _ in selector.select(0.05):
                    with contextlib.suppress(OSError):
                        if key.fileobj.recv(4096):  # type: ignore[union-attr]
                            continue
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                    self.renewed += 1
            for key in list(selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]

    def __enter__(self) -> Flood:
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.over.set()
        self.thread.join(2 * PATIENCE_S)
        assert not self.thread.is_alive()

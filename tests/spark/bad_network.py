"""A switch between namespaces that loses packets and hands on the others late, where the kernel has no netem.

Each namespace has a tun device; what is sent into one comes out of the one that has the packet's destination.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import os
import random
import selectors
import socket
import struct
import threading
import time

DELAY_S, LOSS = 0.02, 0.01
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN_NO_PI = 0x400454CA, 0x1001
DEVICE = "cable"


def cable(namespace: str) -> int:
    """The outer end of a new device in that namespace."""
    made: list[int] = []

    def enter() -> None:  # a thread has a network of its own, and ends in it
        inside = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(inside, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN_NO_PI))
            made.append(end)
        finally:
            os.close(inside)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    (end,) = made
    return end


class Switch:
    """Between the namespaces with these addresses, until it is closed."""

    def __init__(self, namespaces: dict[str, str]) -> None:
        self.ends = {socket.inet_aton(address): cable(name) for name, address in namespaces.items()}
        self.lost = self.passed = 0
        self.closing = False
        self.thread = threading.Thread(target=self._run, name="switch")
        self.thread.start()

    def _run(self) -> None:
        rng, order = random.Random(8), itertools.count()
        under_way: list[tuple[float, int, int, bytes]] = []
        with selectors.DefaultSelector() as ready:
            for end in self.ends.values():
                ready.register(end, selectors.EVENT_READ)
            while not self.closing:
                wait = under_way[0][0] - time.monotonic() if under_way else 0.05
                for key, _ in ready.select(max(0.0, wait)):
                    packet = os.read(key.fd, 65536)
                    to = self.ends.get(packet[16:20])  # of IPv4; what else there is has nobody to go to
                    if to is None or packet[0] >> 4 != 4:
                        continue
                    if rng.random() < LOSS:
                        self.lost += 1
                        continue
                    heapq.heappush(under_way, (time.monotonic() + DELAY_S, next(order), to, packet))
                while under_way and under_way[0][0] <= time.monotonic():
                    *_, to, packet = heapq.heappop(under_way)
                    os.write(to, packet)
                    self.passed += 1
        for end in self.ends.values():
            os.close(end)

    def close(self) -> None:
        self.closing = True
        self.thread.join(10)

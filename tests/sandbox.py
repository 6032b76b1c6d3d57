"""A sandbox as of containers and services: a seccomp filter that refuses system calls of this process from now on.

It cannot be taken off again: use it in a process of its own.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterable
from typing import NamedTuple

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NUMBERS = {  # by architecture, in the order of ARCHITECTURES
    "clock_gettime": (228, 113),
    "epoll_create1": (291, 20),
    "eventfd2": (290, 19),
    "getrandom": (318, 278),
    "getsockopt": (55, 209),
    "ioctl": (16, 29),
    "madvise": (28, 233),
    "memfd_create": (319, 279),
    "pidfd_open": (434, 434),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "setsockopt": (54, 208),
    "socket": (41, 198),
    "socketpair": (53, 199),
}
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
AT_NUMBER, AT_ARCHITECTURE, AT_ARGUMENTS = 0, 4, 16
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2


class Rule(NamedTuple):
    """A system call that is refused, if its arguments at these places have these values."""

    call: str
    arguments: dict[int, int] = {}  # noqa: RUF012  # never changed
    answer: int = errno.EPERM


def supported() -> bool:
    """Whether the numbers of this machine's system calls are known."""
    return platform.machine() in ARCHITECTURES


def _program(rules: Iterable[Rule]) -> bytes:
    machine = platform.machine()
    mine = list(ARCHITECTURES).index(machine)

    def step(code: int, k: int, otherwise: int = 0) -> bytes:
        return struct.pack("<HBBI", code, 0, otherwise, k)

    program = step(LOAD, AT_ARCHITECTURE) + step(EQUAL, ARCHITECTURES[machine], 1) + step(LOAD, AT_NUMBER)
    for rule in rules:
        end = step(RETURN, REFUSE | rule.answer)
        for place, value in reversed(rule.arguments.items()):
            end = step(LOAD, AT_ARGUMENTS + 8 * place) + step(EQUAL, value, len(end) // 8) + end
        program += step(LOAD, AT_NUMBER) + step(EQUAL, NUMBERS[rule.call][mine], len(end) // 8) + end
    return program + step(RETURN, ALLOW)


def refuse(rules: Iterable[Rule]) -> None:
    """Refuse these calls to this process and all that it starts."""
    program = _program(rules)
    code = ctypes.create_string_buffer(program)
    head = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, FILTER, ctypes.c_char_p(head), 0, 0):
        raise OSError(ctypes.get_errno(), "this kernel takes no seccomp filter")


def hide_proc() -> None:
    """An empty /proc for this process and all that it starts; OSError: this user may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, private, recursive = 0x00020000, 1 << 18, 1 << 14
    if (
        libc.unshare(new_mounts)
        or libc.mount(b"none", b"/", None, ctypes.c_ulong(private | recursive), None)
        or libc.mount(b"none", b"/proc", b"tmpfs", ctypes.c_ulong(0), None)
    ):
        raise OSError(ctypes.get_errno(), "/proc cannot be hidden")

from __future__ import annotations

import fcntl
import mmap
import os
import re
import resource
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from left_behind import nothing_left
from pages import resident

from fastbuf.errors import ConfigError, FastbufError, ResourceError, SegmentExported
from fastbuf.memory import Arena
from fastbuf.memory.limits import MemoryLimit, memory_limits, require_memory


@pytest.mark.parametrize("options", [{}, {"memfd": True}, {"prefault": True}, {"memfd": True, "prefault": True}])
def test_array(options: dict[str, bool]) -> None:
    arena = Arena(5, 192, **options)
    array = arena.array
    assert (array.shape, array.dtype, array.flags.writeable) == ((5, 192), np.uint8, True)
    assert not array.any()
    array[3] = 7
    assert arena.array[3, 191] == 7
    assert arena.nbytes == 5 * 192


def test_huge_pages_are_advice() -> None:
    arena = Arena(128, 32768, huge_pages=True, prefault=True)
    arena.array[:] = 1
    assert arena.array.sum() == 128 * 32768


def test_prefault_takes_every_page() -> None:
    assert resident(Arena(256, 32768, prefault=True).array) == 1


def test_the_array_holds_the_arena() -> None:
    array = Arena(2, 64).array
    array[1, 63] = 9
    assert array[1, 63] == 9


def test_close_is_refused_while_a_view_is_held() -> None:
    arena = Arena(2, 64)
    array = arena.array
    with pytest.raises(SegmentExported, match="1 views"):
        arena.close()
    del array
    arena.close()
    arena.close()
    assert arena.closed
    with pytest.raises(FastbufError, match="closed"):
        _ = arena.array


def test_a_memfd_is_shared_and_cannot_be_shrunk() -> None:
    arena = Arena(2, 4096, memfd=True)
    with mmap.mmap(arena.fileno(), 8192) as other:
        other[arena.array.strides[0]] = 5  # segments of a debug build lie apart
        assert arena.array[1, 0] == 5
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fileno(), 0)


def test_another_process_attaches_and_sees_the_same_memory() -> None:
    arena = Arena(3, 4096, memfd=True)
    arena.array[:] = np.arange(3, dtype=np.uint8)[:, None]
    code = """
import sys
from fastbuf.memory import Arena
arena = Arena.attach(sys.argv[1], writable=True)
assert (arena.segments, arena.segment_size, arena.nbytes) == (3, 4096, 12288)
assert arena.array.shape == (3, 4096)
assert [set(row.tolist()) for row in arena.array] == [{0}, {1}, {2}]
arena.array[2, 4095] = 77
"""
    path = f"/proc/{os.getpid()}/fd/{arena.fileno()}"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert arena.array[2, 4095] == 77


def test_attached_for_reading_only() -> None:
    arena = Arena(2, 128, memfd=True)
    other = Arena.attach(arena.fileno())
    assert other.fileno() != arena.fileno()
    assert not other.array.flags.writeable
    with pytest.raises((BufferError, TypeError)):
        struct.pack_into("B", other, 0, 1)
    arena.array[1] = 5
    assert other.array[1].tolist() == [5] * 128
    arena.close()
    assert other.array[1, 127] == 5
    other.close()
    assert other.closed


def not_an_arena(data: bytes, seal: bool = True) -> int:
    fd = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    if seal:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


def test_what_is_no_arena_is_refused(tmp_path: Path) -> None:
    arena = Arena(2, 128, memfd=True)
    whole = os.pread(arena.fileno(), 1 << 20, 0)
    (tmp_path / "copy").write_bytes(whole)
    cases = {
        "no description": b"",
        "4000 bytes, and no description": whole[:4000],
        "no description at their end": bytes(len(whole)),
    }
    with nothing_left():
        with pytest.raises(ConfigError, match="sealed"):
            Arena.attach(tmp_path / "copy")
        for message, data in cases.items():
            with pytest.raises(ConfigError, match=message):
                Arena.attach(fd := not_an_arena(data))
            os.close(fd)
        with pytest.raises(ConfigError, match="sealed"):
            Arena.attach(fd := not_an_arena(whole, seal=False))
        os.close(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            Arena.attach(1 << 20)


def test_an_altered_description_is_refused() -> None:
    # Each byte of the description altered by itself, and a file that is longer than it says.
    arena = Arena(2, 128, memfd=True)
    whole = os.pread(arena.fileno(), 1 << 20, 0)
    page = os.sysconf("SC_PAGESIZE")
    begin = len(whole) - page
    described = len(whole[begin:].rstrip(b"\0"))
    for at in range(begin, begin + described):
        data = bytearray(whole)
        data[at] ^= 0x41
        fd = not_an_arena(bytes(data))
        with pytest.raises(ConfigError, match=r"altered|no description|version"):
            Arena.attach(fd)
        os.close(fd)
    fd = not_an_arena(whole[:page] + whole)
    with pytest.raises(ConfigError, match="altered"):
        Arena.attach(fd)
    os.close(fd)


def test_attaching_looks_at_the_address_space() -> None:
    arena = Arena(1024, 32768, memfd=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), hard))
    try:
        with pytest.raises(ResourceError, match="RLIMIT_AS"):
            Arena.attach(arena.fileno())
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert Arena.attach(arena.fileno()).segments == 1024


def test_an_arena_is_made_once() -> None:
    arena = Arena(1, 64)
    with pytest.raises(FastbufError, match="once"):
        arena.__init__(2, 64)  # type: ignore[misc]
    assert arena.array.shape == (1, 64)
    with pytest.raises(FastbufError, match="closed"):
        _ = Arena.__new__(Arena).array


def test_no_memfd() -> None:
    with pytest.raises(FastbufError, match="memfd=True"):
        Arena(1, 64).fileno()


def test_closing_gives_descriptor_back() -> None:
    arena = Arena(1, 64, memfd=True)
    fd = arena.fileno()
    arena.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize(
    ("segments", "size"), [(0, 64), (-1, 64), (1, 0), (1, 63), (1, 100), (1 << 31, 64), (1, 1 << 31), (1.5, 64)]
)
def test_numbers_out_of_range(segments: int, size: int) -> None:
    with pytest.raises(ConfigError):
        Arena(segments, size)


def test_more_than_the_machine_has() -> None:
    with pytest.raises(ResourceError, match=r"segments= to at most \d+") as caught:
        Arena(1 << 30, 1 << 20)
    assert isinstance(caught.value, MemoryError)


def test_address_space_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), hard))
    try:
        with pytest.raises(ResourceError, match="RLIMIT_AS") as caught:
            Arena(4096, 32768)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    takes = re.search(r"takes (\d+) bytes", str(caught.value))
    assert takes
    assert int(takes[1]) == 4096 * Arena(1, 32768).array.strides[0]


GIB = 1 << 30


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def limits_below(tmp_path: Path) -> dict[str, MemoryLimit]:
    return {limit.name.split(" /")[0]: limit for limit in memory_limits(tmp_path / "proc", tmp_path / "sys")}


def test_control_group_version_2(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/app/worker\n")
    write(tmp_path / "sys/app/worker/memory.max", "max\n")
    write(tmp_path / "sys/app/memory.max", f"{GIB}\n")
    write(tmp_path / "sys/app/memory.current", f"{GIB // 2}\n")
    write(tmp_path / "sys/app/memory.stat", f"anon 5\ninactive_file {GIB // 4}\n")
    bound = limits_below(tmp_path)["control group limit"]
    assert (bound.limit, bound.used, bound.left) == (GIB, GIB // 4, GIB * 3 // 4)
    assert "app/memory.max" in bound.name


def test_control_group_version_1_whose_path_is_the_hosts(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/abc\n")
    write(tmp_path / "sys/memory/memory.limit_in_bytes", f"{GIB}\n")
    write(tmp_path / "sys/memory/memory.usage_in_bytes", "100\n")
    assert limits_below(tmp_path)["control group limit"].left == GIB - 100


def test_no_limit_in_version_1_is_no_bound(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "4:memory:/\n")
    write(tmp_path / "sys/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert "control group limit" not in limits_below(tmp_path)


def test_free_memory(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", "MemTotal: 2000 kB\nMemFree: 100 kB\nMemAvailable: 500 kB\n")
    assert limits_below(tmp_path)["free memory (MemAvailable)"].left == 500 * 1024


def test_nothing_to_read_is_no_bound(tmp_path: Path) -> None:
    assert [b for b in memory_limits(tmp_path / "proc", tmp_path / "sys") if b.name != "RLIMIT_AS"] == []


def test_the_error_has_figures_and_settings() -> None:
    bound = MemoryLimit("control group limit", 1000, 400, "the container's limit")
    require_memory(600, 6, 100, [bound])
    with pytest.raises(ResourceError) as caught:
        require_memory(700, 7, 100, [bound])
    for part in ("7 segments of 100", "700 bytes", "leaves 600", "1000", "400", "segments= to at most 6", "container"):
        assert part in str(caught.value)

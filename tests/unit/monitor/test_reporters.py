"""A thousand tasks tell a monitor at once: what that uses of a CPU and of memory, and that it keeps up."""

from __future__ import annotations

import resource
import threading
import time
from pathlib import Path

import monitored
import pytest
from nights import nightly

import fastbuf as fb
from fastbuf.json_frames import pack
from fastbuf.monitor import Recorder
from fastbuf.monitor.figures import MOST_BYTES
from fastbuf.monitor.local import _introduced

pytestmark = pytest.mark.timeout(120)
PROCESSES, EACH = 250, 4  #: and tasks of each: two producers and two consumers
SECONDS = 8


def cpu_s(*names: str) -> float:
    """Of threads of these names (as the kernel knows them)."""
    tasks = [task for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text().strip() in names]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Reporters:
    """Processes of an exchange, as a monitor hears them: one connection each, a message a second."""

    def __init__(self, address: fb.MonitorAddress) -> None:
        self.sockets = [_introduced(address) for _ in range(PROCESSES)]
        self.over = threading.Event()
        self.sent = 0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def message(self, process: int, second: int) -> bytes:
        """What its tasks tell: all figures grow, and consumer 7 holds up the rest."""
        told = []
        for k in range(EACH):
            number, writer = process * EACH // 2 + k // 2, k % 2 == 0
            if writer:
                waited = {"7": 0.7 * second, **{str((number + n) % 500): 0.02 * second for n in range(1, 8)}}
                figures = monitored.producer(0.0, 7)
                figures |= {"seconds": {"credit": 0.8 * second, "user": 0.2 * second}, "blocked": waited}
                gates = {} if second > 1 else {"gates": [[f"{n:064x}", ""] for n in range(PROCESSES * EACH // 2)]}
                more = gates
            else:
                busy = 0.95 if number == 7 else 0.1
                figures = monitored.consumer(0.0)
                figures |= {"seconds": {"input": (1 - busy) * second, "user": busy * second}, "records": 900 * second}
                more = {"gate": [f"{number:064x}", ""]}
            figures |= {"task": f"h/{process}/{k}", "host": "h", "cpu_s": 0.1 * second, "queued_s": 0.01 * second}
            name = {"id": f"{process}-{k}", "writer": writer, "number": number}
            told.append({**name, "stage": "source" if writer else "total", **more, "figures": figures})
        return pack(told)

    def _run(self) -> None:
        begin = time.monotonic()
        for second in range(1, SECONDS + 1):
            due = [begin + second + process / PROCESSES for process in range(PROCESSES)]
            for process, sock in enumerate(self.sockets):
                if self.over.wait(max(0.0, due[process] - time.monotonic())):
                    return
                data = self.message(process, second)
                sock.sendall(data)
                self.sent += len(data) if second > 1 else 0

    def close(self) -> None:
        self.over.set()
        self.thread.join()
        for sock in self.sockets:
            sock.close()


@nightly  # test_many_watched.py has as many, by Spark's driver
def test_a_thousand_tasks_are_heard_and_judged_in_time() -> None:
    memory = resident()
    with fb.Monitor.listen() as monitor:
        recorder = Recorder(monitor.exchanges)
        reporters = Reporters(monitor.address)
        looks: list[float] = []
        try:
            while reporters.thread.is_alive():
                begin = time.thread_time()
                recorder.look()
                looks.append(time.thread_time() - begin)
                reporters.thread.join(1.0)
            heard = cpu_s("fastbuf-collect")
            grown = (resident() - memory) / (1 << 20)
            (found,) = monitor.snapshot()
        finally:
            reporters.close()
    tasks, told = PROCESSES * EACH, reporters.sent / (SECONDS - 1)
    print(
        f"{tasks:,} tasks in {PROCESSES} processes: {told / tasks:.0f} bytes a task and second; to hear them "
        f"{heard / SECONDS:.1%} of a CPU, a look with its verdict {1000 * max(looks):.0f} ms at the most; "
        f"{grown:.0f} MiB more"
    )
    assert len(found["producers"]) == len(found["consumers"]) == tasks // 2
    assert [(r.stage, r.subtask, r.cause) for r in found["diagnosis"].roots] == [("total", 7, "user_function")]
    assert told / tasks <= MOST_BYTES
    assert heard / SECONDS < 0.5, "of a core"
    assert grown < 300

"""A child may be forked at any moment: locks that the parent's threads hold at that moment must not stop the child."""

from __future__ import annotations

import subprocess
import sys
import textwrap

PROOFS = """
    import os, select, sys, threading
    from fastbuf.transports.handshake import client_proof

    def prove():
        client_proof(b"s" * 32, b"hello", b"nonce")

    def forked(work):
        pid = os.fork()
        if pid == 0:
            work()
            os._exit(0)
        return pid

    def ends(pid):
        fd = os.pidfd_open(pid)
        ended = select.select([fd], [], [], 5)[0]
        if not ended:
            os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(fd)
        return bool(ended)

    def round():
        # OpenSSL was not used yet in this process: its first use takes its locks for long.
        threading.Thread(target=prove, daemon=True).start()
        if not all([ends(pid) for pid in [forked(prove) for _ in range(10)]]):
            os._exit(1)

    for n in range(150):
        if os.waitpid(forked(round), 0)[1] != 0:
            sys.exit(f"round {n}: a child that was forked during a proof hung in its own")
"""


def test_a_child_forked_during_a_proof_can_prove_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROOFS)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr

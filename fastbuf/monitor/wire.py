"""The protocol by which processes report to a monitor: messages, and the proof that both sides know the secret.

::

    monitor -> process   {"nonce": N1}
    process -> monitor   {"nonce": N2, "proof": P("process")}        P(side) = HMAC-SHA256(secret, side N1 N2)
    monitor -> process   {"proof": P("monitor")}
    process -> monitor   a list of tasks, once a second
"""

from __future__ import annotations

from fastbuf.fork_safe import hmac_sha256


def proof(secret: bytes, side: str, monitors_nonce: str, processes_nonce: str) -> str:
    """The proof of ``side`` ("process" or "monitor") that it knows the secret."""
    text = "|".join(("fastbuf-monitor", side, monitors_nonce, processes_nonce))
    return hmac_sha256(secret, text.encode()).hex()

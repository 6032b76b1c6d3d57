"""Calls of OpenSSL that a fork does not catch half way.

OpenSSL does not release its locks in a forked child. If a thread of the parent is inside it when another one forks, its
locks stay taken in the child, where the child's first hash or TLS handshake waits for them for ever; most likely while
OpenSSL is used for the first time, which takes milliseconds. `hmac.digest` and ``ssl`` let go of the GIL, so other
threads do fork meanwhile. Whoever calls them from a thread of fastbuf's holds :data:`openssl`, and a fork waits for it,
as for the locks of ``logging``.
"""

from __future__ import annotations

import hmac
import os
import threading

#: Held during a call of OpenSSL, which must not wait for a peer. Re-entrant: a signal's handler may fork, too.
openssl = threading.RLock()

os.register_at_fork(before=openssl.acquire, after_in_parent=openssl.release, after_in_child=openssl.release)


def hmac_sha256(key: bytes, text: bytes) -> bytes:
    """HMAC-SHA256 of `text`: 32 bytes."""
    with openssl:
        return hmac.digest(key, text, "sha256")

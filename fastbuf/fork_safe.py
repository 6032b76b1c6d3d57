"""Calls of OpenSSL that a fork does not catch half way.

A forked child inherits OpenSSL's locks as they are. If a thread of the parent is inside OpenSSL when another one forks,
its locks stay taken in the child, whose next hash, proof or TLS handshake waits for them for ever; most likely while
OpenSSL is used for the first time, which takes milliseconds. So proofs are made without letting go of the GIL, and
TLS's calls are made with :data:`openssl`, which a fork waits for, as for the locks of ``logging``.
"""

from __future__ import annotations

import hmac
import os
import threading

#: Held during a call of OpenSSL without the GIL; such a call must not wait for a peer.
openssl = threading.RLock()

os.register_at_fork(before=openssl.acquire, after_in_parent=openssl.release, after_in_child=openssl.release)


def is_in_openssl() -> bool:
    """Whether this thread holds :data:`openssl`.

    The garbage collector may run meanwhile; a finalizer that it calls must not wait for a thread that uses TLS.
    """
    return bool(openssl._is_owned())  # type: ignore[attr-defined]


def hmac_sha256(key: bytes, text: bytes) -> bytes:
    """HMAC-SHA256 of a short `text`: 32 bytes."""
    # hmac.digest, which is faster, lets go of the GIL; this does not, for fewer than 2 KiB.
    return hmac.new(key, text, "sha256").digest()

"""Which errors say that something is away for a while: a server, the network, room on a disk.  No code is wrong."""

from __future__ import annotations

import errno
import re

NUMBERS = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ECONNREFUSED),
    }
)
#: pyarrow's errors of an object store have no number, but these words of the store's client
STORE_WORDS = re.compile(
    r"AWS Error (NETWORK_CONNECTION|SLOW_DOWN|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|THROTTLING|REQUEST_TIMEOUT)"
    r"|HTTP status (429|5\d\d)"
)
MOST_CAUSES = 20  #: to look at: an error may be its own cause, again and again


class Away(OSError):
    """What was there is not there for now."""


def is_outage(error: BaseException | None) -> bool:
    """Whether the error, or one that it comes of, is a lost connection, a time that is over, or a disk that is full.

    Clients of servers have errors of their own, raised for the system's, with ``from`` or while that is handled.  One
    of Python's own that is raised there without ``from`` is a mistake of the handler.
    """
    for _ in range(MOST_CAUSES):
        if error is None:
            return False
        if isinstance(error, ConnectionError | TimeoutError | Away):
            return True
        if isinstance(error, OSError) and (error.errno in NUMBERS or STORE_WORDS.search(str(error))):
            return True
        is_clients = type(error).__module__ != "builtins" and not error.__suppress_context__
        error = error.__cause__ or (error.__context__ if is_clients else None)
    return False

"""Access control of the monitor's web server: token, cookie, ``Host`` and ``Origin``.

- The token has 256 bits.  It is in the URL after ``#``, a part that browsers do not send; the page posts it once, and
  gets a cookie that no script can read and no other site can use.  Programs send the token in a header.
- Without token or cookie the answer is 401.  Only the files of the page are free, as they contain no figures.
- A request with a ``Host`` other than the server's own is refused.  So an attacker cannot read figures by pointing a
  DNS name at this machine (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from fastbuf.errors import ConfigError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

TOKEN_BYTES = 32
LEAST_TOKEN = 32  #: least number of characters of a token
LOGIN = "/login"
MOST_BODY = 4096

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def new_token() -> str:
    """256 random bits."""
    return secrets.token_urlsafe(TOKEN_BYTES)


class Guard:
    """ASGI middleware that lets only authorized requests through.

    Parameters
    ----------
    app
        The application behind it.
    token
        At least 32 characters.
    hosts
        Allowed values of ``Host``, in lower case.
    free
        Paths that need no token.
    secure
        Whether the server uses TLS; the cookie is then sent only over TLS.
    """

    def __init__(self, app: App, token: str, hosts: Iterable[str], free: Iterable[str], secure: bool) -> None:
        if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigError(
                f"token has {len(token)} characters: it must have at least {LEAST_TOKEN}, of plain ASCII without blanks"
            )
        self._app = app
        self._token = token.encode()
        self._hosts = frozenset(hosts)
        self._free = frozenset(free)
        self._secure = secure
        # Browsers send cookies to all ports of a host, so each server needs its own cookie name
        self._name = "fastbuf_" + hashlib.sha256(self._token).hexdigest()[:12]
        self._session = secrets.token_urlsafe(TOKEN_BYTES).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it to the application."""
        if scope["type"] != "http":
            raise RuntimeError(f"the monitor serves http, not {scope['type']}")

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                names = {name for name, _ in own}
                message["headers"] = [pair for pair in message.get("headers", ()) if pair[0].lower() not in names] + own
            await send(message)

        headers = {name.lower(): value for name, value in scope["headers"]}
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if host not in self._hosts:
            await _answer(guarded, 400, {"error": "this is another server's name"})
        elif scope["path"] == LOGIN:
            await self._login(scope, headers, receive, guarded)
        elif scope["path"] in self._free or self._may(headers):
            await self._app(scope, receive, guarded)
        else:
            await _answer(guarded, 401, {"error": "the token is missing or wrong"}, [("www-authenticate", "Bearer")])

    def _may(self, headers: MutableMapping[bytes, bytes]) -> bool:
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token):
            return True
        # By hand, as Python's parser stops at the first cookie of another application that it finds odd
        cookies = dict(pair.strip().partition(b"=")[::2] for pair in headers.get(b"cookie", b"").split(b";"))
        return hmac.compare_digest(cookies.get(self._name.encode(), b""), self._session)

    async def _login(self, scope: Scope, headers: MutableMapping[bytes, bytes], receive: Receive, send: Send) -> None:
        """Give a cookie for the token; if the browser sends an ``Origin``, only to the server's own page."""
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        scheme = "https" if self._secure else "http"
        if scope["method"] != "POST":
            await _answer(send, 405 if self._may(headers) else 401, {"error": "POST the token"})
            return
        if origin and origin not in {f"{scheme}://{host}" for host in self._hosts}:
            await _answer(send, 401, {"error": "this page is another server's"})
            return
        body = b""
        more = True
        while more and len(body) <= MOST_BODY:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False) and message["type"] == "http.request"
        try:
            token = str(json.loads(body)["token"])
        except (ValueError, KeyError, TypeError, RecursionError):
            token = ""
        if not hmac.compare_digest(token.encode(), self._token):
            await _answer(send, 401, {"error": "the token is wrong"})
            return
        secure = "; Secure" if self._secure else ""
        cookie = f"{self._name}={self._session.decode()}; HttpOnly; SameSite=Strict; Path=/{secure}"
        await _answer(send, 204, None, [("set-cookie", cookie)])


async def _answer(send: Send, status: int, content: Any, headers: Iterable[tuple[str, str]] = ()) -> None:
    body = b"" if content is None else json.dumps(content).encode()
    about = [("content-type", "application/json"), ("content-length", str(len(body)))] if body else []
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(name.encode(), value.encode()) for name, value in [*about, *headers]],
        }
    )
    await send({"type": "http.response.body", "body": body})

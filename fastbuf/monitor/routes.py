"""The routes of the monitor's web server: the page, REST, the stream of snapshots, Prometheus.  All are read only."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from fastbuf.errors import ConfigError
from fastbuf.monitor import rest
from fastbuf.monitor.flamegraph import KINDS
from fastbuf.monitor.metrics import FRESH_S
from fastbuf.monitor.prometheus import CONTENT_TYPE, exposition
from fastbuf.monitor.recorder import Recorder
from fastbuf.monitor.trace import ChromeTrace

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

MOST_STREAMS = 32  #: most pages that may watch at once
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def page_files() -> dict[str, tuple[bytes, str]]:
    """The page's files by path, with their types.  They contain no figures, so they need no token."""
    files: dict[str, tuple[bytes, str]] = {}

    def walk(folder: Any, path: str) -> None:
        for item in folder.iterdir():
            if item.is_dir():
                walk(item, f"{path}{item.name}/")
            else:
                kind = _KINDS.get(os.path.splitext(item.name)[1])
                if kind is not None:
                    files[path + item.name] = (item.read_bytes(), kind + "; charset=utf-8")

    walk(resources.files("fastbuf.monitor") / "page", "/page/")
    files["/"] = files["/page/index.html"]
    return files


class Streams:
    """The pages that watch: each snapshot is encoded once and sent to all of them."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[bytes | None]] = set()

    def send(self, text: bytes | None) -> None:
        """Send to all; None: end the streams.  A slow page misses snapshots that it has not read."""
        for queue in self._queues:
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(text)

    @property
    def full(self) -> bool:
        """Whether the limit of watching pages is reached."""
        return len(self._queues) >= MOST_STREAMS

    async def watch(self, first: bytes) -> AsyncIterator[bytes]:
        """The stream of events for one page."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._queues.add(queue)
        try:
            yield b"retry: 2000\n\n" + first
            while (text := await queue.get()) is not None:
                yield text
        finally:
            self._queues.discard(queue)


def event(snapshot: dict[str, Any]) -> bytes:
    """A snapshot as a server-sent event."""
    return b"event: snapshot\ndata: " + json.dumps(snapshot, separators=(",", ":")).encode() + b"\n\n"


def application(recorder: Recorder, streams: Streams) -> Starlette:
    """The ASGI application with all routes, without access control.

    Raises
    ------
    ConfigError
        A package is not installed.
    """
    try:
        import uvicorn  # noqa: F401
        from starlette.applications import Starlette
        from starlette.responses import Response
        from starlette.routing import Route
    except ImportError as error:
        raise ConfigError("the page needs starlette and uvicorn: pip install 'fastbuf[monitor]'") from error

    files = page_files()

    async def page(request: Request) -> Response:
        body, kind = files[request.url.path]
        return Response(body, media_type=kind)

    endpoints = {**dict.fromkeys(files, page), **_rest(recorder), **_downloads(recorder), **_live(recorder, streams)}
    return Starlette(routes=[Route(path, endpoint, methods=["GET"]) for path, endpoint in endpoints.items()])


def _rest(recorder: Recorder) -> dict[str, Any]:
    """What is answered with JSON, out of the last snapshot."""
    from starlette.responses import JSONResponse

    def answers(make: Callable[..., Any]) -> Any:
        async def endpoint(request: Request) -> Response:
            try:
                return JSONResponse(make(recorder.look(FRESH_S), request.query_params, **request.path_params))
            except rest.Unknown as error:
                return JSONResponse({"errors": [str(error)]}, status_code=404)

        return endpoint

    def flames(look: Any, query: Mapping[str, str], job: str, vertex: str) -> Any:
        kind, subtask = query.get("type", "full").lower(), query.get("subtaskindex")
        if kind not in KINDS:
            raise rest.Unknown(f"type={kind} is unknown: use {', '.join(KINDS)}")
        if subtask is not None and not subtask.isdecimal():
            raise rest.Unknown(f"subtaskindex={subtask} must be a number")
        return rest.flames(look, recorder.exchanges, job, vertex, kind, None if subtask is None else int(subtask))

    def metrics(look: Any, query: Mapping[str, str], job: str, vertex: str) -> Any:
        return rest.subtask_metrics(look, job, vertex, query.get("get"), query.get("agg"), query.get("subtasks"))

    def moment(look: Any, query: Mapping[str, str]) -> Any:
        try:
            snapshot = recorder.history.at(float(query["at"]))
        except (KeyError, ValueError) as error:
            raise rest.Unknown("give the moment as at=SECONDS since 1970") from error
        if snapshot is None:
            raise rest.Unknown("the history is still empty")
        return snapshot

    of_vertex = "/jobs/{job}/vertices/{vertex}"
    return {
        "/snapshot": answers(lambda look, query: look),
        "/streams": answers(lambda look, query: look["queries"]),
        "/jobs": answers(lambda look, query: rest.jobs(look)),
        "/jobs/overview": answers(lambda look, query: rest.overview(look)),
        "/jobs/{job}": answers(lambda look, query, job: rest.details(look, job)),
        "/jobs/{job}/diagnosis": answers(lambda look, query, job: rest.diagnosis(look, job)),
        "/jobs/{job}/history": answers(lambda look, query, job: recorder.history.line(job)),
        f"{of_vertex}/backpressure": answers(lambda look, query, job, vertex: rest.backpressure(look, job, vertex)),
        f"{of_vertex}/flamegraph": answers(flames),
        f"{of_vertex}/subtasks/metrics": answers(metrics),
        "/history/moment": answers(moment),
    }


def _downloads(recorder: Recorder) -> dict[str, Any]:
    """Files that may cover hours: other requests get a turn after each moment."""
    from starlette.responses import JSONResponse, StreamingResponse

    async def history(request: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            for piece in recorder.history.pieces(recorder.running):
                yield piece
                await asyncio.sleep(0)

        return StreamingResponse(pieces(), media_type="application/json", headers=_as_file("fastbuf-history.json"))

    async def trace(request: Request) -> Response:
        chrome_trace = ChromeTrace()
        for moment in recorder.history.moments():
            chrome_trace.add(moment)
            await asyncio.sleep(0)
        return JSONResponse(chrome_trace.to_json(), headers=_as_file("fastbuf-trace.json"))

    return {"/history": history, "/history/trace": trace}


def _live(recorder: Recorder, streams: Streams) -> dict[str, Any]:
    """Snapshots as they come, and Prometheus."""
    from starlette.responses import JSONResponse, Response, StreamingResponse

    async def events(request: Request) -> Response:
        if streams.full:
            return JSONResponse({"errors": [f"{MOST_STREAMS} pages, the limit, are watching"]}, status_code=503)
        return StreamingResponse(streams.watch(event(recorder.look(FRESH_S))), media_type="text/event-stream")

    async def prometheus(request: Request) -> Response:
        return Response(exposition(recorder), media_type=CONTENT_TYPE)

    return {"/events": events, "/metrics": prometheus}


def _as_file(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}

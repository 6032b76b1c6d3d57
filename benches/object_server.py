"""A small S3 server for benches: objects are files, and each answer begins after a given latency.

``tests/spark/object_store.py`` has the server that tests use, which knows far more of S3 and takes longer for each
request than a store does.  Of S3 this one knows what clients ask that read, write, copy, list and delete objects; it
believes every signature.

    python benches/object_server.py DIRECTORY LATENCY_S      prints its address; ends with its standard input
"""

from __future__ import annotations

import email.utils
import hashlib
import io
import itertools
import os
import shutil
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

CHUNK = 1 << 20
MOST_LISTED = 1000


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, latency_s: float) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.latency_s = folder, latency_s
        self.numbers = itertools.count()
        self.commits = threading.Lock()  #: what may be there already is looked at and made in one step

    def path(self, bucket: str, key: str) -> Path:
        """A file for each object; a key may end with a slash, and may begin like another one and a slash."""
        return self.folder / bucket / urllib.parse.quote(key, safe="")


class Chunks(io.RawIOBase):
    """What stands in chunks, each behind a line with its size."""

    def __init__(self, source: Any) -> None:
        self._source, self._left = source, -1

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        if self._left == -2:
            return 0
        if self._left <= 0:
            if self._left == 0:
                self._source.readline()
            line = self._source.readline()
            self._left = int(line.split(b";")[0] or b"0", 16)
            if not self._left:
                while self._source.readline().strip():
                    pass  # checksums
                self._left = -2
                return 0
        data = self._source.read(min(self._left, len(target)))
        if not data:
            raise ConnectionError("the client has gone")
        target[: len(data)] = data
        self._left -= len(data)
        return len(data)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def setup(self) -> None:
        super().setup()
        self.draft = self.server.folder / f"draft-{next(self.server.numbers)}"

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        parts = urllib.parse.urlsplit(self.path)
        self.asked = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        self.bucket, _, self.key = urllib.parse.unquote(parts.path).lstrip("/").partition("/")
        self.object = self.server.path(self.bucket, self.key)
        return True

    def do_HEAD(self) -> None:
        self._give(whole=False)

    def do_GET(self) -> None:
        if not self.key:
            self._list()
        else:
            self._give(whole=True)

    def do_PUT(self) -> None:
        if not self.key:
            (self.server.folder / self.bucket).mkdir(exist_ok=True)
            self._answer(200)
        elif source := self.headers.get("x-amz-copy-source"):
            bucket, _, key = urllib.parse.unquote(source).lstrip("/").partition("/")
            shutil.copyfile(self.server.path(bucket, key), self.draft)
            os.replace(self.draft, self.object)
            self._answer(200, f"<CopyObjectResult><ETag>{_tag(self.object)}</ETag></CopyObjectResult>")
        else:
            self._receive()

    def do_POST(self) -> None:
        body = self._body()
        if "delete" in self.asked:
            for key in ElementTree.fromstring(body).iterfind(".//{*}Key"):
                self.server.path(self.bucket, key.text or "").unlink(missing_ok=True)
            self._answer(200, "<DeleteResult/>")
        elif "uploads" in self.asked:
            upload = f"upload-{next(self.server.numbers)}"
            (self.server.folder / upload).mkdir()
            self._answer(
                200,
                f"<InitiateMultipartUploadResult><Bucket>{escape(self.bucket)}</Bucket><Key>{escape(self.key)}</Key>"
                f"<UploadId>{upload}</UploadId></InitiateMultipartUploadResult>",
            )
        else:
            parts = self.server.folder / self.asked["uploadId"]
            with self.draft.open("wb") as whole:
                for number in ElementTree.fromstring(body).iterfind(".//{*}PartNumber"):
                    with (parts / str(number.text)).open("rb") as part:
                        shutil.copyfileobj(part, whole, CHUNK)
            self._make(lambda: shutil.rmtree(parts))

    def do_DELETE(self) -> None:
        if upload := self.asked.get("uploadId"):
            shutil.rmtree(self.server.folder / upload, ignore_errors=True)
        else:
            self.object.unlink(missing_ok=True)
        self._answer(204)

    def _give(self, whole: bool) -> None:
        if not self.key:
            self._answer(200 if (self.server.folder / self.bucket).is_dir() else 404)
            return
        try:
            file = self.object.open("rb")
        except FileNotFoundError:
            self._answer(404, "<Error><Code>NoSuchKey</Code></Error>")
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            first, last = 0, size - 1
            if asked := self.headers.get("Range"):
                begin, _, end = asked.removeprefix("bytes=").partition("-")
                first, last = (int(begin), min(int(end or last), last)) if begin else (max(0, size - int(end)), last)
            if asked and first >= size:
                self._answer(416, "<Error><Code>InvalidRange</Code></Error>")
                return
            time.sleep(self.server.latency_s)  # as long as a store takes to answer
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.send_header("Content-Length", str(last - first + 1))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", _tag(self.object))
            self.send_header("Last-Modified", email.utils.formatdate(os.fstat(file.fileno()).st_mtime, usegmt=True))
            self.end_headers()
            if whole and last >= first:
                self.connection.sendfile(file, first, last - first + 1)

    def _list(self) -> None:
        prefix, delimiter = self.asked.get("prefix", ""), self.asked.get("delimiter", "")
        after = self.asked.get("continuation-token") or self.asked.get("start-after", "")
        entries: dict[str, str] = {}
        for path in (self.server.folder / self.bucket).iterdir():
            key = urllib.parse.unquote(path.name)
            if not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                name = prefix + rest[: rest.index(delimiter) + 1]
                entries[name] = f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            else:
                try:
                    about = path.stat()
                except FileNotFoundError:  # deleted meanwhile
                    continue
                when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(about.st_mtime))
                entries[key] = (
                    f"<Contents><Key>{escape(key)}</Key><LastModified>{when}</LastModified><ETag>{_tag(path)}</ETag>"
                    f"<Size>{about.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
                )
        names = sorted(name for name in entries if name > after)
        most = int(self.asked.get("max-keys", MOST_LISTED))
        more = f"<NextContinuationToken>{escape(names[most - 1])}</NextContinuationToken>" if len(names) > most else ""
        self._answer(
            200,
            f"<ListBucketResult><Name>{escape(self.bucket)}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{min(most, len(names))}</KeyCount><MaxKeys>{most}</MaxKeys>"
            f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>{more}"
            + "".join(entries[name] for name in names[:most])
            + "</ListBucketResult>",
        )

    def _receive(self) -> None:
        with self.draft.open("wb") as file:
            self._copy(file)
        if part := self.asked.get("partNumber"):
            target = self.server.folder / self.asked["uploadId"] / part
            os.replace(self.draft, target)
            self._answer(200, tag=_tag(target))
        else:
            self._make()

    def _make(self, then: Any = None) -> None:
        """Make the draft the object; with ``If-None-Match`` only if there is none yet."""
        with self.server.commits:
            if self.headers.get("If-None-Match") and self.object.exists():
                self.draft.unlink()
                self._answer(412, "<Error><Code>PreconditionFailed</Code></Error>")
                return
            os.replace(self.draft, self.object)
        tag = _tag(self.object)
        if then is None:
            self._answer(200, tag=tag)
        else:
            then()
            result = f"<CompleteMultipartUploadResult><Key>{escape(self.key)}</Key><ETag>{tag}</ETag>"
            self._answer(200, f"{result}</CompleteMultipartUploadResult>", tag=tag)

    def _body(self) -> bytes:
        body = io.BytesIO()
        self._copy(body)
        return body.getvalue()

    def _copy(self, target: IO[bytes]) -> None:
        """The body of a request: as it is, in chunks of HTTP, in chunks of S3's clients, or in these within those."""
        chunked, signed = (
            "chunked" in self.headers.get(name, "") for name in ("Transfer-Encoding", "Content-Encoding")
        )
        if not chunked and not signed:
            size = int(self.headers.get("Content-Length") or 0)
            while size:
                data = self.rfile.read(min(size, CHUNK))
                if not data:
                    raise ConnectionError("the client has gone")
                target.write(data)
                size -= len(data)
            return
        outer = io.BufferedReader(Chunks(self.rfile), CHUNK)
        shutil.copyfileobj(io.BufferedReader(Chunks(outer), CHUNK) if chunked and signed else outer, target, CHUNK)
        outer.read()  # its own end, behind that of the chunks in it

    def _answer(self, status: int, xml: str = "", tag: str = "") -> None:
        time.sleep(self.server.latency_s)  # as long as a store takes to answer
        self.send_response(status)
        body = f'<?xml version="1.0" encoding="UTF-8"?>{xml}'.encode() if xml else b""
        self.send_header("Content-Length", str(len(body)))
        if body:
            self.send_header("Content-Type", "application/xml")
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


def _tag(path: Path) -> str:
    about = path.stat()
    return f'"{hashlib.md5(f"{about.st_ino} {about.st_mtime_ns} {about.st_size}".encode()).hexdigest()}"'


if __name__ == "__main__":
    with Server(Path(sys.argv[1]), float(sys.argv[2])) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"127.0.0.1:{server.server_address[1]}", flush=True)
        sys.stdin.read()
